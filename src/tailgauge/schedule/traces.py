"""Recorded traces (Azure LLM, BurstGPT, Mooncake): read as their publishers write them, and made to fit a run.

Columns are found by their names. A row that cannot be read, a time before the one above, a number that is none: each is
an error with file, line and column, because a trace of which parts are left out is another trace. Times are kept to the
nanosecond, relative to the first row.

Rows read = emitted + dropped, each dropped row under one reason. Scaling time makes bursts steeper, thinning keeps their
shape: they are different options. Where the trace's clock ticks coarsely, a row gets a random place within its tick,
drawn by the seed, and the notes report it; rows keep their order.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.rows.text_file import table_rows
from tailgauge.schedule.random_streams import Purpose, stream
from tailgauge.schedule.settings import MAX_TOKENS, Trace

_LONGEST_NS = 2**62
_SECOND = 1_000_000_000
_DATE = datetime(1970, 1, 1, tzinfo=UTC)
NO_RESPONSE, NO_PROMPT = "without a response", "without a prompt"
THINNED, BEYOND = "thinned out", "beyond the duration"


@dataclass(frozen=True, slots=True)
class Format:
    """How one publisher writes: names of the columns, and how a time is read, in ns."""

    time: str
    prompt: str
    output: str
    read_time: Callable[[Any], int]
    ticks_ns: tuple[int, ...]  # of the coarse clocks that such traces are known to have
    slack_ns: int = 0  # a tick may be printed so much off, by being cut to the unit of print
    blocks: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns without which it is not this format."""
        return (self.time, self.prompt, self.output)


def finite(value: Any) -> float:
    """A finite number of a cell; the underscores that Python would take are none."""
    if isinstance(value, bool) or (isinstance(value, str) and ("_" in value or not value.isascii())):
        raise ValueError
    real = float(value)
    if not math.isfinite(real):
        raise ValueError
    return real


def _seconds(value: Any) -> int:
    text = str(value).strip()
    return int(text) * _SECOND if text.isascii() and text.isdecimal() else round(finite(value) * 1e9)


def _milliseconds(value: Any) -> int:
    return value * 1_000_000 if type(value) is int else round(finite(value) * 1e6)


def _date(value: Any) -> int:
    """`2023-11-16 18:15:46.6805900`, with an offset or without: UTC then. datetime itself knows no 100 ns."""
    whole, dot, rest = str(value).strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    if (dot and not digits) or len(digits) > 9 or len(whole) < 19:
        raise ValueError
    moment = datetime.fromisoformat(whole + rest[len(digits) :])
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _DATE
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(digits.ljust(9, "0"))


