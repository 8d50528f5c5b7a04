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

from tailgauge_analysis.curves.curve import CONCURRENCY, Curve, CurvePoint, Ends
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import TextFiles

CSV, MLPERF = "curve.csv", "curve_mlperf.json"
NOTE = f"beside report.json: {CSV}, a row per load, and {MLPERF}, the step function of MLPerf Endpoints v1.0"
RULES = "MLPerf Endpoints v1.0: https://github.com/mlcommons/endpoints_policies, endpoints_rules.md"
FEWEST_POINTS = 7
ULTRA_LOW, SHORTEST_S = 32, (600, 1200)  # seconds of a point up to so much concurrency, and beyond


def files(curve: Curve) -> TextFiles:
    """Both files."""
    tree = plain_values(_mlperf(curve))
    return (CSV, _csv(curve)), (MLPERF, json.dumps(tree, indent=1, allow_nan=False) + "\n")


def _csv(curve: Curve) -> str:
    """Units stand in the names of the columns; an empty cell is an unknown value."""
    rows = [plain_values(dict(_cells(curve, point))) for point in curve.points]
    out, columns = io.StringIO(), dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(out, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _cells(curve: Curve, point: CurvePoint) -> Iterator[tuple[str, Any]]:
    yield _load(curve), point.load
    yield "duration_s", point.seconds
    yield "requests", point.requests
    yield "complete_share", point.complete
    yield from _ends("refused", "share", point.refused)
    yield "backlog_growth_requests_per_s", point.growth_per_s
    yield "stable", point.stable
    yield "meets", point.meets
    yield from _ends("answered", "requests_per_s", point.requests_per_s)
    yield from _ends("within_slo", "requests_per_s", point.good_per_s)
    yield from _ends("output", "tokens_per_s", point.output_tokens_per_s)
    yield from _ends("user", "tokens_per_s", point.user_tokens_per_s)
    for metric, quantiles in point.latency.items():
        for quantile, ends in quantiles.items():
            yield from _ends(f"{metric}_{quantile}", "ms", ends)
    yield "prompt_tokens_per_call", point.prompt_tokens
    yield "output_tokens_per_call", point.output_tokens
    yield "runs", " ".join(point.runs)


def _ends(name: str, unit: str, ends: Ends) -> Iterator[tuple[str, float | None]]:
    yield f"{name}_{unit}", ends.value
    yield f"{name}_low_{unit}", ends.low
    yield f"{name}_high_{unit}", ends.high


def _load(curve: Curve) -> str:
    return CONCURRENCY if curve.by == CONCURRENCY else "offered_requests_per_s"


def _mlperf(curve: Curve) -> dict[str, Any]:
    return {
        "rules": RULES, "is_mlperf_result": False, "departs_from_rules": list(_departures(curve)),
        "curve": "a step function: from a point to the next it holds the last value",
        "model": curve.model, "target": curve.target, "scenario": curve.scenario, "gpus": curve.gpus,
        "points": [{_load(curve): point.load, **_step(point)} for point in curve.points],
    }  # fmt: skip


def _step(point: CurvePoint) -> dict[str, Any]:
    """A point under the names of the rules; ends of intervals beside them."""
    tpot, system = point.quantile("tpot", "p90"), point.output_tokens_per_s
    user = tpot.under(1000)
    return {
        "system_tps": system.value, "system_tps_low": system.low, "system_tps_high": system.high,
        "tps_per_user": user.value, "tps_per_user_low": user.low, "tps_per_user_high": user.high, "tpot_p90_ms": tpot.value,
        "ttft_p90_ms": point.quantile("ttft", "p90").value,
        "requests": point.requests, "duration_s": point.seconds,
    }  # fmt: skip


def _departures(curve: Curve) -> Iterator[str]:
    """Why MLCommons would not take it."""
    if curve.by != CONCURRENCY:
        yield "measured at fixed rates, not at fixed concurrency: no curve of MLPerf Endpoints"
    yield "the prompts of the scenario, not those of a benchmark; no accuracy runs"
    yield "tokens as the target reports them, not counted with the reference tokenizer"
    yield "TPOT is (last - first content) / (output tokens - 1)"
    if len(curve.points) < FEWEST_POINTS:
        yield f"{plural(len(curve.points), 'point')} of at least {FEWEST_POINTS}"
    short = sum(point.seconds < SHORTEST_S[point.load > ULTRA_LOW] for point in curve.points)
    if short:
        yield f"{plural(short, 'point')} shorter than 600 s, or 1,200 s above a concurrency of {ULTRA_LOW}"
