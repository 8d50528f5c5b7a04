"""The contents of an answer: what page, Markdown, JSON, JUnit and terminal are written from.

Rule: plain values only, so that all of them say the same; the keys are those of the experiment's report.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from tailgauge.experiments.answer import Answer, Case, Table
from tailgauge.thresholds import VALID, WORST_FIRST
from tailgauge_analysis.text.json_values import Json

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Told:
    """One run of the experiment, for the list at the end."""

    name: str
    run_id: str
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class About:
    """What is said of an experiment beside its answer. `dry_run`: the answer itself is of the virtual clock;
    `planned` and `took` are lines on what was expected and used, `expected` the answer of the rehearsal before it.
    """

    run_id: str
    scenario: str
    description: str
    target: str
    started_at: str
    command: str
    dry_run: bool
    planned: tuple[str, ...]
    took: str
    expected: str
    left_out: tuple[str, ...]


@with_config(ConfigDict(use_attribute_docstrings=True))
class AnswerJson(TypedDict):
    """report.json of an experiment; docs/answer.schema.json is generated from it."""

    schema_version: Literal[1]
    """version of these keys"""
    run_id: str
    """of the experiment; its runs have their own"""
    kind: Literal["headroom", "hedging", "models", "checkup"]
    """of question"""
    sentence: str
    """the answer"""
    facts: Json
    """the numbers behind it, unrounded, by kind; see docs/experiments.md"""
    table: Table
    """the evidence"""
    more: list[Table]
    """further tables"""
    exit_code: Literal[0, 1, 3, 130]
    """see docs/cli.md"""
    verdict: Literal["VALID", "DEGRADED", "INVALID"]
    """the worst of its runs"""
    remarks: list[str]
    """what the reader should know"""
    cases: list[Case]
    """as in junit.xml"""
    runs: list[Told]
    """in the order in which they ran"""
    smallest: str
    """minimum detectable effect; may be empty"""
    dry_run: bool
    """true: a dry run only"""
    expected: str
    """the answer of the dry run before it; may be empty"""
    planned: list[str]
    """duration and cost expected by the dry run"""
    took: str
    """duration and cost"""
    left_out: list[str]
    """steps that a dry run cannot do"""
    scenario: str
    """its name"""
    description: str
    target: str
    """its URL, or simulated"""
    started_at: str
    """UTC, ISO 8601"""
    command: str
    """command that repeats the experiment"""


def contents(answer: Answer, about: About, runs: Sequence[Told]) -> Json:
    """Everything that is shown."""
    verdicts = [run.verdict for run in runs]
    return {
        "schema_version": SCHEMA_VERSION,
        **asdict(about),
        "kind": answer.kind,
        "verdict": min(verdicts, key=WORST_FIRST.index, default=VALID),
        "sentence": answer.sentence,
        "table": asdict(answer.table),
        "more": [asdict(table) for table in answer.more],
        "facts": answer.facts,
        "smallest": answer.smallest,
        "remarks": list(answer.remarks),
        "cases": [asdict(case) for case in answer.cases],
        "runs": [asdict(run) for run in runs],
        "exit_code": int(answer.exit_code),
    }
