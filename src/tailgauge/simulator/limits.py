"""Rate limits: who is refused with a 429, why, and when to come back.

Rule: pure: buckets with time passed in; the answer is a value, and the protocol's own file gives it a shape. A refused
request costs nothing.

    requests       1 a request
    input tokens   input + cache creation; cache reads only where `reads_count`. Estimated at the start, corrected later
    output tokens  `actual`: each token as it is produced, and a request is refused while the bucket is empty
                   `reserve`: max_tokens at the start, corrected at the end
    ramp           growth too fast (see ramp)
    spend          one purse for all model classes; when it is empty there is no retry-after

retry-after = ceil((cost - level) / rate) seconds of the limit that is last to allow the request: whoever waits as long
and meets no other traffic is admitted.

Sources: Anthropic's rate-limit page and error codes (2026-08): one bucket per kind and model class, `actual`; older
copies of the page describe `reserve`. How far a limit per minute is enforced on shorter times is not documented ("60
requests per minute may be enforced as 1 per second"), so the burst is a setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Literal

from tailgauge.simulator.ramp import Ramp, RampSettings
from tailgauge.simulator.token_bucket import NS_PER_S, Bucket

REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS, RAMP, SPEND = (
    "requests",
    "input_tokens",
    "output_tokens",
    "ramp",
    "spend",
)
RAMP_CODE, SPEND_CODE = "ramp_limit_exceeded", "enforced_spend_limit_reached"


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit."""

    per_minute: int
    burst: int | None = None  # what may be used at once; None: the whole minute's


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits of one model class; each is off where it is None."""

    models: tuple[str, ...] = ("*",)  # names or patterns (`claude-opus-*`) that share these buckets
    requests: Allowance | None = None
    input_tokens: Allowance | None = None
    output_tokens: Allowance | None = None
    output_mode: Literal["actual", "reserve"] = "actual"
    reads_count: bool = False  # cache reads cost input tokens, as on some retired models
    ramp: RampSettings | None = None


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """All limits; off by default. A model belongs to the first class that names it, else to none."""

    classes: tuple[ModelLimits, ...] = ()
    spend: Fraction | int | None = None  # in prices of one input token, see billing; None: off


@dataclass(frozen=True, slots=True)
class Charge:
    """What an admitted request was charged at its start; later corrections refer to it."""

    model_class: int | None  # index; None: the model has no limits
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
        """Whether the request may go on."""
        return self.charge is not None


@dataclass(frozen=True, slots=True)
class Reading:
    """One limit as it stands, for the response headers."""

    kind: str
    limit: int  # per minute
    remaining: int  # limit - what is missing in the bucket, whole tokens, at least 0
    full_in_ns: int


class Limits:
    """The buckets of an endpoint."""

    def __init__(self, settings: LimitSettings, now_ns: int) -> None:
        self._settings = settings
        self._classes = [_ModelClass(one, now_ns) for one in settings.classes]
        self._spent: Fraction | int = 0

    def admit(self, model: str, input_tokens: int, max_tokens: int, now_ns: int) -> Decision:
        """Whether a request may start; `input_tokens` is what the endpoint estimates that will count."""
        if self._settings.spend is not None and self._spent >= self._settings.spend:
            return Decision(None, SPEND, None, SPEND_CODE, "You have reached your specified usage limits.")
        index = self._index(model)
        if index is None:
            return Decision(Charge(None))
        one = self._classes[index]
        waits = one.waits_s(input_tokens, max_tokens, now_ns)
        if not waits:
            reserved = one.take(input_tokens, max_tokens, now_ns)
            return Decision(Charge(index, input_tokens, reserved))
        kind = max(waits, key=lambda k: waits[k])
        code = RAMP_CODE if kind == RAMP else None
        return Decision(None, kind, waits[kind], code, _message(kind, one, model))

    def correct(self, charge: Charge, input_tokens: int, cache_read_tokens: int, now_ns: int) -> None:
        """Replace the estimate by what was counted: `input_tokens` with cache creation, without cache reads."""
        if charge.model_class is not None:
            one = self._classes[charge.model_class]
            counted = input_tokens + (cache_read_tokens if one.limits.reads_count else 0)
            one.force(INPUT_TOKENS, counted - charge.input_tokens, now_ns)

    def produce(self, charge: Charge, tokens: int, now_ns: int) -> None:
        """Tokens of output that were just produced. Nothing happens in the mode `reserve`."""
        if charge.model_class is not None and not self._reserves(charge):
            self._classes[charge.model_class].force(OUTPUT_TOKENS, tokens, now_ns)

    def end(self, charge: Charge, output_tokens: int, now_ns: int) -> None:
        """The call is over: give back what was reserved and not produced."""
        if charge.model_class is not None and self._reserves(charge):
            one = self._classes[charge.model_class]
            one.force(OUTPUT_TOKENS, output_tokens - charge.reserved_tokens, now_ns)

    def spend(self, cost: Fraction | int) -> None:
        """What a call cost, in prices of one input token."""
        self._spent += cost

    def readings(self, model: str, now_ns: int) -> tuple[Reading, ...]:
        """The limits of a model that are on, in the order of the table."""
        index = self._index(model)
        return () if index is None else self._classes[index].readings(now_ns)

    def _index(self, model: str) -> int | None:
        for i, one in enumerate(self._settings.classes):
            if _named(model, one.models):
                return i
        return None

    def _reserves(self, charge: Charge) -> bool:
        assert charge.model_class is not None
        return self._classes[charge.model_class].limits.output_mode == "reserve"


class _ModelClass:
    """The buckets that the models of a class share."""

    def __init__(self, limits: ModelLimits, now_ns: int) -> None:
        self.limits = limits
        self.allowances: dict[str, Allowance] = {
            kind: allowance
            for kind, allowance in (
                (REQUESTS, limits.requests),
                (INPUT_TOKENS, limits.input_tokens),
                (OUTPUT_TOKENS, limits.output_tokens),
            )
            if allowance is not None
        }
        self._buckets = {
            kind: Bucket.per_minute(a.per_minute, a.burst, now_ns) for kind, a in self.allowances.items()
        }
        self._ramp = Ramp(limits.ramp or RampSettings())

    def waits_s(self, input_tokens: int, max_tokens: int, now_ns: int) -> dict[str, int]:
        """Seconds to wait by kind of limit, for those that refuse."""
        reserve = self.limits.output_mode == "reserve"
        costs = {REQUESTS: 1, INPUT_TOKENS: input_tokens, OUTPUT_TOKENS: max_tokens if reserve else 1}
        waits = {RAMP: self._ramp.wait_ns(now_ns)}
        for kind, bucket in self._buckets.items():
            wait_ns = bucket.wait_ns(costs[kind], now_ns)
            # More than the bucket ever holds: no wait is enough, and the full bucket is the most that can be hoped for.
            waits[kind] = max(1, bucket.full_at_ns(now_ns) - now_ns) if wait_ns is None else wait_ns
        return {kind: -(-ns // NS_PER_S) for kind, ns in waits.items() if ns > 0}

    def take(self, input_tokens: int, max_tokens: int, now_ns: int) -> int:
        """Charge an admitted request; returns the output tokens reserved."""
        reserved = max_tokens if self.limits.output_mode == "reserve" else 0
        for kind, cost in ((REQUESTS, 1), (INPUT_TOKENS, input_tokens), (OUTPUT_TOKENS, reserved)):
            self.force(kind, cost, now_ns)
        self._ramp.admit(now_ns)
        return reserved

    def force(self, kind: str, cost: int, now_ns: int) -> None:
        if kind in self._buckets:
            self._buckets[kind].force(cost, now_ns)

    def readings(self, now_ns: int) -> tuple[Reading, ...]:
        return tuple(
            _reading(kind, self.allowances[kind].per_minute, bucket, now_ns)
            for kind, bucket in self._buckets.items()
        )


def _reading(kind: str, limit: int, bucket: Bucket, now_ns: int) -> Reading:
    # With a burst below the limit the header still counts from the limit, so that reset - now = (limit - remaining) / rate.
    missing = bucket.burst - bucket.level(now_ns)
    remaining = max(0, int((limit - missing) // 1))
    return Reading(kind, limit, remaining, max(0, bucket.full_at_ns(now_ns) - now_ns))


def _named(model: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(model, pattern) for pattern in patterns)


def _message(kind: str, one: _ModelClass, model: str) -> str:
    if kind == RAMP:
        return f"Traffic to {model} grew too fast. Increase it gradually (acceleration limit)."
    limit = one.allowances[kind].per_minute
    return f"This request would exceed the rate limit of {limit:,} {kind.replace('_', ' ')} per minute (model: {model})."
