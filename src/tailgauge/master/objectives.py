"""The scenario's objectives and stop rules while the run is on, from the workers' counters.

Objectives count since the warm-up, for watching: latencies are those of calls, within 1%, and a failed request counts as slower than any bound. The report
decides, on the rows, with intervals. What the counters do not have is IN_REPORT only.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import Key, TrafficCounters, combined, difference
from tailgauge.rows import schema
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.objective import ALLOWS_ERRORS, MOST, PER_S, Objective, text_of
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
    bound_text = f"{figure.sign} {text_of(figure, bound)}"
    return LiveObjective(objective.label, bound_text, state, shown, bound, sketch)


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
    return sum(n for ended, n in requests.items() if ended not in schema.NOT_FAILED)


def _share(count: int, counts: Mapping[str, int]) -> tuple[float, float, float]:
    return count, sum(counts.values()), FEWEST


def _number(counts: Mapping[str, int], classes: Collection[str]) -> int:
    return sum(counts.get(ended, 0) for ended in classes)


_Ratio = Callable[[TrafficCounters, float], tuple[float, float, float]]


def _ended(*classes: str) -> _Ratio:
    """Return the share of the ended requests that ended in one of these classes."""
    return lambda now, _: _share(_number(now.requests, classes), now.requests)


def _attempts(ended: str) -> _Ratio:
    """Return the share of the ended calls that ended so."""
    return lambda now, _: _share(now.attempts.get(ended, 0), now.attempts)


_RATIOS: dict[str, _Ratio] = {
    "answered": _ended(schema.OK),
    "complete": _ended(*schema.COMPLETE),
    "refused": _ended(schema.REFUSED, schema.FILTERED),
    "cut": _ended(schema.CUT),
    "error_rate": lambda now, _: _share(_failed(now.requests), {**now.requests, schema.CANCELLED: 0}),
    "abandoned": _ended(schema.CANCELLED),
    "429_rate": _attempts(schema.RATE_LIMITED),
    "529_rate": _attempts(schema.OVERLOADED),
    "cache_hit": lambda now, _: (now.cached_tokens, now.input_tokens, FEWEST),
    "requests_per_s": lambda now, seconds: (
        _number(now.requests, schema.COMPLETE),
        seconds,
        SOON_S,
    ),
    "output_tokens_per_s": lambda now, seconds: (now.output_tokens, seconds, SOON_S),
}


LAST = 50  # ended requests that a stop rule looks back on, at least, and
LAST_S = 5.0  # seconds: a restart of the target is shorter
_KEPT = 3600  # looks, one per second


@dataclass(frozen=True, slots=True)
class _Tally:
    """What all workers counted up to a time of the run."""

    at_s: float = 0.0
    ended: int = 0  # requests, without those whose user left
    completed: int = 0
    refused: int = 0  # calls that could not connect
    other: int = 0  # calls that ended otherwise, but for those that the client closed
    ttft: quantile_sketch.Bins = field(default_factory=dict)
    in_flight: int = 0


class StopRules:
    """The rules of `[stop]`. `broken` looks at the sum over the workers, whose counters arrive once a second."""

    def __init__(self, scenario: Scenario) -> None:
        self._stop = scenario.stop
        expected = any(one.metric in ALLOWS_ERRORS for one in scenario.slo.values())
        self._least = 0.0 if expected else scenario.stop.min_completed
        self._seen = deque([_Tally()], _KEPT)
        self._connected = _Tally()  # when a call last did not fail to connect

    def broken(self, at_s: float, counters: Iterable[dict[str, Any]]) -> str | None:
        """Why the run has to stop now; None: it goes on."""
        now = self._tally(at_s, list(counters))
        self._seen.append(now)
        if now.other > self._connected.other:
            self._connected = now
        return self._failing(now) or self._unreachable(now) or self._slow(now)

    def _tally(self, at_s: float, counters: list[dict[str, Any]]) -> _Tally:
        ended, calls = Counter[str](), Counter[str]()
        traffic = [message for one in counters for _, _, message in one["traffic"]]
        for one in counters:
            ended.update(one["counts"]["ended"])
        for message in traffic:
            calls.update(message["attempts"])
        del ended[schema.CANCELLED], calls[schema.CANCELLED]
        ttft = quantile_sketch.total(one["ttft"] for one in traffic if self._stop.max_ttft_ms)
        return _Tally(
            at_s=at_s,
            ended=ended.total(),
            completed=_number(ended, schema.COMPLETE),
            refused=calls[schema.CONNECT_ERROR],
            other=calls.total() - calls[schema.CONNECT_ERROR],
            ttft=ttft,
            in_flight=sum(one["in_flight"] for one in counters),
        )

    def _failing(self, now: _Tally) -> str | None:
        longest = max(LAST_S, self._stop.ttft_s if self._stop.max_ttft_ms else 0.0)
        while len(self._seen) > 1 and self._is_window(self._seen[1], now, longest):
            self._seen.popleft()
        then = next((one for one in reversed(self._seen) if self._is_window(one, now, LAST_S)), None)
        done, of = (now.completed - then.completed, now.ended - then.ended) if then else (0, 0)
        if done >= self._least * of:
            return None
        return f"{done:,} of the last {of:,} requests completed (stop.min_completed {self._least:.0%})"

    @staticmethod
    def _is_window(then: _Tally, now: _Tally, seconds: float) -> bool:
        return now.ended - then.ended >= LAST and now.at_s - then.at_s >= seconds

    def _unreachable(self, now: _Tally) -> str | None:
        in_a_row, most = now.refused - self._connected.refused, self._stop.connect_errors
        if not most or in_a_row < most or now.at_s - self._connected.at_s < LAST_S:
            return None
        return f"{in_a_row:,} connection errors in a row (stop.connect_errors {most:,})"

    def _slow(self, now: _Tally) -> str | None:
        """Too slow all the time, or without a first token where one was due."""
        most, seconds = self._stop.max_ttft_ms, self._stop.ttft_s
        then = next((one for one in reversed(self._seen) if now.at_s - one.at_s >= seconds), None)
        if most is None or then is None:
            return None
        median = quantile_sketch.quantile({k: n - then.ttft.get(k, 0) for k, n in now.ttft.items()}, 0.5)
        if median is None and not (now.in_flight and then.in_flight and seconds * 1000 > most):
            return None
        if median is not None and median <= most:
            return None
        shown = "no first token" if median is None else f"the median TTFT was {median:,.0f} ms"
        return f"{shown} in {now.at_s - then.at_s:.0f} s (stop.max_ttft_ms {most:,g})"
