"""Requests: every one that was scheduled is accounted for, and how those of the steady stage ended.

Also here: which errors came back, how often, and the body of the first of each.

Of attempts, over the whole run except preflight: an error in the warm-up counts too. What a target wrote is kept as text
without control characters; the page escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.protocol_violations import MALFORMED_USAGE
from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_record import Problem
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.text.cells import share_cell
from tailgauge_analysis.text.formatting import clock, count, plain, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.section import Section, Table, Value
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
    n = len(stage.requests)
    complete = sum(outcome.requests.k for outcome in ended if outcome.ended in schema.COMPLETE)
    answer = "No request of the steady stage was sent."
    if n:
        of = f"{plural(n, 'request')} of the steady stage (from {clock(stage.from_s)} to {clock(stage.to_s)} of the run)"
        answer = f"{share(complete / n)} of {of} got a complete answer."
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
        f"{plural(one.requests, 'request')} of worker {one.worker}{due([one])}" for one in counted.missing
    ]
    more = f" and {len(missing) - 5} more intervals" if len(missing) > 5 else ""
    note = f"Without a row: {'; '.join(missing[:5])}{more}." if missing else ""
    return Table("Conservation", ("whole run", "requests"), tuple(rows), note)


def _preflight(entry: Json) -> str:
    status = f" ({entry['status']})" if entry.get("status") else ""
    is_usage = entry.get("error_type") == MALFORMED_USAGE
    prefix = "usage contradicts the request or the answer: " if is_usage else ""
    message = f": {prefix}{entry['message']}" if entry.get("message") else ""
    return plain(f"{entry['ended']}{status}{message}", 400)


# --- errors -------------------------------------------------------------------------------------------------------

MOST = 10
EXCERPT = 400
_FINE = (*schema.NOT_FAILED, schema.CENSORED)


@dataclass(frozen=True, slots=True)
class Failure:
    """One kind of failed attempt."""

    ended: str
    status: int | None
    error_type: str
    limit_kind: str
    attempts: int
    steady: int
    excerpt: str


def failures(frames: Frames) -> tuple[list[Failure], int]:
    """The most frequent kinds, and how many attempts are of others."""
    attempts = frames.attempts
    bad = attempts[(attempts["stage"] != schema.PREFLIGHT) & ~attempts["ended"].isin(_FINE)]
    # An answer without an error has ended by the reason that it gives.
    bad = bad.assign(error_type=bad["error_type"].fillna(bad["stop_reason"]))
    by_kind = bad.groupby(["ended", "status", "error_type", "limit_kind"], dropna=False)
    kinds = sorted((_kind(rows) for _, rows in by_kind), key=lambda kind: -kind.attempts)
    return kinds[:MOST], sum(kind.attempts for kind in kinds[MOST:])


def _kind(rows: pd.DataFrame) -> Failure:
    first = rows.iloc[0]
    bodies = rows["error_body"].dropna()
    return Failure(
        ended=str(first["ended"]),
        status=None if pd.isna(first["status"]) else int(first["status"]),
        error_type="" if pd.isna(first["error_type"]) else plain(str(first["error_type"]), 100),
        limit_kind="" if pd.isna(first["limit_kind"]) else plain(str(first["limit_kind"]), 100),
        attempts=len(rows),
        steady=int((rows["stage"] == schema.STEADY).sum()),
        excerpt=plain(str(bodies.iloc[0]), EXCERPT) if len(bodies) else "",
    )


def errors(kinds: Sequence[Failure], others: int) -> Section:
    """The section."""
    if not kinds:
        return Section("errors", "Errors", "No attempt failed.")
    total = sum(one.attempts for one in kinds) + others
    rows = tuple(
        (Value(one.ended, one.limit_kind), "–" if one.status is None else str(one.status), one.error_type or "–",
         count(one.attempts), count(one.steady), one.excerpt or "–")
        for one in kinds
    )  # fmt: skip
    note = "Whole run without preflight; the text is the first error body of its kind."
    note += f" {plural(others, 'attempt')} of rarer kinds not shown." if others else ""
    header = ("class", "status", "type", "attempts", "in the steady stage", "first body")
    table = Table("Failed attempts", header, rows, note, (2, 5))
    return Section("errors", "Errors", f"{plural(total, 'attempt')} failed.", (), (table,))
