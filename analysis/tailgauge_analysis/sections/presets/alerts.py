"""Seven alarms that an operator would set, as this run would have rung them.

Rule: an alarm compares one number with one limit, decided on the 95% interval as an objective is: `raised` where the
whole interval is beyond the limit, `quiet` where the whole is within, else `open`. What a run cannot know is `unknown`,
with the reason.

    ttft_p50       p50 of TTFT since scheduled, of everything offered, above 2 s
    ttft_p95       its p95 above 5 s
    rate_p50       tokens a second of the user in the middle, 1 / (p50 of TPOT), of everything offered, below 20
    queue_p95      p95 of the queue by the target's own log, above 2 s
    stream_errors  requests that ended as stream_error or truncated, of those that were sent, above 1%
    cancels        requests that their users gave up, of those that were sent, above 10%
    cache_hits     tokens read from the cache, of the prompts' tokens where a cache was in play, below 20%
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailgauge.rows import schema
from tailgauge_analysis.metrics.latency import OFFERED, Row
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections.cache.section import Cache
from tailgauge_analysis.sections.phases import QUEUE, Phases
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile, effective_n
from tailgauge_analysis.text.formatting import count, ms, share
from tailgauge_analysis.text.json_values import Json

RAISED, QUIET, OPEN, UNKNOWN = "raised", "quiet", "open", "unknown"
MS, RATE, SHARE = "ms", "tokens/s", "share"
STREAM_ERRORS = (schema.STREAM_ERROR, schema.TRUNCATED)
NOT_SENT = (schema.CLIENT_DROP, schema.CENSORED)


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm. `above`: rings above the limit, else below it. `value` and ends are None where `why` says so."""

    name: str
    title: str
    limit: float
    above: bool
    unit: str
    state: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    why: str = ""


def alarms(
    of_target: Steady, latency: Sequence[Row], phases: Phases | None, cache: Sequence[Cache]
) -> list[Alarm]:
    """All seven, in a fixed order."""
    ttft, tpot = (_row(latency, name) for name in ("ttft_sched", "tpot"))
    queue = next((part for part in phases.split if part.name == QUEUE), None) if phases else None
    ended = of_target.requests["ended"]
    sent = ended[~ended.isin(NOT_SENT)]
    return [
        _quantile("ttft_p50", "TTFT p50", 2_000, ttft, 0.5),
        _quantile("ttft_p95", "TTFT p95", 5_000, ttft, 0.95),
        _slow_rate("rate_p50", "Tokens per second of a user, p50", 20, tpot, 0.5),
        _quantile("queue_p95", "Queue at the target p95", 2_000, queue.quantiles if queue else None, 0.95),
        _share("stream_errors", "Streams that broke off", 0.01, sent.isin(STREAM_ERRORS).to_numpy(np.bool_)),
        _share("cancels", "Given up by their users", 0.10, (sent == schema.CANCELLED).to_numpy(np.bool_)),
        _cache_hits("cache_hits", "Tokens read from the cache", 0.20, cache),
    ]


def _row(rows: Sequence[Row], metric: str) -> tuple[Quantile, ...] | None:
    found = [row for row in rows if (row.metric.name, row.view) == (metric, OFFERED) and row.n]
    return found[0].quantiles if found else None


def _quantile(name: str, title: str, limit: float, of: Sequence[Quantile] | None, p: float) -> Alarm:
    q = next((q for q in of or () if q.p == p), None)
    if q is None:
        why = "the target's log does not tell" if name.startswith("queue") else "no request has one"
        return Alarm(name, title, limit, True, MS, UNKNOWN, None, None, None, 0, why)
    state, why = _decided(q.low, q.high, limit, above=True)
    if q.mark == TOO_FEW:
        return Alarm(name, title, limit, True, MS, OPEN, None, None, None, q.n, "too few requests")
    if q.value == math.inf:
        why = "falls among requests without answer"
    return Alarm(
        name, title, limit, True, MS, state, _finite(q.value), _finite(q.low), _finite(q.high), q.n, why
    )


def _slow_rate(name: str, title: str, limit: float, of: Sequence[Quantile] | None, p: float) -> Alarm:
    """A rate is the inverse of TPOT, its ends the other way round; without an answer it is 0."""
    q = next((q for q in of or () if q.p == p), None)
    if q is None:
        why = "no answer was streamed with two tokens or more"
        return Alarm(name, title, limit, False, RATE, UNKNOWN, None, None, None, 0, why)
    if q.mark == TOO_FEW:
        return Alarm(name, title, limit, False, RATE, OPEN, None, None, None, q.n, "too few requests")
    low, high = _inverse(q.high), _inverse(q.low)
    state, why = _decided(low, high, limit, above=False)
    if q.value == math.inf:
        why = "falls among requests without answer: no tokens"
    return Alarm(
        name,
        title,
        limit,
        False,
        RATE,
        state,
        _finite(_inverse(q.value)),
        _finite(low),
        _finite(high),
        q.n,
        why,
    )


