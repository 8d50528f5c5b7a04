"""What a hit saves: TTFT of calls that read from the cache against equally long prompts that read nothing.

Answers are of the steady stage, TTFT since sent. Prompts that hit differ from those that miss, so they are compared within
deciles of the prompts' length. What a token costs, cached or not, is a slope of the report (sections/slopes.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.sections.slopes import evenly
from tailgauge_analysis.stats.bootstrap import SEED, blocks, draw
from tailgauge_analysis.stats.quantiles import ENDS, Floats, Ints, Mask
from tailgauge_analysis.text.quantile import UNPUBLISHED

EACH = 10  # hits and misses, from which their times are drawn
IN_STRATUM = 5
STRATA = 10
REPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """What a hit saves of TTFT since sent."""

    hits: int
    misses: int
    strata: EqualLengthEffect | None
    hit_ms: Floats = field(metadata=UNPUBLISHED)
    miss_ms: Floats = field(metadata=UNPUBLISHED)


def cache_effect(calls: pd.DataFrame) -> CacheEffect:
    """Compare the answers of one traffic table."""
    is_answer = (calls["stage"] == schema.STEADY) & calls["ended"].isin(schema.COMPLETE)
    answers = calls[is_answer & calls["began_ns"].notna() & calls["reader_paused_ns"].isna()]
    ttft_ms = answers["began_ns"].to_numpy(np.float64) / 1e6
    hit = answers["hit"].to_numpy(np.bool_)
    return CacheEffect(
        hits=int(hit.sum()),
        misses=int((~hit).sum()),
        strata=_strata(evenly(answers)),
        hit_ms=np.sort(ttft_ms[hit]),
        miss_ms=np.sort(ttft_ms[~hit]),
    )


def _strata(answers: pd.DataFrame) -> EqualLengthEffect | None:
    """Return by how much the median TTFT of hits is lower than that of misses among prompts of about the same length.

    Answers are in order of time. Strata are deciles of the prompts' length; those with fewer than IN_STRATUM hits or misses
    are left out, None without any. The interval is by the stationary bootstrap, whose blocks keep neighbours together.
    """
    if not len(answers):
        return None
    prompt_tokens = answers["total"].to_numpy(np.float64)
    hit = answers["hit"].to_numpy(np.bool_)
    edges = np.unique(
        np.quantile(prompt_tokens, np.linspace(0, 1, STRATA + 1)[1:-1], method="inverted_cdf")
    )
    stratum = np.searchsorted(edges, prompt_tokens)
    ttft_ms = answers["began_ns"].to_numpy(np.float64) / 1e6
    hits_by_stratum = np.bincount(stratum[hit], minlength=STRATA)
    misses_by_stratum = np.bincount(stratum[~hit], minlength=STRATA)
    sizes = np.stack([hits_by_stratum, misses_by_stratum])
    strata = np.flatnonzero(sizes.min(axis=0) >= IN_STRATUM)
    if not len(strata):
        return None
    rng = np.random.default_rng(SEED)
    # How long neighbours stay alike, without the differences between strata.
    block_length = blocks(
        ttft_ms - pd.Series(ttft_ms).groupby(stratum).transform("median").to_numpy(np.float64)
    )
    difference_ms = _difference(ttft_ms, hit, stratum, strata)
    differences = []
    for _ in range(REPS):
        # One resample: rows in blocks of neighbours.
        rows = draw(len(ttft_ms), block_length, rng)
        differences.append(_difference(ttft_ms[rows], hit[rows], stratum[rows], strata))
    low, high = np.nanquantile(differences, ENDS)
    hits, misses = sizes[:, strata].sum(axis=1)
    return EqualLengthEffect(
        strata=len(strata),
        hits=int(hits),
        misses=int(misses),
        value=difference_ms,
        low=float(low),
        high=float(high),
    )


def _difference(ttft_ms: Floats, hit: Mask, stratum: Ints, strata: Ints) -> float:
    """Return the mean over these strata of the median of misses less that of hits, in ms; NaN where none has both.

    The weight of a stratum is what it knows, n_hit n_miss / (n_hit + n_miss).
    """
    sums = weights = 0.0
    for code in strata:
        hits = ttft_ms[(stratum == code) & hit]
        misses = ttft_ms[(stratum == code) & ~hit]
        if len(hits) and len(misses):
            weight = len(hits) * len(misses) / (len(hits) + len(misses))
            sums += weight * float(np.median(misses) - np.median(hits))
            weights += weight
    if weights:
        return sums / weights
    return float("nan")
