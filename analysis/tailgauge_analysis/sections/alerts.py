"""Seven alerts that operators commonly set, and whether this run would have fired them.

An alert compares one number with one limit, decided on the 95% interval as an objective is: `firing` where the whole
interval is beyond the limit, `not firing` where the whole is within, else `inconclusive`. What a run does not record is
`unknown`, with the reason.

    ttft_p50       p50 of TTFT since scheduled, of everything offered, above 2 s
    ttft_p95       its p95 above 5 s
    rate_p50       tokens per second of the median user, 1 / (p50 of TPOT), of everything offered, below 20
    queue_p95      p95 of the queue by the server log, above 2 s
    stream_errors  requests that ended as stream_error or truncated, of those that were sent, above 1%
    cancels        requests that their users abandoned, of those that were sent, above 10%
    cache_hits     tokens read from the cache, of the prompts' tokens where a cache was involved, below 20%
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics import pace
from tailgauge_analysis.metrics.latency import Row, offered
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections.cache.section import Cache
from tailgauge_analysis.sections.phases import QUEUE, Phases
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import TOO_FEW, Mask, Quantile
from tailgauge_analysis.text.formatting import count, ms, share, share_range
from tailgauge_analysis.text.json_values import Json, one_of

FIRING, NOT_FIRING, INCONCLUSIVE, UNKNOWN = "firing", "not firing", "inconclusive", "unknown"
ABOVE, BELOW = "above", "below"
MS, RATE, SHARE = "ms", "tokens/s", "share"
STREAM_ERRORS = (schema.STREAM_ERROR, schema.TRUNCATED)
NOT_SENT = (schema.CLIENT_DROP, schema.CENSORED)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `fires`: above or below the limit. `value` and its interval are None where `why` has the reason."""

    name: str
    title: str
    limit: float
    fires: Annotated[str, one_of(ABOVE, BELOW)]
    unit: Annotated[str, one_of(MS, RATE, SHARE)]
    state: Annotated[str, one_of(FIRING, NOT_FIRING, INCONCLUSIVE, UNKNOWN)] = UNKNOWN
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    why: str = ""

    def decided(self, value: float | None, low: float | None, high: float | None, n: int, why: str) -> Alert:
        """This alert with a measurement; `why` replaces the reason of the decision."""
        over = [low, high] if self.fires == ABOVE else [-v if v is not None else None for v in (high, low)]
        limit = self.limit if self.fires == ABOVE else -self.limit
        if over[0] is not None and over[0] > limit:
            state, reason = FIRING, "the whole interval is beyond the limit"
        elif over[1] is not None and over[1] <= limit:
            state, reason = NOT_FIRING, "the whole interval is within the limit"
        else:
            state, reason = INCONCLUSIVE, "the limit lies inside the interval; run longer"
        value, low, high = (v if v is not None and math.isfinite(v) else None for v in (value, low, high))
        return replace(self, state=state, value=value, low=low, high=high, n=n, why=why or reason)

    def undetermined(self, state: str, n: int, why: str) -> Alert:
        """This alert without a number."""
        return replace(self, state=state, n=n, why=why)


def alerts(
    of_target: Steady, latency: Sequence[Row], phases: Phases | None, cache: Sequence[Cache]
) -> list[Alert]:
    """All seven, in a fixed order."""
    ttft, tpot = (offered(latency, name) for name in ("ttft_sched", "tpot"))
    missing = pace.missing(of_target.requests)
    tpot = tpot if 2 * missing["answers"] <= missing["of"] else ()
    queue = next((part.quantiles for part in phases.split if part.name == QUEUE), ()) if phases else ()
    ended = of_target.requests["ended"]
    sent = ended[~ended.isin(NOT_SENT)]
    broken, left = sent.isin(STREAM_ERRORS).to_numpy(np.bool_), (sent == schema.CANCELLED).to_numpy(np.bool_)
    none = "no request has one"
    return [
        _quantile(Alert("ttft_p50", "TTFT p50", 2_000, ABOVE, MS), ttft, 0.5, none),
        _quantile(Alert("ttft_p95", "TTFT p95", 5_000, ABOVE, MS), ttft, 0.95, none),
        _slow_rate(Alert("rate_p50", "Tokens per second per user, p50", 20, BELOW, RATE), tpot),
        _quantile(Alert("queue_p95", "Queue at the target p95", 2_000, ABOVE, MS), queue, 0.95, "no queue times in a server log"),
        _share(Alert("stream_errors", "Broken streams (of requests sent)", 0.01, ABOVE, SHARE), broken),
        _share(Alert("cancels", "Abandoned by users (of requests sent)", 0.10, ABOVE, SHARE), left),
        _cache_hits(Alert("cache_hits", "Input tokens read from the cache (of all)", 0.20, BELOW, SHARE), cache),
    ]  # fmt: skip


