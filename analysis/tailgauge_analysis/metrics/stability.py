"""Stability: was the steady stage a steady state of the target?

Judged where the offered load does not change on purpose, from the wait of each request for what its user waits for: the
first content, a fan-out's join, a batch. A request that failed waits forever, one that was abandoned as long as its user
did, so a target that stops answering is not stable. What is found is a finding about the target, not a fault of the
measurement; only a warm-up that reaches into the stage is the latter (verdict/checks.py).

Also here: throughput, what arrived, began and ended within the steady stage, each by its own time, over the stage's length.

A request of the warm-up that ends in the stage is work that the target did in it; a request of the stage that ends after
it is not. The interval of a rate is of the rate that goes on for ever: the stage is cut into equal windows, and stretches of
them are drawn again (stats/bootstrap.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import ONE_ANSWER, whole_at_ns
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats import stationarity
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.stats.stationarity import Growth, Stretch, differs_at
from tailgauge_analysis.text.formatting import clock, count, figures, ms, percentile, sentence, share
from tailgauge_analysis.text.json_values import number, one_of, table
from tailgauge_analysis.text.quantile import UNPUBLISHED

WINDOWS = 200
FEWEST_EVENTS = 20  # for an interval


@dataclass(frozen=True, slots=True)
class Rate:
    """Per second, with its 95% interval; without one where too few events came."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Work:
    """What was done within a stage, as `amounts` that came evenly between two times, and of which request each was."""

    seconds: float
    amounts: Floats
    begun_s: Floats
    ended_s: Floats
    of: Ints

    def rate(self, requests: Ints | None = None) -> Rate:
        """The rate of some requests, or of all."""
        mine = np.ones(len(self.of), np.bool_) if requests is None else np.isin(self.of, requests)
        mine &= (self.amounts > 0) & np.isfinite(self.begun_s + self.ended_s)
        amounts, begun, ended, n = self.amounts[mine], self.begun_s[mine], self.ended_s[mine], int(mine.sum())
        value = float(amounts.sum()) / self.seconds
        if n < FEWEST_EVENTS:
            return Rate(value, None, None, n)
        edges = np.linspace(0.0, self.seconds, WINDOWS + 1)
        low, high = ratio(_between(edges, amounts, begun, ended), np.diff(edges))
        one = float(amounts.mean()) / self.seconds  # one more or one less, however even the rate
        return Rate(value, max(0.0, min(low, value - one)), max(high, value + one), n)


def _between(edges: Floats, amounts: Floats, begun: Floats, ended: Floats) -> Floats:
    """How much came between each two edges."""
    at_once = ended <= begun
    came = np.histogram(ended[at_once], edges, weights=amounts[at_once])[0]
    begun, ended, amounts = begun[~at_once], ended[~at_once], amounts[~at_once]
    if len(amounts):
        came = came + np.diff(np.interp(edges, *received(begun, ended, amounts)))
    between: Floats = np.maximum(came, 0.0)
    return between


