"""The answer of an experiment, and the report that it becomes with its runs.

The result is for a decision: the answer first, with its interval. The sections are for checking it: a row per thing tried
or found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
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


def estimate(value: Number, low: Number, high: Number, text_of: Callable[[float], str]) -> Value:
    """Return a number with its interval, if that is wider than the number as shown."""
    text = _number_text(value, text_of)
    ends = [_number_text(low, text_of), _number_text(high, text_of)]
    if ends in ([text, text], ["?", "?"]):
        return Value(text)
    return Value(text, " – ".join(ends))


def _number_text(number: Number, text_of: Callable[[float], str]) -> str:
    if number is None:
        return "?"
    return text_of(number)


def interval_text(low: Number, high: Number) -> str:
    """Return an interval of rates or loads; `?` at an end without a bound."""
    return f"{_number_text(low, figures)} – {_number_text(high, figures)}"


def load_line(
    name: str, outcome: str, needed: float, interval: Sequence[Number], unit: str
) -> ObjectiveLine:
    """Return the objective that a load is `needed` at least; `interval`: value, low and high end."""
    value, *ends = interval
    text = NONE
    if value is not None:
        text = f"{figures(value)} {unit}"
    low, high = ends
    numbers = Numbers(value=value, bound=needed, low=low, high=high, unit=unit)
    return ObjectiveLine(
        name,
        outcome,
        text,
        f"≥ {figures(needed)} {unit}",
        interval_text(low, high),
        numbers=numbers,
    )


TONE_OF: dict[str, Tone] = {PASS: "good", INCONCLUSIVE: "warn", FAIL: "bad"}


def tone_of(outcome: str) -> Tone:
    """Return the tone of a card whose value is what the outcome judges."""
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
        """Return the finding as plain values."""
        facts: dict[str, Any] = plain_values(self.finding)
        return facts


def answered(
    kind: ExperimentKind,
    title: str,
    result: Result,
    finding: Any,
    tables: Iterable[Table],
    *,
    notes: Iterable[str] = (),
    smallest: str = "",
    pictures: Sequence[Picture] = (),
    files: TextFiles = (),
    card: Card | None = None,
) -> Answer:
    """Return an answer with its evidence in one section, whose `card` is shown first."""
    texts = tuple(f"{sentence(text).removesuffix('.')}." for text in notes)
    evidence = Section(
        kind, title, tables=tuple(tables), figures=tuple(pictures), notes=texts, card=card
    )
    return Answer(kind, result, finding, sections=(evidence,), smallest=smallest, files=files)


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
    """Return whether an answer can be used, by the verdicts of its runs, with the first reason against each by its name.

    INVALID if all runs are. DEGRADED if some are INVALID, which are not used, or some are DEGRADED; then the figures are
    named that the client moved, if no run's objective rests on one. Else VALID, also without runs.
    """
    invalid = 0
    spoiled = []  # the figures that the client moved, of each DEGRADED run
    named_reasons = []
    for run in runs:
        if run.verdict == INVALID:
            invalid += 1
        if run.verdict == DEGRADED:
            spoiled.append(run.spoils)
        if run.reason:
            named_reasons.append((f"{run.name}: {run.reason}", ""))
    reasons = tuple(named_reasons)
    if invalid and invalid == len(runs):
        return Measurement(INVALID, "every run is INVALID", reasons)
    if invalid:
        text = f"{invalid} of {plural(len(runs), 'run')} INVALID and not used"
        return Measurement(DEGRADED, text, reasons)
    if spoiled:
        text = f"{len(spoiled)} of {plural(len(runs), 'run')}"
        if all(spoiled):
            figures_text = listed(dict.fromkeys(chain.from_iterable(spoiled)))
            text += f": the client moved only {figures_text}, no figure of an objective"
        return Measurement(DEGRADED, text, reasons)
    return Measurement(VALID, plural(len(runs), "run"), reasons)


def caveat(runs: Sequence[RunRow], measurement: Measurement) -> str:
    """Return the words that warn before the answer's sentence: that runs are not used, or that none is VALID.

    Empty where no warning is needed: of VALID and INVALID answers, and of DEGRADED runs in which the client moved no
    figure that an objective bounds (`spoils` names the figures that it moved).
    """
    if measurement.verdict != DEGRADED:
        return ""
    invalid = 0
    used_verdicts = set()
    moves_objectives = False
    for run in runs:
        if run.verdict == INVALID:
            invalid += 1
            continue
        used_verdicts.add(run.verdict)
        if run.verdict == DEGRADED and not run.spoils:
            moves_objectives = True
    is_degraded = used_verdicts == {DEGRADED} and moves_objectives  # every run that is used
    if invalid:
        text = f"{invalid} of {plural(len(runs), 'run')} INVALID and not used"
        if not is_degraded:
            return text
        return f"{text}, the others DEGRADED"
    if not is_degraded:
        return ""
    if len(runs) == 1:
        return "the only run is DEGRADED"
    return f"all {len(runs)} runs DEGRADED"


def exit_code(result: Result, measurement: Measurement, *, interrupted: bool) -> Exit:
    """Return the first that applies: interrupted, INVALID, else the code of the outcome."""
    if interrupted:
        return Exit.INTERRUPTED
    if measurement.verdict == INVALID:
        return Exit.INVALID
    return EXITS[result.outcome]


def report(file: AnswerFile) -> Report:
    """Return the report of an experiment as every renderer gets it, from its report.json.

    Its sections come first; the last one has the method: what it took, the command, and a row for each run. The first
    picture of all sections is shown on top. `instead_of`: the target in whose place a dry run used the simulated
    endpoint.
    """
    facts = [("took", file.took)]
    for text in file.planned:
        facts.append(("planned", text))
    facts += [
        ("minimum detectable effect", file.smallest),
        ("expected by the dry run", file.expected),
        ("command", file.command),
    ]
    known_facts = [(name, text) for name, text in facts if text]
    columns: list[Column[RunRow]] = [
        ("run", lambda row: row.name),
        ("verdict", lambda row: Value(row.verdict, outcome=row.verdict)),
        ("first reason", lambda row: row.reason),
        ("folder and report", lambda row: row.run_id),
    ]
    if not any(row.reason for row in file.runs):
        del columns[2]  # first reason
    table = Table.of("Runs", file.runs, columns, prose=(2, 3))
    method = Section("method", "Method", facts=tuple(known_facts), tables=(table,))
    target = file.target
    instead_of = ""
    if target == SIMULATED:
        target = SIMULATED_NAME
    elif file.dry_run:
        instead_of = target
        target = SIMULATED_NAME
    pictures: list[Picture] = []
    for section in file.sections:
        pictures += section.figures
    about = (file.description, target, f"{file.started_at[:10]}, {file.started_at[11:16]} UTC")
    title = file.scenario
    if file.scenario != file.kind:
        title = f"{file.kind}: {file.scenario}"
    return Report(
        run_id=file.run_id,
        title=title,
        about=tuple(filter(None, about)),
        started_at=file.started_at,
        dry_run=file.dry_run,
        result=file.result,
        measurement=file.measurement,
        summary=(),
        sections=(*file.sections, method),
        exit_code=file.exit_code,
        figure=next(iter(pictures), None),
        data=plain_values(file),
        planned=file.planned if file.dry_run else (),
        instead_of=instead_of,
        plan_fails=bool(file.exceeded),
    )
