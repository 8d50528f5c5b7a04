"""Objectives while a run is on: planted counters, and what they come to after the warm-up."""

from __future__ import annotations

from typing import Any

import pytest

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import TrafficCounters
from tailgauge.master.objectives import IN_REPORT, MET, MISSED, TOO_FEW, LiveObjectives
from tailgauge.scenario.model import Scenario, parse

CHAT, SEARCH, ELSEWHERE = ("chat", "main"), ("search", "main"), ("chat", "second")


def scenario(*objectives: Any) -> Scenario:
    """A run of 110 s with a warm-up of ten."""
    return parse({
        "name": "planted", "stages": {"duration_s": 110.0, "warmup_s": 10.0}, "traffic": {"chat": {}, "search": {}},
        "slo": {f"o{number}": each for number, each in enumerate(objectives)},
    }, "planted")  # fmt: skip


def counters(*ttft_ms: float, **counts: Any) -> TrafficCounters:
    found = TrafficCounters(**counts)
    for value in ttft_ms:
        quantile_sketch.add(found.ttft, value)
    return found


def judged(
    objective: Any, since: dict[Any, TrafficCounters], passed_s: float = 60.0
) -> tuple[str, str]:
    """State and value at a time when the counters have grown from nothing."""
    live = LiveObjectives(scenario(objective))
    live.judge(10.0, {})
    (one,) = live.judge(passed_s, since)
    return one.state, one.value


@pytest.mark.parametrize(
    ("fast", "slow", "failed", "expected"),
    [
        (95, 5, 0, (MET, "498 ms")),
        (94, 6, 0, (MISSED, "3,010 ms")),
        (94, 5, 1, (MISSED, "3,010 ms")),  # a failed request is slower than any bound
        (90, 0, 10, (MISSED, "no answer")),
        (58, 1, 0, (TOO_FEW, "")),
        (60, 0, 0, (MET, "498 ms")),
    ],
)
def test_a_latency_is_judged_by_the_share_beyond_its_bound(
    fast: int, slow: int, failed: int, expected: tuple[str, str]
) -> None:
    now = counters(
        *[500.0] * fast, *[3000.0] * slow, requests={"ok": fast + slow, "timeout": failed}
    )

    assert judged("ttft p95 < 800ms", {CHAT: now}) == expected


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("complete > 80%", (MISSED, "70%")),
        (
            "error_rate < 30%",
            (MET, "20%"),
        ),  # 20 of 100: those whose user left are offered, and no errors
        ("abandoned < 5%", (MISSED, "10%")),
        ("429_rate < 10%", (MISSED, "25%")),
        ("529_rate < 10%", (MET, "0%")),
        ("cache_hit > 80%", (MET, "80%")),
        ("requests_per_s > 1.3", (MET, "1.4/s")),  # 70 in 50 s
        ("output_tokens_per_s > 200", (MISSED, "150/s")),
        ("goodput > 90%", (IN_REPORT, "")),
        ("tier=gold: error_rate < 1%", (IN_REPORT, "")),
        ("ttft_sent p95 < 800ms", (IN_REPORT, "")),
    ],
)
def test_a_share_and_a_rate_are_judged_by_their_value(
    objective: str, expected: tuple[str, str]
) -> None:
    now = counters(
        requests={"ok": 70, "timeout": 15, "empty": 5, "cancelled": 10}, attempts={"ok": 75, "rate_limited": 25},
        input_tokens=1000, cached_tokens=800, output_tokens=7500,
    )  # fmt: skip

    assert judged(objective, {CHAT: now}) == expected


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("answered > 60%", (MISSED, "50%")),
        ("complete > 60%", (MET, "70%")),  # ok or cut
        ("refused < 10%", (MISSED, "15%")),  # by the model or by a filter
        ("cut < 30%", (MET, "20%")),
        ("error_rate < 25%", (MISSED, "30%")),
        ("requests_per_s > 1.3", (MET, "1.4/s")),  # 70 in 50 s
    ],
)
def test_each_end_counts_where_it_belongs(objective: str, expected: tuple[str, str]) -> None:
    ends = {"ok": 50, "cut": 20, "refused": 10, "filtered": 5, "aborted": 10, "overloaded": 5}

    assert judged(objective, {CHAT: counters(requests=ends)}) == expected


def test_overloads_of_calls_count_although_their_requests_were_retried() -> None:
    now = counters(requests={"ok": 100}, attempts={"ok": 100, "overloaded": 25, "rate_limited": 25})

    assert judged("529_rate < 10%", {CHAT: now}) == (MISSED, "16.7%")


def test_an_objective_of_one_traffic_table_counts_this_table_at_every_target() -> None:
    since = {
        CHAT: counters(requests={"ok": 50}),
        ELSEWHERE: counters(requests={"ok": 40, "timeout": 10}),
        SEARCH: counters(requests={"timeout": 100}),
    }

    assert judged("chat: complete > 85%", since) == (MET, "90%")
    assert judged("complete > 85%", since) == (MISSED, "45%")


def test_the_warm_up_does_not_count() -> None:
    live = LiveObjectives(scenario("ttft p50 < 800ms"))
    slow = [3000.0] * 100

    assert [live.judge(at_s, {CHAT: counters(*slow)})[0].state for at_s in (2.0, 9.0, 10.2)] == [
        TOO_FEW
    ] * 3
    (one,) = live.judge(20.0, {CHAT: counters(*slow, *[500.0] * 100)})
    assert (one.state, one.value) == (MET, "498 ms")
    assert (one.label, one.bound_text, one.bound, one.sketch) == (
        "ttft p50",
        "< 800 ms",
        800.0,
        "ttft",
    )


def test_a_rate_ends_with_the_last_arrival_and_a_latency_does_not() -> None:
    live = LiveObjectives(scenario("requests_per_s > 1.9", "ttft p50 < 800ms"))
    live.judge(10.0, {})
    live.judge(110.0, {CHAT: counters(*[500.0] * 100, requests={"ok": 200})})
    rate, latency = live.judge(
        150.0, {CHAT: counters(*[500.0] * 100, *[3000.0] * 101, requests={"ok": 201})}
    )

    assert (rate.state, rate.value) == (MET, "2/s")
    assert latency.state == MISSED
