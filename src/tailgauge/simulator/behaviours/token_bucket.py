"""The token bucket: refilled continuously at a rate, never above its burst.

Time is passed in and nothing is rounded. Rates and bursts are rational: levels are whole numbers of a unit in which both
the burst and one nanosecond's refill are whole, and a test can demand equality.

    level(t) = min(burst, level(s) + rate * (t - s)) - cost

Sources: Anthropic's rate-limit page ("token bucket algorithm ... continuously replenished", 2026-08). With unit costs,
Poisson arrivals at rate l and refusal when less than one token is left, this is the M/D/1/K queue with rho = l / rate
and K = burst: a burst of 1 refuses rho / (1 + rho) of them, a third at half the rate.
"""

from __future__ import annotations

from fractions import Fraction

NS_PER_S = 1_000_000_000


class Bucket:
    """A bucket of `burst` tokens, full at `now_ns`, refilled at `rate_per_s`.

    A time before the last one adds nothing and takes nothing back: of two calls that overtook each other the later
    time holds.
    """

    __slots__ = ("_at_ns", "_burst", "_level", "_per_ns", "_unit")

    def __init__(self, rate_per_s: int | Fraction, burst: int | Fraction, now_ns: int = 0) -> None:
        if rate_per_s <= 0 or burst <= 0:
            raise ValueError(f"a bucket needs a rate and a burst above 0, not {rate_per_s} and {burst}")
        rate, depth = Fraction(rate_per_s), Fraction(burst)
        # One token is `_unit` units: divisible by the denominators of the burst and of the rate per nanosecond.
        self._unit = rate.denominator * depth.denominator * NS_PER_S
        self._per_ns = rate.numerator * depth.denominator
        self._burst = depth.numerator * rate.denominator * NS_PER_S
        self._level = self._burst
        self._at_ns = now_ns

    @classmethod
    def per_minute(cls, limit: int, burst: int | None = None, now_ns: int = 0) -> Bucket:
        """A provider's limit per minute; without a burst, a whole minute may be used at once."""
        return cls(Fraction(limit, 60), limit if burst is None else burst, now_ns)

    @property
    def rate_per_s(self) -> Fraction:
        """Tokens refilled per second."""
        return Fraction(self._per_ns * NS_PER_S, self._unit)

    @property
    def burst(self) -> Fraction:
        """Tokens in the full bucket."""
        return Fraction(self._burst, self._unit)

    def level(self, now_ns: int) -> Fraction:
        """Tokens there are, negative after a correction that was more than there was."""
        self._refill(now_ns)
        return Fraction(self._level, self._unit)

    def take(self, cost: int, now_ns: int) -> bool:
        """Take `cost` tokens if there are as many; else take nothing."""
        self._refill(now_ns)
        units = cost * self._unit
        if units > self._level:
            return False
        self._level -= units
        return True

    def force(self, cost: int, now_ns: int) -> None:
        """Take `cost` tokens whether they are there or not; a negative cost gives back, up to the burst."""
        self._refill(now_ns)
        self._level = min(self._burst, self._level - cost * self._unit)

    def wait_ns(self, cost: int, now_ns: int) -> int | None:
        """Nanoseconds until `cost` tokens are there, rounded up; None if the bucket never holds as many."""
        self._refill(now_ns)
        units = cost * self._unit
        if units > self._burst:
            return None
        return max(0, -((self._level - units) // self._per_ns))

    def full_at_ns(self, now_ns: int) -> int:
        """When the bucket will be full if nothing more is taken; the present when it is."""
        self._refill(now_ns)
        return self._at_ns - (self._level - self._burst) // self._per_ns

    def _refill(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            self._level = min(self._burst, self._level + (now_ns - self._at_ns) * self._per_ns)
            self._at_ns = now_ns