def received(begun: Floats, ended: Floats, amounts: Floats) -> tuple[Floats, Floats]:
    """Times, and what had come by then of amounts that come evenly: a line whose slope changes where one begins or ends."""
    at = np.concatenate((begun, ended))
    slopes = np.concatenate((amounts / (ended - begun), -amounts / (ended - begun)))
    order = np.argsort(at, kind="stable")
    at, slope = at[order], np.cumsum(slopes[order])
    return at, np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(at))))


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates of the steady stage; None without one, and where no answer began at a known time or had a known number of tokens."""

    offered_per_s: float | None = None
    accepted_per_s: float | None = None
    completed_per_s: float | None = None
    output_tokens_per_s: float | None = None
    requests: Work | None = field(default=None, metadata=UNPUBLISHED)
    tokens: Work | None = field(default=None, metadata=UNPUBLISHED)


def throughput(frames: Frames, stage: Steady) -> Throughput:
    """Measure the rates of a run whose chunks still have their arrivals."""
    if not stage.seconds:
        return Throughput()
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates("request_id")
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    began = attempts["headers_at_ns"].fillna(attempts["first_content_at_ns"])[attempts["status"] < 300]
    first = began.groupby(attempts["request_id"]).min().dropna()
    done = requests[requests["ended"].isin(schema.COMPLETE) & stage.holds(requests["ended_at_ns"])]
    ended_s = done["ended_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    ids, tokens = done["request_id"].to_numpy(np.int64), _tokens(frames, attempts, stage)
    return Throughput(
        len(stage.requests) / stage.seconds,
        float(stage.holds(first).sum()) / stage.seconds if len(first) else None,
        len(done) / stage.seconds,
        float(tokens.amounts.sum()) / stage.seconds if tokens is not None else None,
        Work(stage.seconds, np.ones(len(done)), ended_s, ended_s, ids),
        tokens,
    )


def _tokens(frames: Frames, attempts: pd.DataFrame, stage: Steady) -> Work | None:
    """Output tokens that arrived in the stage: an attempt's tokens arrive evenly over its chunks.

    The usage of an attempt without a complete answer is not its last word: it counts the run's mean of tokens per chunk.
    So does one whose count is unknown, or beyond what was requested.
    """
    chunks = frames.chunks
    places = chunks.places(*(attempts[name].to_numpy(np.int64) for name in ("request_id", "leg", "attempt")))
    streamed, last = places >= 0, whole_at_ns(attempts)
    at_once = stage.holds(last)  # the result of a job, or an answer whose chunks were not kept
    inside = chunks.within(stage.from_s * 1e9, stage.to_s * 1e9)
    within = np.where(streamed, np.append(inside, 0)[places], at_once)
    sizes = np.where(streamed, np.append(chunks.sizes, 0)[places], 1.0)
    tokens = attempts["output_tokens"].where(attempts["ended"].isin(schema.COMPLETE)).to_numpy(np.float64)
    if np.isnan(tokens).all():
        return None
    known = streamed & ~np.isnan(tokens)
    per_chunk = float(tokens[known].sum() / sizes[known].sum()) if known.any() else 0.0
    each: Floats = np.where(np.isnan(tokens), per_chunk * sizes * streamed, tokens)
    ends = (attempts["first_content_at_ns"].where(streamed, last), last)
    begun_s, ended_s = (
        (at.to_numpy(np.float64) / 1e9 - stage.from_s).clip(0.0, stage.seconds) for at in ends
    )
    ids = attempts["request_id"].to_numpy(np.int64)
    return Work(stage.seconds, each * within / sizes, begun_s, ended_s, ids)


# --- stability ----------------------------------------------------------------------------------------------------

EVEN = ("constant", "poisson", "gamma", "weibull", "closed")  # processes whose rate does not change
FEWEST_S, FEWEST, FEWEST_FOR_GROWTH = 10.0, 200, 50  # seconds and requests
FEWEST_PILED, PILES = (
    20,
    0.78,
)  # requests; of the pairs of tenths of their waits, those that rise less those that fall
FILLING, FILLING_SHARE = 20, 0.01  # requests at the start, whose answers show when the target is full
LEAST_GROWTH = 0.02  # of the offered rate: less is a slower answer rather than a backlog
IN_PARTS = 0.05  # the same where it is measured in pieces of the run, which begin and end anywhere in a wave
TURNS = 5.0  # per user
BACKLOG, TREND, CHANGE, WARMUP = "backlog", "trend", "change", "warm-up"
DEPENDS = "Percentiles depend on the length of the run."


@dataclass(frozen=True, slots=True)
class Finding:
    """What was not steady, and when."""

    kind: Annotated[str, one_of(BACKLOG, TREND, CHANGE, WARMUP)]
    from_s: float
    to_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether the stage was steady; None: not judged. Growth is of requests in flight, in an open loop; turns are per user, in a
    closed one.
    """

    stable: bool | None
    findings: tuple[Finding, ...]
    growth_per_s: float | None
    detectable_growth_per_s: float | None
    turns: float | None
    sentence: str

    def of(self, kind: str) -> Finding | None:
        """The finding of a kind."""
        return next((one for one in self.findings if one.kind == kind), None)


