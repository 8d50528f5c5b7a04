"""The scenario's objectives while the run is on, from the workers' counters.

They count since the warm-up, for watching: latencies are those of calls, within 1%, and a failed request counts as slower than any bound. The report
decides, on the rows, with intervals. What the counters do not have is IN_REPORT only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import Key, TrafficCounters, combined, difference
from tailgauge.scenario.figures import ATTEMPTS, BY_NAME, MOST, PER_S, Figure
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.objective import Objective
from tailgauge.thresholds import fewest_for

MET = "met"
MISSED = "missed"
TOO_FEW = "too few requests"
IN_REPORT = "in the report"
FEWEST = 20  # of what a share is a share of
SOON_S = 5.0  # a rate of less is not shown


@dataclass(frozen=True, slots=True)
class LiveObjective:
    """One objective now: `ttft p95 (chat)`, `< 800 ms`, `met`, `352 ms`; `sketch`: the latency that it bounds by `bound`."""

    label: str
    bound_text: str
    state: str
    value: str
    bound: float
    sketch: str

    def __str__(self) -> str:
        return f"{self.label} {self.value} (objective {self.bound_text})"


class LiveObjectives:
    """The objectives of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self._objectives = tuple(scenario.slo.values())
        self._stages = scenario.stages
        self._last: tuple[LiveObjective, ...] = ()
        self._begin: tuple[float, Mapping[Key, TrafficCounters]] | None = (
            None  # of the steady stage
        )

    def judge(
        self, passed_s: float, traffic: Mapping[Key, TrafficCounters]
    ) -> tuple[LiveObjective, ...]:
        """Every objective at `passed_s`; there are too few requests for each before the end of the warm-up."""
        if self._begin is None and passed_s >= self._stages.warmup:
            self._begin = passed_s, traffic
        began_s, before = self._begin or (passed_s, traffic)
        nothing = TrafficCounters()
        steady = {key: difference(now, before.get(key, nothing)) for key, now in traffic.items()}
        judged = [_judge(objective, steady, passed_s - began_s) for objective in self._objectives]
        if self._last and passed_s > self._stages.duration_s:  # a rate ends with the last arrival
            for index, objective in enumerate(self._objectives):
                if objective.figure.unit == PER_S:
                    judged[index] = self._last[index]
        self._last = tuple(judged)
        return self._last


def _judge(
    objective: Objective, steady: Mapping[Key, TrafficCounters], seconds: float
) -> LiveObjective:
    counters = combined(
        now for (name, _), now in steady.items() if objective.traffic in {None, name}
    )
    figure = objective.figure
    measured: Measured = (IN_REPORT, None)
    if objective.tag is None:  # tags are not counted apart
        measured = (
            _latency(objective, counters) if figure.sketch else _ratio(objective, counters, seconds)
        )
    state, value = measured
    shown = ""
    if value is not None:
        shown = "no answer" if value == math.inf else figure.text(float(f"{value:.3g}"))
    return LiveObjective(
        label=objective.label,
        bound_text=objective.bound_text,
        state=state,
        value=shown,
        bound=objective.bound,
        sketch="" if objective.tag else figure.sketch,
    )


Measured = tuple[str, float | None]  # state, and the figure in its unit


def _latency(objective: Objective, counters: TrafficCounters) -> Measured:
    """A request without an answer has no pace, but is slower than any bound on a wait."""
    bins = {"ttft": counters.ttft, "tpot": counters.tpot, "e2e": counters.e2e}[
        objective.figure.sketch
    ]
    failed = 0 if bins is counters.tpot else _failed(counters)
    p = objective.quantile
    answers = sum(bins.values())
    n = answers + failed
    if n < fewest_for(p):
        return TOO_FEW, None
    slow = sum(
        count for key, count in bins.items() if quantile_sketch.middle(key) > objective.bound
    )
    value = quantile_sketch.quantile(bins, p * n / answers) if p * n <= answers else math.inf
    return MET if slow + failed <= objective.allowed * n + 1e-9 else MISSED, value


def _ratio(objective: Objective, counters: TrafficCounters, seconds: float) -> Measured:
    """A share, or a rate."""
    figure = objective.figure
    if figure.ended:
        count, total = _share(figure, counters)
    elif figure.name in _AMOUNTS:
        count, total = _AMOUNTS[figure.name](counters, seconds)
    else:
        return IN_REPORT, None
    if total < (SOON_S if figure.unit == PER_S else FEWEST):
        return TOO_FEW, None
    value = count / total
    is_met = value <= objective.bound if figure.sign == MOST else value >= objective.bound
    return MET if is_met else MISSED, value


def _share(figure: Figure, counters: TrafficCounters) -> tuple[float, float]:
    ends = counters.attempts if figure.counted == ATTEMPTS else counters.requests
    total = sum(ends.values())
    counted = sum(ends.get(ended, 0) for ended in figure.ended)
    return total - counted if figure.others else counted, total


def _failed(counters: TrafficCounters) -> float:
    return _share(BY_NAME["error_rate"], counters)[0]


_AMOUNTS: dict[str, Callable[[TrafficCounters, float], tuple[float, float]]] = {
    "cache_hit": lambda counters, _: (counters.cached_tokens, counters.input_tokens),
    "requests_per_s": lambda counters, seconds: (_share(BY_NAME["complete"], counters)[0], seconds),
    "output_tokens_per_s": lambda counters, seconds: (counters.output_tokens, seconds),
}
