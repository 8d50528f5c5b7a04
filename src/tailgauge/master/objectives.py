"""The scenario's objectives while the run is on, from the workers' counters since the warm-up.

For watching: latencies are those of calls, within 1%, and a failed request counts as slower than any bound. The report
decides, on the rows, with intervals. What the counters do not have is IN_REPORT only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import Key, TrafficCounters, combined, difference
from tailgauge.rows.schema import CANCELLED, NOT_FAILED, OK, RATE_LIMITED
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.objective import MOST, PER_S, Objective, text_of
from tailgauge.thresholds import fewest_for

MET, MISSED, TOO_FEW, IN_REPORT = "met", "missed", "too few requests", "in the report"
SKETCH = {"ttft": "ttft", "ttft_sched": "ttft", "tpot": "tpot", "e2e": "e2e", "e2e_sched": "e2e"}
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
        self._objectives, self._stages = tuple(scenario.slo.values()), scenario.stages
        self._last: tuple[LiveObjective, ...] = ()
        self._begin: tuple[float, Mapping[Key, TrafficCounters]] | None = None  # of the steady stage

    def judge(self, passed_s: float, traffic: Mapping[Key, TrafficCounters]) -> tuple[LiveObjective, ...]:
        """Every objective at `passed_s`; there are too few requests for each before the end of the warm-up."""
        if self._begin is None and passed_s >= self._stages.warmup:
            self._begin = passed_s, traffic
        began_s, before = self._begin or (passed_s, traffic)
        nothing = TrafficCounters()
        steady = {key: difference(now, before.get(key, nothing)) for key, now in traffic.items()}
        now = [_judged(one, steady, passed_s - began_s) for one in self._objectives]
        if self._last and passed_s > self._stages.duration_s:  # a rate ends with the last arrival
            is_rate = [one.figure.unit == PER_S for one in self._objectives]
            now = [last if kept else new for new, last, kept in zip(now, self._last, is_rate, strict=True)]
        self._last = tuple(now)
        return self._last


def _judged(objective: Objective, steady: Mapping[Key, TrafficCounters], seconds: float) -> LiveObjective:
    figure, bound, sketch = objective.figure, objective.bound, SKETCH.get(objective.metric, "")
    ratio = _RATIOS.get(objective.metric)
    of = combined(now for (name, _), now in steady.items() if objective.traffic in {None, name})
    state, value = IN_REPORT, None
    if objective.tag is not None:  # not counted apart
        sketch = ""
    elif sketch:
        failed = 0 if sketch == "tpot" else _failed(of.requests)
        state, value = _latency(objective, getattr(of, sketch), failed)
    elif ratio is not None:
        state, value = _ratio(objective, *ratio(of, seconds))
    shown = "" if value is None else "no answer"
    if value is not None and value < math.inf:
        shown = text_of(figure, float(f"{value:.3g}"))
    return LiveObjective(
        objective.label, f"{figure.sign} {text_of(figure, bound)}", state, shown, bound, sketch
    )


Value = tuple[str, float | None]  # state, and the figure in its unit


def _latency(objective: Objective, bins: quantile_sketch.Bins, failed: int) -> Value:
    answers, p = sum(bins.values()), objective.quantile
    n = answers + failed
    if n < fewest_for(p):
        return TOO_FEW, None
    slow = sum(count for key, count in bins.items() if quantile_sketch.middle(key) > objective.bound)
    value = quantile_sketch.quantile(bins, p * n / answers) if p * n <= answers else math.inf
    return MET if slow + failed <= (1 - p) * n + 1e-9 else MISSED, value


def _ratio(objective: Objective, count: float, of: float, fewest: float) -> Value:
    if of < fewest:
        return TOO_FEW, None
    value, bound = count / of, objective.bound
    return MET if (value <= bound if objective.figure.sign == MOST else value >= bound) else MISSED, value


def _failed(requests: Mapping[str, int]) -> int:
    return sum(n for ended, n in requests.items() if ended not in NOT_FAILED)


def _share(count: int, counts: Mapping[str, int], but: int = 0) -> tuple[float, float, float]:
    return count, sum(counts.values()) - but, FEWEST


_RATIOS: dict[str, Callable[[TrafficCounters, float], tuple[float, float, float]]] = {
    "complete": lambda now, _: _share(now.requests.get(OK, 0), now.requests),
    "error_rate": lambda now, _: _share(
        _failed(now.requests), now.requests, but=now.requests.get(CANCELLED, 0)
    ),
    "abandoned": lambda now, _: _share(now.requests.get(CANCELLED, 0), now.requests),
    "429_rate": lambda now, _: _share(now.attempts.get(RATE_LIMITED, 0), now.attempts),
    "cache_hit": lambda now, _: (now.cached_tokens, now.input_tokens, FEWEST),
    "requests_per_s": lambda now, seconds: (now.requests.get(OK, 0), seconds, SOON_S),
    "output_tokens_per_s": lambda now, seconds: (now.output_tokens, seconds, SOON_S),
}
