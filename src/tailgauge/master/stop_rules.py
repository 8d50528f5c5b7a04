"""The rules of `[stop]`, which end a run whose target fails; from the workers' counters."""

from __future__ import annotations

from collections import deque

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import difference
from tailgauge.master.progress import Progress, preflight_failure
from tailgauge.rows import schema
from tailgauge.sanitize import plain
from tailgauge.scenario.figures import ALLOWS_ERRORS
from tailgauge.scenario.model import Scenario

LAST = 50  # ended requests that a stop rule looks back on, at least, and
LAST_S = 5.0  # seconds: a restart of the target is shorter
REJECTED_S = 1.0  # seconds of equal rejections
LIMITED_S = 65.0  # seconds without an answer but 429s: the window of a limit is a minute
_KEPT = 3600  # looks, one per second


class StopRules:
    """`broken` looks at the sum over the workers, whose counters arrive once a second."""

    broken_rule = ""  # key of the rule that ended the run

    def __init__(self, scenario: Scenario) -> None:
        self._stop = scenario.stop
        gates = [objective for objective in scenario.slo.values() if objective.gate]
        expects_errors = any(objective.metric in ALLOWS_ERRORS for objective in gates)
        self._min_completed = 0.0 if expects_errors else scenario.stop.min_completed
        self._seen = deque([Progress(0.0, 0.0)], _KEPT)
        self._connected = self._seen[0]  # when a call last did not fail to connect
        self._scenario = scenario
        # When, and by which target with which status.
        self._rejected_since: tuple[float, tuple[str, int]] | None = None

    def broken(self, now: Progress) -> str | None:
        """Why the run has to stop now; None: it goes on."""
        self._seen.append(now)
        if _connected(now) > _connected(self._connected):
            self._connected = now
        checks = {
            "rejections": self._rejected,
            "min_completed": self._failing,
            "connect_errors": self._unreachable,
            "max_ttft_ms": self._slow,
        }
        for rule, check in checks.items():
            why = check(now)
            if why:
                self.broken_rule = rule
                return why
        return None

    @property
    def how_to_go_on(self) -> str:
        """How to run to the end in spite of the rule that ended the run."""
        if self.broken_rule == "max_ttft_ms":
            return "to go on all the same, raise stop.max_ttft_ms or leave it out"
        return f"to go on all the same, add --set stop.{self.broken_rule}=0"

    def _rejected(self, now: Progress) -> str | None:
        """Every call is rejected with the same status: the cause does not go away by itself."""
        allowed = self._stop.rejections
        rejected = now.rejected
        if rejected is None or not allowed:
            self._rejected_since = None
            return None
        kind = rejected["target"], rejected["status"]
        if self._rejected_since is None or self._rejected_since[1] != kind:
            self._rejected_since = now.passed_s, kind
        lasts_s = now.passed_s - self._rejected_since[0]
        if rejected["in_a_row"] < allowed or lasts_s < REJECTED_S:
            return None
        target = self._scenario.target_of(rejected["target"])
        cause = preflight_failure(plain(rejected["url"]), target.protocol, rejected, target)
        return f"{rejected['in_a_row']:,} equal rejections in a row (stop.rejections {allowed:,}): {cause}"

    def _failing(self, now: Progress) -> str | None:
        longest_s = max(LIMITED_S, self._stop.ttft_s if self._stop.max_ttft_ms else 0.0)
        while len(self._seen) > 1 and _is_window(self._seen[1], now, longest_s):
            self._seen.popleft()
        rule = f"stop.min_completed {self._min_completed:.0%}"
        then = next((look for look in reversed(self._seen) if _is_window(look, now, LAST_S)), None)
        if then is None:
            return self._limited(now, rule)
        ended = _ended(now) - _ended(then)
        completed = _completed(now) - _completed(then)
        if completed >= self._min_completed * ended:
            return self._limited(now, rule)
        return f"{completed:,} of the last {ended:,} requests completed ({rule})"

    def _limited(self, now: Progress, rule: str) -> str | None:
        """A 429 spares the target, so it counts only where nothing was answered for longer than the window of a limit."""
        looks = reversed(self._seen)
        then = next((look for look in looks if now.passed_s - look.passed_s >= LIMITED_S), None)
        if then is None or not self._min_completed or _completed(now) > _completed(then):
            return None
        limited = _limited(now) - _limited(then)
        if limited < LAST:
            return None
        seconds = now.passed_s - then.passed_s
        return f"{limited:,} requests got 429 in {seconds:.0f} s, and none completed ({rule})"

    def _unreachable(self, now: Progress) -> str | None:
        in_a_row = _refused(now) - _refused(self._connected)
        allowed = self._stop.connect_errors
        if not allowed or in_a_row < allowed or now.passed_s - self._connected.passed_s < LAST_S:
            return None
        return f"{in_a_row:,} connection errors in a row (stop.connect_errors {allowed:,})"

    def _slow(self, now: Progress) -> str | None:
        """Too slow all the time, or without a first token where one was due."""
        bound_ms = self._stop.max_ttft_ms
        seconds = self._stop.ttft_s
        then = next(
            (look for look in reversed(self._seen) if now.passed_s - look.passed_s >= seconds), None
        )
        if bound_ms is None or then is None:
            return None
        median_ms = quantile_sketch.quantile(difference(now.all, then.all).ttft, 0.5)
        if median_ms is None:
            if not (now.in_flight and then.in_flight and seconds * 1000 > bound_ms):
                return None
            shown = "no first token"
        elif median_ms <= bound_ms:
            return None
        else:
            shown = f"the median TTFT was {median_ms:,.0f} ms"
        return f"{shown} in {now.passed_s - then.passed_s:.0f} s (stop.max_ttft_ms {bound_ms:,g})"


def _is_window(then: Progress, now: Progress, seconds: float) -> bool:
    """Whether enough requests ended between the two."""
    return _ended(now) - _ended(then) >= LAST and now.passed_s - then.passed_s >= seconds


def _ended(run: Progress) -> int:
    """Requests without those whose user left, and those that a limit refused."""
    return (
        sum(run.all.requests.values()) - run.all.requests.get(schema.CANCELLED, 0) - _limited(run)
    )


def _limited(run: Progress) -> int:
    """Requests that ended with a 429."""
    return run.all.requests.get(schema.RATE_LIMITED, 0)


def _completed(run: Progress) -> int:
    return sum(run.all.requests.get(ended, 0) for ended in schema.COMPLETE)


def _refused(run: Progress) -> int:
    """Calls that could not connect."""
    return run.all.attempts.get(schema.CONNECT_ERROR, 0)


def _connected(run: Progress) -> int:
    """Calls that ended otherwise, but for those that the client closed."""
    return (
        sum(run.all.attempts.values()) - run.all.attempts.get(schema.CANCELLED, 0) - _refused(run)
    )
