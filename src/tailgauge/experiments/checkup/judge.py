"""A check: one question about the endpoint, answered by a share or by two medians; and which checks are findings.

Input: plain numbers in order of time. `p_value` is the chance of such a value, or a larger one, at an endpoint exactly at
the allowed value; a check without data has none and states why. The gain is what the change would give back at most, as a
share of `gain_of` (checks.py): 0.3 is 30% of it.

    share      exact binomial test on the effective n
    medians    log of the ratio of two medians over log(times), its spread by the stationary bootstrap, normal

All checks of a checkup are one family (Holm), so a healthy endpoint has a finding in at most one of twenty checkups.
What is significant but would give nothing back is noted, and is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tailgauge.experiments.checkup.checks import CHECKS, GAINS, CheckSpec
from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    NORMAL_975,
    PASS,
    SEED,
    TOO_FEW,
    Floats,
    Mask,
    Proportion,
    beta_cdf,
    holm,
    ms,
    percentile,
    proportion,
    quantile_cell,
    quantiles,
    share,
)
from tailgauge_analysis import (
    bootstrap_blocks as blocks,
)
from tailgauge_analysis import (
    bootstrap_draw as draw,
)
from tailgauge_analysis import (
    ratio_interval as ratio,
)

FEWEST = 10  # values of a sample
REPS = 300
ALPHA = 0.05
STRICT = 0.002  # some 25 tests at 5% together
Z_STRICT, _Z_POWER = 2.878, 0.842  # normal quantiles of STRICT, of four in five
PS = (0.5, 0.95, 0.99)
REFUSED = (schema.RATE_LIMITED, schema.OVERLOADED)

CONTROL, WARM, COLD = "checkup_streamed", "warm", "cold"  # traffic tables that the probes add
BURST_FROM, BURST_TO = 0.4, 0.7  # of the load probe


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change gives back, with its 95% interval; each from 0 to 1."""

    value: float
    low: float
    high: float


