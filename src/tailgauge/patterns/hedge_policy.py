"""Whether a second copy of a call is sent, and when.

Rule: pure: times and draws are passed in. One Hedger serves all calls of a traffic table in a worker.

    due          when the first copy was sent and has brought no content for the delay. Headers do not count: servers
                 send them early
    delay        fixed, single_r: `delay_ms`, the latter for a share of the calls; immediate: 0; adaptive: the quantile
                 of the times to the first content in this window and the one before, `delay_ms` until enough was seen
    held         although due, no copy is sent: `retry`, the call was sent again already, as after a 429 or 529;
                 `pushback`, the target named a time to come back that has not come; `throttle`; `budget`
    budget       each call gives a share of a token, each copy takes one: copies <= burst + share * calls, always
    throttle     `throttle_tokens` at first; an answer gives `throttle_ratio`, a 429, 529 or timeout takes 1; no copy
                 unless more than half are left

What `adaptive` sees: a first copy that brought content, with its time since sent; and one that was closed because the
second was faster, or timed out, with the time that it had waited. The latter is a censored observation, counted at its
lower bound. That does no harm for long: a quantile asks only on which side of it an observation lies, and a call is
closed only after it waited the whole delay. A delay that is right stays right, one that is too long is right in the
next window, and one that is too short moves up: for exponential times with quantile q from d to (q + d) / 2. What
failed, and what was closed for other reasons, does not count.

Sources: Dean & Barroso, "The Tail at Scale"; Kaler et al. 2017 (SingleR); gRPC proposal A6 (throttle, pushback).
"""

from __future__ import annotations

from tailgauge import quantile_sketch
from tailgauge.patterns.call_budget import Budget
from tailgauge.patterns.settings import Hedge
from tailgauge.rows.schema import EMPTY, OK, OVERLOADED, RATE_LIMITED, TIMEOUT

_STRAIN = frozenset({RATE_LIMITED, OVERLOADED, TIMEOUT})
_REFRESH_NS = 100_000_000  # the quantile is worked out anew at most ten times a second


class Hedger:
    """The hedging policy of one traffic table, with all that its calls have in common."""

    def __init__(self, table: Hedge) -> None:
        self._table = table
        self._budget = Budget(table.budget_share, table.budget_burst)
        self._tokens = table.throttle_tokens
        self._back_at_ns: dict[str, int] = {}  # by target: when it may be asked again
        self._seen = Recent(round(table.window_s * 1e9), table.quantile)

    @property
    def draws(self) -> bool:
        """Whether `due_at_ns` looks at its draw."""
        return self._table.policy == "single_r"

    @property
    def target(self) -> str:
        """Where a copy goes."""
        return self._table.target

    def called(self) -> None:
        """A call was made that is no copy; the budget grows."""
        self._budget.give()

    def due_at_ns(self, sent_at_ns: int, draw: float) -> int | None:
        """When a call sent then is due for a copy; None: never. `draw` is uniform in [0, 1)."""
        policy = self._table.policy
        if policy == "off" or (policy == "single_r" and draw >= self._table.probability):
            return None
        if policy == "immediate":
            return sent_at_ns
        if policy == "adaptive" and self._seen.count(sent_at_ns) >= self._table.warm_up:
            return sent_at_ns + self._seen.quantile_ns(sent_at_ns)
        return sent_at_ns + round(self._table.delay_ms * 1e6)

    def take(self, now_ns: int, *, retried: bool) -> str | None:
        """Take a copy from the budget; or why not (records.HEDGE_HELD)."""
        if retried:
            return "retry"
        if now_ns < self._back_at_ns.get(self._table.target, 0):
            return "pushback"
        if self._table.throttle_tokens and self._tokens <= self._table.throttle_tokens / 2:
            return "throttle"
        return None if self._budget.take() else "budget"

    def waited(self, time_ns: int, now_ns: int) -> None:
        """A first copy brought content after this time, or was closed or timed out when it had waited as long."""
        if self._table.policy == "adaptive":
            self._seen.add(time_ns, now_ns)

    def ended(self, ended: str, at_ns: int, retry_after_s: float | None, target: str) -> None:
        """A call ended, of whatever cause."""
        if ended in {OK, EMPTY}:
            self._tokens = min(self._table.throttle_tokens, self._tokens + self._table.throttle_ratio)
        elif ended in _STRAIN:
            self._tokens = max(0.0, self._tokens - 1)
        if retry_after_s:
            back = at_ns + round(retry_after_s * 1e9)
            self._back_at_ns[target] = max(back, self._back_at_ns.get(target, 0))


class Recent:
    """A quantile of the times seen in the current window and the one before."""

    def __init__(self, window_ns: int, quantile: float) -> None:
        self._window_ns, self._p = window_ns, quantile
        self._now: quantile_sketch.Bins = {}
        self._before: quantile_sketch.Bins = {}
        self._number = 0  # of the current window since time 0
        self._known_ns: tuple[int, int] | None = None  # when the quantile was worked out, and its value

    def add(self, time_ns: int, now_ns: int) -> None:
        """Count a time."""
        self._turn(now_ns)
        quantile_sketch.add(self._now, time_ns / 1e6)

    def count(self, now_ns: int) -> int:
        """How many times count."""
        self._turn(now_ns)
        return sum(self._now.values()) + sum(self._before.values())

    def quantile_ns(self, now_ns: int) -> int:
        """The quantile, within 1%; 0 without times."""
        self._turn(now_ns)
        if self._known_ns is None or not 0 <= now_ns - self._known_ns[0] < _REFRESH_NS:
            both = dict(self._before)
            quantile_sketch.merge(both, self._now)
            self._known_ns = (now_ns, round((quantile_sketch.quantile(both, self._p) or 0.0) * 1e6))
        return self._known_ns[1]

    def _turn(self, now_ns: int) -> None:
        number = now_ns // self._window_ns
        if number > self._number:
            self._before = self._now if number == self._number + 1 else {}
            self._now, self._number, self._known_ns = {}, number, None
