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
        # When the steady stage began, and the counters then.
        self._begin: tuple[float, Mapping[Key, TrafficCounters]] | None = None

    def judge(
        self, passed_s: float, traffic: Mapping[Key, TrafficCounters]
    ) -> tuple[LiveObjective, ...]:
        """Judge every objective at `passed_s` of the run; there are too few requests for each before the end of the
        warm-up.

        `traffic`: cumulative counters by traffic table and target. Those at the end of the warm-up are remembered at the
        first call after it, and taken off. After the last arrival a rate stays as it was.
        """
        if self._begin is None and passed_s >= self._stages.warmup:
            self._begin = passed_s, traffic
        begin_s, begin_traffic = self._begin or (passed_s, traffic)
        zero = TrafficCounters()
        steady = {}
        for key, counters in traffic.items():
            steady[key] = difference(counters, begin_traffic.get(key, zero))
        # A rate ends with the last arrival: after that it stays as it was.
        is_over = bool(self._last) and passed_s > self._stages.duration_s
        objectives = []
        for index, objective in enumerate(self._objectives):
            if is_over and objective.figure.unit == PER_S:
                objectives.append(self._last[index])
            else:
                objectives.append(_judge(objective, steady, passed_s - begin_s))
        self._last = tuple(objectives)
        return self._last


def _judge(
    objective: Objective, steady: Mapping[Key, TrafficCounters], seconds: float
) -> LiveObjective:
    counters = combined(
        counters for (name, _), counters in steady.items() if objective.traffic in {None, name}
    )
    figure = objective.figure
    state, value = _measure(objective, counters, seconds)
    text = ""
    if value == math.inf:
        text = "no answer"
    elif value is not None:
        text = figure.text(float(f"{value:.3g}"))
    return LiveObjective(
        label=objective.label,
        bound_text=objective.bound_text,
        state=state,
        value=text,
        bound=objective.bound,
        sketch="" if objective.tag else figure.sketch,
    )


Measured = tuple[str, float | None]  # state, and the figure in its unit


def _measure(objective: Objective, counters: TrafficCounters, seconds: float) -> Measured:
    if objective.tag is not None:
        return IN_REPORT, None  # the counters have no tags
    if objective.figure.sketch:
        return _latency(objective, counters)
    return _ratio(objective, counters, seconds)


def _latency(objective: Objective, counters: TrafficCounters) -> Measured:
    """Judge a latency by its bins, and return its state with the quantile in ms, +inf where no answer has it.

    A request without an answer has no pace, but is slower than any bound on a wait.
    """
    sketches = {"ttft": counters.ttft, "tpot": counters.tpot, "e2e": counters.e2e}
    bins = sketches[objective.figure.sketch]
    failed = 0 if bins is counters.tpot else _failed(counters)
    answers = sum(bins.values())
    requests = answers + failed
    if requests < fewest_for(objective.quantile):
        return TOO_FEW, None
    slow = failed
    for key, count in bins.items():
        if quantile_sketch.middle(key) > objective.bound:
            slow += count
    # The place of the quantile among all requests, the failed ones last.
    rank = objective.quantile * requests
    value: float | None = math.inf
    if rank <= answers:
        value = quantile_sketch.quantile(bins, rank / answers)
    state = MET if slow <= objective.allowed * requests + 1e-9 else MISSED
    return state, value


def _ratio(objective: Objective, counters: TrafficCounters, seconds: float) -> Measured:
    """Judge a share, or a rate."""
    figure = objective.figure
    if figure.ended:
        count, total = _share(figure, counters)
    elif figure.name in _AMOUNTS:
        count, total = _AMOUNTS[figure.name](counters, seconds)
    else:
        return IN_REPORT, None
    min_total = SOON_S if figure.unit == PER_S else FEWEST
    if total < min_total:
        return TOO_FEW, None
    value = count / total
    is_met = value >= objective.bound
    if figure.sign == MOST:
        is_met = value <= objective.bound
    return (MET if is_met else MISSED), value


def _share(figure: Figure, counters: TrafficCounters) -> tuple[float, float]:
    """Return how many requests or attempts ended as the figure counts, and all that ended."""
    ends = counters.requests
    if figure.counted == ATTEMPTS:
        ends = counters.attempts
    total = sum(ends.values())
    count = sum(ends.get(ended, 0) for ended in figure.ended)
    if figure.others:
        count = total - count
    return count, total


def _failed(counters: TrafficCounters) -> float:
    return _share(BY_NAME["error_rate"], counters)[0]


_AMOUNTS: dict[str, Callable[[TrafficCounters, float], tuple[float, float]]] = {
    "cache_hit": lambda counters, _: (counters.cached_tokens, counters.input_tokens),
    "requests_per_s": lambda counters, seconds: (_share(BY_NAME["complete"], counters)[0], seconds),
    "output_tokens_per_s": lambda counters, seconds: (counters.output_tokens, seconds),
}
