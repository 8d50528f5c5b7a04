"""The answer of an experiment, and its report.json: one sentence, tables, and the same as plain values.

An experiment returns an `Answer`; with its runs it becomes an `AnswerReport`, from which the page, the Markdown, the JSON,
JUnit and the terminal are rendered. Renderers add nothing.
The sentence is for a decision: the answer first, with its interval. The table is for checking it: a row per thing tried
or found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, with_config
from pydantic.json_schema import SkipJsonSchema

from tailgauge.errors import Exit
from tailgauge.scenario.experiment import ExperimentKind
from tailgauge.thresholds import WORST_FIRST

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
SCHEMA_VERSION: Literal[1] = 1
Outcome = Annotated[str, Field(json_schema_extra={"enum": [PASS, FAIL, INCONCLUSIVE]})]
Verdict = Annotated[str, Field(json_schema_extra={"enum": list(WORST_FIRST)})]


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Cells as shown. `caption` states what a row is and how its numbers are computed."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One test case for a build server."""

    name: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """Points, with their intervals if there are any; x ascending."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    joined: bool = True  # a line through the points


@dataclass(frozen=True, slots=True)
class Mark:
    """A shaded interval of x, or a vertical line if both ends are the same."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure of an answer."""

    name: str
    title: str
    caption: str
    x: str
    y: str
    curves: tuple[PlotCurve, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What an experiment found."""

    kind: Annotated[ExperimentKind, Field(description="of experiment")]
    sentence: Annotated[str, Field(description="the answer")]
    table: Annotated[AnswerTable, Field(description="the evidence")]
    facts: Annotated[
        dict[str, Any],
        Field(
            description="its numbers, unrounded; keys depend on the kind, see `tailgauge docs experiments`"
        ),
    ]
    exit_code: Annotated[
        Exit,
        WithJsonSchema({"enum": [0, 1, 3, 5, 130], "type": "integer"}),
        Field(description="see `tailgauge docs cli`"),
    ]
    smallest: Annotated[str, Field(description="minimum detectable effect; may be empty")]
    cases: Annotated[tuple[Case, ...], Field(description="as in junit.xml")] = ()
    remarks: Annotated[tuple[str, ...], Field(description="notes for the reader")] = ()
    pictures: SkipJsonSchema[tuple[Picture, ...]] = ()  # on the page only
    more: Annotated[tuple[AnswerTable, ...], Field(description="further tables")] = ()


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of an experiment, in report.json."""

    name: str
    run_id: str
    verdict: Verdict
    reason: str


@with_config(ConfigDict(use_attribute_docstrings=True))
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReport(Answer):
    """report.json of an experiment; docs/reference/answer.schema.json is generated from it."""

    schema_version: Literal[1]
    """version of these keys"""
    run_id: str
    """of the experiment; its runs have their own"""
    verdict: Verdict
    """the worst of its runs"""
    runs: tuple[RunRow, ...]
    """in the order in which they ran"""
    dry_run: bool
    """whether nothing was sent"""
    expected: str
    """the answer of the dry run before it; may be empty"""
    planned: tuple[str, ...]
    """what it was expected to take"""
    took: str
    """what it took"""
    scenario: str
    """its name"""
    description: str
    target: str
    """its URL, or simulated"""
    started_at: str
    """UTC, ISO 8601"""
    command: str
    """repeats the experiment"""
