"""Rate limits: which calls are refused with a 429, why, and after how long they may be sent again.

The headers that report them are in protocols/limit_headers.py.

Token buckets with the time passed in; a refused request costs nothing.

    requests       1 per request
    input tokens   input + cache creation; cache reads only where `reads_count`. Estimated at the start, corrected later
    output tokens  `actual`: each token as it is produced, and a request is refused while the bucket is empty
                   `reserve`: max_tokens at the start, corrected at the end
    ramp           growth too fast, see `Ramp`
    spend          a budget in prices of one input token; when it is spent there is no retry-after

retry-after = ceil((cost - level) / rate) seconds, of the limit that is the last to allow the request: a caller that waits
as long and meets no other traffic is admitted.

Sources: Anthropic's rate-limit page ("token bucket algorithm ... continuously replenished") and error codes (2026-08): one
bucket per kind, `actual`; older copies of the page describe `reserve`. How far a limit per minute is enforced on shorter
times is not documented ("60 requests per minute may be enforced as 1 per second"), so the burst is a setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from tailgauge.scenario.simulated import LimitsTable
from tailgauge.simulator.behaviours.billing import exact

NS_PER_S = 1_000_000_000


class Bucket:
    """A token bucket: `burst` tokens, full at `now_ns`, refilled continuously at `rate_per_s`, never above the burst.

        level(t) = min(burst, level(s) + rate * (t - s)) - cost

    Nothing is rounded. Rates and bursts are rational: levels are whole numbers of a unit in which both the burst and one
    nanosecond's refill are whole, and a test can demand equality. With unit costs, Poisson arrivals at rate l and refusal
    when less than one token is left, this is the M/D/1/K queue with rho = l / rate and K = burst: a burst of 1 refuses
    rho / (1 + rho) of them, a third at half the rate.

    A time before the last one adds nothing and takes nothing back: of two calls that overtook each other the later
    time holds.
    """

    __slots__ = ("_at_ns", "_burst", "_level", "_per_ns", "_unit")

    def __init__(self, rate_per_s: int | Fraction, burst: int | Fraction, now_ns: int = 0) -> None:
        if rate_per_s <= 0 or burst <= 0:
            raise ValueError(
                f"a bucket needs a rate and a burst above 0, not {rate_per_s} and {burst}"
            )
        rate = Fraction(rate_per_s)
        depth = Fraction(burst)
        # One token is `_unit` units: divisible by the denominators of the burst and of the rate per nanosecond.
        self._unit = rate.denominator * depth.denominator * NS_PER_S
        self._per_ns = rate.numerator * depth.denominator
        self._burst = depth.numerator * rate.denominator * NS_PER_S
        self._level = self._burst
        self._at_ns = now_ns

    @classmethod
    def per_minute(cls, limit: int, burst: int | None = None, now_ns: int = 0) -> Bucket:
        """Return a provider's limit per minute; without a burst, a whole minute may be used at once."""
        return cls(Fraction(limit, 60), limit if burst is None else burst, now_ns)

    @property
    def rate_per_s(self) -> Fraction:
        """Return how many tokens are refilled per second."""
        return Fraction(self._per_ns * NS_PER_S, self._unit)

    @property
    def burst(self) -> Fraction:
        """Return how many tokens the full bucket holds."""
        return Fraction(self._burst, self._unit)

    def level(self, now_ns: int) -> Fraction:
        """Return how many tokens are there, negative after a correction by more."""
        self._refill(now_ns)
        return Fraction(self._level, self._unit)

    def take(self, cost: int, now_ns: int) -> bool:
        """Take `cost` tokens and return True if they are there; else take nothing."""
        self._refill(now_ns)
        units = cost * self._unit
        if units > self._level:
            return False
        self._level -= units
        return True

    def force(self, cost: int, now_ns: int) -> None:
        """Take `cost` tokens even if they are not there; a negative cost gives back, up to the burst."""
        self._refill(now_ns)
        self._level = min(self._burst, self._level - cost * self._unit)

    def wait_ns(self, cost: int, now_ns: int) -> int | None:
        """Return the nanoseconds until `cost` tokens are there, rounded up; None if the bucket never holds as many."""
        self._refill(now_ns)
        units = cost * self._unit
        if units > self._burst:
            return None
        return max(0, -((self._level - units) // self._per_ns))

    def full_at_ns(self, now_ns: int) -> int:
        """Return when the bucket will be full if nothing more is taken; now if it is full."""
        self._refill(now_ns)
        return self._at_ns - (self._level - self._burst) // self._per_ns

    def _refill(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            self._level = min(self._burst, self._level + (now_ns - self._at_ns) * self._per_ns)
            self._at_ns = now_ns


REQUESTS = "requests"
INPUT_TOKENS = "input_tokens"
OUTPUT_TOKENS = "output_tokens"
RAMP = "ramp"
SPEND = "spend"
RAMP_CODE = "ramp_limit_exceeded"
SPEND_CODE = "enforced_spend_limit_reached"
MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of an admitted request at its start; later corrections refer to it."""

    input_tokens: int = 0
    reserved_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """Admitted with a charge, or refused by the limit `kind`."""

    charge: Charge | None = None
    kind: str | None = None
    retry_after_s: int | None = None  # None on a refusal: waiting does not help
    error_code: str | None = None
    message: str = ""

    @property
    def admitted(self) -> bool:
        """Return whether the request may go on."""
        return self.charge is not None


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of one limit, for the response headers."""

    kind: str
    limit: int  # per minute
    remaining: int  # limit minus the tokens missing in the bucket, whole, at least 0
    full_in_ns: int


class Limits:
    """The limits of an endpoint, one bucket per kind. Without a burst a bucket holds what it refills in `refill_s`."""

    def __init__(self, table: LimitsTable, now_ns: int, refill_s: int = MINUTE_S) -> None:
        """Fill a bucket for each limit that `table` sets.

        `now_ns`: when the buckets are full. `refill_s`: a bucket whose burst the table does not give holds what its limit
        refills in these seconds, at least one.
        """
        limits = {REQUESTS: table.rpm, INPUT_TOKENS: table.itpm, OUTPUT_TOKENS: table.otpm}
        bursts = {
            REQUESTS: table.burst,
            INPUT_TOKENS: table.itpm_burst,
            OUTPUT_TOKENS: table.otpm_burst,
        }
        self._per_minute = {kind: limit for kind, limit in limits.items() if limit is not None}
        self._buckets: dict[str, Bucket] = {}
        for kind, limit in self._per_minute.items():
            burst = bursts[kind] or max(1, limit * refill_s // MINUTE_S)
            self._buckets[kind] = Bucket.per_minute(limit, burst, now_ns)
        self._ramp = Ramp(table.ramp_growth, table.ramp_window_s, table.ramp_floor)
        self._reserves = table.otpm_mode == "reserve"
        self._reads_count = table.reads_count
        self._budget = None if table.spend is None else exact(table.spend)
        self._spent: Fraction | int = 0  # in prices of one input token, as the budget
        # Limits with headers and levels; the spend limit has neither.
        self.has_levels = bool(self._buckets or table.ramp_growth)
        # Output counts when it is produced, not when the call is admitted.
        self.counts_output = OUTPUT_TOKENS in self._buckets and not self._reserves
        self.counts_spend = self._budget is not None

    def admit(self, model: str, input_tokens: int, max_tokens: int, now_ns: int) -> Decision:
        """Decide whether a request may start; `input_tokens`: an estimate of those that will count."""
        if self._budget is not None and self._spent >= self._budget:
            return Decision(
                kind=SPEND,
                error_code=SPEND_CODE,
                message="You have reached your specified usage limits.",
            )
        if not self.has_levels:
            return Decision(Charge())
        waits_s = self._waits_s(input_tokens, max_tokens, now_ns)
        if waits_s:
            kind = max(waits_s, key=lambda name: waits_s[name])
            return Decision(
                kind=kind,
                retry_after_s=waits_s[kind],
                error_code=RAMP_CODE if kind == RAMP else None,
                message=self._message(kind, model),
            )
        reserved = max_tokens if self._reserves else 0
        self._force(REQUESTS, 1, now_ns)
        self._force(INPUT_TOKENS, input_tokens, now_ns)
        self._force(OUTPUT_TOKENS, reserved, now_ns)
        self._ramp.admit(now_ns)
        return Decision(Charge(input_tokens, reserved))

    def correct(
        self, charge: Charge, input_tokens: int, cache_read_tokens: int, now_ns: int
    ) -> None:
        """Replace the estimate by the count: `input_tokens` includes cache creation, but no cache reads."""
        count = input_tokens
        if self._reads_count:
            count += cache_read_tokens
        self._force(INPUT_TOKENS, count - charge.input_tokens, now_ns)

    def produce(self, tokens: int, now_ns: int) -> None:
        """Charge tokens of output that were just produced. Nothing happens in the mode `reserve`."""
        if not self._reserves:
            self._force(OUTPUT_TOKENS, tokens, now_ns)

    def end(self, charge: Charge, output_tokens: int, now_ns: int) -> None:
        """Give back the tokens that were reserved and not produced: the call is over."""
        if self._reserves:
            self._force(OUTPUT_TOKENS, output_tokens - charge.reserved_tokens, now_ns)

    def spend(self, cost: Fraction | int) -> None:
        """Add the price of a call, in prices of one input token."""
        self._spent += cost

    def readings(self, now_ns: int) -> tuple[Reading, ...]:
        """Return the limits that are on, in the order of the table above."""
        return tuple(self._reading(kind, now_ns) for kind in self._buckets)

    def _reading(self, kind: str, now_ns: int) -> Reading:
        # The header counts from the limit even if the burst is smaller, so that reset - now = (limit - remaining) / rate.
        limit = self._per_minute[kind]
        bucket = self._buckets[kind]
        remaining = int((limit - bucket.burst + bucket.level(now_ns)) // 1)
        return Reading(kind, limit, max(0, remaining), max(0, bucket.full_at_ns(now_ns) - now_ns))

    def _waits_s(self, input_tokens: int, max_tokens: int, now_ns: int) -> dict[str, int]:
        """Return the seconds to wait by kind of limit, for the limits that refuse."""
        costs = {
            REQUESTS: 1,
            INPUT_TOKENS: input_tokens,
            OUTPUT_TOKENS: max_tokens if self._reserves else 1,
        }
        waits_ns = {RAMP: self._ramp.wait_ns(now_ns)}
        for kind, bucket in self._buckets.items():
            wait_ns = bucket.wait_ns(costs[kind], now_ns)
            # No wait is enough for more than the bucket ever holds: the full bucket is the best that can be had.
            if wait_ns is None:
                wait_ns = max(1, bucket.full_at_ns(now_ns) - now_ns)
            waits_ns[kind] = wait_ns
        return {kind: -(-ns // NS_PER_S) for kind, ns in waits_ns.items() if ns > 0}

    def _force(self, kind: str, cost: int, now_ns: int) -> None:
        if kind in self._buckets:
            self._buckets[kind].force(cost, now_ns)

    def _message(self, kind: str, model: str) -> str:
        if kind == RAMP:
            return f"Traffic to {model} grew too fast. Increase it gradually (acceleration limit)."
        limit = self._per_minute[kind]
        return f"This request would exceed the rate limit of {limit:,} {kind.replace('_', ' ')} per minute (model: {model})."


def tightest_tokens(readings: Sequence[Reading]) -> Mapping[str, Reading]:
    """Return readings by the names of the headers; `tokens` is that of input or output with the smaller share remaining."""
    by_name = {reading.kind: reading for reading in readings}
    of_tokens = [by_name[kind] for kind in (INPUT_TOKENS, OUTPUT_TOKENS) if kind in by_name]
    if of_tokens:
        by_name["tokens"] = min(of_tokens, key=lambda reading: reading.remaining / reading.limit)
    return by_name


# --- the acceleration limit ------------------------------------------------------------------------------------


_BINS = 60  # of a window


class Ramp:
    """Requests admitted in the last two windows; growth 0 switches the limit off.

    A request is refused when the window up to now would hold more requests than `growth` times the window before it, and
    more than `floor`. Memory is two windows of sixty counters.

        admitted(now - w, now] + 1 > max(floor, growth * admitted(now - 2w, now - w])

    Sources: the provider documents that such limits exist ("ramp up gradually"; 429 with error_code `ramp_limit_exceeded`
    and a retry-after), but not their formula (2026-08). This one is the simplest that a geometric ramp of `growth` per
    window just passes.
    """

    def __init__(self, growth: float = 0.0, window_s: float = 60.0, floor: int = 100) -> None:
        self._growth = growth
        self._floor = floor
        self._bin_ns = max(1, round(window_s * 1e9 / _BINS))
        self._counts: dict[int, int] = {}  # requests by bin, oldest first

    def wait_ns(self, now_ns: int) -> int:
        """Return 0 if a request may pass now, else the nanoseconds until it may if no other passes meanwhile."""
        if not self._growth:
            return 0
        now_bin = now_ns // self._bin_ns
        span = 2 * _BINS  # after two windows, nothing of today counts any more
        self._counts = {b: n for b, n in self._counts.items() if b > now_bin - span}
        # Requests up to each bin, from two windows before now to two after it.
        bins = range(now_bin - span, now_bin + span + 1)
        totals = list(accumulate(self._counts.get(b, 0) for b in bins))
        if self._passes(totals, 0):
            return 0
        ahead = 1
        while ahead < span and not self._passes(totals, ahead):
            ahead += 1
        return (now_bin + ahead) * self._bin_ns - now_ns

    def admit(self, now_ns: int) -> None:
        """Count a request that was admitted."""
        if not self._growth:
            return
        now_bin = now_ns // self._bin_ns
        self._counts[now_bin] = self._counts.get(now_bin, 0) + 1

    def _passes(self, totals: list[int], ahead: int) -> bool:
        """Return whether one more request may pass `ahead` bins from now."""
        end = totals[ahead + 2 * _BINS]
        middle = totals[ahead + _BINS]
        start = totals[ahead]
        return end - middle + 1 <= max(self._floor, self._growth * (middle - start))
