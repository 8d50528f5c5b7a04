"""Decides whether and when a failed call is retried and a late one is hedged.

Pure: times and draws are passed in. One `Policies` serves all calls of a traffic table in a worker.

Budget     Each call gives a share of a token, each additional call takes a whole one, and the bucket begins full. It is
           counted in whole billionths, so that  taken <= burst + share * calls  holds exactly at any time.

Retries
    may be retried   rate_limited, overloaded, server_error, connect_error, a timeout, and the statuses 408 and 409, all
                     before any content, also as an error inside a 200. The target's `x-should-retry` decides first
    never            after content: the user has seen it. Nor a wrong request, a broken stream or an answer
    polite           begins at  t_failed + retry_after + U(0, min(cap, base * 2^n)),  n = 0 at the first retry;
                     without a retry-after the jitter alone. Not if that is after the request's deadline, and only with
                     a token of the budget
    naive            begins at  t_failed + naive_wait, whatever the target requested; no budget, no deadline
    sdk              as the official SDKs: only what fails before the response's head is complete, and an answer in one
                     piece that breaks off; begins at
                     t_failed + retry_after where a header of retries says so, else  t_failed + min(0.5 * 2^n, 8) * U(0.75, 1);
                     no budget, no deadline. OpenAI's does not retry where it is to wait for more than 120 s
A spend limit that is used up is a 429 without `retry-after`. Only its error code differs, and neither the code nor its
text is read: without `x-should-retry: false` it is retried as any other.

Hedges
    due          the primary attempt was sent and has brought no content for the delay. Headers do not count: servers
                 send them early
    delay        fixed, single_r: `delay_ms`, the latter for a share of the calls; immediate: 0; adaptive: the quantile
                 of the times to the first content in this window and the one before, `delay_ms` until enough was seen
    suppressed   the hedge was due but not sent. `retry`: the call was already retried, as after a 429 or 529;
                 `pushback`: the target's `retry-after` has not elapsed; `throttle`; `budget`
    throttle     `throttle_tokens` at first; an answer gives `throttle_ratio`, a 429, 529 or timeout takes 1; no hedge
                 unless more than half are left
What `adaptive` uses: the time since sent of each primary attempt that brought content; and of each that was closed
because the hedge was faster, or timed out, the time that it had waited. The latter is a censored observation, counted
at its lower bound. That does no harm for long: a quantile depends only on which side of it an observation lies, and a call is
closed only after it waited the whole delay. A delay that is right stays right, one that is too long is right in the
next window, and one that is too short moves up: for exponential times with quantile q from d to (q + d) / 2. What
failed, and what was closed for other reasons, does not count.

Sources: full jitter from "Exponential Backoff And Jitter" (AWS), put above the floor because plain full jitter falls
below `retry-after`; the budget from gRPC's retry throttling and Finagle's; classes as the providers' SDKs retry them;
Dean & Barroso, "The Tail at Scale"; Kaler et al. 2017 (SingleR); gRPC proposal A6 (throttle, pushback).
"""

from __future__ import annotations

import math

from tailgauge import quantile_sketch
from tailgauge.patterns.events import Ended
from tailgauge.patterns.settings import Hedge, Retry, TrafficSettings
from tailgauge.rows import schema

_TOKEN = 1_000_000_000
_STRAIN = frozenset({schema.RATE_LIMITED, schema.OVERLOADED, schema.TIMEOUT})
_REFRESH_NS = 100_000_000  # the quantile is computed at most ten times per second
RETRYABLE = _STRAIN | {schema.SERVER_ERROR, schema.CONNECT_ERROR}
_RETRYABLE_STATUSES = frozenset({408, 409})
# Classes of calls without a response; a client error is then no HTTP.
_NO_RESPONSE = frozenset({schema.CONNECT_ERROR, schema.TIMEOUT, schema.CLIENT_ERROR})
_BROKEN_OFF = frozenset({schema.CONNECT_ERROR, schema.TIMEOUT, schema.TRUNCATED})
_SDK_FIRST_S = 0.5
_SDK_LONGEST_S = 8.0
_SDK_JITTER = 0.25  # share of the wait that is left out at most


