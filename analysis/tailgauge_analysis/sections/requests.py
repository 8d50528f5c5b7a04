"""Requests: every one that was scheduled is accounted for, and how those of the steady stage ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.run_files import Problem
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.text.cells import share_cell
from tailgauge_analysis.text.formatting import clock, count, plain, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.section import Section, Table
from tailgauge_analysis.verdict.conservation import Conservation
from tailgauge_analysis.verdict.losses import due

MOST_PROBLEMS = 20
COMPUTED = (
    "All statistics cover the steady stage. Conservation counts the rows of the whole run without preflight and compares them "
    "with the counts of the master."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many requests of the steady stage ended so."""

    ended: str
    requests: Proportion


def outcomes(stage: Steady) -> list[Outcome]:
    """Every class that occurred, the most frequent first."""
    ended = stage.requests["ended"]
    names = ended.value_counts().index
    return [Outcome(str(name), proportion((ended == name).to_numpy(np.bool_))) for name in names]


def section(
    counted: Conservation, ended: Sequence[Outcome], stage: Steady, problems: Sequence[Problem], preflight: Sequence[Json]
) -> Section:  # fmt: skip
    """The section."""
    n, ok = len(stage.requests), next((one.requests.k for one in ended if one.ended == schema.OK), 0)
    answer = "No request of the steady stage was sent."
    if n:
        of = f"{plural(n, 'request')} of the steady stage (from {clock(stage.from_s)} to {clock(stage.to_s)} of the run)"
        answer = f"{share(ok / n)} of {of} got a complete answer."
    notes = [*counted.broken, *(plain(one.text, 500) for one in problems[:MOST_PROBLEMS])]
    if len(problems) > MOST_PROBLEMS:
        notes.append(f"{plural(len(problems) - MOST_PROBLEMS, 'more note')} in report.json.")
    notes += [f"Preflight request, not in the statistics: {_preflight(entry)}" for entry in preflight]
    cells = (replace(share_cell(one.requests), share=one.requests.value) for one in ended)
    rows = [(one.ended, count(one.requests.k), cell) for one, cell in zip(ended, cells, strict=True)]
    header = ("steady stage", "requests", "share of requests")
    tables = (Table("Outcomes", header, tuple(rows)), _accounts(counted))
    shown = tables if rows else tables[1:]
    return Section("requests", "Requests", answer, (), shown, ("classes",), tuple(notes), (COMPUTED,))


def _accounts(counted: Conservation) -> Table:
    """Both equations of conservation."""
    rows = [
        ("Scheduled", count(counted.scheduled)),
        ("= dispatched", count(counted.dispatched)),
        ("+ dropped at the in-flight cap", count(counted.client_drop)),
        ("+ not reached", count(counted.not_reached)),
        ("+ lost", count(counted.lost)),
        ("Dispatched", count(counted.dispatched)),
        *(("=+"[i > 0] + f" {name}", count(n)) for i, (name, n) in enumerate(counted.ended.items())),
        ("+ still open at the end (censored)", count(counted.censored)),
    ]
    missing = [
        f"{plural(one.requests, 'request')}{'' if one.worker is None else f' of worker {one.worker}'}{due([one])}"
        for one in counted.missing
    ]
    more = f" and {len(missing) - 5} more intervals" if len(missing) > 5 else ""
    note = f"Without a row: {'; '.join(missing[:5])}{more}." if missing else ""
    return Table("Conservation", ("whole run", "requests"), tuple(rows), note)


def _preflight(entry: Json) -> str:
    status = f" ({entry['status']})" if entry.get("status") else ""
    message = f": {entry['message']}" if entry.get("message") else ""
    return plain(f"{entry['ended']}{status}{message}", 400)
