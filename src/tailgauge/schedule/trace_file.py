"""Recorded traces as their publishers give them: Azure LLM, BurstGPT, Mooncake.

Rule: columns are found by their names. A row that cannot be read, a time before the one above, a number that is none:
each is an error with file, line and column, because a trace of which parts are left out is another trace. Times are
kept to the nanosecond, relative to the first row.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.schedule.text_file import MAX_TOKENS, json_object, text_lines
from tailgauge.schedule.trace_formats import FORMATS, Format, finite

_LONGEST_NS = 2**62


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace in one form, whatever its format; arrays of one length, a row each."""

    format: str
    at_ns: Any  # since the first row
    prompt_tokens: Any
    output_tokens: Any  # 0: the trace has no answer to it
    resolution_ns: int  # ticks of the clock, where they are coarse; 0: times are taken as they stand
    session: tuple[str | None, ...] | None  # names of sessions, where the trace has them
    blocks: tuple[tuple[int, ...], ...] | None  # ids of the prompt's blocks, where the trace has them

    def __len__(self) -> int:
        return len(self.at_ns)


def read_trace(path: Path, kind: str = "auto") -> Recorded:
    """A whole trace file, checked; raises ScenarioError with file, line and column."""
    rows = _rows(path)
    first = next(rows, None)
    if first is None:
        raise ScenarioError(f"{path}: has no rows")
    kind = _told(path, first[1], kind)
    shape = FORMATS[kind]
    columns = _Columns(path, shape)
    columns.take(*first)
    for number, row in rows:
        columns.take(number, row)
    return columns.done(kind)


class _Columns:
    """What was read so far."""

    def __init__(self, path: Path, shape: Format) -> None:
        self._path, self._shape = path, shape
        self._at, self._prompt, self._output = array("q"), array("q"), array("q")
        self._sessions: list[str | None] = []
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
            raise self._wrong(
                number, shape.time, f"expected a time, got {str(row[shape.time])[:40]!r}"
            ) from None
        if abs(at) > _LONGEST_NS:
            raise self._wrong(number, shape.time, f"{str(row[shape.time])[:40]!r} is over a century away")
        self._begin = at if self._begin is None else self._begin
        at -= self._begin
        if self._at and at < self._at[-1]:
            raise self._wrong(
                number,
                shape.time,
                f"{str(row[shape.time])[:40]!r} is before the time of the row above: sort the trace",
            )
        self._at.append(at)
        self._prompt.append(self._size(number, row, shape.prompt))
        self._output.append(self._size(number, row, shape.output))
        if shape.session:
            self._sessions.append(row.get(shape.session) or None)
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
            raise self._wrong(number, name, f"{expected}, got {str(row[name])[:40]!r}")
        return value

    def _ids(self, number: int, value: Any) -> tuple[int, ...]:
        if len(self._blocks) < len(self._at) - 1:
            raise self._wrong(number, self._shape.blocks, "stands here, but not in the rows above")
        if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 2**63 for one in value):
            raise self._wrong(
                number, self._shape.blocks, f"expected a list of whole numbers, got {str(value)[:40]!r}"
            )
        return tuple(value)

    def _wrong(self, number: int, column: str, why: str) -> ScenarioError:
        return ScenarioError(f"{self._path}:{number}: column {column}: {why}")

    def _tick_ns(self, clock: Any) -> int:
        """The coarsest tick on which every time lies; 0 where there is none."""
        slack = self._shape.slack_ns
        for tick in self._shape.ticks_ns:
            beyond = clock % tick
            if (np.minimum(beyond, tick - beyond) <= slack).all():
                return tick
        return 0

    def done(self, kind: str) -> Recorded:
        """The trace."""
        at = np.array(self._at, dtype=np.int64)
        return Recorded(
            format=kind,
            at_ns=at,
            prompt_tokens=np.array(self._prompt, dtype=np.int32),
            output_tokens=np.array(self._output, dtype=np.int32),
            resolution_ns=self._tick_ns(at + (self._begin or 0)),
            session=tuple(self._sessions) if any(self._sessions) else None,
            blocks=tuple(self._blocks) if self._blocks else None,
        )


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their line numbers: JSON objects where the file begins with one, else CSV under a header."""
    lines = text_lines(path)
    head = next(lines, None)
    if head is None:
        raise ScenarioError(f"{path}: is empty")
    if head[1].lstrip().startswith("{"):
        yield head[0], json_object(path, *head)
        for number, text in lines:
            yield number, json_object(path, number, text)
        return
    names = [name.strip() for name in next(csv.reader([head[1]]))]
    for number, text in lines:
        try:
            cells = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise ScenarioError(f"{path}:{number}: not CSV: {error}") from None
        if len(cells) != len(names):
            raise ScenarioError(f"{path}:{number}: has {len(cells)} columns, the header {len(names)}")
        yield number, dict(zip(names, cells, strict=True))


def _told(path: Path, row: Mapping[str, Any], kind: str) -> str:
    """The format, from the names of the columns where it is not given; complains of a column that is missing."""
    if kind == "auto":
        kind = max(FORMATS, key=lambda name: len({*FORMATS[name].needs} & {*row}))
        if not {*FORMATS[kind].needs} & {*row}:
            known = "; ".join(f"{name}: {', '.join(shape.needs)}" for name, shape in FORMATS.items())
            raise ScenarioError(
                f"{path}: no known trace has these columns: {', '.join(row)}. Expected {known}"
            )
    missing = [name for name in FORMATS[kind].needs if name not in row]
    if missing:
        raise ScenarioError(
            f"{path}:1: column {missing[0]}: missing; a trace of format {kind} has {', '.join(FORMATS[kind].needs)}"
        )
    return kind
