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
from tailgauge.suggestions import near_names
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
    LATENCY: {"ms": 1.0, "s": 1000.0},
    SHARE: {"%": 0.01, "": 1.0},
    PER_S: {"": 1.0, "/s": 1.0},
    COST: {"": 1.0},
}
# By simulation: how many misses a run needs to expect at the allowed share, and the least number of values.
MISSES_NEEDED = 20
LEAST_VALUES = 60


class Objective(Table):
    """One objective, as a table or as text: `"chat: ttft p95 < 800ms"`."""

    metric: FigureName
    """figure to bound; see `tailgauge docs metrics`"""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """quantile of a latency"""
    max_ms: Positive | None = None
    """bound of a latency"""
    max: NonNegative | None = None
    """upper bound of other figures; 0.01 is 1%"""
    min: NonNegative | None = None
    """lower bound of other figures"""
    traffic: str | None = None
    """only this traffic table"""
    tag: str | None = None
    """only this tag, as `key=value`"""
    precision: Annotated[float, Field(ge=0.001, le=0.5)] | None = None
    """end the run when half of a latency's interval is at most this share of it"""
    gate: bool = True
    """`false`: only reported, without effect on result and exit code"""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return parse(value)
        if isinstance(value, int | float | list):
            milliseconds = 800.0
            if isinstance(value, int | float) and not isinstance(value, bool):
                milliseconds = value
            text = f"ttft p95 < {milliseconds:g}ms"
            advice = f'write "{text}", or a table [slo.NAME] with metric, quantile and max_ms'
            raise ValueError(f"expected a text or a table, got {str(value)[:40]}: {advice}")  # noqa: TRY004 - pydantic reads it
        return value

    @model_validator(mode="after")
    def _one_bound(self) -> Objective:
        bounds = {"max_ms": self.max_ms, "max": self.max, "min": self.min}
        key = self.figure.bound_key
        bound = bounds.pop(key)
        if bound is None:
            raise ValueError(f"{key}: expected a value")
        for unused_key, value in bounds.items():
            if value is not None:
                raise ValueError(f"{unused_key}: does not apply to {self.metric}")
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
        if self.figure.sign == MOST:
            return self.bound
        return 1 - self.bound

    @property
    def label(self) -> str:
        """`ttft p95 (chat)`."""
        label: str = self.metric
        if self.figure.unit == LATENCY:
            label += f" p{self.quantile * 100:.10g}"
        if self.subset:
            label += f" ({self.subset})"
        return label

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
    """Return the table that a line of text means, as in [slo.NAME]. ValueError, with a text that is right, where it means
    none.

    The bound is in the unit of the figure: ms, a share from 0 to 1, per second. A text in front of the colon with `=` is
    a tag, else a traffic table. Whether that exists is not checked here.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_misshapen(text)}: {_proposals(text)}")
    name = match["metric"]
    figure = BY_NAME.get(name)
    if figure is None:
        raise ValueError(f"{name} is not a metric: {_proposals(text)} ({_ALL})")
    units = _UNITS[figure.unit]
    problem = _problem(match, figure)
    if problem:
        raise ValueError(f"{problem}: {_proposals(text)}")
    table: dict[str, Any] = {"metric": name}
    if match["subset"]:
        table["tag" if "=" in match["subset"] else "traffic"] = match["subset"].strip()
    table[figure.bound_key] = float(match["bound"]) * units[match["unit"]]
    if match["percent"]:
        table["quantile"] = round(float(match["percent"]) / 100, 12)
    if match["precision"]:
        table["precision"] = round(float(match["precision"]) / 100, 12)
    return table


def _misshapen(text: str) -> str:
    """Return what is wrong with a text that has not the shape of an objective."""
    bound = _LOOSE_BOUND.search(text[:_LONGEST].lower())
    if bound is not None and bound["unit"] and bound["unit"] not in _ALL_UNITS:
        return f"{bound['unit']} is not a unit of an objective: use ms, s, % or /s"
    return "expected METRIC pNN < BOUND"


def _problem(match: re.Match[str], figure: Figure) -> str:
    """Return what is wrong with the parts of a text; empty where nothing is."""
    unit_problem = _unit_problem(match["unit"], figure)
    if unit_problem:
        return unit_problem
    if match["sign"] != figure.sign:
        side = "an upper bound, <" if figure.sign == MOST else "a lower bound, >"
        return f"{figure.name} has {side}"
    bound_problem = figure.refusal(float(match["bound"]) * _UNITS[figure.unit][match["unit"]])
    if bound_problem or match["percent"] is None:
        return bound_problem
    if figure.unit != LATENCY:
        return f"{figure.name} has no percentiles"
    if not 0 < float(match["percent"]) < 100:
        return "expected a percentile between 0 and 100, such as p95"
    return ""


def _unit_problem(unit: str, figure: Figure) -> str:
    """Return why a bound cannot have this unit; empty where it can."""
    units = _UNITS[figure.unit]
    if unit in units:
        return ""
    named = " or ".join(filter(None, units))
    if not named:
        return f"the bound of {figure.name} is a plain number"
    return f"the bound of {figure.name} {'is in' if unit else 'needs a unit,'} {named}"


# --- the text that was meant ------------------------------------------------------------------------------------------

_ALL = "`tailgauge docs metrics` lists all"
_ALSO_CALLED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("latency", "response_time", "duration", "request_latency", "request_duration"), ("e2e", "ttft")),
    **dict.fromkeys(("http_req_duration", "e2el", "e2e_latency", "end_to_end", "total", "total_time"), ("e2e",)),
    **dict.fromkeys(("ttfb", "http_req_waiting", "first_token", "time_to_first_token", "first_byte"), ("ttft",)),
    **dict.fromkeys(("itl", "inter_token_latency", "inter_chunk_latency"), ("chunk_gap",)),
    **dict.fromkeys(("time_per_output_token", "per_token"), ("tpot",)),
    **dict.fromkeys(("error", "errors", "failures", "failure_rate", "http_req_failed", "failed", "fail_rate"), ("error_rate",)),
    **dict.fromkeys(("success", "success_rate", "successes", "availability"), ("complete",)),
    **dict.fromkeys(("rps", "qps", "rate", "throughput", "http_reqs", "request_throughput", "req_per_s"), ("requests_per_s",)),
    **dict.fromkeys(("tps", "tokens_per_s", "tokens_per_second", "output_throughput"), ("output_tokens_per_s",)),
    **dict.fromkeys(("cache", "hit_rate", "cache_hit_rate", "cache_hits"), ("cache_hit",)),
    **dict.fromkeys(("cost", "price", "cost_per_request"), ("cost_per_good_request",)),
    **dict.fromkeys(("429", "429s", "rate_limited"), ("429_rate",)),
}  # fmt: skip
_LOOSE_PERCENT = re.compile(
    r"(?<![a-z0-9])p\W{0,2}(?P<a>\d+(?:\.\d+)?)\)?|\b(?P<b>\d+(?:\.\d+)?)\s*(?:th|st|nd|rd|-?percentile|%-?ile)\b(?:\s*percentile)?"
    r"|\bquantile\W{0,2}(?P<c>0?\.\d+)|\b(?P<d>median)\b"
)
_LOOSE_BOUND = re.compile(
    r"(?P<sign>[<>\u2264\u2265=]=?|below|under|above|over|at most|at least|less than|more than)\s*-?(?P<number>\d[\d,_]*\.?\d*|\.\d+)"
    r"\s*(?P<unit>[a-z\u00b5%/]*)"
)
_LOOSE_PRECISION = re.compile(r"precision\W{0,3}(\d{1,2})\b")
_LOOSE_UNITS = {
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), ("ms", 1.0)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), ("s", 1.0)),
    **dict.fromkeys(("us", "\u00b5s"), ("ms", 0.001)),
    **dict.fromkeys(("m", "min", "minutes"), ("s", 60.0)),
    **dict.fromkeys(("%", "percent", "pct"), ("%", 1.0)),
    **dict.fromkeys(("/s", "rps", "qps", "tps"), ("/s", 1.0)),
}
_ALL_UNITS = {unit for units in _UNITS.values() for unit in units}
# As vLLM writes them: ttft:800 tpot:50.
_PAIR = re.compile(r"(?:goodput[\s=:]+)?((?:[a-z_0-9]+:\d+(?:\.\d+)?(?:ms|s)?[\s,]*)+)")
_MOST_SECONDS = 30  # a bare bound up to this is read as seconds, a larger one as milliseconds
_USUAL = {LATENCY: "800ms", SHARE: "1%", PER_S: "40", COST: "0.01"}
_LONGEST = 200  # characters of a text that are searched


def _proposals(text: str) -> str:
    """Return the texts that were probably meant, each as the command line takes it."""
    return f"write {' or '.join(repr(proposal) for proposal in proposals(text))}"


def proposals(text: str) -> list[str]:
    """Return the valid objectives that a text probably means, in the order of likelihood; at least one.

    It reads percentiles, bounds and units as other tools and people write them. Pairs as `ttft:800 tpot:50` are one
    objective each.
    """
    pairs = _PAIR.fullmatch(text[:_LONGEST].strip().lower())
    if pairs is not None:
        texts = []
        for pair in re.split(r"[\s,]+", pairs[1].strip(" ,")):
            texts += proposals(pair.replace(":", " < "))
        return texts
    subset, _, rest = text[:_LONGEST].rpartition(":")
    lowered = rest.lower()
    percent = _LOOSE_PERCENT.search(lowered)
    bound = _LOOSE_BOUND.search(lowered)
    precision = _LOOSE_PRECISION.search(lowered)
    name_text = _LOOSE_BOUND.sub(" ", _LOOSE_PERCENT.sub(" ", lowered))
    texts = []
    for name in _metrics_of(name_text):
        proposal = _proposal(BY_NAME[name], percent, bound)
        if subset.strip():
            proposal = f"{plain(subset.strip(), 40)}: {proposal}"
        if precision is not None and BY_NAME[name].unit == LATENCY:
            proposal = f"{proposal} precision {precision[1]}%"
        texts.append(proposal)
    return texts


def _metrics_of(name_text: str) -> tuple[str, ...]:
    """Return the metrics that a text may name."""
    names = re.findall(r"\w+", name_text)
    joined = "_".join(names)
    for word in (joined, *names):
        if word in BY_NAME:
            return (word,)
    for word in (joined, *names):
        if word in _ALSO_CALLED:
            return _ALSO_CALLED[word]
    for word in (joined, *names):
        near = near_names(word, [*BY_NAME, *_ALSO_CALLED])
        if near:
            return _ALSO_CALLED.get(near[0], (near[0],))
    return ("ttft",)


def _proposal(figure: Figure, percent: re.Match[str] | None, bound: re.Match[str] | None) -> str:
    """Return the valid text about a figure with the percentile and the bound that were given, as far as they can be kept."""
    quantile = ""
    if figure.unit == LATENCY:
        quantile = f" p{_percentile(percent):g}"
    limit = _bound_text(figure, bound) or _USUAL[figure.unit]
    if limit == _USUAL[SHARE] and figure.sign != MOST:
        limit = "99%"
    return f"{figure.name}{quantile} {figure.sign} {limit}"


def _percentile(match: re.Match[str] | None) -> float:
    """Between 0 and 100; the default where none is given."""
    if match is None:
        return 99.0
    if match["d"]:
        return 50.0
    value = float(match["a"] or match["b"] or match["c"])
    if 0 < value < 1:
        value *= 100
    while value > 100:
        value /= 10  # p999 is p99.9
    if not 0 < value < 100:
        return 99.0
    return value


def _bound_text(figure: Figure, match: re.Match[str] | None) -> str:
    """Return the bound with a unit; empty where it is none."""
    if match is None:
        return ""
    value = float(re.sub("[,_]", "", match["number"]))
    unit, factor = _LOOSE_UNITS.get(match["unit"], ("", 1.0))
    value *= factor
    if figure.unit == LATENCY and unit not in _UNITS[LATENCY]:
        unit = "s" if value <= _MOST_SECONDS else "ms"
    elif figure.unit == SHARE and unit != "%":
        unit = "%" if value >= 1 else ""
    elif figure.unit in {PER_S, COST}:
        unit = ""
    if figure.refusal(value * _UNITS[figure.unit][unit]):
        return ""
    return f"{value:.10g}{unit}"


def lacks_percentile(text: str) -> bool:
    """Return whether a valid text about a latency leaves its percentile to the default, p99."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or match["percent"] is not None:
        return False
    return BY_NAME[match["metric"]].unit == LATENCY


def name_of(text: str) -> str:
    """Return the name of an objective that is given on the command line: `chat_ttft_p95`."""
    return re.sub(r"[^a-z0-9]+", "_", re.split("[<>]", text)[0].lower()).strip("_") or "objective"
