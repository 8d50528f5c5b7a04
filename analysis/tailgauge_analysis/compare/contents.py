"""A comparison as JSON, from which the terminal text and Markdown are written. Changes and shares are fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tailgauge_analysis.compare.block import Block, view
from tailgauge_analysis.compare.comparability import Difference
from tailgauge_analysis.compare.design import Design
from tailgauge_analysis.compare.effects import ANSWERED_SHARE, POINTS, Effect
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.stats.quantiles import CONFIDENCE, Quantile
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import plain_values, quantile

SCHEMA_VERSION = 1
DIFFERENCE = ("group", "key", "a", "b", "between_variants", "allowed")


def contents(
    pairs: Sequence[tuple[Block, Block]],
    rows: Sequence[Effect],
    design: Design,
    differs: Sequence[Difference],
    threshold: float,
    verdict: str,
) -> Json:
    """Everything about the comparison but the exit code."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict,
        "against": design.against,
        "remarks": design.remarks,
        "differs": [plain_values({key: getattr(one, key) for key in DIFFERENCE}) for one in differs],
        "threshold": threshold,
        "confidence": CONFIDENCE,
        "pairs": len(pairs),
        "runs": [{"a": _run(a), "b": _run(b)} for a, b in pairs],
        "rows": [_answered(row) if row.metric == ANSWERED_SHARE else _latency(row) for row in rows],
    }


def _run(block: Block) -> Json:
    return {
        "run_id": block.run_id, "verdict": block.verdict, "seed": block.seed, "steady_s": round(block.seconds, 3),
        "offered": block.offered, "answered": round(block.answered, 6),
    }  # fmt: skip


def _latency(row: Effect) -> Json:
    metric = BY_NAME[row.metric]
    assert row.p is not None
    blocks: list[Json] = [{"a": quantile(a), "b": quantile(b), "change": None} for a, b in row.pairs]
    for one, harm in zip(blocks, row.harm, strict=False):
        one["change"] = _fraction(harm)
    return {
        "metric": row.metric, "title": metric.title, "since": metric.since, "view": view(metric), "unit": metric.unit,
        "p": row.p, "label": percentile(row.p),
        "a": _typical([a for a, _ in row.pairs], row.harm), "b": _typical([b for _, b in row.pairs], row.harm),
        **_tested(row, _fraction), "blocks": blocks,
    }  # fmt: skip


def _answered(row: Effect) -> Json:
    a, b = (float(np.mean([pair[side] for pair in row.shares])) for side in (0, 1))
    blocks = [{"a": round(x, 6), "b": round(y, 6), "change": round(y - x, 6)} for x, y in row.shares]
    tested = _tested(row, lambda harm: round(-harm, 6) + 0.0)
    low, high = tested["high"], tested["low"]
    return {
        "metric": ANSWERED_SHARE, "title": "Answered, of all offered", "since": None, "view": "offered", "unit": "share",
        "p": None, "label": "", "a": round(a, 6), "b": round(b, 6),
        **tested, "low": low, "high": high, "threshold": POINTS, "blocks": blocks,
    }  # fmt: skip


def _tested(row: Effect, change: Callable[[float], float]) -> Json:
    """The change and its test; null where nothing was tested, with the reason in `why`."""
    found = row.flips
    return {
        "pairs": len(row.harm),
        "worse_in": sum(harm > 0 for harm in row.harm),
        "change": change(float(np.mean(row.harm))) if row.harm else None,
        "low": None if found is None or found.low is None else change(found.low),
        "high": None if found is None or found.high is None else change(found.high),
        "p_value": None if found is None else round(found.p_value, 6),
        "p_holm": None if row.p_holm is None else round(row.p_holm, 6),
        "verdict": row.verdict, "no_worse": row.no_worse, "why": row.why,
    }  # fmt: skip


def _typical(blocks: Sequence[Quantile], harm: Sequence[float]) -> float | None:
    """Geometric mean over the blocks, so that B / A is the change; null if a block has no value."""
    return round(math.exp(float(np.mean([math.log(q.value or 1) for q in blocks]))), 6) if harm else None


def _fraction(log: float) -> float:
    return round(math.expm1(log), 6) + 0.0
