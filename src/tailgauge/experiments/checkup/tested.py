"""The traffic under test: the user's tables that a checkup can time, and what the probes need to know of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailgauge.experiments.course import Base
from tailgauge.patterns.settings import NO_MARKS, Marks
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.rows.schema import JOIN, TURNAROUND
from tailgauge.scenario.experiment import Checkup as Settings

KEPT = (
    "prompt_tokens",
    "prompt_sigma",
    "output_tokens",
    "output_sigma",
    "prompts",
    "tags",
    "model",
    "headers",
    "body",
    "output",
    "thinking",
    "thinking_tokens",
    "tools",
    "cache",
    "retry",
)
NOT_SENT = ("cancel", "reader")  # of the user's tables: the user, not the target
LEFT_SHARE = 0.1  # of the answers, if the traffic does not set how many users leave

# Traffic tables that the probes add.
CONTROL = "checkup_streamed"
WARM = "warm"
COLD = "cold"
IDEAL = "marked_and_stable"
LEGS = "legs"
LEFT = "left"
# Where the burst of the load probe begins and ends, as shares of its length.
BURST_FROM = 0.4
BURST_TO = 0.7


@dataclass(frozen=True, slots=True)
class UserTraffic:
    """The user's tables that a checkup can time, their plain values, today's requests/s, and the cache marks that the target takes.
    `line_of` has the command of another experiment on this traffic.

    The heaviest table of all; of those that fan out; of those with a shared prefix; of those with single answers that are
    not streamed: empty where there is none.
    """

    tables: Mapping[str, Traffic]
    plain: Mapping[str, dict[str, Any]]
    rate_per_s: float
    settings: Settings
    marks: Marks
    heaviest: str
    fan_out: str
    cached: str
    whole: str
    line_of: Callable[..., str]

    @property
    def hedged(self) -> str:
        """Return the heaviest table of single answers, whose calls a hedge can repeat; empty where there is none."""
        single = [name for name, table in self.tables.items() if not fans_out(table)]
        return max(single, key=lambda name: self.tables[name].weight, default="")

    @property
    def streams(self) -> set[str]:
        """Tables of single streamed answers, the control with them."""
        names = set()
        for name, table in self.tables.items():
            if table.stream and not fans_out(table):
                names.add(name)
        if self.whole:
            names.add(CONTROL)
        return names

    @property
    def calls_per_s(self) -> float:
        """Calls/s today."""
        weights = []
        weighted_calls = []
        for table in self.tables.values():
            weights.append(table.weight)
            weighted_calls.append(table.weight * pattern_of(table).demand(1, 1, 1).calls)
        return self.rate_per_s * sum(weighted_calls) / sum(weights)

    def today(self) -> dict[str, dict[str, Any]]:
        """Return the tables as they are."""
        tables = {}
        for name, table in self.plain.items():
            tables[name] = {key: value for key, value in table.items() if key not in NOT_SENT}
        return tables

    def kinds(self) -> dict[str, dict[str, Any]]:
        """Return the calls of the fan-out, by the table that sends one at a time; its weight is how many a request has."""
        settings = pattern_of(self.tables[self.fan_out]).settings
        if not settings.kinds:
            return {LEGS: {"weight": float(settings.legs)}}
        even = {"prompt_sigma": None, "output_sigma": None}  # all of a kind have its sizes
        tables = {}
        for number, kind in enumerate(settings.kinds):
            sizes = kind.model_dump(exclude={"count"})
            tables[f"{LEGS}_{number}"] = {**even, **sizes, "weight": float(kind.count)}
        return tables

    def call(self, name: str, **changes: Any) -> dict[str, Any]:
        """Return a table of single calls like those of a table; a change of None removes a key."""
        table = {key: value for key, value in self.plain[name].items() if key in KEPT}
        values = {**table, "pattern": "cached" if "cache" in table else "streaming", **changes}
        return {key: value for key, value in values.items() if value is not None}


def fans_out(table: Traffic) -> bool:
    """Return whether a request of this table ends with a join."""
    return pattern_of(table).answer == JOIN


def tested(base: Base) -> UserTraffic:
    """Return the scenario's traffic as a checkup needs it. UsageError if it has no rate, or only batches.

    Tables whose answer is a turnaround, as batches, are left out, with their part of the rate. A heaviest table is
    that with the largest weight of those that fit; empty where none does.
    """
    scenario = base.scenario
    rate = base.today()
    timed_tables = {}
    weights = {}
    for name, table in scenario.traffic.items():
        weights[name] = table.weight
        if pattern_of(table).answer != TURNAROUND:
            timed_tables[name] = table
    if not timed_tables:
        raise base.refused("traffic", "expected a table other than batch: a checkup times answers")
    tree = base.tree().get("traffic", {})
    rate *= sum(weights[name] for name in timed_tables) / sum(weights.values())

    def heaviest(fits: Callable[[Traffic], object]) -> str:
        fitting = [name for name, table in timed_tables.items() if fits(table)]
        return max(fitting, key=weights.__getitem__, default="")

    cached = heaviest(lambda table: table.cache)
    marks = NO_MARKS
    if cached:
        marks = scenario.marks(timed_tables[cached])
    return UserTraffic(
        tables=timed_tables,
        plain={name: tree.get(name, {}) for name in timed_tables},
        rate_per_s=rate,
        settings=base.table.checkup,
        marks=marks,
        heaviest=heaviest(lambda _: True),
        fan_out=heaviest(fans_out),
        cached=cached,
        whole=heaviest(lambda table: not table.stream and not fans_out(table)),
        line_of=base.line_of,
    )
