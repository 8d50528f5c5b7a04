"""One run as the result at one load: hedging off and on in alternating blocks.

The logical request since scheduled, failures slowest, by pair of blocks. A block counts after its wash-out: an end-to-end
p99 of the run, at most a third of the block, unless the scenario sets it. What the copies did is computed as in the report
of any run with hedging, over the whole steady stage.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from tailgauge.experiments.hedging.judge import OFF, ON, CopyStats, LoadResult
from tailgauge.experiments.reading import RunReading
from tailgauge.rows import schema
from tailgauge_analysis.metrics import slo
from tailgauge_analysis.metrics.latency import offered_ms
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.sections.cache.cost import tariff
from tailgauge_analysis.sections.hedging import copies as hedge_copies
from tailgauge_analysis.sections.hedging import waste
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.json_values import Json

THIRD = 1 / 3
Bools = npt.NDArray[np.bool_]


def load_result(
    rate_per_s: float, reading: RunReading, metric: str, block_s: float, washout_s: float | None
) -> LoadResult:
    """Result of the run at one load; `washout_s`: if the scenario sets it."""
    stage = reading.steady
    wanted = (stage.requests["ended"] != schema.CANCELLED).to_numpy(np.bool_)
    stage = stage.only(wanted)
    ms = offered_ms(BY_NAME[metric], stage)
    needed_s = _p99_s(ms, block_s) if washout_s is None else washout_s
    used_s = min(needed_s, block_s * THIRD) if washout_s is None else washout_s
    is_on = (stage.requests["traffic"] == ON).to_numpy(np.bool_)
    ours = is_on | (stage.requests["traffic"] == OFF).to_numpy(np.bool_)
    places = _places(stage, ours & ~np.isnan(ms), is_on, block_s, used_s)
    bad = _bad(reading.frames.run["scenario"], stage, ours)
    return LoadResult(
        rate_per_s,
        tuple(ms[off] for off, _ in places), tuple(ms[on] for _, on in places),
        tuple(bad[off] for off, _ in places) if bad is not None else (),
        tuple(bad[on] for _, on in places) if bad is not None else (),
        _copies(reading.frames, reading.steady), used_s, needed_s > used_s,
    )  # fmt: skip


def _p99_s(ms: Floats, block_s: float) -> float:
    known = ms[np.isfinite(ms)]
    return float(np.quantile(known, 0.99, method="inverted_cdf")) / 1e3 if len(known) else block_s


def _places(
    stage: Steady, ours: Bools, is_on: Bools, block_s: float, washout_s: float
) -> list[tuple[Bools, Bools]]:
    """Off and on of each whole pair of blocks, as masks; pairs in which a variant has no request are left out."""
    at = stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    number = np.floor(at / block_s).astype(np.int64)
    counted = ours & (at - number * block_s >= washout_s)
    out = []
    for pair in range(int((stage.seconds + 1e-6) // (2 * block_s))):
        here = counted & (number // 2 == pair)
        if (here & is_on).any() and (here & ~is_on).any():
            out.append((here & ~is_on, here & is_on))
    return out


def _bad(scenario: Mapping[str, object], stage: Steady, ours: Bools) -> Floats | None:
    """1.0 of each request that failed or missed an objective of [slo]; None if none is about the tested requests."""
    wanted = [one for one in slo.criteria(dict(scenario)) if one.metric is not None]
    wanted = [one for one in wanted if one.of(stage.requests)[ours].any()]
    return (~slo.good_of(wanted, stage)).astype(np.float64) if wanted else None


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
    log, slow = (
        waste.waste(found.losers(), found.winners(), frames.server_log).server_log,
        hedge_copies.slowness(found, firsts, None),
    )
    cost, unit, why = _cost(found, frames.run, len(stage.requests))
    return CopyStats(
        hedged=len(found.copy) / len(firsts), won=proportion(found.copy_won).value, cost=cost, unit=unit, why=why,
        cancelled=log.cancel_effectiveness if log else None,
        correlation=(slow.correlation, slow.correlation_low), refused=refused,
    )  # fmt: skip


def _refused(rows: pd.DataFrame) -> float | None:
    """Share of the calls that got a 429, a 529 or a 503."""
    return proportion(rows["ended"].isin((schema.RATE_LIMITED, schema.OVERLOADED)).to_numpy(np.bool_)).value


def _cost(
    found: hedge_copies.Copies, run: Json, requests: int
) -> tuple[tuple[float, float] | None, str, str]:
    """Cost of the losing attempts per request, and its unit; or why it is unknown."""
    prices = tariff(run)
    ends, why = waste.cost(found.losers(), found.winners(), prices.price, prices.why)
    if ends is None:
        return None, "", why
    return (float(ends[0] / requests), float(ends[1] / requests)), prices.unit, ""
