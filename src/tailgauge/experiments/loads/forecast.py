"""What a search takes at a target that nobody knows yet: its course against several targets that are assumed.

They reach from one that admits a tenth of today's load to one that refuses nothing. Nothing is sent and nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tailgauge.experiments.course import Effort, Planner, Step, StepResult
from tailgauge.experiments.loads.run import Charges, Interval, LoadRun
from tailgauge.thresholds import VALID
from tailgauge_analysis import REQUESTS, Bucket, Estimate, counted

LIMITS = (0.1, 0.5, 0.9, 1.2, 2.5, 6.0)  # that are assumed, relative to today's load
BURST_S = 6.0  # of the refill, that an assumed bucket holds: so many requests at least, as it is computed at once then
LEAST_BURST = 30
MOST_CHARGES = 2_000  # of a run, that say what a request costs
ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that is assumed, in arrivals per second; `is_named`: by the headers of the target."""

    per_s: float
    is_named: bool

    def run(self, load: float, seconds: float) -> LoadRun:
        """Return the run of a load at this limit."""
        arrivals = max(1, round(load * seconds))
        burst = max(LEAST_BURST, self.per_s * BURST_S)
        refused = max(0, arrivals - round(burst + self.per_s * seconds))
        buckets: tuple[Bucket, ...] = ()
        if self.is_named:
            burst_estimate = Estimate(value=burst, low=burst, high=burst)
            if not refused:
                burst_estimate = Estimate(low=1.0, high=60 * self.per_s)
            bucket = Bucket(
                target="",
                model="",
                kind=REQUESTS,
                refused=refused,
                remaining=None,
                rate=Estimate(value=self.per_s, low=self.per_s, high=self.per_s),
                burst=burst_estimate,
                mean_per_s=None,
                offered=None,
            )
            buckets = (bucket,)
        return run_of(
            load, seconds, refused=refused, served_per_s=min(load, self.per_s), buckets=buckets
        )


def run_of(
    load: float,
    seconds: float,
    *,
    refused: int = 0,
    served_per_s: float | None = None,
    buckets: tuple[Bucket, ...] = (),
) -> LoadRun:
    """Return a run without a backlog, in which so many arrivals were refused."""
    arrivals = max(1, round(load * seconds))
    served = load if served_per_s is None else served_per_s
    charges = {REQUESTS: np.ones(min(arrivals, MOST_CHARGES))}
    return LoadRun(
        load=load,
        arrived=load,
        seconds=seconds,
        requests=arrivals,
        refused=counted(refused, arrivals),
        kinds={REQUESTS: refused} if refused else {},
        served=Interval(served, served, served),
        growth_per_s=0.0,
        detectable_per_s=load / 10,
        growing=False,
        saturated=False,
        stay_s=ANSWER_S,
        buckets=buckets,
        charges=Charges(cached=charges, uncached={}),
    )


@dataclass(slots=True)
class _Course:
    """A course that is driven without runs."""

    planner: Planner
    measure: Callable[[float, float], LoadRun]
    effort: Effort = field(default_factory=Effort)

    def drive(self) -> Effort:
        """Return what the steps take until the search is over."""
        course = self.planner.steps()
        try:
            steps = next(course)
            while True:
                steps = course.send([self._result(step) for step in steps])
        except StopIteration:
            return self.effort

    def _result(self, step: Step) -> StepResult:
        load = step.given.load
        self.effort.runs += 1
        self.effort.arrivals += load * step.duration_s
        self.effort.seconds += step.takes_s
        return StepResult(step, "", VALID, "", self.measure(load, step.duration_s))


def efforts(make: Callable[[], Planner], today: float, *, names_limits: bool) -> list[Effort]:
    """Drive the courses of new planners; `names_limits`: whether an assumed limit may be named, which needs single requests."""
    results = [_Course(make(), run_of).drive()]
    for factor in LIMITS:
        results.append(_Course(make(), Limit(factor * today, is_named=False).run).drive())
        if names_limits:
            results.append(_Course(make(), Limit(factor * today, is_named=True).run).drive())
    return results
