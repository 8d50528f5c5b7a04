"""What an experiment takes: runs, time, calls, tokens, cost; planned by a rehearsal, and used by the real one.

Rule: plain sums. Calls and tokens are those that the rows tell of; a call that was closed before its usage came counts
as a call without tokens. The cost is the plan's, which is rather too much than too little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tailgauge.experiments.course import SpentError
from tailgauge.experiments.reading import Reading
from tailgauge.experiments.steps import Prepared
from tailgauge.scenario.model import Guard

RUN_S = 9.0  # of a real run beside its load: processes, connections, drain, report


@dataclass(slots=True)
class Ledger:
    """Sums over the steps so far. `cost` is None once a model without a price was asked."""

    runs: int = 0
    load_s: float = 0.0
    rest_s: float = 0.0
    calls: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    currency: str = ""

    def add(self, one: Prepared, reading: Reading) -> None:
        """Book a step."""
        estimate = one.settings.estimate
        self.runs += 1
        self.load_s += one.step.duration_s
        self.rest_s += one.step.rest_s
        self.calls += reading.calls
        self.tokens += reading.tokens
        self.currency = estimate.currency
        self.cost = None if self.cost is None or estimate.cost is None else self.cost + estimate.cost

    def real_s(self, *, rests: bool) -> float:
        """What this takes in real time; `rests`: whether the target remembers, so that rests are kept."""
        return self.load_s + self.runs * RUN_S + (self.rest_s if rests else 0.0)

    def left(self, guard: Guard) -> dict[str, Any]:
        """The guard of the next step: what this left of the experiment's. Raises SpentError where that is nothing."""
        limits: Mapping[str, Any] = guard.model_dump(exclude_none=True)
        used = {"max_requests": self.calls, "max_tokens": self.tokens, "max_cost": self.cost or 0.0}
        out = {key: value - used.get(key, 0) if key in used else value for key, value in limits.items()}
        for key in used:
            if key in out and out[key] <= 0:
                raise SpentError(f"guard.{key}: used up after {self.runs} runs")
        return out

    def facts(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
