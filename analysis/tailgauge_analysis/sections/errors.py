"""The section on errors: which came back, how often, and the body of the first of each.

Of attempts, over the whole run except preflight: an error in the warm-up counts too, and one that a retry healed. Requests
that did not complete, and why, are in failures.py. What a target wrote is kept as text without control characters; the page
escapes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import count, plain, plural
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Section, Table, Value

KEY = ""
MOST = 10
EXCERPT = 400
_FINE = (*schema.NOT_FAILED, schema.CENSORED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One kind of failed attempt."""

    ended: str
    status: int | None
    error_type: str
    limit_kind: str
    attempts: int
    steady: int
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The most frequent kinds of failed attempts of the whole run."""

    errors: list[Failure]
    """kinds of failed attempts of the whole run, most frequent first"""
    other_failures: int
    """failed attempts of rarer kinds"""
    still_open: int = field(metadata=UNPUBLISHED)
    """attempts that the end of the run closed"""


def compute(run: Run) -> Errors:
    """Count the failed attempts of a run by what the target answered."""
    attempts = run.frames.attempts
    attempts = attempts[attempts["stage"] != schema.PREFLIGHT]
    bad = attempts[~attempts["ended"].isin(_FINE)]
    # An answer without an error has ended by the reason that it gives.
    bad = bad.assign(error_type=bad["error_type"].fillna(bad["stop_reason"]))
    by_kind = bad.groupby(["ended", "status", "error_type", "limit_kind"], dropna=False)
    kinds = sorted((_kind(rows) for _, rows in by_kind), key=lambda kind: -kind.attempts)
    return Errors(
        errors=kinds[:MOST],
        other_failures=sum(kind.attempts for kind in kinds[MOST:]),
        still_open=int((attempts["ended"] == schema.CENSORED).sum()),
    )


def _kind(rows: pd.DataFrame) -> Failure:
    """Return the failed attempts of one kind, which `rows` are: equal in end, status, error type and limit.

    The excerpt is the first error body among them. Text of the target is made harmless; it is empty where there is none.
    """
    example = rows.iloc[0]
    error_bodies = rows["error_body"].dropna()
    status = None
    if not pd.isna(example["status"]):
        status = int(example["status"])
    error_type = ""
    if not pd.isna(example["error_type"]):
        error_type = plain(str(example["error_type"]), 100)
    limit_kind = ""
    if not pd.isna(example["limit_kind"]):
        limit_kind = plain(str(example["limit_kind"]), 100)
    excerpt = ""
    if len(error_bodies):
        excerpt = plain(str(error_bodies.iloc[0]), EXCERPT)
    return Failure(
        ended=str(example["ended"]),
        status=status,
        error_type=error_type,
        limit_kind=limit_kind,
        attempts=len(rows),
        steady=int((rows["stage"] == schema.STEADY).sum()),
        excerpt=excerpt,
    )


def section(errors: Errors) -> Section:
    """Return the section: the kinds of failed attempts of the whole run, each with its first error body.

    The kinds beyond the most frequent are one count. Attempts that the end of the run closed are no failures, and are named apart.
    """
    still_open = ""
    if errors.still_open:
        still_open = f"{plural(errors.still_open, 'attempt')} still open at the end"
    if not errors.errors:
        answer = "No attempt failed."
        if still_open:
            answer = f"No attempt failed; {still_open}."
        return Section("errors", "Errors", answer, is_folded=True)
    failed = sum(kind.attempts for kind in errors.errors) + errors.other_failures
    rows = []
    for kind in errors.errors:
        numbers = (count(kind.attempts), count(kind.steady))
        status = "–"
        if kind.status is not None:
            status = str(kind.status)
        kind_cell = Value(kind.ended, kind.limit_kind)
        rows.append((kind_cell, status, kind.error_type or "–", *numbers, kind.excerpt or "–"))
    note = "The table covers the whole run without preflight. “First body” is the first error body of its kind."
    if errors.other_failures:
        note += f" {plural(errors.other_failures, 'attempt')} of rarer kinds {'is' if errors.other_failures == 1 else 'are'} not shown."
    header = ("class", "status", "type", "attempts", "in the steady stage", "first body")
    table = Table("Failed attempts", header, tuple(rows), note, (2, 5))
    answer = "; ".join(filter(None, [f"{plural(failed, 'attempt')} failed", still_open]))
    return Section("errors", "Errors", f"{answer}.", (), (table,))
