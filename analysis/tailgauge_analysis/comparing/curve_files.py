"""A load curve for other programs: one row a load as CSV, and the step function of MLPerf Endpoints v1.0 as JSON.

MLPerf Endpoints v1.0 (mlcommons/endpoints_policies, endpoints_rules.md at 00135a00, 4.1, 5.2 and 6.2): at each fixed
concurrency system_tps, output tokens/s of the whole system, against tps_per_user, 1000 / tpot_p90_ms. From a point to the
next the curve holds the last value; nothing is interpolated. The file says where it departs from these rules.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from tailgauge_analysis.comparing.curve import CONCURRENCY, Curve, CurvePoint, Ends
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import TextFiles

CSV, MLPERF = "curve.csv", "curve_mlperf.json"
FILES_NOTE = (
    f"beside report.json: {CSV}, a row per load, and {MLPERF}, the step function of MLPerf Endpoints v1.0"
)
RULES = "MLPerf Endpoints v1.0: https://github.com/mlcommons/endpoints_policies, endpoints_rules.md"
FEWEST_POINTS = 7
ULTRA_LOW = 32  # concurrency
SHORTEST_S, SHORTEST_AT_ULTRA_LOW_S = 1200, 600


def files(curve: Curve) -> TextFiles:
    """Return both files."""
    tree = plain_values(_mlperf(curve))
    return (CSV, _csv(curve)), (MLPERF, json.dumps(tree, indent=1, allow_nan=False) + "\n")


def _csv(curve: Curve) -> str:
    """Units stand in the names of the columns; an empty cell is an unknown value."""
    rows = [plain_values({_load(curve): point.load, **_cells(point)}) for point in curve.points]
    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


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
    return {f"{name}_{unit}": ends.value, f"{name}_low_{unit}": ends.low, f"{name}_high_{unit}": ends.high}


def _load(curve: Curve) -> str:
    return CONCURRENCY if curve.by == CONCURRENCY else "offered_requests_per_s"


def _mlperf(curve: Curve) -> Json:
    return {
        "rules": RULES,
        "is_mlperf_result": False,
        "departs_from_rules": list(_departures(curve)),
        "curve": "a step function: from a point to the next it holds the last value",
        "model": curve.model,
        "target": curve.target,
        "scenario": curve.scenario,
        "gpus": curve.gpus,
        "points": [{_load(curve): point.load, **_step(point)} for point in curve.points],
    }


def _step(point: CurvePoint) -> Json:
    """A point under the names of the rules; ends of intervals beside them."""
    system = point.output_tokens_per_s
    tpot = point.quantile("tpot", "p90")
    user = tpot.under(1000)
    return {
        "system_tps": system.value,
        "system_tps_low": system.low,
        "system_tps_high": system.high,
        "tps_per_user": user.value,
        "tps_per_user_low": user.low,
        "tps_per_user_high": user.high,
        "tpot_p90_ms": tpot.value,
        "ttft_p90_ms": point.quantile("ttft", "p90").value,
        "requests": point.requests,
        "duration_s": point.seconds,
    }


def _departures(curve: Curve) -> Iterator[str]:
    """Why MLCommons would not take it."""
    if curve.by != CONCURRENCY:
        yield "measured at fixed rates, not at fixed concurrency: no curve of MLPerf Endpoints"
    yield "the prompts of the scenario, not those of a benchmark; no accuracy runs"
    yield "tokens as the target reports them, not counted with the reference tokenizer"
    yield "TPOT is (last - first content) / (output tokens - 1)"
    if len(curve.points) < FEWEST_POINTS:
        yield f"{plural(len(curve.points), 'point')} of at least {FEWEST_POINTS}"
    short = sum(_is_short(point) for point in curve.points)
    if short:
        yield f"{plural(short, 'point')} shorter than 600 s, or 1,200 s above a concurrency of {ULTRA_LOW}"


def _is_short(point: CurvePoint) -> bool:
    return point.seconds < (SHORTEST_AT_ULTRA_LOW_S if point.load <= ULTRA_LOW else SHORTEST_S)
