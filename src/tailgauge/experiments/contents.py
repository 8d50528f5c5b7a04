"""The contents of an answer: what page, Markdown, JSON, JUnit and terminal are written from.

Rule: plain values only, so that all of them say the same; the keys are those of the experiment's report.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tailgauge.experiments.answer import Answer
from tailgauge.thresholds import VALID
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict.verdict import WORST_FIRST

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