def stability(frames: Frames, of_target: Steady, rates: Throughput) -> Stability:
    """Judge a run."""
    arrival, stage = table(frames.run["scenario"], "arrival"), of_target
    why = _not_judged(frames, of_target)
    grows = _growth(frames, of_target) if frames.run["arrival"] == "open" else None
    users = number(table(arrival, "closed").get("users")) if arrival.get("process") == "closed" else None
    turns = (rates.completed_per_s or 0.0) * stage.seconds / users if users else None
    found: list[Finding] = []
    piled = None if grows else _piled_per_s(frames, of_target)
    least = LEAST_GROWTH * (rates.offered_per_s or 0.0)
    rises = grows and grows.rises and grows.per_s > least and _is_even(frames)
    per_s = grows.per_s if grows else piled
    if per_s is not None and (rises or piled):
        text = f"The target does not sustain this rate: backlog grows by {figures(per_s)} requests/s."
        found = [Finding(BACKLOG, stage.from_s, stage.to_s, text)]
    elif not why:
        found = _changes(of_target, grows)
    seen = ""
    if grows and not found:
        seen = f" A backlog that grows by {figures(max(least, grows.detectable_per_s))} requests/s or more would be detected."
    summary = " ".join(one.text for one in found) or (why or "The steady stage shows no change.") + seen
    detectable = max(least, grows.detectable_per_s) if grows else None
    stable = False if found else None if why else True
    return Stability(stable, tuple(found), per_s, detectable, turns, summary)


def remarks(found: Stability, seconds: float) -> list[str]:
    """What a reader of percentiles must know of it."""
    texts = [one.text for one in found.findings if one.kind != WARMUP]
    texts = [" ".join([*texts, DEPENDS])] if texts else []
    if found.turns is not None and found.turns < TURNS:
        held = f"The steady stage holds {figures(found.turns)} turns per user, {TURNS:g} are needed."
        needed = f" Run at least {count(math.ceil(seconds * TURNS / found.turns))} s." if found.turns else ""
        texts.append(held + needed)
    return texts


def waits_ms(of_target: Steady) -> Floats:
    """The wait of each request, in order of arrival; +inf without an answer. Those that the client dropped are left out."""
    requests = of_target.requests[of_target.requests["ended"] != schema.CLIENT_DROP]
    seen = of_target.attempts.groupby("request_id")["first_content_at_ns"].min()
    left = requests["request_id"].map(seen).where(requests["ended"] == schema.CANCELLED)
    until = requests["first_at_ns"].fillna(requests["joined_at_ns"]).fillna(left)
    until = until.fillna(requests["ended_at_ns"])
    until = until.where(requests["ended"].isin(schema.NOT_FAILED), np.inf)
    return ((until - requests["scheduled_at_ns"]) / 1e6).to_numpy(np.float64)


def _is_even(frames: Frames) -> bool:
    arrival = table(frames.run["scenario"], "arrival")
    flat = table(arrival, "shape").get("kind", "flat") == "flat"
    return arrival.get("process") in EVEN and flat and not table(frames.run["scenario"], "crossover")


def _not_judged(frames: Frames, of_target: Steady) -> str:
    if not _is_even(frames):
        return "Stability is not judged: the offered load or the traffic changes on purpose."
    if len(of_target.requests) < FEWEST or of_target.seconds < FEWEST_S:
        return f"Stability is not judged below {FEWEST} requests and {FEWEST_S:g} s."
    return ""


def _growth(frames: Frames, stage: Steady) -> Growth | None:
    """Of the requests in flight, from when the target had time to fill; None where most of the stage is before that.

    A target whose answers take a minute holds more and more of them for a minute. The first requests of the run show how
    long that is, whatever the rate: they waited behind nobody.
    """
    begun, ended = stays_s(frames)
    if len(begun) < FEWEST_FOR_GROWTH or stage.seconds < FEWEST_S:
        return None
    first = slice(max(FILLING, int(len(begun) * FILLING_SHARE)))
    full_s = begun[0] + float(np.quantile((ended - begun)[first], 0.9, method="inverted_cdf"))
    from_s = max(stage.from_s, full_s)
    if not from_s < (stage.from_s + stage.to_s) / 2:
        return None
    return stationarity.growth(begun, ended, from_s, stage.to_s)


def _piled_per_s(frames: Frames, stage: Steady) -> float | None:
    """Growth of the requests in flight where they are too few for `_growth`, or wait too long; None but where nobody would
    doubt it: waits rise all the time and double, and half of those who came still wait at the end. Planted queues show it in
    at most 4% of runs at 95% load, and in three quarters or more at three times what they can do.
    """
    requests = stage.requests[stage.requests["ended"] != schema.CLIENT_DROP]
    if len(requests) < FEWEST_PILED or frames.run["arrival"] != "open" or not _is_even(frames):
        return None
    over = requests["ended_at_ns"].where(requests["ended"] != schema.CENSORED, np.inf)
    until = requests["first_at_ns"].fillna(requests["joined_at_ns"]).fillna(over)
    waits = (until - requests["scheduled_at_ns"]).to_numpy(np.float64)
    third = len(waits) // 3
    first, last = (float(np.quantile(v, 0.5, method="inverted_cdf")) for v in (waits[:third], waits[-third:]))
    still = float((until > stage.to_s * 1e9).mean())
    if stationarity.rising(waits) < PILES or last < 2 * first or still < 0.5:
        return None
    begun, ended = stays_s(frames)
    before, after = (int((begun <= at).sum() - (ended <= at).sum()) for at in (stage.from_s, stage.to_s))
    return (after - before) / stage.seconds


