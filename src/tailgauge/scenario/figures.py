"""The figures that an objective can bound: a row each, read by the plan, the live view, the report and the docs.

A share of requests or attempts that ended in some way, or a latency between two events of a request, is complete with its
row. Other figures need their measure as well (analysis/tailgauge_analysis/objectives).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailgauge.rows import schema
from tailgauge.table import by_name

LATENCY = "ms"
SHARE = "share"
PER_S = "per second"
COST = "cost"
MOST = "<"
LEAST = ">"
REQUESTS = "requests"
ATTEMPTS = "attempts"
CHUNK_GAPS = "chunk gaps"
FEWEST_RATIO = 20  # values, for the interval of a ratio
_SUFFIXES = {LATENCY: " ms", SHARE: "%", PER_S: "/s", COST: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What an objective bounds.

    `sign`: whether the bound is the most or the least that is allowed; `counted`: what its values are; `ended`: the ends
    whose share of these it is, with `others` the share of all other ends; `sketch`: the latency of the workers' counters
    that shows it live; `fewest`: values needed whatever the bound.
    """

    name: str
    unit: str
    meaning: str
    sign: str = MOST
    counted: str = REQUESTS
    ended: frozenset[str] = frozenset()
    others: bool = False
    sketch: str = ""
    fewest: int | None = None

    @property
    def bound_key(self) -> str:
        """The key of an objective that has its bound."""
        if self.unit == LATENCY:
            return "max_ms"
        return "max" if self.sign == MOST else "min"

    def refusal(self, bound: float) -> str:
        """Return why no run can miss a bound, or none can be shown to meet it; empty where a run decides it."""
        is_least = bound <= 0
        is_most = self.unit == SHARE and bound >= 1
        if not is_least and not is_most:
            return ""
        is_always_met = is_most if self.sign == MOST else is_least
        problem = "can miss it" if is_always_met else "can be shown to meet it"
        expected = "a share between 0 and 1 (0.99 for 99%)" if self.unit == SHARE else "more than 0"
        return f"no run {problem}: expected {expected}, got {self.text(bound)}"

    def text(self, value: float) -> str:
        """Return a bound: `800 ms`, `1%`, `40/s`, `0.002`."""
        number = f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
        if self.unit == SHARE:
            number = f"{100 * value:.6g}"
        return number + self.suffix

    @property
    def suffix(self) -> str:
        """The unit behind a number."""
        return _SUFFIXES[self.unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLatency(Figure):
    """The time from one event of a request to another, and its row in the table of metrics.

    `start`, `end`: columns of the steady stage; `left`: the same two as a user saw them who left before the end.
    """

    title: str
    since: Literal["scheduled", "sent", "neither"]
    start: str
    end: str
    formula: str
    left: tuple[str, str] | None = None


def latency(name: str, counted: str = REQUESTS, sketch: str = "") -> Figure:
    """Return a latency whose values the table of metrics computes."""
    meaning = "a quantile of this metric"
    return Figure(name=name, unit=LATENCY, meaning=meaning, counted=counted, sketch=sketch)


def share(
    name: str, sign: str, ended: frozenset[str], meaning: str, counted: str = REQUESTS
) -> Figure:
    """Return the share of the requests or attempts that ended in one of these classes."""
    return Figure(name=name, unit=SHARE, meaning=meaning, sign=sign, counted=counted, ended=ended)


FIRST_CONTENT = (
    EventLatency(
        name="ttft_sched",
        unit=LATENCY,
        title="TTFT since scheduled",
        since="scheduled",
        start="scheduled_at_ns",
        end="first_at_ns",
        formula="first content - scheduled",
        meaning='Wait of a user for the first content; for the first text with `[report] first_token = "text"`.',
        left=("scheduled_at_ns", "left_first_at_ns"),
        sketch="ttft",
    ),
    EventLatency(
        name="ttft_sent",
        unit=LATENCY,
        title="TTFT since sent",
        since="sent",
        start="shown_sent_at_ns",
        end="first_at_ns",
        formula="first content - sent",
        meaning="Network and target alone; of the attempt that answered.",
        left=("left_sent_at_ns", "left_first_at_ns"),
    ),
)
LAST_CONTENT = (
    EventLatency(
        name="e2e_sched",
        unit=LATENCY,
        title="End to end since scheduled",
        since="scheduled",
        start="scheduled_at_ns",
        end="whole_at_ns",
        formula="last content - scheduled",
        meaning="Wait of a user for the whole answer, or both answers of a `progressive` request. Usage events do not count.",
        sketch="e2e",
    ),
    EventLatency(
        name="e2e_sent",
        unit=LATENCY,
        title="End to end since sent",
        since="sent",
        start="sent_at_ns",
        end="last_content_at_ns",
        formula="last content - sent",
        meaning="Network and target alone.",
    ),
)
FIGURES = (
    latency("ttft", sketch="ttft"),
    latency("e2e", sketch="e2e"),
    *FIRST_CONTENT,
    *LAST_CONTENT,
    latency("tpot", sketch="tpot"),
    latency("tpot_c"),
    latency("chunk_gap", CHUNK_GAPS),
    *map(latency, ("chunk_gap_worst", "join_sched", "turnaround")),
    share("answered", LEAST, frozenset({schema.OK}), "share of offered requests whose answer is whole (ok)"),
    share(
        "complete", LEAST, schema.COMPLETE,
        "share of offered requests with a complete answer; an answer that a token limit ended (cut) counts as complete"
    ),
    Figure(
        name="error_rate", unit=SHARE, ended=schema.NOT_FAILED, others=True,
        meaning="share of offered requests without a complete answer; requests whose user left do not count as such",
    ),
    share(
        "refused", MOST, frozenset({schema.REFUSED, schema.FILTERED}),
        "share of offered requests that were refused or filtered",
    ),
    share("cut", MOST, frozenset({schema.CUT}), "share of offered requests whose answer a limit cut short"),
    share(
        "429_rate", MOST, frozenset({schema.RATE_LIMITED}), "share of sent attempts that got a 429", ATTEMPTS
    ),
    share(
        "529_rate", MOST, frozenset({schema.OVERLOADED}),
        "share of sent attempts that ended `overloaded` (529, 503, or an error inside a 200)", ATTEMPTS,
    ),
    share("abandoned", MOST, frozenset({schema.CANCELLED}), "share of offered requests whose user left"),
    Figure(
        name="goodput", unit=SHARE, sign=LEAST,
        meaning="share of offered requests that meet every objective on a latency that applies to them",
    ),
    Figure(
        name="cache_hit", unit=SHARE, sign=LEAST, counted="calls", fewest=FEWEST_RATIO,
        meaning="input tokens read from the prompt cache, of all input tokens",
    ),
    Figure(name="requests_per_s", unit=PER_S, sign=LEAST, meaning="requests completed per second"),
    Figure(name="output_tokens_per_s", unit=PER_S, sign=LEAST, meaning="output tokens received per second"),
    Figure(
        name="cost_per_good_request", unit=COST, fewest=FEWEST_RATIO,
        meaning="cost of all attempts / good requests",
    ),
)  # fmt: skip
BY_NAME = by_name(FIGURES)
# Each counts every failure: an objective on one of them replaces the default one.
BOUNDS_EVERY_FAILURE = (
    "answered",
    "complete",
    "error_rate",
)
# An objective on one of these says how many failures are expected, perhaps only of one kind.
ALLOWS_ERRORS = (
    *BOUNDS_EVERY_FAILURE,
    "refused",
    "429_rate",
    "529_rate",
    "goodput",
)
