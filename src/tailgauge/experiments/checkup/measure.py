"""What is read of each probe's run: the numbers of its checks, and medians that are compared with those of another.

The numbers themselves are computed in numbers.py, cache.py and cancel.py, and judged in report.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tailgauge.experiments.checkup import cache, cancel, hedging, numbers
from tailgauge.experiments.checkup.numbers import Number, quantile_of
from tailgauge.experiments.checkup.tested import (
    BURST_FROM,
    BURST_TO,
    COLD,
    CONTROL,
    LEFT_SHARE,
    WARM,
    UserTraffic,
)
from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge_analysis import (
    Floats,
    ObjectiveLine,
    Quantile,
    Steady,
    cache_settings,
    counted,
    rate_limits,
    share,
)

SETTLING = 0.1  # of the run, after the burst


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The numbers of one run, by check; the medians by name. `failed`: no request got a complete answer.

    `objectives`: those of the scenario, where the run had them.
    """

    numbers: Mapping[str, Number]
    failed: bool = False
    medians: Mapping[str, Quantile | None] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    objectives: Sequence[ObjectiveLine] = ()


@dataclass(frozen=True, slots=True)
class MedianRatio:
    """A check that compares two medians."""

    numerator: str
    denominator: str
    text: str


TODAY = "today"
LOW_LOAD = "low load"
AFTER = "after the burst"
WHOLE = "whole answer"
STREAMED = "streamed"
JOIN = "join"
SINGLE = "single calls"
RATIOS: Mapping[str, MedianRatio] = {
    "not_streamed": MedianRatio(
        WHOLE, STREAMED, "a whole answer takes {} the time to first content of a streamed one"
    ),
    "fan_out": MedianRatio(
        JOIN, SINGLE, "the median join takes {} the time of the slowest of as many single calls"
    ),
    "queueing": MedianRatio(
        TODAY,
        LOW_LOAD,
        "the median wait at today's rate is {} the median wait at a quarter of this rate",
    ),
    "unrecovered": MedianRatio(
        AFTER, LOW_LOAD, "the median wait after the burst is {} the median wait before it"
    ),
}


def light(user_traffic: UserTraffic, reading: RunReading) -> ProbeResult:
    """Return the numbers of the probe with today's traffic, by check: of all requests, of streams and of fan-outs.

    The medians are compared with those of other probes. The traffic table CONTROL, which the probe added to compare
    streamed with whole answers, is none of the users'. A dry run opens no connections.
    """
    steady = reading.steady
    users = steady.only((steady.requests["traffic"] != CONTROL).to_numpy(np.bool_))
    tail = numbers.tail(users)
    by_check = {
        "tail": tail,
        "broken": numbers.ended_by(users, numbers.BROKEN),
        "refused": numbers.ended_by(users, numbers.REFUSED),
        "idle_cut": numbers.idle_cut(users),
        "early_headers": numbers.early_headers(steady.attempts),
    }
    # Calls that an idle timeout cut count as broken too: the evidence says so.
    if by_check["idle_cut"].value:
        by_check["broken"] = replace(
            by_check["broken"],
            evidence=f"{by_check['broken'].evidence}; {by_check['idle_cut'].evidence}",
        )
    if not reading.frames.run.get("dry_run"):
        by_check["connections"] = numbers.connections(steady)
    medians = {TODAY: quantile_of(numbers.wait_ms(users, user_traffic.streams))}
    remarks: tuple[str, ...] = ()
    if user_traffic.streams:
        streamed = numbers.of_tables(steady, user_traffic.streams)
        by_check |= _of_streams(streamed, user_traffic)
        remarks = (
            hedging.advice(user_traffic, users, user_traffic.streams, has_tail=tail.exceeds),
        )
    if user_traffic.whole:
        medians[WHOLE] = quantile_of(
            numbers.whole_ms(numbers.of_tables(steady, [user_traffic.whole]), "sent_at_ns")
        )
        medians[STREAMED] = numbers.first_median(steady, CONTROL)
    if user_traffic.fan_out:
        section = numbers.fan_out_of(reading, user_traffic.fan_out)
        by_check |= _of_fan_out(user_traffic, reading, numbers.heavy_leg(section))
        medians[JOIN] = None
        if section is not None:
            medians[JOIN] = section.slowest[0]
    return ProbeResult(numbers=by_check, medians=medians, remarks=remarks)


def _of_streams(streamed: Steady, user_traffic: UserTraffic) -> dict[str, Number]:
    return {
        "first_content": numbers.first_content(streamed, user_traffic.settings.first_ms),
        "pace": numbers.pace(streamed, user_traffic.settings.tokens_per_s),
        "held_back": numbers.buffered(streamed),
        "coalesced": numbers.coalesced(streamed),
        "stalled": numbers.stalled(streamed),
    }


def _of_fan_out(
    user_traffic: UserTraffic, reading: RunReading, heavy_leg: Number
) -> dict[str, Number]:
    joins = numbers.of_tables(reading.steady, [user_traffic.fan_out])
    by_check = {"legs_refused": numbers.refused(joins.sent), "heavy_leg": heavy_leg}
    prefix = numbers.caches(reading).get(user_traffic.fan_out)
    if prefix is not None:
        by_check["race"] = cache.of_cause(prefix, cache.RACE)
        by_check["per_slot"] = cache.of_cause(prefix, cache.UNEXPLAINED)
    return by_check


