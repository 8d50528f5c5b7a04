"""An objective of a scenario, as a table or in one line of text.

chat: ttft p95 < 800ms          requests of the traffic table chat
ttft p95 < 800ms precision 5%   the run goes on until it is known to 5%
tier=gold: error_rate < 1%      requests with this tag
requests_per_s > 40
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from tailgauge.plugins import plugin
from tailgauge.sanitize import plain
from tailgauge.scenario import figures
from tailgauge.scenario.figures import BY_NAME, COST, LATENCY, MOST, PER_S, SHARE, Figure
from tailgauge.table import NonNegative, Positive, Table, add_choice

if TYPE_CHECKING:
    FigureName = str
else:
    FigureName = Literal[tuple(BY_NAME)]

_NUMBER = r"\d+\.?\d*|\.\d+"
_TEXT = re.compile(
    rf"(?:(?P<subset>.+):\s*)?(?P<metric>\w+)(?:\s+p(?P<percent>{_NUMBER}))?\s*(?P<sign>[<>])=?\s*(?P<bound>{_NUMBER})"
    rf"\s*(?P<unit>ms|s|%|/s|)(?:,?\s+precision\s+(?P<precision>{_NUMBER})%)?"
)
_UNITS = {
    LATENCY: {"ms": 1.0, "s": 1000.0}, SHARE: {"%": 0.01, "": 1.0}, PER_S: {"": 1.0, "/s": 1.0}, COST: {"": 1.0},
}  # fmt: skip
# By simulation: how many misses a run needs to expect at the allowed share, and the least number of values.
MISSES_NEEDED = 20
LEAST_VALUES = 60
_EXPECTED = 'expected text such as "ttft p95 < 800ms", "chat: error_rate < 1%" or "requests_per_s > 40"'


class Objective(Table):
    """One objective, as a table or as text: `"chat: ttft p95 < 800ms"`. Decided on a 95% interval: pass, fail or inconclusive."""

    metric: FigureName
    """what is bounded, see `tailgauge docs metrics`"""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """of a latency: which quantile"""
    max_ms: Positive | None = None
    """of a latency: the longest allowed"""
    max: NonNegative | None = None
    """of other figures: the most allowed; a share as a number, 0.01"""
    min: NonNegative | None = None
    """of other figures: the least required"""
    traffic: str | None = None
    """only requests of this traffic table"""
    tag: str | None = None
    """only requests with this tag, as `key=value`"""
    precision: Annotated[float, Field(ge=0.001, le=0.5)] | None = None
    """of a latency: end the run when half of the interval is at most this share of the value; `duration_s` is the longest time"""
    gate: bool = True
    """`false`: report the outcome only; neither the result nor the exit code depends on it"""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        return parse(given) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_bound(self) -> Objective:
        bounds = {"max_ms": self.max_ms, "max": self.max, "min": self.min}
        key = self.figure.bound_key
        bound = bounds.pop(key)
        if bound is None:
            raise ValueError(f"{key}: expected a value")
        for other, value in bounds.items():
            if value is not None:
                raise ValueError(f"{other}: does not apply to {self.metric}")
        problem = self.figure.refusal(bound)
        if problem:
            raise ValueError(f"{key}: {problem}")
        return self

    @model_validator(mode="after")
    def _usable(self) -> Objective:
        if self.precision is not None and self.figure.unit != LATENCY:
            raise ValueError(f"precision: only latencies have one, not {self.metric}")
        if self.precision is not None and not self.gate:
            raise ValueError("precision: does not apply with gate = false")
        if self.tag is not None and "=" not in self.tag:
            raise ValueError("tag: expected key=value")
        return self

    @property
    def figure(self) -> Figure:
        """What is bounded."""
        return BY_NAME[self.metric]

    @property
    def bound(self) -> float:
        """In the unit of the figure."""
        return next(bound for bound in (self.max_ms, self.max, self.min) if bound is not None)

    @property
    def allowed(self) -> float:
        """Share of the values that may miss the bound: of a latency beyond it, of a share the bad ones."""
        if self.figure.unit == LATENCY:
            return 1 - self.quantile
        return self.bound if self.figure.sign == MOST else 1 - self.bound

    @property
    def label(self) -> str:
        """`ttft p95 (chat)`."""
        percent = f" p{self.quantile * 100:.10g}" if self.figure.unit == LATENCY else ""
        subset = f" ({self.subset})" if self.subset else ""
        return f"{self.metric}{percent}{subset}"

    @property
    def subset(self) -> str:
        """Which requests it is about, empty: all."""
        return " ".join(plain(name, 40) for name in (self.traffic, self.tag) if name)

    @property
    def bound_text(self) -> str:
        """`< 800 ms`."""
        return f"{self.figure.sign} {self.figure.text(self.bound)}"

    def needs(self) -> int | None:
        """Independent values that decide it in four of five runs, where 0.3 times or twice the allowed share misses the bound;
        None of a rate.
        """
        if not self._has_share:
            return self.figure.fewest
        return values_needed(self.allowed)

    def fewest(self) -> int | None:
        """Independent values with which it passes if none of them misses the bound; None of a rate."""
        if not self._has_share:
            return self.figure.fewest
        return fewest(1 - self.allowed, 0.95 if self.figure.unit == LATENCY else 0.975)

    @property
    def _has_share(self) -> bool:
        """Whether it allows a share of its values to miss the bound."""
        return self.figure.fewest is None and self.figure.unit in {LATENCY, SHARE}


def _add(name: Any) -> None:
    """A metric of a plugin."""
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name) or name in BY_NAME:
        raise ValueError(f"expected names of metrics that are not taken, got {name!r}")
    BY_NAME[name] = figures.latency(name)
    add_choice(Objective, "metric", name)


plugin.subscribe(plugin.OBJECTIVES, _add)


def fewest(p: float, confidence: float = 0.95) -> int:
    """Fewest independent values of which the share p is surely within a bound if all are."""
    return math.ceil(math.log(1 - confidence) / math.log(p))


def values_needed(allowed: float) -> int:
    """Independent values that decide whether the share `allowed` is kept, where the share is 0.3 times that, or twice."""
    return max(LEAST_VALUES, math.ceil(MISSES_NEEDED / allowed - 1e-6))


def parse(text: str) -> dict[str, Any]:
    """The table that a line of text means. ValueError where it means none."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(_EXPECTED)
    name = match["metric"]
    table: dict[str, Any] = {"metric": name}
    if match["subset"]:
        table["tag" if "=" in match["subset"] else "traffic"] = match["subset"].strip()
    figure = BY_NAME.get(name)
    if figure is None:  # refused with the nearest name
        return table
    units = _UNITS[figure.unit]
    if match["unit"] not in units:
        raise ValueError(f"expected a bound in {', '.join(filter(None, units)) or 'plain numbers'}")
    if match["sign"] != figure.sign:
        raise ValueError(f"expected {name} {figure.sign} a bound")
    table[figure.bound_key] = float(match["bound"]) * units[match["unit"]]
    if match["percent"]:
        if figure.unit != LATENCY:
            raise ValueError(f"{name} has no percentiles")
        table["quantile"] = round(float(match["percent"]) / 100, 12)
    if match["precision"]:
        table["precision"] = round(float(match["precision"]) / 100, 12)
    return table


def name_of(text: str) -> str:
    """The name of an objective that is given on the command line: `chat_ttft_p95`."""
    return re.sub(r"[^a-z0-9]+", "_", re.split("[<>]", text)[0].lower()).strip("_") or "objective"
