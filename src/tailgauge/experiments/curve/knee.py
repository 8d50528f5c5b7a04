"""At which load a growing share crosses what is allowed, and the load at which the first of several does.

The share beyond a bound rises with the load, near the knee by about the same factor for each request/s more, as the tail of
a queue does: logit(share) = logit(allowed) + slope (load / knee - 1). Each run counts by its distance from the knee and by
its effective requests; a run with few late ones cannot tell how they depend on each other, so it takes that from the others,
as far as a queue with more capacity to spare forgets sooner.
The load of a run is what arrived in it, which explains half of what runs differ by. Of each knee on a grid, the likelihood
over all slopes, times what is known of slopes before: where C is the capacity, a queue has -log(allowed) knee / (C - knee).
If the runs scatter more than they should, it counts for less. The load at which the first of several criteria ends is that
of independent ones. Measured: tests/experiments/curve/test_coverage.py.

A run that begins with an empty queue understates it. A queue whose waits reach `bound` in the share `allowed` of the cases
needs 4/3 bound / (1 - knee / C) to fill; of runs shorter than a few of those the lower end is moved by what they may miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge.experiments.headroom.judge import Rate
from tailgauge_analysis import (
    NORMAL_975,
    Floats,
)

PLACES = 800  # of the grid
NEAR = 0.3  # of the logarithm of the load: how fast a run counts for less
# The slope, and the logarithm of its spread without a capacity and with one.
USUAL, USUAL_SD, KNOWN_SD = 14.0, 0.8, 0.5
DRAWS = np.linspace(-2.2, 2.2, 23)  # of the slope, in standard deviations
PRIOR_RUNS, PRIOR_SCATTER, LEAST_SCATTER = 6.0, 1.6, 1.5
SUREST = 0.005  # of the logarithm of a load that a limit sustains: how exact its formula is
LONGEST = 2.0  # squared: a queue's memory near its capacity or far below the knee, in that at the knee
FEW = 5  # late requests of a run by which it knows how they hang together
STEEPEST = 12.0  # logits


@dataclass(frozen=True, slots=True)
class Sample:
    """A run: the share that counts against it, of `n` requests that say as much as `n_eff`."""

    load: float
    share: float
    n: int
    n_eff: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What is known of the knee: a chance at each place of the grid; and the slope that fits best."""

    chance: Floats
    slope: float


def grid(loads: Sequence[float]) -> Floats:
    """Places of a knee, evenly by their logarithm."""
    return np.geomspace(min(loads) / 2, max(loads) * 2, PLACES)


def fit(places: Floats, samples: Sequence[Sample], allowed: float, capacity: float | None) -> Fit:
    """Where the share crosses what is allowed."""
    rows = [(one.load, one.share, one.n, one.n_eff) for one in samples]
    load, share, n, n_eff = np.array(rows, np.float64).T
    late, each = share * n, n / np.maximum(n_eff, 1.0)
    near, memory, centre = np.ones(len(load)), np.ones(len(load)), USUAL
    prior, spread = -0.5 * DRAWS**2, USUAL_SD if capacity is None else KNOWN_SD
    at = math.log(allowed / (1 - allowed))
    for _ in range(5):
        known = (late > 0) & (late < n) & (near > 0.05)
        count = (late * near)[known]
        typical = float((each / memory)[known] @ count / count.sum()) if known.any() else 1.0
        worth = n / np.maximum(np.where(late >= FEW, each, 1.0), np.maximum(typical * memory, 1.0)) * near
        count = share * worth + worth / max(worth.sum(), 1e-9)
        slopes = centre * np.exp(DRAWS * spread)
        logit = at + slopes[None, :, None] * (load / places[:, None, None] - 1)
        logit = np.clip(logit, -STEEPEST, STEEPEST)
        likely = (count * logit - worth * np.logaddexp(0, logit)).sum(axis=-1)
        i, j = np.unravel_index(int(np.argmax(likely + prior)), likely.shape)
        expected = 1 / (1 + np.exp(-logit[i, j]))
        off = float((worth * (share - expected) ** 2 / np.maximum(expected * (1 - expected), 0.002)).sum())
        free = max(0.0, float(near.sum()) - 2)
        scatter = max(LEAST_SCATTER, (PRIOR_RUNS * PRIOR_SCATTER + off) / (PRIOR_RUNS + free))
        chance = _whole(np.exp((likely - likely.max()) / scatter + prior).sum(axis=1))
        middle = _at(places, chance, 0.5)
        near = np.exp(-0.5 * (np.log(load / middle) / NEAR) ** 2)
        if capacity is not None:
            full = min(max(middle / capacity, 0.6), 0.95)
            centre = -math.log(allowed) * full / (1 - full)
            memory = ((1 - full) / np.maximum(1 - load / capacity, 1e-9)).clip(1 / LONGEST, LONGEST) ** 2
    return Fit(chance, float(slopes[j]))


def known(places: Floats, rate: Rate) -> Floats:
    """The chance at each place of a load that was measured, with its interval."""
    off = np.log(places / rate.value)
    logs = (abs(math.log(max(end, 1e-9) / rate.value)) for end in (rate.low, rate.high))
    below, above = (max(SUREST, log / NORMAL_975) for log in logs)
    return _whole(np.exp(-0.5 * (off / np.where(off < 0, below, above)) ** 2))


def first(chances: Sequence[Floats]) -> Floats:
    """The chance at each place of the lowest of independent loads."""
    later = np.prod([np.append(1 - np.cumsum(one), 0.0)[:-1].clip(0.0) for one in chances], axis=0)
    return _whole(-np.diff(np.concatenate(([1.0], later))).clip(max=0.0))


def ends(places: Floats, chance: Floats) -> Rate:
    """The median with its 95% interval."""
    return Rate(*(_at(places, chance, p) for p in (0.5, 0.025, 0.975)))


def fills_s(knee: float, capacity: float, bound_s: float, allowed: float) -> float:
    """Seconds in which an empty queue comes to wait as it does in the long run."""
    return 4 / 3 * bound_s / _spare(knee, capacity, bound_s, allowed)


def missed(knee: float, capacity: float, bound_s: float, allowed: float, run_s: float) -> float:
    """How much lower the knee of endless runs may be than that of runs of this length that begin empty, as a share of it."""
    if bound_s <= 0:
        return 0.0
    filled = run_s / fills_s(knee, capacity, bound_s, allowed)
    return float(_spare(knee, capacity, bound_s, allowed) * min(1.0, 0.5 * filled**-1.5))


def _spare(knee: float, capacity: float, bound_s: float, allowed: float) -> float:
    """Share of the capacity beyond the knee: as measured, or that of a queue with exponential times."""
    return max(1 - knee / capacity, min(0.5, -math.log(allowed) / (bound_s * capacity)))


def _whole(chance: Floats) -> Floats:
    """Chances that add up to 1."""
    whole: Floats = chance / chance.sum()
    return whole


def _at(places: Floats, chance: Floats, p: float) -> float:
    return float(np.interp(p, np.cumsum(chance), places))
