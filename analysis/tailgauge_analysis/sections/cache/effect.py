"""The effect of the cache on TTFT.

Answers are of the steady stage, TTFT since sent, hits and misses are never compared directly: prompts that hit differ
from those that miss. Two views: quantile regression on what else moves TTFT, and pairs of equally long prompts.

    TTFT = a + u total + s read + f in flight at send + c new connection

u is then what an uncached token costs, u + s a cached one, and -s what reading it instead saves; total = read + creation
+ uncached. Where all prompts are equally long u is not known, and s still is. Without variation in the tokens that calls
read, or in those that they did not, nothing is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.sections.slopes import Estimate, Slope, estimable, evenly
from tailgauge_analysis.stats.bootstrap import SEED, blocks, draw
from tailgauge_analysis.stats.quantile_regression import errors, fit, independent
from tailgauge_analysis.stats.quantiles import BEYOND, ENDS, UNRELIABLE, Floats, Ints, Mask
from tailgauge_analysis.text.quantile import UNPUBLISHED

EACH = 10  # calls that read much, and that read little, from which an effect is estimated
IN_STRATUM = 5
STRATA = 10
REPS = 200
ALIKE, ALIKE_TOKENS = 0.02, 50  # what differs by less, of the prompts' length or in tokens, counts as alike


@dataclass(frozen=True, slots=True)
class EqualLengthEffect:
    """Median TTFT of misses - of hits, in ms, among prompts of about the same length."""

    strata: int
    hits: int
    misses: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEffect:
    """What reading from the cache does to TTFT since sent, by `n` of the answers among these calls.

    Slopes are in ms per 1,000 tokens, per call in flight, per new connection.
    """

    hits: int
    misses: int
    n: int
    slopes: tuple[Slope, ...]
    strata: EqualLengthEffect | None
    why: str
    """the reason without slopes"""
    hit_ms: Floats = field(metadata=UNPUBLISHED)
    miss_ms: Floats = field(metadata=UNPUBLISHED)


def cache_effect(calls: pd.DataFrame) -> CacheEffect:
    """Estimate it from the calls of one traffic table."""
    is_answer = (calls["stage"] == schema.STEADY) & calls["ended"].isin(schema.COMPLETE)
    answers = calls[is_answer & calls["began_ns"].notna() & calls["reader_paused_ns"].isna()]
    ttft_ms = answers["began_ns"].to_numpy(np.float64) / 1e6
    hit = answers["hit"].to_numpy(np.bool_)
    ps = estimable(ttft_ms)
    sample = evenly(answers)
    least = 0
    if len(sample):
        size = float(sample["total"].mean())
        parts = (sample["read"], sample["total"] - sample["read"])
        least = min(_smaller(part.to_numpy(np.float64), size) for part in parts)
    is_enough = least >= EACH
    slopes: list[Slope] = []
    if is_enough:
        for p in ps:
            slopes += _slopes(sample, p, least)
    return CacheEffect(
        hits=int(hit.sum()),
        misses=int((~hit).sum()),
        n=len(sample),
        slopes=tuple(slopes),
        strata=_strata(sample),
        why="" if is_enough else f"needs {EACH} answers that read many tokens and {EACH} that read few",
        hit_ms=np.sort(ttft_ms[hit]),
        miss_ms=np.sort(ttft_ms[~hit]),
    )


SAVED, UNCACHED_TOKENS, CACHED_TOKENS = "saved_ms_per_1k", "uncached_ms_per_1k", "cached_ms_per_1k"
IN_FLIGHT, CONNECTION = "ms_per_call_in_flight", "new_connection_ms"


def _smaller(values: Floats, size: float) -> int:
    """How many lie on the less crowded side of the middle; 0 where all are about alike."""
    low, high = float(values.min()), float(values.max())
    if high - low < max(ALIKE_TOKENS, ALIKE * size):
        return 0
    above = int((values > (low + high) / 2).sum())
    return min(above, len(values) - above)


def _slopes(of: pd.DataFrame, p: float, least: int) -> list[Slope]:
    names, x, combine = _design(of)
    y = of["began_ns"].to_numpy(np.float64) / 1e6
    values = combine @ fit(x, y, p)
    deviations, freedom = errors(x, y, p, REPS, combine)
    mark = UNRELIABLE if least * (1 - p) < BEYOND else ""
    slopes = []
    for name, value, error in zip(names, values, deviations, strict=True):
        slopes.append(Slope.estimated(name, p, Estimate(float(value), float(error), freedom), mark))
    return slopes


def _design(of: pd.DataFrame) -> tuple[list[str], Floats, Floats]:
    """Names of the effects, the columns, and how effects follow from the coefficients of the columns."""
    total = of["total"].to_numpy(np.float64) / 1000
    columns = {"one": np.ones(len(of)), "read": of["read"].to_numpy(np.float64) / 1000}
    if total.std() > ALIKE * total.mean():
        columns["total"] = total
    others = {IN_FLIGHT: of["in_flight"], CONNECTION: of["connection_is_new"]}
    columns |= {name: values.to_numpy(np.float64) for name, values in others.items() if values.nunique() > 1}
    x = independent(columns)
    order = list(x)
    effects = {SAVED: {"read": -1.0}}
    if "total" in x:
        effects |= {UNCACHED_TOKENS: {"total": 1.0}, CACHED_TOKENS: {"total": 1.0, "read": 1.0}}
    effects |= {name: {name: 1.0} for name in (IN_FLIGHT, CONNECTION) if name in x}
    combine = np.array([[parts.get(name, 0.0) for name in order] for parts in effects.values()])
    return list(effects), np.stack(list(x.values()), axis=1), combine


def _strata(of: pd.DataFrame) -> EqualLengthEffect | None:
    """Strata are deciles of the prompts' length; those with few of either kind are left out."""
    if not len(of):
        return None
    total, hit = of["total"].to_numpy(np.float64), of["hit"].to_numpy(np.bool_)
    edges = np.unique(np.quantile(total, np.linspace(0, 1, STRATA + 1)[1:-1], method="inverted_cdf"))
    stratum = np.searchsorted(edges, total)
    y = of["began_ns"].to_numpy(np.float64) / 1e6
    sizes = np.stack([np.bincount(stratum[hit == kind], minlength=STRATA) for kind in (True, False)])
    kept = np.flatnonzero(sizes.min(axis=0) >= IN_STRATUM)
    if not len(kept):
        return None
    rng = np.random.default_rng(SEED)
    length = blocks(y - pd.Series(y).groupby(stratum).transform("median").to_numpy(np.float64))
    value = _difference(y, hit, stratum, kept)
    drawn = (draw(len(y), length, rng) for _ in range(REPS))
    differences = [_difference(y[rows], hit[rows], stratum[rows], kept) for rows in drawn]
    low, high = np.nanquantile(differences, ENDS)
    hits, misses = sizes[:, kept].sum(axis=1)
    return EqualLengthEffect(len(kept), int(hits), int(misses), value, float(low), float(high))


def _difference(y: Floats, hit: Mask, stratum: Ints, kept: Ints) -> float:
    """Weighted by what each stratum knows, n_hit n_miss / (n_hit + n_miss)."""
    sums = weights = 0.0
    for one in kept:
        hits, others = y[(stratum == one) & hit], y[(stratum == one) & ~hit]
        if len(hits) and len(others):
            weight = len(hits) * len(others) / (len(hits) + len(others))
            sums += weight * float(np.median(others) - np.median(hits))
            weights += weight
    return sums / weights if weights else float("nan")
