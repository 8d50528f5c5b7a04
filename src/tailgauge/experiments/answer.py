"""The answer of an experiment, and the report that it becomes with its runs.

The result is for a decision: the answer first, with its interval. The sections are for checking it: a row per thing tried
or found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, with_config

from tailgauge.errors import Exit
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.scenario.experiment import ExperimentKind
from tailgauge.thresholds import DEGRADED, INVALID, VALID, WORST_FIRST
from tailgauge_analysis import (
    EXITS,
    FAIL,
    INCONCLUSIVE,
    PASS,
    Card,
    Column,
    Measurement,
    Numbers,
    ObjectiveLine,
    Picture,
    Report,
    Result,
    Section,
    Table,
    TextFiles,
    Tone,
    Value,
    figures,
    listed,
    plain_values,
    plural,
    sentence,
)

SCHEMA_VERSION: Literal[1] = 1
NOTHING = "no answer: every run was INVALID, or there was no time for one"
NONE = "–"
SIMULATED_NAME = "simulated endpoint"
Number = float | None  # None: not known


def estimate(value: Number, low: Number, high: Number, shown: Callable[[float], str]) -> Value:
    """A number with its interval, if that is wider than the number as shown."""
    of, *ends = ("?" if one is None else shown(one) for one in (value, low, high))
    return Value(of, "" if ends in ([of, of], ["?", "?"]) else " – ".join(ends))


def between(low: Number, high: Number) -> str:
    """An interval of rates or loads; `?` at an end without a bound."""
    return " – ".join("?" if end is None else figures(end) for end in (low, high))


def load_line(name: str, outcome: str, needed: float, found: Sequence[Number], unit: str) -> ObjectiveLine:
    """The objective that a load is `needed` at least; `found`: value, low and high end."""
    value, *ends = found
    text = NONE if value is None else f"{figures(value)} {unit}"
    low, high = ends
    numbers = Numbers(value=value, bound=needed, low=low, high=high, unit=unit)
    return ObjectiveLine(
        name, outcome, text, f"≥ {figures(needed)} {unit}", between(low, high), numbers=numbers
    )


TONE_OF: dict[str, Tone] = {PASS: "good", INCONCLUSIVE: "warn", FAIL: "bad"}


def tone_of(outcome: str) -> Tone:
    """The tone of a card whose value is what the outcome judges."""
    return TONE_OF.get(outcome, "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an experiment found. `finding`: its numbers, unrounded; `smallest`: minimum detectable effect, may be empty."""

    kind: ExperimentKind
    result: Result
    finding: Any
    sections: tuple[Section, ...] = ()
    smallest: str = ""
    files: TextFiles = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The finding as plain values."""
        facts: dict[str, Any] = plain_values(self.finding)
        return facts


def answered(
    kind: ExperimentKind, title: str, result: Result, finding: Any, tables: Iterable[Table], notes: Iterable[str] = (),
    smallest: str = "", pictures: Sequence[Picture] = (), files: TextFiles = (), card: Card | None = None,
) -> Answer:  # fmt: skip
    """An answer with its evidence in one section, whose `card` is shown first."""
    texts = tuple(f"{sentence(text).removesuffix('.')}." for text in notes)
    evidence = Section(kind, title, tables=tuple(tables), figures=tuple(pictures), notes=texts, card=card)
    return Answer(kind, result, finding, (evidence,), smallest, files)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of an experiment, in report.json."""

    name: str
    run_id: str
    verdict: Annotated[str, Field(json_schema_extra={"enum": list(WORST_FIRST)})]
    reason: str
    spoils: tuple[str, ...] = ()
    """figures that cannot be used, where the outcome rests on none of them; else empty"""


