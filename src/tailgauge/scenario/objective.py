"""What a run is judged by: the figures that an objective can bound, and its settings, as a table or in one line of text.

chat: ttft p95 < 800ms          requests of the traffic table chat
ttft p95 < 800ms precision 5%   the run goes on until it is known to 5%
tier=gold: error_rate < 1%      requests with this tag
requests_per_s > 40
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from tailgauge.plugins import plugin
from tailgauge.sanitize import plain
from tailgauge.table import NonNegative, Positive, Table, add_choice, by_name

LATENCY, SHARE, PER_S, COST = "ms", "share", "per second", "cost"
MOST, LEAST = "<", ">"


@dataclass(frozen=True, slots=True)
class Figure:
    """What an objective bounds: its unit, and whether the bound is the most or the least that is allowed."""

    name: str
    unit: str
    sign: str
    meaning: str
    of: str = "requests"  # what is counted


_LATENCIES = (
    "ttft", "e2e", "ttft_sched", "ttft_sent", "e2e_sched", "e2e_sent", "tpot", "tpot_c", "chunk_gap", "chunk_gap_worst",
    "join_sched", "turnaround",
)  # fmt: skip
_COUNTED = {"chunk_gap": "chunk gaps"}  # of the others: requests
FIGURES = (
    *(Figure(name, LATENCY, MOST, "a quantile of this metric", _COUNTED.get(name, "requests")) for name in _LATENCIES),
    Figure("answered", SHARE, LEAST, "requests whose answer is whole (ok), of all offered"),
    Figure("complete", SHARE, LEAST, "requests with a complete answer (ok or cut), of all offered"),
    Figure("error_rate", SHARE, MOST, "requests without a complete answer, of all offered, except those whose user left"),
    Figure("refused", SHARE, MOST, "requests that were refused or filtered, of all offered"),
    Figure("cut", SHARE, MOST, "requests whose answer a limit cut short, of all offered"),
    Figure("429_rate", SHARE, MOST, "attempts that got a 429, of all sent", "attempts"),
    Figure("529_rate", SHARE, MOST, "attempts that ended `overloaded` (529, 503, or an error inside a 200), of all sent", "attempts"),
    Figure("abandoned", SHARE, MOST, "requests whose user left, of all offered"),
    Figure("goodput", SHARE, LEAST, "requests that meet every objective on a latency that applies to them, of all offered"),
    Figure("cache_hit", SHARE, LEAST, "input tokens read from the prompt cache, of all input tokens", "calls"),
    Figure("requests_per_s", PER_S, LEAST, "requests completed per second"),
    Figure("output_tokens_per_s", PER_S, LEAST, "output tokens received per second"),
    Figure("cost_per_good_request", COST, MOST, "cost of all attempts / good requests"),
)  # fmt: skip
BY_NAME = by_name(FIGURES)
ERRORS = ("answered", "complete", "error_rate")  # an objective on one of these replaces the default one
ALLOWS_ERRORS = {
    *ERRORS,
    "refused",
    "429_rate",
    "529_rate",
    "goodput",
}  # or says how many failures are expected
FEWEST_RATIO = 20  # values, for the interval of a ratio

if TYPE_CHECKING:
    FigureName = str
else:
    FigureName = Literal[tuple(BY_NAME)]

_TEXT = re.compile(
    r"(?:(?P<of>.+):\s*)?(?P<metric>\w+)(?:\s+p(?P<percent>[\d.]+))?\s*(?P<sign>[<>])=?\s*(?P<bound>[\d.]+)\s*(?P<unit>ms|s|%|/s|)"
    r"(?:,?\s+precision\s+(?P<precision>[\d.]+)%)?"
)
_UNITS = {
    LATENCY: {"ms": 1.0, "s": 1000.0}, SHARE: {"%": 0.01, "": 1.0}, PER_S: {"": 1.0, "/s": 1.0}, COST: {"": 1.0},
}  # fmt: skip
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

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        return parse(given) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_bound(self) -> Objective:
        figure = BY_NAME[self.metric]
        wanted = "max_ms" if figure.unit == LATENCY else "max" if figure.sign == MOST else "min"
        if getattr(self, wanted) is None:
            raise ValueError(f"{wanted}: expected a value")
        for other in {"max_ms", "max", "min"} - {wanted}:
            if getattr(self, other) is not None:
                raise ValueError(f"{other}: does not apply to {self.metric}")
        if figure.unit == SHARE and self.bound > 1:
            raise ValueError(f"{wanted}: expected a share from 0 to 1, got {self.bound:g}")
        if self.precision is not None and figure.unit != LATENCY:
            raise ValueError(f"precision: only latencies have one, not {self.metric}")
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
        return float(next(one for one in (self.max_ms, self.max, self.min) if one is not None))

    @property
    def label(self) -> str:
        """`ttft p95 (chat)`."""
        percent = f" p{self.quantile * 100:.10g}" if self.figure.unit == LATENCY else ""
        return f"{self.metric}{percent}{f' ({self.of})' if self.of else ''}"

    @property
    def of(self) -> str:
        """Which requests it is about, empty: all."""
        return " ".join(plain(one, 40) for one in (self.traffic, self.tag) if one)

    def needs(self) -> int | None:
        """Independent values with which it can pass at all, none of them beyond its bound; None of a rate."""
        if self.figure.unit == LATENCY:
            return fewest(self.quantile)
        if self.metric == "cache_hit" or self.figure.unit == COST:
            return FEWEST_RATIO
        if self.figure.unit != SHARE or self.bound in {0.0, 1.0}:
            return None
        return fewest(self.bound if self.figure.sign == LEAST else 1 - self.bound, 0.975)


def _add(name: Any) -> None:
    """A metric of a plugin."""
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name) or name in BY_NAME:
        raise ValueError(f"expected names of metrics that are not taken, got {name!r}")
    BY_NAME[name] = Figure(name, LATENCY, MOST, "a quantile of a plugin's metric")
    add_choice(Objective, "metric", name)


plugin.subscribe(plugin.OBJECTIVES, _add)


def fewest(p: float, confidence: float = 0.95) -> int:
    """Fewest independent values of which the share p is surely within a bound if all are."""
    return math.ceil(math.log(1 - confidence) / math.log(p))


def text_of(figure: Figure, bound: float) -> str:
    """A bound: `800 ms`, `1%`, `40/s`, `0.002`."""
    if figure.unit == SHARE:
        return f"{100 * bound:.6g}%"
    shown = f"{bound:,.0f}" if bound >= 999.5 else f"{bound:.3g}"
    return shown + {LATENCY: " ms", PER_S: "/s", COST: ""}[figure.unit]


def parse(text: str) -> dict[str, Any]:
    """The table that a line of text means. ValueError where it means none."""
    found = _TEXT.fullmatch(text.strip())
    if not found:
        raise ValueError(_EXPECTED)
    name, of = found["metric"], found["of"]
    figure = BY_NAME.get(name)
    table: dict[str, Any] = {"metric": name}
    if of:
        table["tag" if "=" in of else "traffic"] = of.strip()
    if figure is None:  # refused with the nearest name
        return table
    unit = _UNITS[figure.unit].get(found["unit"])
    try:
        bound = float(found["bound"]) * (unit or 0.0)
        percent = float(found["percent"] or 99)
        if found["precision"]:
            table["precision"] = round(float(found["precision"]) / 100, 12)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if unit is None:
        units = ", ".join(filter(None, _UNITS[figure.unit]))
        raise ValueError(f"expected a bound in {units or 'plain numbers'}")
    if found["sign"] != figure.sign:
        raise ValueError(f"expected {name} {figure.sign} a bound")
    if figure.unit == LATENCY:
        return table | {"quantile": round(percent / 100, 12), "max_ms": bound}
    if found["percent"]:
        raise ValueError(f"{name} has no percentiles")
    return table | {"max" if figure.sign == MOST else "min": bound}


def name_of(text: str) -> str:
    """The name of an objective that is given on the command line: `chat_ttft_p95`."""
    return re.sub(r"[^a-z0-9]+", "_", re.split("[<>]", text)[0].lower()).strip("_") or "objective"
