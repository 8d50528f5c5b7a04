"""What the client did about failures: how soon it came back, how much its retries added, and whether they came together.

Rule: attempts of the steady stage, each after those of the same call: the same leg of the same request. Times are one
worker's own, so no clock is between them; only synchrony counts the retries of all workers, by the second.

    violation      an attempt sent before a 429 of the same call, that had come back by then, said: t_429 + retry-after
    margin         how much earlier than that it was; of an attempt that came in time, negative
    amplification  A = tries / calls, a try being a first attempt or a retry. If each try failed with probability f and m
                   retries were made at most, A = (1 - f^(m+1)) / (1 - f)
    synchrony      variance / mean of retries a second, from the first to the last: 1 if they came by chance
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.sections.rate_limits.limit_kinds import refused
from tailgauge_analysis.stats import bootstrap
from tailgauge_analysis.stats.quantiles import Floats, Ints, rank
from tailgauge_analysis.stats.shares import portion
from tailgauge_analysis.text.json_values import Json, table

EDGES_S = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # of the histogram of early margins
FEWEST = 10  # retries, to speak of their synchrony
TRIES = (schema.PRIMARY, schema.RETRY)
FAILED = (
    schema.RATE_LIMITED, schema.OVERLOADED, schema.SERVER_ERROR, schema.CONNECT_ERROR, schema.TIMEOUT,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """What 429s asked for, and who kept to it."""

    refused: int
    with_header: int
    share: float | None
    low: float | None
    high: float | None
    asked_p50_s: float | None
    asked_max_s: float | None
    followed: int  # attempts after a 429 of the same call that named a time
    violations: int
    violation_share: float | None
    violation_low: float | None
    violation_high: float | None
    early_p50_s: float | None
    early_max_s: float | None
    early_counts: Ints  # by EDGES_S, the last open


@dataclass(frozen=True, slots=True)
class Amplification:
    """Tries a call of one traffic table; the prediction is None with a reason."""

    traffic: str
    calls: int
    tries: int
    observed: float
    low: float
    high: float
    failed_share: float
    most_retries: int | None
    predicted: float | None
    predicted_low: float | None
    predicted_high: float | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Synchrony:
    """Index of dispersion of retries at one second."""

    retries: int
    seconds: int
    index: float | None
    low: float | None
    high: float | None
    why: str | None


def retry_after(attempts: pd.DataFrame) -> RetryAfter:
    """Compliance, over attempts in order of sending."""
    said = attempts[refused(attempts)]
    asked = np.sort(said["retry_after_s"].dropna().to_numpy(np.float64))
    n, k = len(said), len(asked)
    named = portion(said["retry_after_s"].notna().to_numpy(np.bool_))
    early = early_s(attempts)
    wrong = np.sort(early[early > 0])
    kept = portion(early > 0)
    counts = np.histogram(wrong, [*EDGES_S, np.inf])[0] if len(wrong) else np.zeros(len(EDGES_S), np.int64)
    return RetryAfter(
        n, k, named.value, named.low, named.high,
        float(asked[rank(k, 0.5) - 1]) if k else None, float(asked[-1]) if k else None,
        kept.n, kept.k, kept.value, kept.low, kept.high,
        float(wrong[rank(len(wrong), 0.5) - 1]) if len(wrong) else None,
        float(wrong[-1]) if len(wrong) else None, counts.astype(np.int64),
    )  # fmt: skip


def early_s(attempts: pd.DataFrame) -> Floats:
    """Seconds by which each attempt came before the time that an earlier 429 of its call named; only attempts that had one.

    Both kinds of events in one line by call and time: after a 429 the latest time named so far holds.
    """
    came = attempts["headers_at_ns"].fillna(attempts["ended_at_ns"])
    says = refused(attempts) & attempts["retry_after_s"].notna().to_numpy(np.bool_) & came.notna().to_numpy()
    sent = attempts[attempts["sent_at_ns"].notna()]
    keys = ["request_id", "leg"]
    until_ns = came[says] + attempts.loc[says, "retry_after_s"] * 1e9
    after = attempts.loc[says, "attempt"] + 0.5  # its own sending is before it, even in the same moment
    named = attempts.loc[says, keys].assign(at=came[says], until=until_ns, turn=after, sent=False)
    line = pd.concat([
        named, sent[keys].assign(at=sent["sent_at_ns"], until=np.nan, turn=sent["attempt"], sent=True)
    ])  # fmt: skip
    line = line[line["request_id"].isin(named["request_id"])]
    line = line.sort_values([*keys, "at", "turn"], kind="stable")
    until = line.groupby(keys)["until"].cummax().groupby([line[key] for key in keys]).ffill()
    late = ((until - line["at"]) / 1e9)[line["sent"] & until.notna()]
    return late.to_numpy(np.float64)


def amplification(attempts: pd.DataFrame, scenario: Json) -> tuple[Amplification, ...]:
    """Of every traffic table that retries; in order of their names."""
    tries = attempts[attempts["cause"].isin(TRIES)]
    out = []
    for name, rows in tries.groupby("traffic", observed=True):
        first = rows["cause"] == schema.PRIMARY
        calls = int(first.sum())
        if not calls or first.all():
            continue
        order = rows.sort_values(["scheduled_at_ns", "request_id"], kind="stable")
        by_request = (
            (order["cause"] == schema.PRIMARY).groupby(order["request_id"], sort=False).agg(["size", "sum"])
        )
        tried, called = (by_request[key].to_numpy(np.float64) for key in ("size", "sum"))
        low, high = bootstrap.ratio(tried, called)
        failed = portion(rows["ended"].isin(FAILED).to_numpy(np.bool_))
        f, f_low, f_high = failed.value or 0.0, failed.low or 0.0, failed.high or 0.0
        most = _most_retries(scenario, str(name))
        why = None if most is not None else "the scenario names no retry policy for it"
        of_f, of_low, of_high = (None if most is None else expected(v, most) for v in (f, f_low, f_high))
        out.append(
            Amplification(
                str(name), calls, len(rows), len(rows) / calls, low, high, f, most, of_f, of_low, of_high, why
            )
        )
    return tuple(out)


def expected(f: float, most: int) -> float:
    """Tries a call, if each fails with probability f and `most` retries are made at most."""
    return float(most + 1) if f >= 1 else (1 - f ** (most + 1)) / (1 - f)


def _most_retries(scenario: Json, name: str) -> int | None:
    retry = table(table(table(scenario, "traffic"), name), "retry")
    most = retry.get("max_retries")
    return most if isinstance(most, int) and retry.get("policy") not in {None, "none"} else None


def synchrony(attempts: pd.DataFrame) -> Synchrony:
    """Whether retries come together."""
    sent = attempts.loc[attempts["cause"] == schema.RETRY, "sent_at_ns"].dropna().to_numpy(np.float64) / 1e9
    if len(sent) < FEWEST:
        return Synchrony(len(sent), 0, None, None, None, f"fewer than {FEWEST} retries")
    counts = np.bincount((sent - sent.min()).astype(np.int64)).astype(np.float64)
    n = len(counts)
    if n < FEWEST:
        return Synchrony(len(sent), n, None, None, None, f"retries in fewer than {FEWEST} seconds")
    squares = np.square(counts - counts.mean()) * n / (n - 1)
    low, high = bootstrap.ratio(squares, counts)
    return Synchrony(len(sent), n, float(squares.sum() / counts.sum()), low, high, None)