class Budget:
    """A token bucket that calls fill."""

    __slots__ = ("_burst", "_level", "_share")

    def __init__(self, share: float, burst: float) -> None:
        self._share = round(share * _TOKEN)
        self._burst = round(burst * _TOKEN)
        self._level = self._burst

    def give(self) -> None:
        """Add the share of a token that a call gives."""
        self._level = min(self._burst, self._level + self._share)

    def take(self) -> bool:
        """Take a token for an additional call, if there is one."""
        if self._level < _TOKEN:
            return False
        self._level -= _TOKEN
        return True


def may_retry(failed: Ended) -> bool:
    """Return whether a call that ended like this, before any content, may be sent again."""
    if failed.should_retry is not None and failed.ended in RETRYABLE | {schema.CLIENT_ERROR}:
        return failed.should_retry
    return failed.ended in RETRYABLE or failed.status in _RETRYABLE_STATUSES


def may_retry_as_sdk(failed: Ended, *, streams: bool = True) -> bool:
    """Return whether the official SDK sends a call again that ended like this, before any content."""
    status = failed.status
    if status is None:
        return failed.ended in _NO_RESPONSE
    if status < 300:
        # The SDK itself reads an answer in one piece; an error inside a stream is the application's.
        return not streams and failed.ended in _BROKEN_OFF
    if _sdk_wait_s(failed) is not None and _is_too_long(failed):
        return False
    if failed.should_retry is not None:
        return failed.should_retry
    return status in _RETRYABLE_STATUSES or status == 429 or status >= 500


def _sdk_wait_s(failed: Ended) -> float | None:
    """Return the wait that a header of retries names; the SDKs read no limits."""
    return failed.retry_after_s if failed.obeys_retry_after else None


def _is_too_long(failed: Ended) -> bool:
    longest_s = failed.longest_wait_s
    return longest_s is not None and (failed.retry_after_s or 0.0) > longest_s


class Retrier:
    """The retry policy of one traffic table, with its budget."""

    def __init__(self, table: Retry) -> None:
        self._table = table
        self._budget = Budget(table.budget_share, table.budget_burst)

    def called(self) -> None:
        """Count a call that is no retry; the budget grows."""
        self._budget.give()

    def begins_at_ns(
        self,
        failed: Ended,
        *,
        retries: int,
        scheduled_at_ns: int,
        draw: float,
        streams: bool = True,
    ) -> int | None:
        """Return when the attempt after a failed one begins; None: never. Takes from the budget.

        `retries` have been made, the request was scheduled at `scheduled_at_ns`, `draw` is uniform in [0, 1). `streams`: the
        answer was to be a stream.
        """
        table = self._table
        if table.policy == "none" or retries >= table.max_retries:
            return None
        if table.policy == "sdk":
            if not may_retry_as_sdk(failed, streams=streams):
                return None
            return _sdk_begins_at_ns(failed, retries, draw)
        if not may_retry(failed):
            return None
        if table.policy == "naive":
            return failed.at_ns + round(table.naive_wait_s * 1e9)
        return self._polite_begins_at_ns(failed, retries, scheduled_at_ns, draw)

    def _polite_begins_at_ns(
        self, failed: Ended, retries: int, scheduled_at_ns: int, draw: float
    ) -> int | None:
        """Return when a polite retry begins; None where it is too late, or the budget is empty."""
        table = self._table
        floor_ns = math.ceil((failed.retry_after_s or 0.0) * 1e9)
        jitter_ns = round(draw * min(table.cap_s, table.base_s * 2.0**retries) * 1e9)
        begins_at_ns = failed.at_ns + floor_ns + jitter_ns
        is_late = begins_at_ns > scheduled_at_ns + round(table.deadline_s * 1e9)
        if is_late or not self._budget.take():
            return None
        return begins_at_ns


def _sdk_begins_at_ns(failed: Ended, retries: int, draw: float) -> int:
    """Return when the official SDK sends a failed call again."""
    wait_s = _sdk_wait_s(failed)
    if not wait_s:
        backoff_s = min(_SDK_FIRST_S * 2.0**retries, _SDK_LONGEST_S)
        wait_s = backoff_s * (1 - _SDK_JITTER * draw)
    return failed.at_ns + math.ceil(wait_s * 1e9)


