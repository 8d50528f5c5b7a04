"""The whole curve from its runs: the knee, what ends it, and where the target saturates.

The knee is the largest load at which, in the long run, every objective on a latency holds, no more calls are refused than
allowed, and the backlog does not grow. Each of these has a load of its own: of an objective that at which too many requests
are beyond its bound (knee.py), of refusals the rate of a known limit, or that at which too many calls were refused, of the
backlog the capacity, both as in headroom. The lowest of them is the knee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailgauge.experiments.curve import knee
from tailgauge.experiments.curve.knee import Fit, Sample
from tailgauge.experiments.curve.measure import LoadResult, described
from tailgauge.experiments.headroom import limits
from tailgauge.experiments.headroom.judge import Rate, is_limited
from tailgauge.scenario.experiment import Curve as Settings
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    RATE,
    UNKNOWN,
    Ends,
    Floats,
    Proportion,
    on_latency,
)
from tailgauge_analysis import (
    CurveObjective as Objective,
)

REFUSALS, BACKLOG = "refusals", "backlog"
WIDEST, USUAL_SLOPE, FLATTEST = 0.1, 14.0, 10.0  # distance of the spots of a round, as a logarithm
AROUND = (0.6, 1.1)  # of the capacity, without an objective
GAINS = 1.1  # times the requests/s of half the users: less is no gain
MANY_REFUSED = 0.3  # of the calls: what is answered beside them is about all that there is
CLOSE = 0.2  # as a logarithm: runs that decide where the knee is


@dataclass(frozen=True, slots=True)
class Criterion:
    """What may end the curve: with what is known of the load at which it does."""

    name: str
    fit: Fit
    bound_s: float = 0.0  # of a latency, without what the lowest load takes
    allowed: float = 0.0


@dataclass(frozen=True, slots=True)
class Knee:
    """The knee; `slope`: of what binds, in logits for the same again of load."""

    load: Ends
    binds: str
    slope: float = USUAL_SLOPE
    fills_s: float = 0.0


class Judge:
    """Decides by all runs until now. `gaps`: of the planned arrivals, empty in a closed loop."""

    def __init__(
        self, settings: Settings, scenario: Mapping[str, Any], today: float | None, gaps: Floats
    ) -> None:
        self.settings, self.today, self._gaps = settings, today, gaps
        self.is_open = settings.by == RATE
        self.wanted = on_latency(dict(scenario))
        self.objectives: tuple[Objective, ...] = tuple(map(described, self.wanted))

    def knee(self, runs: Sequence[LoadResult]) -> Knee:
        """Where the curve ends; UNKNOWN without an objective, and an open end where nothing failed, or nothing held."""
        if not runs or not self.objectives:
            return Knee(UNKNOWN, "")
        places = knee.grid([one.load for one in runs])
        found = list(self._criteria(runs, places))
        high = min((one.load for one in runs if self._leans(one)), default=None)
        low = max((one.load for one in runs if high is None or one.load < high), default=None)
        if not found:
            return Knee(Ends(None, low, high), "")
        by = min(found, key=lambda one: knee.ends(places, one.fit.chance).value)
        at = knee.ends(places, knee.first([one.fit.chance for one in found]))
        full, fills_s = self.capacity(runs), 0.0
        if full is not None and by.bound_s:
            at = _settled(at, by, full.value, runs)
            if low is not None and high is not None:
                fills_s = knee.fills_s(at.value, full.value, by.bound_s, by.allowed)
        ends: list[float | None] = [at.value, at.low, at.high]
        if high is None:
            ends = [None, max(low or 0.0, at.low), None]
        elif low is None:
            ends = [None, None, min(high, at.high)]
        if not self.is_open:
            ends = [one and float(math.floor(one)) for one in ends]
        return Knee(Ends(*ends), by.name, by.fit.slope, fills_s)

    def _leans(self, one: LoadResult) -> bool:
        """Whether a run rather fails."""
        late = zip(one.late, self.wanted, strict=True)
        return (
            one.rate.growing
            or (one.rate.refused.value or 0.0) > self.settings.refused
            or any((of.value or 0.0) > 1 - by.objective.quantile for of, by in late)
        )

    def _criteria(self, runs: Sequence[LoadResult], places: Floats) -> Iterator[Criterion]:
        rates, full, has_limit = [one.rate for one in runs], self.capacity(runs), False
        for at, (of, objective) in enumerate(zip(self.wanted, self.objectives, strict=True)):
            samples, allowed = self._samples(runs, [one.late[at] for one in runs]), 1 - of.objective.quantile
            if any(one.share > allowed for one in samples):
                fit = knee.fit(places, samples, allowed, full.value if full else None)
                yield Criterion(objective.label, fit, _bound_s(runs, objective), allowed)
        for bound in limits.bounds(rates, self._gaps, self.settings.refused) if self.is_open else []:
            if bound.decides:
                has_limit |= bound.limit is not None
                name = BACKLOG if bound.limit is None else REFUSALS
                yield Criterion(name, Fit(knee.known(places, bound.per_s), USUAL_SLOPE))
        samples = self._samples(runs, [one.refused for one in rates])
        if not has_limit and any(one.share > self.settings.refused for one in samples):
            yield Criterion(REFUSALS, knee.fit(places, samples, self.settings.refused, None))

    def _samples(self, runs: Sequence[LoadResult], shares: Sequence[Proportion]) -> list[Sample]:
        return [
            Sample(run.rate.requests / run.rate.seconds if self.is_open else run.load, of.value, of.n, of.n_eff)
            for run, of in zip(runs, shares, strict=True)
            if of.value is not None and of.n and run.rate.requests
        ]  # fmt: skip

    def capacity(self, runs: Sequence[LoadResult]) -> Rate | None:
        """Requests answered per second while the backlog grows; None of a closed loop, or if no run reached it."""
        return limits.capacity([one.rate for one in runs], self.settings.refused) if self.is_open else None

    def spots(self, runs: Sequence[LoadResult], count: int, logits: tuple[float, float]) -> list[float]:
        """Loads that say most of the knee: on both sides of it, as far apart as it is unsure."""
        if not runs or not count:
            return []
        found = self.knee(runs)
        at = found.load
        if at.value is None:
            return self._elsewhere(runs, count)
        wide = 0.0 if at.low is None or at.high is None else min(WIDEST, math.log(at.high / at.low) / 5)
        steps = np.linspace(-1, 1, count) if count > 1 else np.zeros(1)
        z = np.linspace(*logits, count) if count > 1 else np.full(1, sum(logits) / 2)
        return [float(one) for one in at.value * np.exp(steps * wide) * (1 + z / max(found.slope, FLATTEST))]

    def _elsewhere(self, runs: Sequence[LoadResult], count: int) -> list[float]:
        """Without a knee: around the capacity; between all loads, if none failed; nowhere, if all did."""
        if all(map(self._leans, runs)):
            return []
        full, loads = self.capacity(runs), [one.load for one in runs]
        low, high = (full.value * of for of in AROUND) if full is not None else (min(loads), max(loads))
        return [float(one) for one in np.geomspace(low, high, count + 2)[1:-1]]

    def saturation(self, runs: Sequence[LoadResult]) -> tuple[Ends, Ends]:
        """Output tokens/s and requests/s of the load that gave most tokens; without a value where no load was too much.

        What a full target does varies with the calls that wait, so the interval is that of all loads that filled it.
        """
        best = max((one.point for one in runs), key=lambda one: one.output_tokens_per_s.value or 0.0)
        tokens, answered = best.output_tokens_per_s, best.requests_per_s
        if not self.is_full(runs):
            return Ends(None, tokens.low or tokens.value), Ends(None, answered.low or answered.value)
        full = [best, *(one.point for one in runs if one.rate.saturated)]
        return _hull([one.output_tokens_per_s for one in full]), _hull([one.requests_per_s for one in full])

    def is_full(self, runs: Sequence[LoadResult]) -> bool:
        """Whether the highest load was more than the target can do."""
        last = max(runs, key=lambda one: one.load)
        if self.is_open:
            refused, by_limit = last.rate.refused, is_limited([last.rate])
            over = (refused.low or 0.0) > self.settings.refused
            return last.rate.saturated or (over and (by_limit or (refused.value or 0.0) > MANY_REFUSED))
        half = max((one for one in runs if one.load <= last.load / 2), key=lambda one: one.load, default=None)
        return half is not None and last.rate.served.value < GAINS * half.rate.served.value

    def met(self, runs: Sequence[LoadResult], at: Ends) -> str:
        """Whether today's load holds: by the knee, else by its own run; without either whether any load holds."""
        if self.today is None:
            return INCONCLUSIVE if at.low is None else PASS
        if at.low is not None and at.low >= self.today:
            return PASS
        if at.high is not None and at.high < self.today:
            return FAIL
        return next((one.point.meets for one in runs if one.load == self.today), INCONCLUSIVE)


def _bound_s(runs: Sequence[LoadResult], of: Objective) -> float:
    """What a request may wait longer than at the lowest load."""
    lowest = min(runs, key=lambda one: one.load).point.quantile(of.metric, "p50").value
    if lowest is None or of.metric.startswith("tpot"):
        return 0.0
    return max(0.0, of.bound_ms - lowest) / 1000


def _settled(at: Rate, by: Criterion, full: float, runs: Sequence[LoadResult]) -> Rate:
    """As of endless runs."""
    near = [one.rate.seconds for one in runs if abs(math.log(one.load / at.value)) < CLOSE]
    lower = knee.missed(at.value, full, by.bound_s, by.allowed, float(np.mean(near)) if near else 1.0)
    return Rate(at.value * (1 - lower / 3), at.low * (1 - lower), at.high)


def _hull(of: Sequence[Ends]) -> Ends:
    """The first value, with an interval that covers those of all."""
    lows = [one.low for one in of if one.low is not None]
    highs = [one.high for one in of if one.high is not None]
    return Ends(of[0].value, min(lows, default=None), max(highs, default=None))
