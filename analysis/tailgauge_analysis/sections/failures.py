"""Errors: which errors came back, how often, and the body of the first of each.

Of attempts, over the whole run except preflight: an error in the warm-up counts too. What a target wrote is kept as text
without control characters; the page escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import count, plain, plural
from tailgauge_analysis.text.section import Section, Table, Value

MOST = 10
EXCERPT = 400
_FINE = (schema.OK, schema.CANCELLED, schema.CENSORED)


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


def section(kinds: Sequence[Failure], others: int) -> Section:
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