@with_config(ConfigDict(use_attribute_docstrings=True, arbitrary_types_allowed=True))
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFile:
    """report.json of an experiment; docs/reference/answer.schema.json is generated from it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """version of these keys"""
    kind: ExperimentKind
    """of experiment"""
    run_id: str
    """of the experiment; its runs have their own"""
    result: Result
    """the answer"""
    measurement: Measurement
    """whether the runs can be used"""
    facts: dict[str, Any]
    """its numbers, unrounded; keys depend on the kind, see `tailgauge docs experiments`"""
    sections: tuple[Section, ...]
    """the evidence"""
    smallest: str
    """minimum detectable effect; may be empty"""
    exit_code: Annotated[Exit, WithJsonSchema({"enum": [0, 1, 3, 5, 130], "type": "integer"})]
    """see `tailgauge docs cli`"""
    runs: tuple[RunRow, ...]
    """in the order in which they ran"""
    dry_run: bool
    """whether nothing was sent"""
    expected: str
    """the answer of the dry run before it; may be empty"""
    planned: tuple[str, ...]
    """what it was expected to take"""
    exceeded: tuple[str, ...] = ()
    """limits of [guard] that the plan of a dry run exceeds: its result"""
    took: str
    """what it took"""
    scenario: str
    """its name"""
    description: str
    """of the scenario; empty where an option changed its load"""
    target: str
    """its URL, or simulated"""
    started_at: str
    """UTC, ISO 8601"""
    command: str
    """repeats the experiment"""


def measured(runs: Sequence[RunRow]) -> Measurement:
    """INVALID if all runs are; INVALID runs beside others are not used."""
    bad = [one for one in runs if one.verdict == INVALID]
    reasons = tuple((f"{one.name}: {one.reason}", "") for one in runs if one.reason)
    if bad and len(bad) == len(runs):
        return Measurement(INVALID, "every run is INVALID", reasons)
    if bad:
        text = f"{len(bad)} of {plural(len(runs), 'run')} INVALID and not used"
        return Measurement(DEGRADED, text, reasons)
    degraded = sum(one.verdict == DEGRADED for one in runs)
    if degraded:
        text = f"{degraded} of {plural(len(runs), 'run')}"
        spoiled = [one.spoils for one in runs if one.verdict == DEGRADED]
        if all(spoiled):
            figures_text = listed(dict.fromkeys(name for names in spoiled for name in names))
            text += f": the client moved only {figures_text}, no figure of an objective"
        return Measurement(DEGRADED, text, reasons)
    return Measurement(VALID, plural(len(runs), "run"), reasons)


def caveat(runs: Sequence[RunRow], measurement: Measurement) -> str:
    """Say that runs are not used, or that none is VALID; empty where the answer needs no such word."""
    if measurement.verdict != DEGRADED:
        return ""
    invalid = [row for row in runs if row.verdict == INVALID]
    others = [row.verdict for row in runs if row.verdict != INVALID]
    concerned = [row for row in runs if row.verdict == DEGRADED and not row.spoils]
    is_degraded = set(others) == {DEGRADED} and bool(concerned)
    if invalid:
        text = f"{len(invalid)} of {plural(len(runs), 'run')} INVALID and not used"
        return f"{text}, the others DEGRADED" if is_degraded else text
    if not is_degraded:
        return ""
    return "the only run is DEGRADED" if len(runs) == 1 else f"all {len(runs)} runs DEGRADED"


def exit_code(result: Result, measurement: Measurement, *, interrupted: bool) -> Exit:
    """The first that holds."""
    if interrupted:
        return Exit.INTERRUPTED
    return Exit.INVALID if measurement.verdict == INVALID else EXITS[result.outcome]


def report(of: AnswerFile) -> Report:
    """The report as every renderer gets it."""
    facts = (
        ("took", of.took),
        *(("planned", text) for text in of.planned),
        ("minimum detectable effect", of.smallest),
        ("expected by the dry run", of.expected),
        ("command", of.command),
    )
    columns: list[Column[RunRow]] = [
        ("run", lambda one: one.name),
        ("verdict", lambda one: Value(one.verdict, outcome=one.verdict)),
        ("first reason", lambda one: one.reason),
        ("folder and report", lambda one: one.run_id),
    ]
    if not any(one.reason for one in of.runs):
        del columns[2]
    table = Table.of("Runs", of.runs, columns, prose=(2, 3))
    method = Section("method", "Method", facts=tuple(fact for fact in facts if fact[1]), tables=(table,))
    instead_of = of.target if of.dry_run and of.target != SIMULATED else ""
    target = SIMULATED_NAME if of.dry_run or of.target == SIMULATED else of.target
    about = (of.description, target, f"{of.started_at[:10]}, {of.started_at[11:16]} UTC")
    title = of.scenario if of.scenario == of.kind else f"{of.kind}: {of.scenario}"
    return Report(
        run_id=of.run_id,
        title=title,
        about=tuple(filter(None, about)),
        started_at=of.started_at,
        dry_run=of.dry_run,
        result=of.result,
        measurement=of.measurement,
        summary=(),
        sections=(*of.sections, method),
        exit_code=of.exit_code,
        figure=next((figure for one in of.sections for figure in one.figures), None),
        data=plain_values(of),
        planned=of.planned if of.dry_run else (),
        instead_of=instead_of,
        plan_fails=bool(of.exceeded),
    )
