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
from tailgauge_analysis.curves.curve import RATE, UNKNOWN, Ends, Objective
from tailgauge_analysis.metrics import slo
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.section import FAIL, PASS

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
        self.wanted = slo.on_latency(dict(scenario))
        self.objectives: tuple[Objective, ...] = tuple(map(described, self.wanted))

    def knee(self, runs: Sequence[LoadResult]) -> Knee:
        """Where the curve ends; UNKNOWN without an objective, and an open end where nothing failed, or nothing held."""
        if not runs or not self.objectives:
            return Knee(UNKNOWN, "")
        places = knee.grid([one.load for one in runs])
        found = list(self._criteria(runs, places))
        low, high = self._tested(runs)
        if not found:
            return Knee(Ends(None, low, high), "")
        middles = [knee.ends(places, one.fit.chance).value or math.inf for one in found]
        binds = found[int(np.argmin(middles))]
        at = knee.ends(places, knee.first([one.fit.chance for one in found]))
        at = self._settled(at, binds, runs)
        if high is None:
            at = Ends(None, max(filter(None, (low, at.low)), default=None), None)
        elif low is None:
            at = Ends(None, None, min(filter(None, (high, at.high))))
        if not self.is_open:
            at = Ends(
                *(None if one is None else float(math.floor(one)) for one in (at.value, at.low, at.high))
            )
        full = self.capacity(runs)
        fills = (
            knee.fills_s(at.value, full.value, binds.bound_s, binds.allowed)
            if at.value and full and binds.bound_s
            else 0.0
        )
        return Knee(at, binds.name, binds.fit.slope, fills)

    def _tested(self, runs: Sequence[LoadResult]) -> tuple[float | None, float | None]:
        """The highest load below all that rather fail, and the lowest that rather fails."""
        ordered = sorted(runs, key=lambda one: one.load)
        bad = [one.load for one in ordered if self._leans(one)]
        high = min(bad, default=None)
        return max((one.load for one in ordered if high is None or one.load < high), default=None), high

    def _leans(self, one: LoadResult) -> bool:
        """Whether a run rather fails."""
        late = zip(one.late, self.wanted, strict=True)
        refused = one.rate.refused.value or 0.0
        return (
            one.rate.growing
            or refused > self.settings.refused
            or any((of.value or 0.0) > 1 - by.objective.quantile for of, by in late)
        )

    def _criteria(self, runs: Sequence[LoadResult], places: Floats) -> Iterator[Criterion]:
        rates = [one.rate for one in runs]
        bounds = limits.bounds(rates, self._gaps, self.settings.refused) if self.is_open else []
        full = self.capacity(runs)
        for at, of in enumerate(self.wanted):
            samples = self._samples(runs, [one.late[at] for one in runs])
            allowed = 1 - of.objective.quantile
            if any(one.share > allowed for one in samples):
                fit = knee.fit(places, samples, allowed, full.value if full else None)
                yield Criterion(
                    self.objectives[at].label, fit, self._bound_s(runs, self.objectives[at]), allowed
                )
        for bound in bounds:
            if bound.decides:
                name = BACKLOG if bound.limit is None else REFUSALS
                yield Criterion(name, Fit(knee.known(places, bound.per_s), USUAL_SLOPE))
        limited = any(one.decides and one.limit is not None for one in bounds)
        samples = self._samples(runs, [one.rate.refused for one in runs])
        if not limited and any(one.share > self.settings.refused for one in samples):
            yield Criterion(REFUSALS, knee.fit(places, samples, self.settings.refused, None))

    def _samples(self, runs: Sequence[LoadResult], shares: Sequence[Proportion]) -> list[Sample]:
        return [
            Sample(
                one.rate.requests / one.rate.seconds if self.is_open else one.load, of.value, of.n, of.n_eff
            )
            for one, of in zip(runs, shares, strict=True)
            if of.value is not None and of.n and one.rate.requests
        ]

    def capacity(self, runs: Sequence[LoadResult]) -> Rate | None:
        """Requests answered per second while the backlog grows; None of a closed loop, or if no run reached it."""
        return limits.capacity([one.rate for one in runs], self.settings.refused) if self.is_open else None

    def _bound_s(self, runs: Sequence[LoadResult], of: Objective) -> float:
        """What a request may wait longer than at the lowest load."""
        lowest = min(runs, key=lambda one: one.load).point.latency.get(of.metric, {}).get("p50", UNKNOWN)
        return (
            0.0
            if lowest.value is None or of.metric.startswith("tpot")
            else max(0.0, of.bound_ms - lowest.value) / 1000
        )

    def _settled(self, at: Ends, by: Criterion, runs: Sequence[LoadResult]) -> Ends:
        """As of endless runs."""
        full = self.capacity(runs)
        if at.value is None or at.low is None or full is None or not by.bound_s:
            return at
        near = [one.rate.seconds for one in runs if abs(math.log(one.load / at.value)) < CLOSE]
        lower = knee.missed(
            at.value, full.value, by.bound_s, by.allowed, float(np.mean(near)) if near else 1.0
        )
        return Ends(at.value * (1 - lower / 3), at.low * (1 - lower), at.high)

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
        loads = [one.load for one in runs]
        fails = [one.load for one in runs if self._leans(one)]
        full = self.capacity(runs)
        if full is not None and len(fails) < len(loads):
            low, high = (full.value * of for of in AROUND)
        elif len(fails) == len(loads):
            return []
        else:
            low, high = min(loads), max(loads)
        return [float(one) for one in np.geomspace(low, high, count + 2)[1:-1]]

    def saturation(self, runs: Sequence[LoadResult]) -> tuple[Ends, Ends]:
        """Output tokens/s and requests/s of the load that gave most tokens; without a value where no load was too much.

        What a full target does varies with the calls that wait, so the interval is that of all loads that filled it.
        """
        best = max(runs, key=lambda one: one.point.output_tokens_per_s.value or 0.0, default=None)
        if best is None:
            return UNKNOWN, UNKNOWN
        tokens, answered = best.point.output_tokens_per_s, best.point.requests_per_s
        if self.is_full(runs):
            full = [best.point, *(one.point for one in runs if one.rate.saturated)]
            return _hull(tokens, [one.output_tokens_per_s for one in full]), _hull(
                answered, [one.requests_per_s for one in full]
            )
        return Ends(None, tokens.low or tokens.value, None), Ends(None, answered.low or answered.value, None)

    def is_full(self, runs: Sequence[LoadResult]) -> bool:
        """Whether the highest load was more than the target can do."""
        last = max(runs, key=lambda one: one.load)
        if self.is_open:
            refused, by_limit = last.rate.refused, is_limited([last.rate])
            over = (refused.low or 0.0) > self.settings.refused
            return last.rate.saturated or (over and (by_limit or (refused.value or 0.0) > MANY_REFUSED))
        half = [one for one in runs if one.load <= last.load / 2]
        return (
            bool(half)
            and last.rate.served.value < GAINS * max(half, key=lambda one: one.load).rate.served.value
        )

    def met(self, runs: Sequence[LoadResult], at: Ends) -> str:
        """Whether today's load holds: by the knee, else by its own run; without either whether any load holds."""
        itself = next((one.point.meets for one in runs if one.load == self.today), None)
        if self.today is not None and at.low is not None and at.low >= self.today:
            return PASS
        if self.today is not None and at.high is not None and at.high < self.today:
            return FAIL
        if itself is not None:
            return itself
        return PASS if self.today is None and at.low is not None else "INCONCLUSIVE"


def _hull(of: Ends, every: Sequence[Ends]) -> Ends:
    """The value with an interval that covers those of all."""
    lows, highs = (
        [end for end in ends if end is not None]
        for ends in zip(*((one.low, one.high) for one in every), strict=True)
    )
    return Ends(of.value, min(lows, default=None), max(highs, default=None))