NONE = Gain(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ProbeCheck:
    """One question. `smallest`: the smallest share that would be a finding; `detects`: the ratio of medians that is
    detected four times in five.
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
        """The ratio that is found to be more than `times`, at 0.2%, four times in five."""
        return self.times * math.exp((Z_STRICT + _Z_POWER) * self.error)

    @property
    def ends(self) -> tuple[float, float]:
        """Its 95% interval."""
        factor = math.exp(NORMAL_975 * self.error)
        return self.value / factor, self.value * factor

    @property
    def text(self) -> str:
        """`1.32x (1.11 to 1.57)`."""
        low, high = self.ends
        return f"{self.value:.2f}x ({low:.2f} to {high:.2f})"


@dataclass(frozen=True, slots=True)
class Measured:
    """A number without a check, as shown."""

    name: str
    value: str
    interval: str
    n: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One probe. `samples` in ms, in order of time, for checks that compare two probes."""

    checks: tuple[ProbeCheck, ...]
    measured: tuple[Measured, ...] = ()
    samples: Mapping[str, Floats] = field(default_factory=dict)
    failed: bool = False  # no request succeeded: its run is INVALID because of the target
    remarks: tuple[str, ...] = ()

    def joined(self, other: ProbeResult) -> ProbeResult:
        """With what another probe found in the same run."""
        checks, measured = self.checks + other.checks, self.measured + other.measured
        return replace(self, checks=checks, measured=measured, samples={**self.samples, **other.samples})


@dataclass(frozen=True, slots=True)
class JudgedCheck:
    """A check with its p-value adjusted for the family; FAIL is a finding. `noted`: would be one, but gives nothing back."""

    check: ProbeCheck
    adjusted: float | None
    outcome: str
    noted: bool = False

    @property
    def spec(self) -> CheckSpec:
        """The check as text."""
        return CHECKS[self.check.name]


def judged(checks: Sequence[ProbeCheck]) -> list[JudgedCheck]:
    """All checks, in the order of their table."""
    places = list(CHECKS)
    ordered = sorted(checks, key=lambda check: places.index(check.name))
    adjusted = iter(holm([check.p_value for check in ordered if check.p_value is not None]))
    return [_judged(check, None if check.p_value is None else next(adjusted)) for check in ordered]


def _judged(check: ProbeCheck, adjusted: float | None) -> JudgedCheck:
    if adjusted is None:
        return JudgedCheck(check, None, INCONCLUSIVE)
    significant, gains = adjusted < ALPHA, check.gain.value > 0
    return JudgedCheck(check, adjusted, FAIL if significant and gains else PASS, significant and not gains)


def findings(of: Sequence[JudgedCheck]) -> list[JudgedCheck]:
    """What fails requests, then what takes time, then what costs; the largest gain of each kind first."""
    found = (one for one in of if one.outcome == FAIL)
    return sorted(found, key=lambda one: (GAINS.index(one.spec.gain_of), -one.check.gain.value))


def inconclusive(name: str, why: str, n: int = 0) -> ProbeCheck:
    """A check without an answer."""
    return ProbeCheck(name, n, None, why)


def of_share(
    name: str, met: Mask, evidence: str, gain: Gain | None = None, allowed: float | None = None
) -> ProbeCheck:
    """Whether more than the allowed share is `met`."""
    if len(met) < FEWEST:
        return inconclusive(name, f"not enough data: {len(met)} of the {FEWEST} needed", len(met))
    found, allowed = proportion(met), CHECKS[name].share if allowed is None else allowed
    few = found.k * found.n_eff / found.n
    # P(X >= k) of a binomial is the value of Beta(k, n - k + 1) at the allowed share.
    p_value = 1.0 if found.k == 0 else beta_cdf(allowed, few, found.n_eff - few + 1)
    given = of_proportion(found) if gain is None else gain
    return ProbeCheck(name, found.n, p_value, evidence, given, _least(found.n, allowed))


def of_medians(name: str, n: int, found: Medians, evidence: str) -> ProbeCheck:
    """Whether one median is more than so many times the other; the gain is to make them equal."""
    gain = Gain(*(max(0.0, 1 - 1 / one) for one in (found.value, *found.ends)))
    return ProbeCheck(name, n, found.p_value, evidence, gain, detects=found.detects)


def of_proportion(found: Proportion) -> Gain:
    """All of it could be avoided."""
    return Gain(found.value or 0.0, found.low or 0.0, found.high or 0.0)


def _least(n: int, allowed: float) -> float:
    """The smallest share that a test of n would find to be more than `allowed`, at STRICT."""
    for k in range(1, n + 1):
        if beta_cdf(allowed, k, n - k + 1) < STRICT:
            return k / n
    return 1.0


def compared(name: str, a: Floats, b: Floats, times: float, text: str, too_few: str) -> ProbeCheck:
    """Whether the median of `a` is more than `times` that of `b`; `text` has a place for their ratio."""
    found = medians(a, b, times)
    return of_medians(name, len(a), found, text.format(found.text)) if found else inconclusive(name, too_few)


def medians(a: Floats, b: Floats, times: float) -> Medians | None:
    """Whether the median of `a` is more than `times` that of `b`; None if one has too few values, or no positive median."""
    if min(len(a), len(b)) < FEWEST:
        return None
    value, rng, of_a, of_b = _log_ratio(a, b), np.random.default_rng(SEED), blocks(a), blocks(b)
    if not math.isfinite(value):
        return None
    drawn = [_log_ratio(a[draw(len(a), of_a, rng)], b[draw(len(b), of_b, rng)]) for _ in range(REPS)]
    return medians_of(value, np.array(drawn), times)


def medians_of(value: float, drawn: Floats, times: float) -> Medians:
    """A ratio of medians from its logarithm and the resamples of it."""
    error = max(float(np.std(drawn[np.isfinite(drawn)])), 1e-6)
    return Medians(math.exp(value), error, p_above(value, math.log(times), error), times)


def p_above(value: float, allowed: float, error: float) -> float:
    """Chance of such a value, or a higher one, if the expectation is the allowed value; normal."""
    return 0.5 * math.erfc((value - allowed) / error / math.sqrt(2))


def _log_ratio(a: Floats, b: Floats) -> float:
    over, under = float(np.median(a)), float(np.median(b))
    return math.log(over / under) if over > 0 and under > 0 else math.nan


def saved(part: Floats, whole: Floats) -> Gain:
    """sum(part) / sum(whole): what could be avoided of the whole."""
    known = np.isfinite(part) & np.isfinite(whole)
    if not known.any() or whole[known].sum() <= 0:
        return NONE
    part, whole = part[known], whole[known]
    low, high = ratio(part, whole, reps=REPS)
    return Gain(float(part.sum() / whole.sum()), max(0.0, low), min(1.0, high))


def scaled(gain: Gain, part: float) -> Gain:
    """The gain if it concerns this part of the whole."""
    return Gain(gain.value * part, gain.low * part, gain.high * part)


def failed(reading: RunReading) -> bool:
    """Return whether requests were sent and none got a complete answer."""
    requests = reading.steady.requests
    return bool(len(requests)) and not requests["ended"].isin(schema.COMPLETE).any()


def of_all(met: Mask) -> str:
    """`3 of 20`."""
    return f"{int(met.sum())} of {len(met)}"


def part(met: Mask) -> str:
    """`15%`; `–` of none."""
    return share(float(met.mean()) if len(met) else None)


def wait(value_ms: float | None) -> str:
    """`431 ms`; +inf is `no answer`."""
    return "no answer" if value_ms == math.inf else f"{ms(value_ms)} ms"


def latencies(name: str, values_ms: Floats) -> list[Measured]:
    """p50, p95 and p99 of a sample with their intervals, if it has enough values."""
    known = [q for q in quantiles(values_ms, PS) if q.mark != TOO_FEW and q.value is not None]
    cells = [(f"{name}, {percentile(q.p)}", wait(q.value), quantile_cell(q).interval, q.n) for q in known]
    return [Measured(*cell) for cell in cells]
