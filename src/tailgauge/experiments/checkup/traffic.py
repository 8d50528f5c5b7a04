"""The traffic that is looked at: the user's heaviest table, as plain values, in the forms that the probes need.

Rule: what makes up a call stays as it is (prompt, answer, cache, retries); what several calls make up (hedges, fan-outs,
conversations, users who leave) is left out, because a probe that is about it adds it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailgauge.call import WHOLE_ANSWERS
from tailgauge.errors import UsageError
from tailgauge.experiments.steps import Base
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.protocols.table import refusal
from tailgauge.rows.schema import JOIN, TURNAROUND

KEPT = (
    "prompt_tokens", "prompt_sigma", "output_tokens", "output_sigma", "prompt_file", "tags", "model", "thinking",
    "thinking_tokens", "tools", "cache", "retry",
)  # fmt: skip
LEFT_SHARE = 0.1  # of the answers, where the traffic does not say how many users leave


@dataclass(frozen=True, slots=True)
class Tested:
    """The table, and the requests a second that are its own today."""

    name: str
    table: Traffic
    plain: dict[str, Any]  # what is kept of it
    rate_per_s: float

    @property
    def legs(self) -> int | None:
        """How many calls the user's own requests have; None where it is one."""
        pattern = pattern_of(self.table)
        return len(pattern.prompt_sizes(1)) if pattern.answer == JOIN else None

    @property
    def left_share(self) -> float:
        """Share of the answers that users leave."""
        return self.table.cancel.share or LEFT_SHARE

    def call(self, **changes: Any) -> dict[str, Any]:
        """A table of single calls; a change of None takes a key out."""
        made = {**self.plain, "pattern": "cached" if "cache" in self.plain else "streaming", **changes}
        return {key: value for key, value in made.items() if value is not None}


def tested(base: Base) -> Tested:
    """Of a scenario. Raises UsageError where it has no rate, only batches, or a protocol without the words."""
    scenario = base.scenario
    rate = scenario.arrival.rate
    if rate is None:
        raise UsageError(
            f"{base.path}: arrival.rate_per_s: expected today's rate in requests a second, in an open process as "
            "poisson: a checkup compares loads"
        )
    if why := refusal(scenario.target, WHOLE_ANSWERS):
        raise UsageError(f"{base.path}: {why}; a checkup sends both")
    able = {name: one for name, one in scenario.traffic.items() if pattern_of(one).answer != TURNAROUND}
    if not able:
        raise UsageError(f"{base.path}: traffic: expected a table that is no batch: a checkup times answers")
    name = max(able, key=lambda one: able[one].weight)
    tree = base.tree()["traffic"][name]
    plain = {key: tree[key] for key in KEPT if key in tree}
    return Tested(name, able[name], plain, float(rate))