def stays_s(frames: Frames) -> tuple[Floats, Floats]:
    """When each request of the run was due, in that order, and when it ended; +inf of what never did."""
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates("request_id")
    requests = requests[requests["ended"] != schema.CLIENT_DROP].sort_values("scheduled_at_ns", kind="stable")
    begun = requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9
    return begun, requests["ended_at_ns"].fillna(np.inf).to_numpy(np.float64) / 1e9


def growth_within(begun_s: Floats, ended_s: Floats, spans: Sequence[tuple[float, float]]) -> float | None:
    """By how much the requests in flight grow per second, in these times together; None where they do not."""
    seconds = sum(to_s - from_s for from_s, to_s in spans)
    if seconds < FEWEST_S:
        return None
    begun, ended = (stationarity.joined(at, spans) for at in (begun_s, ended_s))
    if len(begun) < FEWEST_FOR_GROWTH:
        return None
    grows = stationarity.growth(begun, ended, 0.0, seconds)
    return grows.per_s if grows.rises and grows.per_s > IN_PARTS * len(begun) / seconds else None


def _changes(of_target: Steady, grows: Growth | None) -> list[Finding]:
    """A trend or a stretch that differs, whichever fits better; of a stretch at the start, also what follows it."""
    waits = waits_ms(of_target)
    kept = of_target.requests["ended"] != schema.CLIENT_DROP
    at_s = of_target.requests.loc[kept, "scheduled_at_ns"].to_numpy(np.float64) / 1e9
    name = "TTFT" if of_target.requests["answer"].isin(ONE_ANSWER).all() else "wait"
    direction, found = stationarity.trend(waits), stationarity.change(waits)
    if direction and (found is None or stationarity.linear_fit(waits) > found.fit):
        third = len(waits) // 3
        text = f"{sentence(name)} {'rises' if direction > 0 else 'falls'} over the steady stage: its last third has "
        text += compared(waits[-third:], waits[:third], "its first", name)
        if direction > 0 and grows and grows.per_s > 0:
            text += f", and the backlog grew by {figures(grows.per_s)} requests/s"
        return [Finding(TREND, of_target.from_s, of_target.to_s, f"{text}.")]
    return [_stretch(found, waits, at_s, of_target, name)] if found else []


def _stretch(found: Stretch, waits: Floats, at_s: Floats, stage: Steady, name: str) -> Finding:
    n, (begin, end) = len(waits), (found.begin, found.end)
    inside = np.zeros(n, np.bool_)
    inside[begin:end] = True
    some, rest = waits[inside], waits[~inside]
    from_s = stage.from_s if begin == 0 else float(at_s[begin])
    to_s = stage.to_s if end == n else float(at_s[end])
    slower = float(stationarity.ranks(waits)[inside].mean()) > 0.5
    if begin == 0 and slower and stationarity.change(rest) is None and not stationarity.trend(rest):
        text = f"The first {to_s - stage.from_s:,.3g} s of the steady stage look like warm-up: they have "
        return Finding(WARMUP, from_s, to_s, f"{text}{compared(some, rest, 'the rest', name)}.")
    when = f"From {clock(from_s)} to {clock(to_s)} the target was {'slower' if slower else 'faster'}: "
    return Finding(CHANGE, from_s, to_s, f"{when}{compared(some, rest, 'the rest of the stage', name)}.")


def compared(some: Floats, others: Floats, which: str, name: str) -> str:
    """`a median TTFT of 900 ms, the rest 200 ms`; of shares that failed, where that is the difference."""
    p = differs_at(some, others) or 0.5
    values = [float(np.quantile(v, p, method="inverted_cdf")) for v in (some, others)]
    if np.isinf(values).any():
        failed = [share(float(np.isinf(v).mean())) for v in (some, others)]
        return f"{failed[0]} failed requests, {which} {failed[1]}"
    what = "median" if p == 0.5 else percentile(p)
    return f"a {what} {name} of {ms(values[0])} ms, {which} {ms(values[1])} ms"
