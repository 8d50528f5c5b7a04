"""What the calls cost each limit, and when: the process that a bucket would have seen.

Events are in order of sending, of all calls to one model of one target, preflight included, because they drain the same
bucket. A call that was refused costs nothing.

    requests       1 per call
    input tokens   input + cache creation; cache reads not counted. What a refused call would have cost is read off
                   the other attempts of its request, else the median of its traffic
    output tokens  `produced`: as they are produced, spread evenly from the first to the last content in a few pieces;
                   a call is refused while less than one is left. `reserved`: `max_tokens` at the start,
                   what was not produced given back at the end. Providers do either; the one that explains more is taken
    tokens         input, cached or not, and output, at the start
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.rate_limit_headers import INPUT, OUTPUT, REQUESTS
from tailgauge_analysis.sections.rate_limits.refusals import rejected
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask

PIECES = 16  # of an answer
MOST_PIECES = 1_000_000  # of all answers
AT_START, PRODUCED, RESERVED = "at the start", "produced", "reserved"
INPUTS = ("input_tokens", "cache_creation_input_tokens")


@dataclass(frozen=True, slots=True)
class Costs:
    """Events by time in seconds: what each takes, and at decisions what had to be there and whether it was."""

    at_s: Floats
    charge: Floats
    need: Floats  # NaN where nothing was decided
    refused: Mask
    attempt: Ints  # row of the attempt

    @property
    def decided(self) -> Mask:
        """Which events are decisions."""
        return ~np.isnan(self.need)

    def only(self, which: Mask | Ints | slice) -> Costs:
        """Some of the events."""
        return Costs(*(getattr(self, field.name)[which] for field in fields(self)))

    def around(self, values: Floats | Mask, most: int) -> Costs:
        """At most so many of the events, around the first with the largest of these values."""
        if len(values) <= most:
            return self
        begin = max(0, min(int(np.argmax(values)) - most // 2, len(values) - most))
        return self.only(slice(begin, begin + most))


def ordered(parts: Sequence[Costs]) -> Costs:
    """All their events, by time."""
    whole = Costs(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Costs)))
    return whole.only(np.argsort(whole.at_s, kind="stable"))


def _charges(at_s: Floats, charge: Floats, attempt: Ints) -> Costs:
    return Costs(at_s, charge, np.full(len(at_s), np.nan), np.zeros(len(at_s), np.bool_), attempt)


def countings(kind: str) -> tuple[str, ...]:
    """How a limit of this kind may count a call: see above."""
    return (PRODUCED, RESERVED) if kind == OUTPUT else (AT_START,)


def costs(attempts: pd.DataFrame, kind: str, ours: pd.Series[bool], counted: str) -> Costs | None:
    """Events of one bucket; None where the record does not hold its costs. `ours`: the 429s of this kind, by attempt.

    A refusal by another limit decides nothing here.
    """
    is_429 = rejected(attempts)
    sent = attempts["sent_at_ns"].to_numpy(np.float64) / 1e9
    reached = ~np.isnan(sent) & (attempts["ended"] != schema.CONNECT_ERROR).to_numpy(np.bool_)
    kept = reached & (~is_429 | ours.to_numpy(np.bool_))
    rows, is_429, sent = attempts[kept], is_429[kept], sent[kept]
    attempt = np.flatnonzero(kept)
    if counted == RESERVED:
        return _reserved(rows, is_429, sent, attempt)
    if counted == PRODUCED:
        return _produced(rows, is_429, sent, attempt)
    need = np.ones(len(rows)) if kind == REQUESTS else _tokens(rows, whole=kind != INPUT)
    if need is None:
        return None
    return ordered([Costs(sent, np.where(is_429, 0.0, need), need, is_429, attempt)])


def _tokens(rows: pd.DataFrame, *, whole: bool) -> Floats | None:
    """Input tokens that count; with `whole` all of them and the output."""
    names = [*INPUTS, "cache_read_input_tokens", "output_tokens"] if whole else INPUTS
    known = rows[list(names)].sum(axis=1).where(rows["input_tokens"].notna())
    if not known.notna().any():
        return None
    of_request = known.groupby([rows["request_id"], rows["leg"]]).transform("max")
    of_traffic = known.groupby(rows["traffic"], observed=True).transform("median")
    filled = known.fillna(of_request).fillna(of_traffic).fillna(known.median())
    return filled.to_numpy(np.float64)


def _produced(rows: pd.DataFrame, is_429: Mask, sent: Floats, attempt: Ints) -> Costs | None:
    """Decisions without a charge, and the pieces of every answer without a decision."""
    tokens = rows["output_tokens"].to_numpy(np.float64)
    first, last = (rows[f"{end}_content_at_ns"].to_numpy(np.float64) / 1e9 for end in ("first", "last"))
    answers = np.flatnonzero((tokens > 0) & ~np.isnan(first) & ~np.isnan(last))
    if not len(answers):
        return None
    most = np.clip(MOST_PIECES // len(answers), 1, PIECES)
    pieces = np.minimum(most, tokens[answers]).astype(np.int64)
    of = np.repeat(answers, pieces)
    number = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    steps = np.repeat(np.maximum(pieces - 1, 1), pieces)
    at = first[of] + (last - first)[of] * number / steps
    decisions = Costs(sent, np.zeros(len(rows)), np.ones(len(rows)), is_429, attempt)
    return ordered([decisions, _charges(at, tokens[of] / np.repeat(pieces, pieces), attempt[of])])


def _reserved(rows: pd.DataFrame, is_429: Mask, sent: Floats, attempt: Ints) -> Costs | None:
    """`max_tokens` at the start, and what is given back at the end."""
    limit = rows["asked_output_tokens"].to_numpy(np.float64)
    if np.isnan(limit).all():
        return None
    limit = np.where(np.isnan(limit), np.nanmedian(limit), limit)
    ended, tokens = rows["ended_at_ns"].to_numpy(np.float64) / 1e9, rows["output_tokens"].to_numpy(np.float64)
    back = np.flatnonzero(~is_429 & ~np.isnan(ended + tokens))
    unused = np.minimum(tokens[back] - limit[back], 0.0)
    reserved = Costs(sent, np.where(is_429, 0.0, limit), limit, is_429, attempt)
    return ordered([reserved, _charges(ended[back], unused, attempt[back])])
