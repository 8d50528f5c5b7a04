"""Recorded traces (Azure LLM, BurstGPT, Mooncake, Bailian): read as their publishers write them, and made to fit a run.

Columns are found by their names. A row that cannot be read, a time before the one above, a number that is none: each is
an error with file, line and column, because a trace of which parts are left out is another trace. Times are kept to the
nanosecond, relative to the first row.

Rows read = emitted + dropped, each dropped row under one reason. Scaling time makes bursts steeper, thinning keeps their
shape: they are different options. Where the trace's clock ticks coarsely, a row gets a random place within its tick,
drawn by the seed, and the notes report it; rows keep their order.

Mooncake and Bailian rows have the same columns for time and sizes, but count milliseconds and blocks of 512 tokens, or
seconds and blocks of 16. Columns that only one of them has name the format, and the number of `hash_ids` must confirm
it: a row of n tokens has ceil(n / block) of them. A contradiction is refused: all times might be wrong by a factor of 1000.
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
# Of the rows with blocks, whose number of blocks must agree with their length.
_FITTING_SHARE = 0.95
_ADVICE = (
    "Set arrival.trace.format, or arrival.trace.block_tokens to the size of its blocks; "
    "arrival.trace.blocks=false replays it without shared prefixes"
)
NO_RESPONSE = "without a response"
NO_PROMPT = "without a prompt"
THINNED = "thinned out"
BEYOND = "beyond the duration"


@dataclass(frozen=True, slots=True)
class Format:
    """How one publisher writes: names of the columns, and the unit of a time."""

    time: str
    prompt: str
    output: str
    unit: str  # of a time: a key of _UNITS
    ticks_ns: tuple[int, ...]  # of the coarse clocks that such traces are known to have
    blocks: str = ""
    block_tokens: int = 0
    marks: tuple[str, ...] = ()  # columns that no other format has

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns without which it is not this format."""
        return (self.time, self.prompt, self.output)

    def is_marked(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row has a column that no other format has."""
        return any(name in row for name in self.marks)


def finite(value: Any) -> float:
    """Return a finite number of a cell; the underscores that Python would take are none."""
    if isinstance(value, bool) or (
        isinstance(value, str) and ("_" in value or not value.isascii())
    ):
        raise ValueError
    real = float(value)
    if not math.isfinite(real):
        raise ValueError
    return real


def _seconds(value: Any) -> int:
    text = str(value).strip()
    if text.isascii() and text.isdecimal():
        return int(text) * _SECOND
    return round(finite(value) * 1e9)


def _milliseconds(value: Any) -> int:
    if type(value) is int:
        return value * 1_000_000
    return round(finite(value) * 1e6)


def _date(value: Any) -> int:
    """`2023-11-16 18:15:46.6805900`, with an offset or without: UTC then. datetime itself knows no 100 ns."""
    whole, dot, rest = str(value).strip().partition(".")
    digits = ""
    if dot:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    if (dot and not digits) or len(digits) > 9 or len(whole) < 19:
        raise ValueError
    moment = datetime.fromisoformat(whole + rest[len(digits) :])
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    elapsed = moment - _DATE
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000_000 + int(digits.ljust(9, "0"))


@dataclass(frozen=True, slots=True)
class Unit:
    """How a time is read, in ns; a tick may be printed `slack_ns` off, by being cut to the unit."""

    text: str
    read: Callable[[Any], int]
    slack_ns: int = 0


DATES = "date"
SECONDS = "s"
MILLISECONDS = "ms"
_UNITS = {
    DATES: Unit("dates and times", _date),
    SECONDS: Unit("seconds", _seconds),
    MILLISECONDS: Unit("milliseconds", _milliseconds, slack_ns=1_000_000),
}
_LENGTHS = ("timestamp", "input_length", "output_length")
FORMATS = {
    "azure": Format("TIMESTAMP", "ContextTokens", "GeneratedTokens", DATES, (_SECOND,)),
    "burstgpt": Format("Timestamp", "Request tokens", "Response tokens", SECONDS, (_SECOND,)),
    "mooncake": Format(
        *_LENGTHS, MILLISECONDS, (3 * _SECOND, _SECOND), blocks="hash_ids", block_tokens=512
    ),
    "bailian": Format(
        *_LENGTHS,
        SECONDS,
        (_SECOND,),
        blocks="hash_ids",
        block_tokens=16,
        marks=("chat_id", "parent_chat_id"),
    ),
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace in one form, whatever its format; arrays of one length, one element per row."""

    format: str
    at_ns: Any  # since the first row
    prompt_tokens: Any
    output_tokens: Any  # 0: the trace has no answer to it
    resolution_ns: int  # ticks of a coarse clock; 0: times are taken as they are
    blocks: tuple[array[int], ...] | None  # ids of the prompt's blocks, where the trace has them
    block_tokens: int = 0  # of a block; 0 without blocks
    odd_blocks: int = 0  # rows whose number of blocks does not agree with their length

    def __len__(self) -> int:
        return len(self.at_ns)


def read_trace(path: Path, options: Trace | None = None) -> Recorded:
    """Return a whole trace file, checked; raises ScenarioError with file, line and column."""
    options = options or Trace()
    rows = table_rows(path)
    first_row = next(rows, None)
    if first_row is None:
        raise ScenarioError(f"{path}: has no rows")
    kind = _format_of(path, first_row[1], options.format)
    _check_options(options, kind)
    columns = _Columns(path, kind, options)
    for number, row in chain([first_row], rows):
        columns.take(number, row)
    return columns.recorded()


def _check_options(options: Trace, kind: str) -> None:
    """Raise ScenarioError for a key that means nothing in this format."""
    shape = FORMATS[kind]
    if options.time_unit is not None and shape.unit == DATES:
        text = f"a trace of format {kind} has {_UNITS[DATES].text}: leave it out"
        raise ScenarioError(f"arrival.trace.time_unit: {text}")
    if options.block_tokens is not None and not shape.blocks:
        text = f"a trace of format {kind} has no blocks: leave it out"
        raise ScenarioError(f"arrival.trace.block_tokens: {text}")


class _Columns:
    """What was read so far."""

    def __init__(self, path: Path, kind: str, options: Trace) -> None:
        self._path = path
        self._kind = kind
        self._shape = FORMATS[kind]
        self._options = options
        self._unit = _UNITS[options.time_unit or self._shape.unit]
        self._at = array("q")
        self._prompt = array("q")
        self._output = array("q")
        self._lines = array("q")
        self._blocks: list[array[int]] = []
        self._begin: int | None = None

    def take(self, number: int, row: Mapping[str, Any]) -> None:
        """Check a row and keep it; `number`: of its line. Raises ScenarioError with file, line and column.

        Times are kept in ns since the first row, and must not fall.
        """
        shape = self._shape
        for name in shape.needs:
            if row.get(name) is None:
                raise self._wrong(number, name, "missing")
        try:
            time_ns = self._unit.read(row[shape.time])
        except (ValueError, OverflowError, TypeError):
            raise self._wrong(
                number, shape.time, "expected a time, got {}", row[shape.time]
            ) from None
        if abs(time_ns) > _LONGEST_NS:
            raise self._wrong(number, shape.time, "{} is over a century away", row[shape.time])
        self._begin = time_ns if self._begin is None else self._begin
        time_ns -= self._begin
        if self._at and time_ns < self._at[-1]:
            problem = "{} is before the time of the row above: sort the trace"
            raise self._wrong(number, shape.time, problem, row[shape.time])
        self._at.append(time_ns)
        self._lines.append(number)
        self._prompt.append(self._size(number, row, shape.prompt))
        self._output.append(self._size(number, row, shape.output))
        if shape.blocks and (shape.blocks in row or self._blocks):
            self._blocks.append(self._ids(number, row.get(shape.blocks)))

    def _size(self, number: int, row: Mapping[str, Any], name: str) -> int:
        value = row[name]
        if not isinstance(value, int):
            try:
                real = finite(value)
                value = -1
                if real == math.floor(real):
                    value = int(real)
            except (ValueError, OverflowError, TypeError):
                value = -1
        if isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
            expected = f"expected a whole number of tokens from 0 to {MAX_TOKENS:,}"
            raise self._wrong(number, name, f"{expected}, got {{}}", row[name])
        return value

    def _ids(self, number: int, value: Any) -> array[int]:
        if len(self._blocks) < len(self._at) - 1:
            raise self._wrong(number, self._shape.blocks, "is here, but not in the rows above")
        # JSON's whole numbers have 64 bits; a trace has millions of them.
        is_whole = isinstance(value, list) and {*map(type, value)} <= {int}
        if not is_whole or min(value, default=0) < 0:
            raise self._wrong(
                number, self._shape.blocks, "expected a list of whole numbers, got {}", value
            )
        return array("q", value)

    def _wrong(self, number: int, column: str, problem: str, value: Any = None) -> ScenarioError:
        """Return the error of a row; `problem` has a place for the value."""
        return ScenarioError(
            f"{self._path}:{number}: column {column}: {problem.format(repr(str(value)[:40]))}"
        )

    def _tick_ns(self, clock: Any) -> int:
        """Return the coarsest tick on which every time lies; 0 where there is none."""
        slack = self._unit.slack_ns
        for tick in self._shape.ticks_ns:
            offset = clock % tick
            if (np.minimum(offset, tick - offset) <= slack).all():
                return tick
        return 0

    def recorded(self) -> Recorded:
        """Return the trace."""
        times_ns = np.array(self._at, dtype=np.int64)
        prompt = np.array(self._prompt, dtype=np.int32)
        output = np.array(self._output, dtype=np.int32)
        clock = times_ns + (self._begin or 0)
        blocks = None
        block_tokens = 0
        if self._blocks:
            blocks = tuple(self._blocks)
            block_tokens = self._block_tokens
        return Recorded(
            format=self._kind,
            at_ns=times_ns,
            prompt_tokens=prompt,
            output_tokens=output,
            resolution_ns=self._tick_ns(clock),
            blocks=blocks,
            block_tokens=block_tokens,
            odd_blocks=self._odd_blocks(prompt),
        )

    @property
    def _block_tokens(self) -> int:
        return self._options.block_tokens or self._shape.block_tokens

    def _odd_blocks(self, prompt: Any) -> int:
        """Return how many rows have a number of blocks that contradicts their length; ScenarioError if these are many.

        Then the trace has probably another format. A row without blocks, or without a prompt, says nothing.
        Without use of the blocks they are checked only to confirm a format that was found by its columns.
        """
        options = self._options
        is_used = options.blocks and options.sizes
        if not self._blocks or (not is_used and options.format != "auto"):
            return 0
        size = self._block_tokens
        counts = np.array([len(blocks) for blocks in self._blocks], dtype=np.int64)
        expected = -(-prompt.astype(np.int64) // size)
        has_count = (counts > 0) & (prompt > 0)
        odd_rows = np.flatnonzero(has_count & (counts != expected))
        counted = int(has_count.sum())
        if len(odd_rows) <= (1 - _FITTING_SHARE) * counted:
            return len(odd_rows)
        place = int(odd_rows[0])
        received = f"has {counts[place]:,} blocks for {prompt[place]:,} tokens"
        wanted = f"expected {expected[place]:,} of {size:,} tokens (format {self._kind})"
        share = f"{len(odd_rows):,} of {counted:,} rows do not agree"
        problem = f"{received}, {wanted}; {share}. {_ADVICE}"
        raise self._wrong(self._lines[place], self._shape.blocks, problem)


def _format_of(path: Path, row: Mapping[str, Any], kind: str) -> str:
    """Return the format, from the names of the columns where it is not given; raises where a column is missing."""
    if kind == "auto":
        kind = max(FORMATS, key=lambda name: _agreement(FORMATS[name], row))
        if not {*FORMATS[kind].needs} & {*row}:
            formats = []
            for name, shape in FORMATS.items():
                formats.append(f"{name}: {', '.join(shape.needs)}")
            problem = f"no known trace has these columns: {', '.join(row)}"
            raise ScenarioError(f"{path}: {problem}. Expected {'; '.join(formats)}")
    needs = FORMATS[kind].needs
    for column in needs:
        if column not in row:
            has = f"a trace of format {kind} has {', '.join(needs)}"
            raise ScenarioError(f"{path}:1: column {column}: missing; {has}")
    return kind


def _agreement(shape: Format, row: Mapping[str, Any]) -> int:
    """Return how much the columns of a row speak for a format."""
    columns = sum(name in row for name in shape.needs)
    return columns + shape.is_marked(row)


def replay(
    recorded: Recorded, options: Trace, rate_per_s: float | None, duration_s: float, seed: int
) -> tuple[Recorded, dict[str, Any], tuple[str, ...]]:
    """Return the rows that are sent within [0, duration), what became of the others for run.json, and notes for the user.

    `rate_per_s`: the mean rate to which time is scaled; None: `speed_up` of the options scales it. Rows are
    thinned to `keep_share`. Rows without output (failures) or without a prompt are left out.
    ScenarioError if none is left.
    """
    n = len(recorded)
    failed = recorded.output_tokens == 0
    bare = ~failed & (recorded.prompt_tokens == 0)
    usable = ~(failed | bare)
    speed_up = options.speed_up
    if rate_per_s is not None:
        # The rate that is left after thinning is scaled to the given one.
        speed_up = rate_per_s / (_rate_per_s(recorded, int(usable.sum())) * options.keep_share)
    thinned = usable & (stream(seed, Purpose.KEPT).random(n) >= options.keep_share)
    at_ns = recorded.at_ns
    if recorded.resolution_ns:
        # Sorted: within a tick the rows keep their order, and no row leaves its tick.
        at_ns = np.sort(at_ns + stream(seed, Purpose.JITTER).random(n) * recorded.resolution_ns)
    if recorded.resolution_ns or speed_up != 1:
        at_ns = np.rint(at_ns / speed_up)
    is_late = usable & ~thinned & (at_ns >= duration_s * 1e9)
    emitted = np.flatnonzero(usable & ~thinned & ~is_late)
    reasons = {NO_RESPONSE: failed, NO_PROMPT: bare, THINNED: thinned, BEYOND: is_late}
    dropped = {}
    for reason, rows in reasons.items():
        if rows.any():
            dropped[reason] = int(rows.sum())
    if not len(emitted):
        raise ScenarioError(
            f"arrival.trace: none of its {n:,} rows is left to send: {_listed(dropped)}"
        )
    facts = {
        "file": options.file,
        "format": recorded.format,
        "rows_read": n,
        "emitted": len(emitted),
        "dropped": dropped,
        "resolution_s": recorded.resolution_ns / 1e9,
        "speed_up": speed_up,
        "keep_share": options.keep_share,
        "block_tokens": recorded.block_tokens or None,
        "odd_blocks": recorded.odd_blocks,
    }
    blocks = recorded.blocks and tuple(recorded.blocks[row] for row in emitted)
    prompts = recorded.prompt_tokens[emitted]
    outputs = recorded.output_tokens[emitted]
    times = at_ns[emitted].astype(np.int64)
    sent = replace(
        recorded, at_ns=times, prompt_tokens=prompts, output_tokens=outputs, blocks=blocks
    )
    ends_s = None
    if BEYOND not in dropped:
        ends_s = float(at_ns[-1]) / 1e9  # no row lies behind the end of the run
    return sent, facts, _notes(facts, ends_s, duration_s)


def _rate_per_s(recorded: Recorded, usable: int) -> float:
    """Mean rate of the rows that can be sent, over the whole trace."""
    span_ns = int(recorded.at_ns[-1]) + recorded.resolution_ns
    gaps = usable
    if not recorded.resolution_ns:
        gaps = usable - 1
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
    if facts["odd_blocks"]:
        size = facts["block_tokens"]
        text += f"; rows whose blocks of {size} tokens do not agree with their length: {facts['odd_blocks']:,}"
    if ends_s is None or ends_s >= 0.95 * duration_s:
        return (text,)
    end = f"the trace ends {ends_s:.1f} s into the run, which lasts {duration_s:g} s"
    return text, f"{end}: nothing was sent after it"