FORMATS = {
    "azure": Format("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date, (_SECOND,)),
    "burstgpt": Format("Timestamp", "Request tokens", "Response tokens", _seconds, (_SECOND,)),
    "mooncake": Format(
        "timestamp", "input_length", "output_length", _milliseconds, (3 * _SECOND, _SECOND), slack_ns=1_000_000, blocks="hash_ids",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace in one form, whatever its format; arrays of one length, one element per row."""

    format: str
    at_ns: Any  # since the first row
    prompt_tokens: Any
    output_tokens: Any  # 0: the trace has no answer to it
    resolution_ns: int  # ticks of a coarse clock; 0: times are taken as they are
    blocks: tuple[tuple[int, ...], ...] | None  # ids of the prompt's blocks, where the trace has them

    def __len__(self) -> int:
        return len(self.at_ns)


def read_trace(path: Path, kind: str = "auto") -> Recorded:
    """A whole trace file, checked; raises ScenarioError with file, line and column."""
    rows = table_rows(path)
    first = next(rows, None)
    if first is None:
        raise ScenarioError(f"{path}: has no rows")
    kind = _format_of(path, first[1], kind)
    columns = _Columns(path, kind)
    for number, row in chain([first], rows):
        columns.take(number, row)
    return columns.done()


class _Columns:
    """What was read so far."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind, self._shape = path, kind, FORMATS[kind]
        self._at, self._prompt, self._output = array("q"), array("q"), array("q")
        self._blocks: list[tuple[int, ...]] = []
        self._begin: int | None = None

    def take(self, number: int, row: Mapping[str, Any]) -> None:
        """Check a row and keep it."""
        shape = self._shape
        for name in shape.needs:
            if row.get(name) is None:
                raise self._wrong(number, name, "missing")
        try:
            at = shape.read_time(row[shape.time])
        except (ValueError, OverflowError, TypeError):
            raise self._wrong(number, shape.time, "expected a time, got {}", row[shape.time]) from None
        if abs(at) > _LONGEST_NS:
            raise self._wrong(number, shape.time, "{} is over a century away", row[shape.time])
        self._begin = at if self._begin is None else self._begin
        at -= self._begin
        if self._at and at < self._at[-1]:
            why = "{} is before the time of the row above: sort the trace"
            raise self._wrong(number, shape.time, why, row[shape.time])
        self._at.append(at)
        self._prompt.append(self._size(number, row, shape.prompt))
        self._output.append(self._size(number, row, shape.output))
        if shape.blocks and (shape.blocks in row or self._blocks):
            self._blocks.append(self._ids(number, row.get(shape.blocks)))

    def _size(self, number: int, row: Mapping[str, Any], name: str) -> int:
        value = row[name]
        if not isinstance(value, int):
            try:
                real = finite(value)
                value = int(real) if real == math.floor(real) else -1
            except (ValueError, OverflowError, TypeError):
                value = -1
        if isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
            expected = f"expected a whole number of tokens from 0 to {MAX_TOKENS:,}"
            raise self._wrong(number, name, f"{expected}, got {{}}", row[name])
        return value

    def _ids(self, number: int, value: Any) -> tuple[int, ...]:
        if len(self._blocks) < len(self._at) - 1:
            raise self._wrong(number, self._shape.blocks, "is here, but not in the rows above")
        if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 2**63 for one in value):
            raise self._wrong(number, self._shape.blocks, "expected a list of whole numbers, got {}", value)
        return tuple(value)

    def _wrong(self, number: int, column: str, why: str, value: Any = None) -> ScenarioError:
        """The error of a row; `why` has a place for the value."""
        return ScenarioError(f"{self._path}:{number}: column {column}: {why.format(repr(str(value)[:40]))}")

    def _tick_ns(self, clock: Any) -> int:
        """The coarsest tick on which every time lies; 0 where there is none."""
        slack = self._shape.slack_ns
        for tick in self._shape.ticks_ns:
            beyond = clock % tick
            if (np.minimum(beyond, tick - beyond) <= slack).all():
                return tick
        return 0

    def done(self) -> Recorded:
        """The trace."""
        at = np.array(self._at, dtype=np.int64)
        prompt, output = (np.array(sizes, dtype=np.int32) for sizes in (self._prompt, self._output))
        ticks_ns, blocks = self._tick_ns(at + (self._begin or 0)), tuple(self._blocks) or None
        return Recorded(self._kind, at, prompt, output, ticks_ns, blocks)


def _format_of(path: Path, row: Mapping[str, Any], kind: str) -> str:
    """The format, from the names of the columns where it is not given; raises where a column is missing."""
    if kind == "auto":
        kind = max(FORMATS, key=lambda name: len({*FORMATS[name].needs} & {*row}))
        if not {*FORMATS[kind].needs} & {*row}:
            known = "; ".join(f"{name}: {', '.join(shape.needs)}" for name, shape in FORMATS.items())
            unknown = f"no known trace has these columns: {', '.join(row)}"
            raise ScenarioError(f"{path}: {unknown}. Expected {known}")
    needs = FORMATS[kind].needs
    if missing := [name for name in needs if name not in row]:
        has = f"a trace of format {kind} has {', '.join(needs)}"
        raise ScenarioError(f"{path}:1: column {missing[0]}: missing; {has}")
    return kind


def replay(
    recorded: Recorded, options: Trace, rate_per_s: float | None, duration_s: float, seed: int
) -> tuple[Recorded, dict[str, Any], tuple[str, ...]]:
    """The rows that are sent within [0, duration), what became of the others, and notes on both.

    Raises ScenarioError where none is left.
    """
    n = len(recorded)
    failed = recorded.output_tokens == 0
    bare = ~failed & (recorded.prompt_tokens == 0)
    usable = ~(failed | bare)
    speed_up = options.speed_up
    if rate_per_s is not None:
        speed_up = rate_per_s / (_rate_per_s(recorded, int(usable.sum())) * options.keep_share)
    thinned = usable & (stream(seed, Purpose.KEPT).random(n) >= options.keep_share)
    at_ns = recorded.at_ns
    if recorded.resolution_ns:
        # Sorted: within a tick the rows keep their order, and no row leaves its tick.
        at_ns = np.sort(at_ns + stream(seed, Purpose.JITTER).random(n) * recorded.resolution_ns)
    if recorded.resolution_ns or speed_up != 1:
        at_ns = np.rint(at_ns / speed_up)
    beyond = usable & ~thinned & (at_ns >= duration_s * 1e9)
    kept = np.flatnonzero(usable & ~thinned & ~beyond)
    reasons = {NO_RESPONSE: failed, NO_PROMPT: bare, THINNED: thinned, BEYOND: beyond}
    dropped = {name: int(rows.sum()) for name, rows in reasons.items() if rows.any()}
    if not len(kept):
        raise ScenarioError(f"arrival.trace: none of its {n:,} rows is left to send: {_listed(dropped)}")
    facts = {
        "file": options.file, "format": recorded.format, "rows_read": n, "emitted": len(kept), "dropped": dropped,
        "resolution_s": recorded.resolution_ns / 1e9, "speed_up": speed_up, "keep_share": options.keep_share,
    }  # fmt: skip
    blocks = recorded.blocks and tuple(recorded.blocks[row] for row in kept)
    prompts, outputs = recorded.prompt_tokens[kept], recorded.output_tokens[kept]
    times = at_ns[kept].astype(np.int64)
    sent = replace(recorded, at_ns=times, prompt_tokens=prompts, output_tokens=outputs, blocks=blocks)
    ends_s = None if BEYOND in dropped else float(at_ns[-1]) / 1e9
    return sent, facts, _notes(facts, ends_s, duration_s)


def _rate_per_s(recorded: Recorded, usable: int) -> float:
    """Mean rate of the rows that can be sent, over the whole trace."""
    span_ns = int(recorded.at_ns[-1]) + recorded.resolution_ns
    gaps = usable if recorded.resolution_ns else usable - 1
    if gaps <= 0 or span_ns <= 0:
        raise ScenarioError("arrival.rate_per_s: the trace is too short for a mean rate")
    return gaps / span_ns * 1e9


def _listed(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())


def _notes(facts: dict[str, Any], ends_s: float | None, duration_s: float) -> tuple[str, ...]:
    text = f"trace {facts['file']} ({facts['format']}): {facts['rows_read']:,} rows read, {facts['emitted']:,} in the plan"
    if facts["dropped"]:
        text += f"; left out: {_listed(facts['dropped'])}"
    if facts["speed_up"] != 1:
        text += f"; its times were divided by {facts['speed_up']:.4g}"
    if facts["resolution_s"]:
        text += f"; its clock ticks every {facts['resolution_s']:g} s, so each row got a random place within its tick"
    if ends_s is None or ends_s >= 0.95 * duration_s:
        return (text,)
    end = f"the trace ends {ends_s:.1f} s into the run, which lasts {duration_s:g} s"
    return text, f"{end}: nothing was sent after it"