class Hedger:
    """The hedging policy of one traffic table, with all that its calls have in common."""

    def __init__(self, table: Hedge) -> None:
        self._table = table
        self._budget = Budget(table.budget_share, table.budget_burst)
        self._tokens = table.throttle_tokens
        self._back_at_ns: dict[str, int] = {}  # by target: when it accepts calls again
        self._seen = Recent(round(table.window_s * 1e9), table.quantile)

    @property
    def draws(self) -> bool:
        """Whether `due_at_ns` uses its draw."""
        return self._table.policy == "single_r"

    @property
    def target(self) -> str:
        """Return the target of the hedge."""
        return self._table.target

    def called(self) -> None:
        """Count a call, which adds to the budget; hedges do not."""
        self._budget.give()

    def due_at_ns(self, sent_at_ns: int, draw: float) -> int | None:
        """Return when the hedge of a call sent then is due; None: never. `draw` is uniform in [0, 1)."""
        policy = self._table.policy
        if policy == "off" or (policy == "single_r" and draw >= self._table.probability):
            return None
        if policy == "immediate":
            return sent_at_ns
        if policy == "adaptive" and self._seen.count(sent_at_ns) >= self._table.warm_up:
            return sent_at_ns + self._seen.quantile_ns(sent_at_ns)
        return sent_at_ns + round(self._table.delay_ms * 1e6)

    def take(self, now_ns: int, *, retried: bool) -> str | None:
        """Take a hedge from the budget, or return why not (schema.HEDGE_HELD)."""
        if retried:
            return "retry"
        if now_ns < self._back_at_ns.get(self._table.target, 0):
            return "pushback"
        if self._table.throttle_tokens and self._tokens <= self._table.throttle_tokens / 2:
            return "throttle"
        has_budget = self._budget.take()
        return None if has_budget else "budget"

    def waited(self, time_ns: int, now_ns: int) -> None:
        """Record a primary attempt that brought content after this time, or was closed or timed out after it."""
        if self._table.policy == "adaptive":
            self._seen.add(time_ns, now_ns)

    def ended(self, event: Ended, target: str) -> None:
        """Count the end of a call, of whatever cause, in the throttle; keep the wait that the target asks for."""
        table = self._table
        if event.ended in schema.SERVED:
            self._tokens = min(table.throttle_tokens, self._tokens + table.throttle_ratio)
        elif event.ended in _STRAIN or event.error_class in _STRAIN:
            self._tokens = max(0.0, self._tokens - 1)
        if event.retry_after_s:
            back_at_ns = event.at_ns + round(event.retry_after_s * 1e9)
            self._back_at_ns[target] = max(back_at_ns, self._back_at_ns.get(target, 0))


class Recent:
    """A quantile of the times seen in the current window and the one before."""

    def __init__(self, window_ns: int, quantile: float) -> None:
        self._window_ns = window_ns
        self._quantile = quantile
        self._current = quantile_sketch.Bins()
        self._previous = quantile_sketch.Bins()
        self._number = 0  # of the current window since time 0
        # When the quantile was worked out, and its value.
        self._cached_ns: tuple[int, int] | None = None

    def add(self, time_ns: int, now_ns: int) -> None:
        """Count a time."""
        self._turn(now_ns)
        quantile_sketch.add(self._current, time_ns / 1e6)

    def count(self, now_ns: int) -> int:
        """Return how many times count."""
        self._turn(now_ns)
        return sum(self._current.values()) + sum(self._previous.values())

    def quantile_ns(self, now_ns: int) -> int:
        """Return the quantile, within 1%; 0 without times."""
        self._turn(now_ns)
        if self._cached_ns is not None:
            computed_at_ns, value_ns = self._cached_ns
            if 0 <= now_ns - computed_at_ns < _REFRESH_NS:
                return value_ns
        recent = dict(self._previous)
        quantile_sketch.merge(recent, self._current)
        milliseconds = quantile_sketch.quantile(recent, self._quantile) or 0.0
        value_ns = round(milliseconds * 1e6)
        self._cached_ns = (now_ns, value_ns)
        return value_ns

    def _turn(self, now_ns: int) -> None:
        """Begin the window of this time, if it is a later one."""
        number = now_ns // self._window_ns
        if number <= self._number:
            return
        is_next = number == self._number + 1
        self._previous = self._current if is_next else {}
        self._current = {}
        self._number = number
        self._cached_ns = None


class Policies:
    """What all calls of a traffic table share in one worker."""

    def __init__(self, traffic: TrafficSettings) -> None:
        self.retrier = Retrier(traffic.retry)
        self.hedger = Hedger(traffic.hedge)
        self.is_off = (traffic.hedge.policy, traffic.retry.policy) == ("off", "none")
