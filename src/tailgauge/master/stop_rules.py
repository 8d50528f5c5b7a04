"""The rules of `[stop]`, which end a run whose target fails; from the workers' counters.

Objectives are in objectives.py; limits of what a run may use, [guard], are kept by the workers.
"""

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
_MAX_HISTORY = 3600  # one entry per second


class StopRules:
    """`broken` judges the sum over the workers, whose counters arrive once a second."""

    broken_rule = ""  # key of the rule that ended the run

    def __init__(self, scenario: Scenario) -> None:
        self._stop = scenario.stop
        gates = [objective for objective in scenario.slo.values() if objective.gate]
        expects_errors = any(objective.metric in ALLOWS_ERRORS for objective in gates)
        self._min_completed = 0.0 if expects_errors else scenario.stop.min_completed
        self._history = deque([Progress(0.0, 0.0)], _MAX_HISTORY)
        self._connected = self._history[0]  # when a call last did not fail to connect
        self._scenario = scenario
        # When, and by which target with which status.
        self._rejected_since: tuple[float, tuple[str, int]] | None = None

    def broken(self, progress: Progress) -> str | None:
        """Return why the run has to stop now; None: it goes on."""
        self._history.append(progress)
        if _connected(progress) > _connected(self._connected):
            self._connected = progress
        checks = {
            "rejections": self._rejected,
            "min_completed": self._failing,
            "connect_errors": self._unreachable,
            "max_ttft_ms": self._slow,
        }
        for rule, check in checks.items():
            reason = check(progress)
            if reason:
                self.broken_rule = rule
                return reason
        return None

    @property
    def how_to_go_on(self) -> str:
        """How to run to the end in spite of the rule that ended the run."""
        if self.broken_rule == "max_ttft_ms":
            return "to continue the run anyway, raise stop.max_ttft_ms or leave it out"
        return f"to continue the run anyway, add --set stop.{self.broken_rule}=0"

    def _rejected(self, progress: Progress) -> str | None:
        """Stop if every call is rejected with the same status: the cause does not go away by itself."""
        allowed = self._stop.rejections
        rejected = progress.rejected
        if rejected is None or not allowed:
            self._rejected_since = None
            return None
        kind = rejected["target"], rejected["status"]
        if self._rejected_since is None or self._rejected_since[1] != kind:
            self._rejected_since = progress.passed_s, kind
        lasts_s = progress.passed_s - self._rejected_since[0]
        if rejected["in_a_row"] < allowed or lasts_s < REJECTED_S:
            return None
        target = self._scenario.target_of(rejected["target"])
        cause = preflight_failure(plain(rejected["url"]), target.protocol, rejected, target)
        return f"{rejected['in_a_row']:,} equal rejections in a row (stop.rejections {allowed:,}): {cause}"

    def _failing(self, progress: Progress) -> str | None:
        """Return why to stop if too few of the last requests completed; None: the rule holds.

        Looks back on the shortest time with LAST ended requests and LAST_S seconds; without such a time, or if enough
        completed, on 429s alone. Forgets what no rule looks back on any more. Requests whose user left or that a limit
        refused do not count.
        """
        history = self._history
        longest_s = LIMITED_S
        if self._stop.max_ttft_ms:
            longest_s = max(LIMITED_S, self._stop.ttft_s)
        # No rule looks back further than the second entry.
        while len(history) > 1 and _is_window(history[1], progress, longest_s):
            history.popleft()
        rule = f"stop.min_completed {self._min_completed:.0%}"
        windows = (entry for entry in reversed(history) if _is_window(entry, progress, LAST_S))
        begin = next(windows, None)
        if begin is None:
            return self._limited(progress, rule)
        ended = _ended(progress) - _ended(begin)
        completed = _completed(progress) - _completed(begin)
        if completed >= self._min_completed * ended:
            return self._limited(progress, rule)
        return f"{completed:,} of the last {ended:,} requests completed ({rule})"

    def _limited(self, progress: Progress, rule: str) -> str | None:
        """Stop if all got 429 for longer than the window of a limit; until then a 429 spares the target."""
        begin = self._before(progress, LIMITED_S)
        if begin is None or not self._min_completed:
            return None
        if _completed(progress) > _completed(begin):
            return None
        limited = _limited(progress) - _limited(begin)
        if limited < LAST:
            return None
        seconds = progress.passed_s - begin.passed_s
        return f"{limited:,} requests got 429 in {seconds:.0f} s, and none completed ({rule})"

    def _unreachable(self, progress: Progress) -> str | None:
        """Stop if every call fails to connect."""
        allowed = self._stop.connect_errors
        in_a_row = _refused(progress) - _refused(self._connected)
        lasts_s = progress.passed_s - self._connected.passed_s
        if not allowed or in_a_row < allowed or lasts_s < LAST_S:
            return None
        return f"{in_a_row:,} connection errors in a row (stop.connect_errors {allowed:,})"

    def _slow(self, progress: Progress) -> str | None:
        """Return why to stop if the target was too slow for the last stop.ttft_s seconds; None: the rule holds, or is
        off.

        By the median TTFT of that time; without any first token, if requests were open at both ends of it and it is
        longer than the bound.
        """
        bound_ms = self._stop.max_ttft_ms
        window_s = self._stop.ttft_s
        begin = self._before(progress, window_s)
        if bound_ms is None or begin is None:
            return None
        median_ms = quantile_sketch.quantile(difference(progress.all, begin.all).ttft, 0.5)
        if median_ms is None:
            is_waiting = progress.in_flight and begin.in_flight
            if not is_waiting or window_s * 1000 <= bound_ms:
                return None
            finding = "no first token"
        elif median_ms <= bound_ms:
            return None
        else:
            finding = f"the median TTFT was {median_ms:,.0f} ms"
        seconds = progress.passed_s - begin.passed_s
        return f"{finding} in {seconds:.0f} s (stop.max_ttft_ms {bound_ms:,g})"

    def _before(self, progress: Progress, seconds: float) -> Progress | None:
        """Return the latest progress that is at least `seconds` older; None early in the run."""
        for entry in reversed(self._history):
            if progress.passed_s - entry.passed_s >= seconds:
                return entry
        return None


def _is_window(begin: Progress, end: Progress, seconds: float) -> bool:
    """Return whether enough requests ended between the two."""
    return _ended(end) - _ended(begin) >= LAST and end.passed_s - begin.passed_s >= seconds


def _ended(progress: Progress) -> int:
    """Return the ended requests, without those whose user left and those that a limit refused."""
    requests = progress.all.requests
    return sum(requests.values()) - requests.get(schema.CANCELLED, 0) - _limited(progress)


def _limited(progress: Progress) -> int:
    """Return the requests that ended with a 429."""
    return progress.all.requests.get(schema.RATE_LIMITED, 0)


def _completed(progress: Progress) -> int:
    return sum(progress.all.requests.get(ended, 0) for ended in schema.COMPLETE)


def _refused(progress: Progress) -> int:
    """Return the calls that could not connect."""
    return progress.all.attempts.get(schema.CONNECT_ERROR, 0)


def _connected(progress: Progress) -> int:
    """Return the calls that could connect, without those that the client closed."""
    attempts = progress.all.attempts
    return sum(attempts.values()) - attempts.get(schema.CANCELLED, 0) - _refused(progress)
