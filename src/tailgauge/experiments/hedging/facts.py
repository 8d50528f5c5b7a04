"""The numbers behind the answer of the hedging experiment, unrounded, as plain values.

Rule: rates in requests a second, times in ms, changes as differences of logarithms (of the quantile) or of shares (of
the requests that miss an objective); costs for one request. No infinities: what fell among failures is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tailgauge.experiments.hedging import tables
from tailgauge.experiments.hedging.contrast import Contrast
from tailgauge.experiments.hedging.crossover_load import Turning
from tailgauge.experiments.hedging.load import Load
from tailgauge.experiments.hedging.result import Compared, Result
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.json_values import Json


def facts(
    found: Result, sustainable: float, hedge: str, reasons: Sequence[tuple[str, str]],
    tried: Mapping[float, tuple[Load, Contrast | None]],
) -> Json:  # fmt: skip
    """All of them."""
    return {
        "hedge": hedge, "sustainable_per_s": sustainable or None, "quantile": found.p,
        "tail": _turning(found.slow, found.p_values[:2]),
        "goodput": None if found.bad is None else _turning(found.bad, found.p_values[2:]),
        "loads": [_load(one, found) for one in found.compared],
        "delays": [
            {"delay_ms": delay, "change": _contrast(one), "hedged": load.copied.hedged, "won": load.copied.won}
            for delay, (load, one) in sorted(tried.items())
        ],
        "why": [{"name": name, "said": said} for name, said in reasons],
    }  # fmt: skip


def _turning(one: Turning, p_values: Sequence[float]) -> Json:
    return {
        "crossover_per_s": one.value, "helps_below_per_s": one.low, "hurts_above_per_s": one.high,
        "helps": one.helps, "hurts": one.hurts, "fit": list(one.fit), "p_values": list(p_values),
    }  # fmt: skip


def _load(one: Compared, found: Result) -> Json:
    load, copied = one.load, one.load.copied
    each = tables.per_ms(one, found.p)
    return {
        "rate_per_s": load.rate_per_s, "pairs": len(load.on), "washout_s": load.washout_s,
        "requests": [sum(map(len, load.off)), sum(map(len, load.on))],
        "off_ms": _finite(load.off, found.p), "on_ms": _finite(load.on, found.p),
        "change": _contrast(one.slow), "missed": _contrast(one.bad),
        "hedged": copied.hedged, "won": copied.won,
        "cost": None if copied.cost is None else list(copied.cost), "unit": copied.unit,
        "cost_per_ms_of_1000": None if each is None else list(each),
        "cancel_effectiveness": copied.cancelled, "correlation": copied.correlation[0],
        "refused": list(copied.refused),
    }  # fmt: skip


def _contrast(one: Contrast | None) -> Json | None:
    return None if one is None else {"value": one.value, "low": one.low, "high": one.high}


def _finite(blocks: tuple[Floats, ...], p: float | None) -> float | None:
    if p is None or not blocks:
        return None
    value = tables.pooled(blocks, p)
    return value if math.isfinite(value) else None
