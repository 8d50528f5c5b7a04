"""A check: one question about the endpoint, answered by a share or by two medians, with a chance of being wrong.

Rule: plain numbers in time order in. A check states what is borne; `p_value` is the chance of what was seen, or more, on
an endpoint that just bears it. What could not be looked at has no p-value and says why. The gain is what the change
would give back, as a share of `gain_of` (in table): 0.3 is 30% of it.

    share      exact binomial test, what comes together counting as less than it seems (effective n)
    medians    log of the ratio of two medians over log(times), its spread by the stationary bootstrap, normal
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.stats.binomial import beta_cdf
from tailgauge_analysis.stats.bootstrap import SEED, blocks, draw, ratio
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Floats

FEWEST = 10  # values of a sample, to tell anything of it
REPS = 300
STRICT = 0.002  # some 25 tests at 5% together
Z, Z_STRICT, _Z_POWER = 1.959964, 2.878, 0.842  # of 95%, of STRICT, of four in five

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change gives back, with its 95% interval; each from 0 to 1."""

    value: float
    low: float
    high: float


NONE = Gain(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Check:
    """One question. `smallest`: the smallest share that is called too much; `detects`: the ratio of
    medians that is noticed four times in five.
    """

    name: str
    n: int
    p_value: float | None
    evidence: str
    gain: Gain = NONE
    smallest: float | None = None
    detects: float | None = None


@dataclass(frozen=True, slots=True)
class Medians:
    """The ratio of two medians; `error` is the standard error of its logarithm."""

    value: float
    error: float
    p_value: float
    times: float

    @property
    def detects(self) -> float:
        """The ratio that is called more than `times`, at 0.2%, four times in five."""
        return self.times * math.exp((Z_STRICT + _Z_POWER) * self.error)

    @property
    def low(self) -> float:
        """Lower end of its 95% interval."""
        return self.value * math.exp(-Z * self.error)

    @property
    def high(self) -> float:
        """Upper end."""
        return self.value * math.exp(Z * self.error)


def untold(name: str, why: str, n: int = 0) -> Check:
    """A check that cannot be answered."""
    return Check(name, n, None, why)


def of_share(name: str, seen: Mask, borne: float, evidence: str, gain: Gain | None = None) -> Check:
    """Whether more than `borne` of what was counted is `seen`."""
    if len(seen) < FEWEST:
        return untold(name, f"only {len(seen)} were seen, {FEWEST} are needed", len(seen))
    found = proportion(seen)
    p_value = 1.0 if found.k == 0 else beta_cdf(borne, *_beta(found.k, found.n, found.n_eff))
    given = of_proportion(found) if gain is None else gain
    return Check(name, found.n, p_value, evidence, given, _least(found.n, borne))


def of_medians(name: str, n: int, found: Medians, evidence: str) -> Check:
    """Whether one median is more than so many times the other; the gain is to make them equal."""
    return Check(name, n, found.p_value, evidence, faster(found), detects=found.detects)


def of_proportion(found: Proportion) -> Gain:
    """All of what was counted could be left out."""
    return Gain(found.value or 0.0, found.low or 0.0, found.high or 0.0)


def _beta(k: int, n: int, n_eff: int) -> tuple[float, float]:
    """P(X >= k) of a binomial is the value of Beta(k, n - k + 1) at the share that is borne."""
    few = k * n_eff / n
    return few, n_eff - few + 1


def _least(n: int, borne: float) -> float:
    """The smallest share that a test of n would call more than `borne`, at STRICT."""
    for k in range(1, n + 1):
        if beta_cdf(borne, k, n - k + 1) < STRICT:
            return k / n
    return 1.0


def medians(a: Floats, b: Floats, times: float) -> Medians | None:
    """Whether the median of `a` is more than `times` that of `b`; None where one has too few values, or no positive median."""
    if min(len(a), len(b)) < FEWEST:
        return None
    value = _log_ratio(a, b)
    rng = np.random.default_rng(SEED)
    lengths = [blocks(one) for one in (a, b)]
    drawn = [
        _log_ratio(a[draw(len(a), lengths[0], rng)], b[draw(len(b), lengths[1], rng)]) for _ in range(REPS)
    ]
    if not math.isfinite(value):
        return None
    return told(value, np.array(drawn), times)


def told(value: float, drawn: Floats, times: float) -> Medians:
    """From the logarithm of a ratio and what resamples of it say."""
    error = max(float(np.std(drawn[np.isfinite(drawn)])), 1e-6)
    return Medians(math.exp(value), error, p_above(value, math.log(times), error), times)


def p_above(value: float, borne: float, error: float) -> float:
    """Chance of a value as high or higher where the truth is what is borne; normal."""
    return 0.5 * math.erfc((value - borne) / error / math.sqrt(2))


def _log_ratio(a: Floats, b: Floats) -> float:
    over, under = float(np.median(a)), float(np.median(b))
    return math.log(over / under) if over > 0 and under > 0 else math.nan


def saved(part: Floats, whole: Floats) -> Gain:
    """sum(part) / sum(whole), what could be left out of the whole."""
    known = np.isfinite(part) & np.isfinite(whole)
    if not known.any() or whole[known].sum() <= 0:
        return NONE
    part, whole = part[known], whole[known]
    low, high = ratio(part, whole, reps=REPS)
    return Gain(float(part.sum() / whole.sum()), max(0.0, low), min(1.0, high))


def faster(found: Medians, share: float = 1.0) -> Gain:
    """What is left out where the slower of two medians becomes the faster, of which it is `share`."""
    values = [max(0.0, 1 - 1 / ratio_of) * share for ratio_of in (found.value, found.low, found.high)]
    return Gain(*values)
