"""The limits of [guard] beside what a plan is expected to use, or what its dry run used.

A plan that exceeds a limit fails in a dry run. A real run ends when the limit is reached: it is announced before the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from tailgauge.plan.estimate import Estimate
from tailgauge.plan.resolve import Settings
from tailgauge.plan.spend_limit import COST, REQUESTS, TOKENS, used
from tailgauge.rows.schema import AttemptRow
from tailgauge.scenario.model import Guard
from tailgauge.scenario.prices import Price

OPTIONS = {REQUESTS: "--max-requests", TOKENS: "--max-tokens", COST: "--max-cost"}
Expected = Mapping[str, float | None]  # by key of [guard]; None: not known


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that is lower than what is expected. `name`: how the user gave it."""

    name: str
    expected: float
    allowed: float
    unit: str

    @property
    def text(self) -> str:
        """`the plan exceeds --max-cost: expected 0.04 USD, allowed 0.001`."""
        expected = f"{amount(self.expected)} {self.unit}"
        return f"the plan exceeds {self.name}: expected {expected}, allowed {amount(self.allowed)}"


def amount(value: float) -> str:
    """`1,566`, `0.04`: whole numbers in full, others with two digits that are not zero at least."""
    if value == int(value):
        return f"{int(value):,}"
    if value >= 1:
        return f"{value:,.2f}"
    return f"{value:.2g}"


def excesses(
    guard: Guard, expected: Expected, currency: str, options: Iterable[str] = ()
) -> Iterator[Excess]:
    """Yield the limits that this use exceeds. `options`: keys of [guard] that were given on the command line."""
    typed_keys = frozenset(options)
    units = {REQUESTS: "calls", TOKENS: "tokens", COST: currency}
    for key, unit in units.items():
        limit = getattr(guard, key)
        value = expected[key]
        if limit is not None and value is not None and value > limit:
            name = f"guard.{key}"
            if name in typed_keys:
                name = OPTIONS[key]
            yield Excess(name, value, limit, unit)


def excesses_of_plan(settings: Settings) -> list[Excess]:
    """Return the limits that the plan exceeds before any retry; none of a closed loop, which plans no requests."""
    expected = expected_use(settings.estimate)
    return list(
        excesses(settings.scenario.guard, expected, settings.prices.currency, given_keys(settings))
    )


def given_keys(settings: Settings) -> list[str]:
    """Return the keys of the scenario that the command line set."""
    return [text.partition("=")[0] for text in settings.overrides]


def expected_use(estimate: Estimate) -> Expected:
    """Return what a plan is expected to use at least, but for answers that end early and tokens of a cache."""
    tokens = None
    if estimate.input_tokens is not None and estimate.output_tokens is not None:
        tokens = estimate.input_tokens + estimate.output_tokens
    return {REQUESTS: estimate.calls, TOKENS: tokens, COST: estimate.cost}


@dataclass(slots=True)
class Spending:
    """What the calls of a dry run use. `prices`: by model, where cost is limited."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    calls: int = 0
    tokens: int = 0
    cost: Fraction = Fraction(0)

    @classmethod
    def of(cls, settings: Settings) -> Spending:
        """Return an empty one with today's prices."""
        return cls(settings.limited_prices())

    def add(self, row: AttemptRow) -> None:
        """Add a call that has ended."""
        if row.sent_at_ns is None:
            return
        spent = used(row, self.prices.get(row.asked_model))
        self.calls += 1
        if spent is not None:
            self.tokens += spent.tokens or 0
            self.cost += spent.cost or 0

    def excesses(self, settings: Settings) -> list[Excess]:
        """Return the limits that it exceeds."""
        expected = {REQUESTS: self.calls, TOKENS: self.tokens, COST: float(self.cost)}
        return list(
            excesses(
                settings.scenario.guard, expected, settings.prices.currency, given_keys(settings)
            )
        )
