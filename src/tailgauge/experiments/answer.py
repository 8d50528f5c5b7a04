"""The answer of an experiment: one sentence, one table, and the same as plain values.

Rule: made by a kind of experiment, read by the page, the Markdown, the JSON, JUnit and the terminal, which add nothing.
The sentence is for somebody who decides: the answer first, its interval in it, no abbreviation that is not in the
glossary. The table is for somebody who checks: a row for each thing that was tried or found.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailgauge.errors import Exit
from tailgauge_analysis.text.json_values import Json

PASS, FAIL, OPEN = "pass", "fail", "inconclusive"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown. `caption` says what a row is and how its numbers were made."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that a build server shows: `outcome` is pass, fail or inconclusive, `said` why."""

    name: str
    outcome: str
    said: str


@dataclass(frozen=True, slots=True)
class Line:
    """Points of a curve, with their intervals where there are any; x ascending."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    joined: bool = True  # a line through the points


@dataclass(frozen=True, slots=True)
class Mark:
    """An interval of x that is shaded, or a single place where both ends are the same."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure of an answer; `log` axes where named."""

    name: str
    title: str
    caption: str
    x: str
    y: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What an experiment found. `facts` are the numbers behind the sentence; `smallest` is the smallest effect that an
    experiment like this one detects, as a sentence; `remarks` are what the reader should know.
    """

    kind: str
    sentence: str
    table: Table
    facts: Json
    exit_code: Exit
    smallest: str
    cases: tuple[Case, ...] = ()
    remarks: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    more: tuple[Table, ...] = field(default=())  # further tables, below