def cached(user_traffic: UserTraffic, reading: RunReading) -> ProbeResult:
    """Return the numbers of the prefix cache: of the traffic with its prefix, as it should be, and with a cold one.

    Where the usage has no cached tokens (no result of WARM), they come from the engine's counters, or from times to first
    content.
    """
    table = user_traffic.tables[user_traffic.cached].cache
    assert table is not None
    steady = reading.steady
    caches = numbers.caches(reading)
    if WARM not in caches:
        engine = reading.frames.run["engine_cache"]
        calls = len(numbers.of_tables(steady, [WARM]).requests)
        cold = numbers.first_median(steady, COLD)
        warm = numbers.first_median(steady, WARM)
        by_times = cache.without_usage(engine, calls, cold, warm)
        return ProbeResult(numbers=by_times)
    prefix = caches.pop(WARM)
    is_marked = bool(user_traffic.marks.places) and bool(table.breakpoints)
    by_cause = cache.warm_numbers(
        prefix, caches, is_marked=is_marked, has_marks=bool(user_traffic.marks.places)
    )
    if is_marked and prefix.creation_tokens + prefix.read_tokens:
        # Requests per second of each prefix: their popularity falls as Zipf's law.
        all_weights = sum(traffic_table.weight for traffic_table in user_traffic.tables.values())
        share_of_requests = user_traffic.tables[user_traffic.cached].weight / all_weights
        weights: Floats = np.arange(1, table.prefixes + 1, dtype=np.float64) ** -table.zipf
        per_s = user_traffic.rate_per_s * share_of_requests * weights / weights.sum()
        settings = cache_settings(reading.frames.run)
        by_cause |= cache.lifetime(prefix, per_s, user_traffic.marks.ttl(table), settings)
    return ProbeResult(numbers=by_cause)


def fan_out(user_traffic: UserTraffic, reading: RunReading) -> ProbeResult:
    """Return the median time of the slowest of as many single calls as a fan-out has legs, and the numbers of streams.

    The slowest of K calls lies below t with half the chance where each lies below it with a chance of 0.5^(1/K). With
    several kinds of calls the largest such time is at or above the median of their slowest. None where a kind has no
    answer. Streams are judged here only if no other table is streamed.
    """
    steady = reading.steady
    kinds = user_traffic.kinds()
    legs = sum(kind["weight"] for kind in kinds.values())
    times_of_kinds = []
    for name in kinds:
        times = numbers.whole_ms(numbers.of_tables(steady, [name]), "sent_at_ns")
        quantile = quantile_of(times, 0.5 ** (1 / legs))
        if quantile is not None:
            times_of_kinds.append(quantile)
    slowest = None
    if len(times_of_kinds) == len(kinds):
        slowest = max(times_of_kinds, key=lambda quantile: quantile.value or 0.0)
    by_check: dict[str, Number] = {}
    remarks: tuple[str, ...] = ()
    if not user_traffic.streams:
        by_check = _of_streams(steady, user_traffic)
        remarks = (
            hedging.advice(user_traffic, steady, set(kinds), has_tail=numbers.tail(steady).exceeds),
        )
    return ProbeResult(numbers=by_check, medians={SINGLE: slowest}, remarks=remarks)


def cancelled(user_traffic: UserTraffic, reading: RunReading) -> ProbeResult:
    """Measure what follows after clients left."""
    cancelled_share = user_traffic.tables[user_traffic.heaviest].cancel.share or LEFT_SHARE
    return ProbeResult(numbers=cancel.cancelled(reading, cancelled_share))


def loaded(user_traffic: UserTraffic, reading: RunReading) -> ProbeResult:
    """Return the numbers of the probe with load in steps: a quarter of today's rate, a burst, then today's rate.

    A request belongs to the part of the run in which it was scheduled. Retries do not count as calls of the burst. The
    wait after the burst is measured from SETTLING of the run after its end.
    """
    steady = reading.steady
    duration_ns = float(reading.frames.run["scenario"]["stages"]["duration_s"]) * 1e9
    waits = numbers.wait_ms(steady, user_traffic.streams)
    position = steady.requests["scheduled_at_ns"].to_numpy(np.float64) / duration_ns
    medians = {
        LOW_LOAD: quantile_of(waits[position < BURST_FROM]),
        AFTER: quantile_of(waits[position >= BURST_TO + SETTLING]),
    }
    sent = steady.sent
    sent_position = sent["scheduled_at_ns"].to_numpy(np.float64) / duration_ns
    is_burst = (
        (sent_position >= BURST_FROM)
        & (sent_position < BURST_TO)
        & (sent["cause"] == schema.PRIMARY)
    )
    by_check = {"burst": numbers.refused(sent[is_burst])}
    limits = rate_limits(reading.run)
    if limits is not None:
        with_header = limits.retry_after.with_header
        silent = counted(with_header.n - with_header.k, with_header.n, with_header.n_eff)
        if silent.n:
            text = f"{silent.k} of {silent.n} 429s have no retry-after"
            by_check["no_retry_after"] = numbers.of_share(silent, text, silent.k / len(sent))
        early = limits.retry_after.violations
        if early.n:
            text = f"{early.k} of {early.n} retries before retry-after had elapsed, {share(early.value)}"
            by_check["early_retries"] = numbers.of_share(early, text, early.k / len(sent))
    return ProbeResult(numbers=by_check, medians=medians)


Measure = Callable[[UserTraffic, RunReading], ProbeResult]
MEASURES: Mapping[str, Measure] = {
    "light": light,
    "cached": cached,
    "fan_out": fan_out,
    "cancelled": cancelled,
    "loaded": loaded,
}
