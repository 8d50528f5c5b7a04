"""One load: a run in which hedging off and on took turns, as few numbers as the experiment needs.

Rule: the logical request from its scheduled time, failures slowest, by pair of blocks. A block counts from its wash-out
on: an end-to-end p99 of the run, at most a third of the block, unless the scenario says. What the copies did is in `copied`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailgauge.experiments.hedging.copies import Copied, copied
from tailgauge.experiments.reading import Reading
from tailgauge.rows import schema
from tailgauge_analysis.metrics import slo
from tailgauge_analysis.metrics.latency import offered_ms
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats

THIRD = 1 / 3
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Turns:
    """How two tables took turns: their names, seconds of a block, its wash-out if it was said, and the metric."""

    off: str
    on: str
    block_s: float
    washout_s: float | None
    metric: str


@dataclass(frozen=True, slots=True)
class Load:
    """`off`, `on`: ms by pair of blocks, +inf of what failed; `bad_off`, `bad_on`: 1.0 of what missed an objective,
    empty without one. `short`: the wash-out should have been longer than it could be.
    """

    rate_per_s: float
    off: tuple[Floats, ...]
    on: tuple[Floats, ...]
    bad_off: tuple[Floats, ...]
    bad_on: tuple[Floats, ...]
    copied: Copied
    washout_s: float
    short: bool

    @property
    def fewest(self) -> int:
        """Requests of the arm with fewer."""
        return min(sum(map(len, self.off)), sum(map(len, self.on)))


def load(rate_per_s: float, reading: Reading, turns: Turns) -> Load:
    """What a run says."""
    stage = reading.steady
    wanted = (stage.requests["ended"] != schema.CANCELLED).to_numpy(np.bool_)
    stage = stage.only(wanted)
    ms = offered_ms(BY_NAME[turns.metric], stage)
    asked = _washout_s(ms, turns)
    washout_s = asked if turns.washout_s is not None else min(asked, turns.block_s * THIRD)
    is_on = (stage.requests["traffic"] == turns.on).to_numpy(np.bool_)
    ours = is_on | (stage.requests["traffic"] == turns.off).to_numpy(np.bool_)
    places = _places(stage, ours & ~np.isnan(ms), is_on, turns.block_s, washout_s)
    bad = _bad(reading.frames.run["scenario"], stage)
    return Load(
        rate_per_s,
        tuple(ms[off] for off, _ in places), tuple(ms[on] for _, on in places),
        tuple(bad[off] for off, _ in places) if bad is not None else (),
        tuple(bad[on] for _, on in places) if bad is not None else (),
        copied(reading.frames, reading.steady, turns.off, turns.on), washout_s, asked > washout_s,
    )  # fmt: skip


def _washout_s(ms: Floats, turns: Turns) -> float:
    if turns.washout_s is not None:
        return turns.washout_s
    known = ms[np.isfinite(ms)]
    return float(np.quantile(known, 0.99, method="inverted_cdf")) / 1e3 if len(known) else turns.block_s


def _places(
    stage: Steady, ours: Bools, is_on: Bools, block_s: float, washout_s: float
) -> list[tuple[Bools, Bools]]:
    """Off and on of each whole pair of blocks, as masks; pairs in which an arm has nothing are left out."""
    at = stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    number = np.floor(at / block_s).astype(np.int64)
    counted = ours & (at - number * block_s >= washout_s)
    out = []
    for pair in range(int((stage.seconds + 1e-6) // (2 * block_s))):
        here = counted & (number // 2 == pair)
        if (here & is_on).any() and (here & ~is_on).any():
            out.append((here & ~is_on, here & is_on))
    return out


def _bad(scenario: Mapping[str, object], stage: Steady) -> Floats | None:
    """1.0 of each request that failed or missed an objective of [slo]; None where there is none."""
    good = slo.good_of(slo.outcomes(dict(scenario), stage), stage)
    return None if good is None else (~good).astype(np.float64)
