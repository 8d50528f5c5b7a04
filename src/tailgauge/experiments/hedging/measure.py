"""One run as the result at one load: hedging off and on in alternating blocks.

The logical request since scheduled, failures slowest, by pair of blocks (comparing/variant_blocks.py). A block counts after its
wash-out: an end-to-end p99 of the run, at most a third of the block, unless the scenario sets it. What the copies did is
computed as in the report of any run with hedging, over the whole steady stage.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from tailgauge.experiments.course import RunReading
from tailgauge.experiments.hedging.judge import OFF, ON, CopyStats, LoadResult
from tailgauge.rows import schema
from tailgauge_analysis import (
    BLOCK_E2E,
    BY_NAME,
    Floats,
    Frames,
    Json,
    Steady,
    block_growths,
    block_pairs,
    ended_as,
    good_requests,
    grows_throughout,
    offered_ms,
    on_latency,
    proportion,
    stays_s,
    tariff,
    unequal_work,
)
from tailgauge_analysis import (
    block_work as work,
)
from tailgauge_analysis.sections.hedging import copies as hedge_copies
from tailgauge_analysis.sections.hedging import waste
from tailgauge_analysis.verdict import cold_cache

THIRD = 1 / 3
Bools = npt.NDArray[np.bool_]


def load_result(
    rate_per_s: float, reading: RunReading, metric: str, block_s: float, washout_s: float | None
) -> LoadResult:
    """Result of the run at one load; `washout_s`: if the scenario sets it."""
    stage = reading.steady
    wanted = (stage.requests["ended"] != schema.CANCELLED).to_numpy(np.bool_)
    ms = offered_ms(BY_NAME[metric], stage)
    stage, ms = stage.only(wanted & ~np.isnan(ms)), ms[wanted & ~np.isnan(ms)]
    used_s = min(_p99_s(ms, block_s), block_s * THIRD) if washout_s is None else washout_s
    is_off, is_on = ((stage.requests["traffic"] == name).to_numpy(np.bool_) for name in (OFF, ON))
    blocks = block_pairs(stage, (OFF, ON), block_s, used_s)
    bad = _bad(reading.frames.run["scenario"], stage, is_off | is_on)
    p99_s = _p99_s(ms[is_off], block_s)
    works = [
        (work(stage.only(off.requests, gaps=False)), work(stage.only(on.requests, gaps=False)))
        for off, on in blocks
    ]
    unequal = [f"not the same work: with hedging {text}" for text in unequal_work(works)]
    warm = cold_cache.judge(reading.evidence)
    stays = stays_s(reading.frames)
    growing, whole = block_growths(stays, blocks), grows_throughout(stays, blocks)
    if growing[0] is None and whole is not None:  # loads are below what is sustained without hedging
        growing = (None, growing[1] or whole)
    return LoadResult(
        rate_per_s,
        tuple(ms[off.requests] for off, _ in blocks), tuple(ms[on.requests] for _, on in blocks),
        tuple(bad[off.requests] for off, _ in blocks) if bad is not None else (),
        tuple(bad[on.requests] for _, on in blocks) if bad is not None else (),
        _copies(reading.frames, reading.steady), used_s, block_s < BLOCK_E2E * p99_s, p99_s,
        growing, whole is not None or p99_s > block_s, (*unequal, *([warm[1]] if warm else [])),
    )  # fmt: skip


def _p99_s(ms: Floats, block_s: float) -> float:
    known = ms[np.isfinite(ms)]
    return float(np.quantile(known, 0.99, method="inverted_cdf")) / 1e3 if len(known) else block_s


def _bad(scenario: Mapping[str, object], stage: Steady, ours: Bools) -> Floats | None:
    """1.0 of each request that failed or missed an objective of [slo]; None if none is about the tested requests."""
    wanted = [one for one in on_latency(dict(scenario)) if one.of(stage.requests)[ours].any()]
    return (~good_requests(wanted, stage)).astype(np.float64) if wanted else None


def _copies(frames: Frames, steady: Steady) -> CopyStats:
    """Hedges of the variant that hedges."""
    rows = steady.attempts.sort_values("sent_at_ns", kind="stable")
    refused = _refused(rows[rows["traffic"] == OFF]), _refused(rows[rows["traffic"] == ON])
    stage = steady.only((steady.requests["traffic"] == ON).to_numpy(np.bool_), gaps=False)
    rows = rows[rows["traffic"] == ON]
    found = hedge_copies.copies(stage.requests, rows)
    firsts = rows[rows["cause"] != schema.HEDGE].drop_duplicates(hedge_copies.KEYS)
    if not len(found.copy):
        return CopyStats(hedged=0.0 if len(firsts) else None, refused=refused)
    ends = found.losers(), found.winners()
    log = waste.waste(*ends, frames.server_log).server_log
    cost, unit, why = _cost(*ends, frames.run, len(stage.requests))
    return CopyStats(
        hedged=len(found.copy) / len(firsts), won=proportion(found.copy_won).value, cost=cost, unit=unit, why=why,
        cancelled=log.cancel_effectiveness if log else None,
        refused=refused,
    )  # fmt: skip


def _refused(rows: pd.DataFrame) -> float | None:
    """Share of the calls that got a 429, a 529 or a 503."""
    return proportion(ended_as(rows, schema.RATE_LIMITED, schema.OVERLOADED)).value


def _cost(
    losers: pd.DataFrame, winners: pd.DataFrame, run: Json, requests: int
) -> tuple[tuple[float, float] | None, str, str]:
    """Cost of the losing attempts per request, and its unit; or why it is unknown."""
    prices = tariff(run)
    ends, why = waste.cost(losers, winners, prices.price, prices.why)
    if ends is None:
        return None, "", why
    return (float(ends[0] / requests), float(ends[1] / requests)), prices.unit, ""