def _inverse(ms: float | None) -> float | None:
    return None if ms is None else math.inf if ms == 0 else 1000 / ms


def _share(name: str, title: str, limit: float, yes: npt.NDArray[np.bool_]) -> Alarm:
    n = len(yes)
    if not n:
        return Alarm(name, title, limit, True, SHARE, UNKNOWN, None, None, None, 0, "nothing was sent")
    part, n_eff = float(yes.mean()), effective_n(yes)
    low, high = clopper_pearson(part * n_eff, n_eff)
    state, why = _decided(low, high, limit, above=True)
    return Alarm(name, title, limit, True, SHARE, state, part, low, high, n, why)


def _cache_hits(name: str, title: str, limit: float, cache: Sequence[Cache]) -> Alarm:
    """Of all traffic tables that have to do with a cache together; the interval is that of their weighted parts."""
    tokens = np.array(
        [one.read_tokens + one.creation_tokens + one.uncached_tokens for one in cache], np.float64
    )
    n = sum(one.calls for one in cache)
    if not tokens.sum():
        return Alarm(
            name,
            title,
            limit,
            False,
            SHARE,
            UNKNOWN,
            None,
            None,
            None,
            n,
            "no traffic has to do with a cache",
        )
    weight, value, less, more = tokens / tokens.sum(), 0.0, 0.0, 0.0
    for w, one in zip(weight, cache, strict=True):
        part, low, high = _ends(one)
        if low is None or high is None:
            return Alarm(name, title, limit, False, SHARE, OPEN, None, None, None, n, one.token_hit.why)
        value += float(w) * part
        less, more = math.hypot(less, float(w) * (part - low)), math.hypot(more, float(w) * (high - part))
    low, high = max(0.0, value - less), min(1.0, value + more)
    state, why = _decided(low, high, limit, above=False)
    return Alarm(name, title, limit, False, SHARE, state, value, low, high, n, why)


def _ends(one: Cache) -> tuple[float, float | None, float | None]:
    """A token hit and its interval; where nothing at all was read, that of 0 calls of all."""
    hit = one.token_hit
    if hit.value == 0 and hit.low is None:
        return 0.0, *clopper_pearson(0, one.calls)
    return hit.value or 0.0, hit.low, hit.high


def _decided(low: float | None, high: float | None, limit: float, *, above: bool) -> tuple[str, str]:
    worst_below = low is not None and low > limit if above else high is not None and high < limit
    worst_within = high is not None and high <= limit if above else low is not None and low >= limit
    if worst_below:
        return RAISED, "the whole interval is beyond the limit"
    if worst_within:
        return QUIET, "the whole interval is within the limit"
    return OPEN, "the limit lies inside the interval: run longer"


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def plainly(found: Sequence[Alarm]) -> list[Json]:
    """The list `alarms` of the report's `presets`."""
    return [
        {
            "name": one.name, "title": one.title, "limit": one.limit, "rings": "above" if one.above else "below",
            "unit": one.unit, "state": one.state, "value": one.value, "low": one.low, "high": one.high, "n": one.n,
            "why": one.why,
        }
        for one in found
    ]  # fmt: skip


def sentence(told: Sequence[Json]) -> str:
    """Which alarms ring."""
    raised = [one["title"] for one in told if one["state"] == RAISED]
    if raised:
        return f"{len(raised)} of {len(told)} alarms would ring: {', '.join(raised)}."
    quiet = sum(one["state"] == QUIET for one in told)
    if not quiet:
        return "Whether an alarm would ring cannot be told."
    return f"No alarm would ring; {quiet} of {len(told)} are surely quiet."


def value(one: Json, key: str = "value") -> str:
    """A number of an alarm, in its unit; `–` where there is none."""
    if one[key] is None:
        return "–"
    return share(one[key]) if one["unit"] == SHARE else f"{ms(one[key])} {one['unit']}"


def rows(told: Sequence[Json]) -> list[list[str]]:
    """For a table: title, when it rings, what was measured, n, state and why."""
    return [
        [
            one["title"], f"{one['rings']} {value(one, 'limit')}",
            f"{value(one)} ({value(one, 'low')} – {value(one, 'high')})" if one["value"] is not None else "–",
            count(one["n"]), f"{one['state']}: {one['why']}",
        ]
        for one in told
    ]  # fmt: skip