def _quantile(alert: Alert, of: Sequence[Quantile], p: float, none: str) -> Alert:
    q = next((q for q in of if q.p == p), None)
    if q is None:
        return alert.undetermined(UNKNOWN, 0, none)
    if q.mark == TOO_FEW:
        return alert.undetermined(INCONCLUSIVE, q.n, "too few requests")
    unanswered = "falls among requests without answer" if q.value == math.inf else ""
    return alert.decided(q.value, q.low, q.high, q.n, unanswered)


def _slow_rate(alert: Alert, tpot: Sequence[Quantile]) -> Alert:
    """A rate is the inverse of TPOT, its ends the other way round; without an answer it is 0."""
    q = next((q for q in tpot if q.p == 0.5), None)
    if q is None:
        return alert.undetermined(UNKNOWN, 0, "TPOT is unknown for most answers")
    if q.mark == TOO_FEW:
        return alert.undetermined(INCONCLUSIVE, q.n, "too few requests")
    value, low, high = (
        None if v is None else math.inf if v == 0 else 1000 / v for v in (q.value, q.high, q.low)
    )
    unanswered = "falls among requests without answer: no tokens" if q.value == math.inf else ""
    return alert.decided(value, low, high, q.n, unanswered)


def _share(alert: Alert, yes: Mask) -> Alert:
    n = len(yes)
    if not n:
        return alert.undetermined(UNKNOWN, 0, "nothing was sent")
    found = proportion(yes)
    return alert.decided(found.value, found.low, found.high, n, "")


def _cache_hits(alert: Alert, cache: Sequence[Cache]) -> Alert:
    """Decide over all traffic tables with a cache; the interval is that of their weighted parts."""
    tokens = np.array(
        [one.read_tokens + one.creation_tokens + one.uncached_tokens for one in cache], np.float64
    )
    n = sum(one.calls for one in cache)
    if not tokens.sum():
        return alert.undetermined(UNKNOWN, n, "no traffic involves a cache")
    value = less = more = 0.0
    for weight, one in zip(tokens / tokens.sum(), cache, strict=True):
        hit = one.token_hit
        part, low, high = hit.value or 0.0, hit.low, hit.high
        if hit.value == 0 and low is None:  # nothing at all was read: the interval of 0 calls of all
            low, high = clopper_pearson(0, one.calls)
        if low is None or high is None:
            return alert.undetermined(INCONCLUSIVE, n, hit.why)
        w = float(weight)
        value += w * part
        less, more = math.hypot(less, w * (part - low)), math.hypot(more, w * (high - part))
    return alert.decided(value, max(0.0, value - less), min(1.0, value + more), n, "")


def sentence(found: Sequence[Json]) -> str:
    """Which alerts would fire."""
    firing = [one["title"] for one in found if one["state"] == FIRING]
    if firing:
        return f"{len(firing)} of {len(found)} alerts would fire: {', '.join(firing)}."
    conclusive = sum(one["state"] == NOT_FIRING for one in found)
    if not conclusive:
        return f"No alert is conclusive (0 of {len(found)})."
    return f"No alert would fire ({conclusive} of {len(found)} conclusive)."


def value(one: Json, key: str = "value") -> str:
    """A number of an alert, in its unit; `–` where there is none."""
    if one[key] is None:
        return "–"
    return share(one[key]) if one["unit"] == SHARE else f"{ms(one[key])} {one['unit']}"


def ends(one: Json) -> str:
    """The interval of an alert's value."""
    return (
        share_range(one["low"], one["high"])
        if one["unit"] == SHARE
        else f"{value(one, 'low')} – {value(one, 'high')}"
    )


def rows(found: Sequence[Json]) -> list[list[str]]:
    """Table rows: title, condition, measured value, n, state and why."""
    return [
        [
            one["title"], f"{one['fires']} {value(one, 'limit')}",
            f"{value(one)} ({ends(one)})" if one["value"] is not None else "–",
            count(one["n"]), f"{one['state']}: {one['why']}",
        ]
        for one in found
    ]  # fmt: skip
