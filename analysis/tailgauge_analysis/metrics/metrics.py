"""The metrics, one row of METRICS each; tables, objectives and docs/reference/metrics.md are read from these rows.

A function maps the steady stage to nanoseconds, NaN where there is no value: one per request for the level `request`, in the
order of `steady.requests`; one per new connection for `attempt`; one per pair of chunks for `chunk`. A plugin adds rows; one
whose function raises, or gives something else, has no values, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tailgauge.plugins import plugin
from tailgauge.rows import schema
from tailgauge.scenario.figures import FIRST_CONTENT, LAST_CONTENT, EventLatency
from tailgauge.table import by_name
from tailgauge_analysis.metrics.answers import ONE_ANSWER
from tailgauge_analysis.metrics.pace import HIDDEN
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats

SCHEDULED = "scheduled"
NEITHER = "neither"

REQUEST = "request"
ATTEMPT = "attempt"
CHUNK = "chunk"

UNIT = "ms"
RATE = "tokens/s"  # 1 / ns per token: the function gives the latter, and percentiles count from the fast end

# Which requests can have a metric: a failed request counts in the offered view of those that it could have had.
JOINED = (schema.JOIN,)  # fan-outs
TURNAROUNDS = (schema.TURNAROUND,)
ANY = schema.ANSWERS


@dataclass(frozen=True, slots=True)
class Metric:
    """One latency. `offered`: also counted with every request that got no answer as slower than any."""

    name: str
    title: str
    since: str
    level: str
    offered: bool
    formula: str
    meaning: str
    ns: Callable[[Steady], Floats]
    of: tuple[str, ...] = ONE_ANSWER
    unit: str = UNIT
    before_leaving: Callable[[Steady], Floats] | None = None
    """The same of what a user saw before leaving; None if it can only be seen at the end."""

    @property
    def event(self) -> str:
        """Return its name without the start of its clock: `ttft` of `ttft_sched` and of `ttft_sent`."""
        return self.name.removesuffix("_sched").removesuffix("_sent")


def _elapsed(start: str, end: str) -> Callable[[Steady], Floats]:
    """Time from one event of a request to another."""
    return lambda steady: (steady.requests[end] - steady.requests[start]).to_numpy(np.float64)


def _pace(steady: Steady, first_tokens: pd.Series[float] | float) -> Floats:
    """Return the span over its tokens but the first ones."""
    answers = steady.requests
    is_known = answers["streamed"].eq(True) & answers["pace_missing"].isna()
    return _span_over(answers, (answers["pace_tokens"] - first_tokens).where(is_known))


def _chunk_pace(steady: Steady) -> Floats:
    """Return the span over its chunks but the first one; also where tokens were hidden before it."""
    answers = steady.requests
    is_known = answers["streamed"].eq(True) & (
        answers["pace_missing"].isna() | (answers["pace_missing"] == HIDDEN)
    )
    return _span_over(answers, (answers["pace_chunks"] - 1).where(is_known))


def _span_over(answers: pd.DataFrame, later: pd.Series[float]) -> Floats:
    """Return the span of each answer over how many came after the first; NaN below one."""
    span = answers["last_content_at_ns"] - answers["pace_from_ns"]
    return (span / later.where(later >= 1)).to_numpy(np.float64)


def _tpot(steady: Steady) -> Floats:
    return _pace(steady, 1.0)


def _tpot_c(steady: Steady) -> Floats:
    """First-chunk tokens by its share of the characters, one at least."""
    answers = steady.requests
    return _pace(steady, (answers["pace_tokens"] * answers["first_share"]).round().clip(lower=1.0))


def _where_ok(end: str, answer: str) -> Callable[[Steady], Floats]:
    """Time from scheduled to an event of the requests with such an answer, if it is complete."""

    def ns(steady: Steady) -> Floats:
        requests = steady.requests
        fits = (requests["answer"] == answer) & requests["ended"].isin(schema.COMPLETE)
        return (requests[end] - requests["scheduled_at_ns"]).where(fits).to_numpy(np.float64)

    return ns


def _client_delay(steady: Steady) -> Floats:
    requests = steady.requests
    sent_after = requests["first_sent_at_ns"] - requests["scheduled_at_ns"]
    return (sent_after - requests["slot_wait_ns"]).to_numpy(np.float64)


def _connect(steady: Steady) -> Floats:
    new = steady.attempts[steady.attempts["connection_is_new"].astype(bool)]
    return new[["dns_ns", "connect_ns", "tls_ns"]].sum(axis=1, min_count=1).to_numpy(np.float64)


def _event(name: str, title: str, column: str, formula: str, meaning: str) -> Metric:
    """Return the latency of an event that not every answer has."""
    return Metric(
        name=name,
        title=f"{title} since scheduled",
        since=SCHEDULED,
        level=REQUEST,
        offered=False,
        formula=f"{formula} - scheduled",
        meaning=meaning,
        ns=_elapsed("scheduled_at_ns", column),
    )


def _of_events(row: EventLatency) -> Metric:
    """Return a latency that an objective can bound, by its row in the table of figures."""
    before_leaving = None
    if row.left:
        before_leaving = _elapsed(*row.left)
    return Metric(
        name=row.name,
        title=row.title,
        since=row.since,
        level=REQUEST,
        offered=True,
        formula=row.formula,
        meaning=row.meaning,
        ns=_elapsed(row.start, row.end),
        before_leaving=before_leaving,
    )


METRICS = (
    *map(_of_events, FIRST_CONTENT),
    Metric(
        name="tpot",
        title="TPOT",
        since=NEITHER,
        level=REQUEST,
        offered=True,
        formula="(last content - first content) / (output tokens - 1)",
        meaning="With thinking: (last content - first text) / (output tokens - thinking tokens - 1), unless each token has a chunk. "
        "Undefined below 2 tokens and for non-streamed answers; unknown for the reasons in `tpot_missing`.",
        ns=_tpot,
    ),
    Metric(
        name="tpot_c",
        title="TPOT after the first chunk",
        since=NEITHER,
        level=REQUEST,
        offered=True,
        formula="(last content - first content) / (output tokens - tokens of the first chunk)",
        meaning="Tokens of the first chunk are estimated by its share of the characters. "
        "Shown if the median answer has more than 1.2 tokens per chunk.",
        ns=_tpot_c,
    ),
    Metric(
        name="user_rate",
        title="User tokens per second",
        since=NEITHER,
        level=REQUEST,
        offered=True,
        formula="1 / TPOT",
        meaning="99% of the answers are at least as fast as the p99.",
        ns=_tpot,
        unit=RATE,
    ),
    Metric(
        name="chunk_pace",
        title="Time per chunk",
        since=NEITHER,
        level=REQUEST,
        offered=False,
        formula="(last content - first content) / (chunks - 1)",
        meaning="Shown where hidden tokens withhold or mark TPOT.",
        ns=_chunk_pace,
    ),
    Metric(
        name="chunk_gap",
        title="Chunk gap",
        since=NEITHER,
        level=CHUNK,
        offered=False,
        formula="arrival of a content chunk - arrival of the one before, in one attempt",
        meaning="All answers pooled, without legs of a fan-out and losers of a hedge. A chunk is not a token.",
        ns=lambda steady: steady.gaps_ns,
    ),
    Metric(
        name="chunk_gap_worst",
        title="Worst chunk gap",
        since=NEITHER,
        level=REQUEST,
        offered=True,
        formula="largest chunk gap of the request's answer",
        meaning="Undefined below 2 chunks.",
        ns=lambda steady: steady.requests["worst_gap_ns"].to_numpy(np.float64),
    ),
    *map(_of_events, LAST_CONTENT),
    Metric(
        name="join_sched",
        title="Join since scheduled",
        since=SCHEDULED,
        level=REQUEST,
        offered=True,
        formula="legs joined - scheduled",
        meaning="All legs of a fan-out, the first k, or those before the deadline have answered. "
        "It replaces TTFT, TPOT, chunk gaps and end to end.",
        ns=_where_ok("joined_at_ns", schema.JOIN),
        of=JOINED,
    ),
    Metric(
        name="turnaround",
        title="Turnaround",
        since=SCHEDULED,
        level=REQUEST,
        offered=True,
        formula="job fetched - scheduled",
        meaning="Of a job or message batch, polls included; its interval begins at the earliest possible end.",
        ns=_where_ok("ended_at_ns", schema.TURNAROUND),
        of=TURNAROUNDS,
    ),
    _event(
        "ttft_event",
        "First event",
        "first_event_at_ns",
        "first event of the stream",
        "The stream is open: `message_start`, or a choice with a role and no text. Some tools call it TTFT.",
    ),
    _event(
        "ttft_thinking",
        "First thinking",
        "first_thinking_at_ns",
        "first thinking",
        "Users cannot use it yet.",
    ),
    _event(
        "ttft_text",
        "First text",
        "shown_text_at_ns",
        "first text",
        "After the thinking; equals TTFT for text-only answers.",
    ),
    _event(
        "ttft_tool",
        "First tool input",
        "first_tool_json_at_ns",
        "first piece of a tool's input",
        "A tool call begins; its input is not usable yet.",
    ),
    _event(
        "tool_ready",
        "Tool input complete",
        "tool_ready_at_ns",
        "first tool block complete",
        "The tool can be called.",
    ),
    _event(
        "first_field",
        "First field",
        "first_field_at_ns",
        "first field of a JSON answer complete",
        "A program can use it.",
    ),
    Metric(
        name="client_delay",
        title="Client delay",
        since=SCHEDULED,
        level=REQUEST,
        offered=False,
        formula="sent (first attempt) - scheduled",
        meaning="Late dispatch, and opening a connection; without waiting for a slot of `at_once_per_worker`.",
        ns=_client_delay,
        of=ANY,
    ),
    Metric(
        name="connect",
        title="Opening a connection",
        since=NEITHER,
        level=ATTEMPT,
        offered=False,
        formula="name look-up + TCP connect + TLS handshake",
        meaning="For attempts that opened a connection.",
        ns=_connect,
    ),
)

PACED = ("tpot", "tpot_c", "user_rate")  # made of the pace of answers
BY_NAME = by_name(METRICS)


def _add(row: Any) -> None:
    """A metric of a plugin."""
    if not isinstance(row, Metric):
        raise TypeError(f"expected rows of the class Metric, got {row!r}")
    if row.name in BY_NAME:
        raise ValueError(f"the name {row.name!r} is taken: choose another")
    BY_NAME[row.name] = replace(row, ns=_guarded(row, row.ns))


def _guarded(row: Metric, ns: Callable[[Steady], Floats]) -> Callable[[Steady], Floats]:
    def guarded(steady: Steady) -> Floats:
        count = None
        if row.level == REQUEST:
            count = len(steady.requests)
        try:
            return _values(ns(steady), count)
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises
            plugin.NOTED.note(plugin.blamed(ns, error), f"metric {row.name}: ")
            return np.full(count or 0, np.nan)

    return guarded


def _values(result: Any, count: int | None) -> Floats:
    """Values of a metric; `count`: how many they must be, if that is known."""
    values = np.asarray(result, np.float64)
    if values.ndim != 1 or count not in {None, len(values)}:
        wanted = "a list"
        if count is not None:
            wanted = f"{count} of them, one per request"
        raise ValueError(f"expected nanoseconds, {wanted}, got an array of shape {values.shape}")
    return values


plugin.subscribe(plugin.METRICS, _add)
