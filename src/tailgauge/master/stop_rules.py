"""The rules of `[stop]`, which end a run whose target fails; from the workers' counters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tailgauge import quantile_sketch
from tailgauge.rows import schema
from tailgauge.scenario.figures import ALLOWS_ERRORS
from tailgauge.scenario.model import Scenario

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

    def is_window(self, now: _Tally, seconds: float) -> bool:
        """Whether enough requests ended between here and `now`."""
        return now.ended - self.ended >= LAST and now.at_s - self.at_s >= seconds


class StopRules:
    """`broken` looks at the sum over the workers, whose counters arrive once a second."""

    def __init__(self, scenario: Scenario) -> None:
        self._stop = scenario.stop
        gates = [objective for objective in scenario.slo.values() if objective.gate]
        expects_errors = any(objective.metric in ALLOWS_ERRORS for objective in gates)
        self._min_completed = 0.0 if expects_errors else scenario.stop.min_completed
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
        ended = Counter[str]()
        calls = Counter[str]()
        ttft = []
        for worker in counters:
            ended.update(worker["counts"]["ended"])
            for _, _, message in worker["traffic"]:
                calls.update(message["attempts"])
                ttft.append(message["ttft"])
        del ended[schema.CANCELLED], calls[schema.CANCELLED]
        refused = calls[schema.CONNECT_ERROR]
        return _Tally(
            at_s=at_s,
            ended=ended.total(),
            completed=sum(ended[name] for name in schema.COMPLETE),
            refused=refused,
            other=calls.total() - refused,
            ttft=quantile_sketch.total(ttft) if self._stop.max_ttft_ms else {},
            in_flight=sum(worker["in_flight"] for worker in counters),
        )

    def _failing(self, now: _Tally) -> str | None:
        longest_s = max(LAST_S, self._stop.ttft_s if self._stop.max_ttft_ms else 0.0)
        while len(self._seen) > 1 and self._seen[1].is_window(now, longest_s):
            self._seen.popleft()
        then = next((tally for tally in reversed(self._seen) if tally.is_window(now, LAST_S)), None)
        if then is None:
            return None
        ended = now.ended - then.ended
        completed = now.completed - then.completed
        if completed >= self._min_completed * ended:
            return None
        rule = f"stop.min_completed {self._min_completed:.0%}"
        return f"{completed:,} of the last {ended:,} requests completed ({rule})"

    def _unreachable(self, now: _Tally) -> str | None:
        in_a_row = now.refused - self._connected.refused
        allowed = self._stop.connect_errors
        if not allowed or in_a_row < allowed or now.at_s - self._connected.at_s < LAST_S:
            return None
        return f"{in_a_row:,} connection errors in a row (stop.connect_errors {allowed:,})"

    def _slow(self, now: _Tally) -> str | None:
        """Too slow all the time, or without a first token where one was due."""
        bound_ms = self._stop.max_ttft_ms
        seconds = self._stop.ttft_s
        then = next((tally for tally in reversed(self._seen) if now.at_s - tally.at_s >= seconds), None)
        if bound_ms is None or then is None:
            return None
        bins = {key: count - then.ttft.get(key, 0) for key, count in now.ttft.items()}
        median_ms = quantile_sketch.quantile(bins, 0.5)
        if median_ms is None:
            if not (now.in_flight and then.in_flight and seconds * 1000 > bound_ms):
                return None
            shown = "no first token"
        elif median_ms <= bound_ms:
            return None
        else:
            shown = f"the median TTFT was {median_ms:,.0f} ms"
        return f"{shown} in {now.at_s - then.at_s:.0f} s (stop.max_ttft_ms {bound_ms:,g})"
