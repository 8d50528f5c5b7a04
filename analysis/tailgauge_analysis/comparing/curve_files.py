"""A load curve for other programs: a CSV file with one row per load. Its JSON is in report.json (curve.py)."""

from __future__ import annotations

import csv
import io
from typing import Any

from tailgauge_analysis.comparing.curve import CONCURRENCY, Curve, CurvePoint, Ends
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import TextFiles

CSV = "curve.csv"
FILES_NOTE = f"{CSV}, beside report.json, has a row per load"


def files(curve: Curve) -> TextFiles:
    """Return the file. Units stand in the names of its columns; an empty cell is an unknown value."""
    load = CONCURRENCY if curve.by == CONCURRENCY else "offered_requests_per_s"
    rows = []
    columns: dict[str, None] = {}
    for point in curve.points:
        row = plain_values({load: point.load, **_cells(point)})
        rows.append(row)
        columns.update(dict.fromkeys(row))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return ((CSV, text.getvalue()),)


def _cells(point: CurvePoint) -> Json:
    cells = {
        "duration_s": point.seconds,
        "requests": point.requests,
        "complete_share": point.complete,
        **_ends("refused", "share", point.refused),
        "backlog_growth_requests_per_s": point.growth_per_s,
        "stable": point.stable,
        "meets": point.meets,
        **_ends("answered", "requests_per_s", point.requests_per_s),
        **_ends("within_slo", "requests_per_s", point.good_per_s),
        **_ends("output", "tokens_per_s", point.output_tokens_per_s),
        **_ends("user", "tokens_per_s", point.user_tokens_per_s),
    }
    for metric, quantiles in point.latency.items():
        for quantile, ends in quantiles.items():
            cells.update(_ends(f"{metric}_{quantile}", "ms", ends))
    return {
        **cells,
        "prompt_tokens_per_call": point.prompt_tokens,
        "output_tokens_per_call": point.output_tokens,
        "runs": " ".join(point.runs),
    }


def _ends(name: str, unit: str, ends: Ends) -> dict[str, Any]:
    return {
        f"{name}_{unit}": ends.value,
        f"{name}_low_{unit}": ends.low,
        f"{name}_high_{unit}": ends.high,
    }
