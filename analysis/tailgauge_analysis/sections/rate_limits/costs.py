"""What the calls cost each limit, and when: the process that a bucket would have seen.

Events are in order of time, of all calls to one model of one target, preflight included, because they drain the same
bucket. A call that was refused costs nothing.

    requests       1 per call
    input tokens   input + cache creation; cache reads not counted. What a refused call would have cost is read off
                   the other attempts of its request, else the median of its traffic
    output tokens  as they are produced, spread evenly from the first to the last content in a few pieces;
                   a call is refused while less than one is left
    tokens         input, cached or not, and output, at the start
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.rate_limit_headers import OUTPUT, REQUESTS, TOKENS
from tailgauge_analysis.sections.rate_limits.refusals import rejected
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask

PIECES = 16  # of an answer
MOST_PIECES = 1_000_000  # of all answers
INPUTS = ("input_tokens", "cache_creation_input_tokens")
ALL_TOKENS = (*INPUTS, "cache_read_input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Events by time in seconds: what each takes, and at decisions what had to be there and whether it was."""

    at_s: Floats
    charge: Floats
    need: Floats  # NaN where nothing was decided
    refused: Mask
    attempt: Ints  # row of the attempt

    @property
    def decided(self) -> Mask:
        """Return which events are decisions."""
        return ~np.isnan(self.need)

    @property
    def seconds(self) -> float:
        """Return the seconds from the first event to the last."""
        if not len(self.at_s):
            return 0.0
        return float(self.at_s[-1] - self.at_s[0])

    @property
    def mean_per_s(self) -> float | None:
        """Return the mean use of the limit; None where all calls were sent at one moment."""
        if self.seconds > 0:
            return float(self.charge.sum()) / self.seconds
        return None

    def only(self, events: Mask | Ints | slice) -> Costs:
        """Return some of the events."""
        return Costs(
            at_s=self.at_s[events],
            charge=self.charge[events],
            need=self.need[events],
            refused=self.refused[events],
            attempt=self.attempt[events],
        )

    def around(self, values: Floats | Mask, limit: int) -> Costs:
        """Return at most so many of the events, around the first with the largest of these values."""
        if len(values) <= limit:
            return self
        begin = max(0, min(int(np.argmax(values)) - limit // 2, len(values) - limit))
        return self.only(slice(begin, begin + limit))


def costs(attempts: pd.DataFrame, kind: str, is_of_kind: Mask) -> Costs | None:
    """Return what calls took of one bucket and when, in order of sending; None where the record does not hold its costs.

    `attempts`: those to one model of one target, numbered from 0. `is_of_kind`: which are 429s by this limit: they are
    charged nothing. A refusal by another limit decides nothing here and is left out. Output tokens are charged as they come,
    see `_as_produced`.
    """
    # An error behind content is of a call that the limit admitted, and not among these.
    is_429 = rejected(attempts)
    is_sent = attempts["sent_at_ns"].notna() & (attempts["ended"] != schema.CONNECT_ERROR)
    # The places of the calls among the attempts.
    numbers = np.flatnonzero(is_sent & (~is_429 | is_of_kind))
    rows = attempts.iloc[numbers]
    # One request each, or one output token to be there.
    need: Floats | None = np.ones(len(rows))
    if kind not in {REQUESTS, OUTPUT}:
        need = _tokens(rows, kind)
    if need is None:
        return None
    # Polls of a job usually use nothing of a limit.
    is_charged = ~uncharged(attempts)[numbers]
    rows = rows[is_charged]
    need = need[is_charged]
    numbers = numbers[is_charged]
    refused = is_429[numbers]
    calls = Costs(
        at_s=rows["sent_at_ns"].to_numpy(np.float64) / 1e9,
        charge=np.where(refused, 0.0, need),
        need=need,
        refused=refused,
        attempt=numbers,
    )
    if kind != OUTPUT:
        return calls
    return _as_produced(calls, rows)


def uncharged(attempts: pd.DataFrame) -> Mask:
    """Return which calls use nothing of a limit: polls of a job and its cancelling, where none of them was rejected."""
    follows = attempts["cause"].isin([schema.POLL, schema.CANCEL]).to_numpy(np.bool_)
    is_rejected = (
        attempts["ended"].isin([schema.RATE_LIMITED, schema.OVERLOADED]).to_numpy(np.bool_)
    )
    if not (is_rejected & follows).any():
        return follows
    return np.zeros(len(attempts), np.bool_)


def _tokens(rows: pd.DataFrame, kind: str) -> Floats | None:
    """Return the tokens of each call that count."""
    names = list(ALL_TOKENS if kind == TOKENS else INPUTS)
    reported = rows[names].sum(axis=1).where(rows["input_tokens"].notna())
    if not reported.notna().any():
        return None
    of_request = reported.groupby([rows["request_id"], rows["leg"]]).transform("max")
    of_traffic = reported.groupby(rows["traffic"], observed=True).transform("median")
    filled = reported.fillna(of_request).fillna(of_traffic).fillna(reported.median())
    return filled.to_numpy(np.float64)


def _as_produced(calls: Costs, rows: pd.DataFrame) -> Costs | None:
    """Return decisions without a charge, and the pieces of every answer without a decision."""
    answers = rows.assign(attempt=calls.attempt)
    answers = answers[(rows["output_tokens"] > 0) & rows["first_content_at_ns"].notna()]
    answers = answers[answers["last_content_at_ns"].notna()]
    if not len(answers):
        return None
    pieces_limit = np.clip(MOST_PIECES // len(answers), 1, PIECES)
    count = answers["output_tokens"].clip(upper=pieces_limit).astype(np.int64)
    pieces = answers.loc[answers.index.repeat(count)]
    number = pieces.groupby(level=0).cumcount()
    total = count.loc[pieces.index]
    first_s = pieces["first_content_at_ns"] / 1e9
    seconds = pieces["last_content_at_ns"] / 1e9 - first_s
    events = Costs(
        at_s=np.concatenate((calls.at_s, first_s + seconds * number / (total - 1).clip(lower=1))),
        charge=np.concatenate((np.zeros(len(rows)), pieces["output_tokens"] / total)),
        need=np.concatenate((calls.need, np.full(len(pieces), np.nan))),
        refused=np.concatenate((calls.refused, np.zeros(len(pieces), np.bool_))),
        attempt=np.concatenate((calls.attempt, pieces["attempt"])),
    )
    return events.only(np.argsort(events.at_s, kind="stable"))
