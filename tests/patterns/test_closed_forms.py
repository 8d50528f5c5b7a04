"""Patterns against closed formulas: order statistics of exponential times, through the real patterns and policies."""

import math
from random import Random
from statistics import mean

import pytest
from patterns.scripted_calls import MS, S, World, answers, asked

from tailgauge.patterns.table import PATTERNS, Traffic

MEAN_MS = 100.0


def exponential(seed):
    """Calls that take an exponential time to their only content, which ends them."""
    rng = Random(seed)

    def outcome(*_):
        time_ms = rng.expovariate(1) * MEAN_MS
        return answers(time_ms, time_ms)

    return outcome


def joins_ms(n, **fan_out):
    """Times from the request to its join, sorted."""
    traffic = Traffic.model_validate({"pattern": "fan_out", "fan_out": fan_out})
    arrivals = [asked(i, i * 10 * S) for i in range(n)]
    requests = World(exponential(8)).run(PATTERNS["fan_out"](traffic), arrivals)
    return sorted((r.done.joined_at_ns - r.planned.scheduled_at_ns) / MS for r in requests)


def quantile(times, p):
    return times[math.ceil(p * len(times)) - 1]


@pytest.mark.parametrize("legs", [2, 10])
def test_the_slowest_of_k_exponential_legs(full_size, legs):
    """Mean H_K / mu, quantile -ln(1 - p^(1/K)) / mu."""
    n, tolerance = (20_000, 1) if full_size else (1500, 4)
    times = joins_ms(n, legs=legs)

    assert mean(times) / MEAN_MS == pytest.approx(
        sum(1 / i for i in range(1, legs + 1)), rel=0.015 * tolerance
    )
    for p, within in ((0.5, 0.02), (0.99, 0.05)):
        exact = -math.log(1 - p ** (1 / legs))
        assert quantile(times, p) / MEAN_MS == pytest.approx(exact, rel=within * tolerance)


def test_the_first_k_of_exponential_legs(full_size):
    """Mean sum of 1 / (i mu), i from K - k + 1 to K."""
    n, tolerance = (20_000, 1) if full_size else (1500, 4)
    times = joins_ms(n, legs=8, join="first_k", k=5)

    assert mean(times) / MEAN_MS == pytest.approx(
        sum(1 / i for i in range(4, 9)), rel=0.015 * tolerance
    )


def test_one_leg_after_the_other_is_their_sum(full_size):
    """Mean K / mu."""
    n, tolerance = (20_000, 1) if full_size else (1500, 4)

    assert mean(joins_ms(n, legs=4, order="sequential")) / MEAN_MS == pytest.approx(
        4, rel=0.015 * tolerance
    )


def test_hedged_exponential_calls(full_size):
    """With the delay d at the 90th percentile: p99 = (d + ln 100 / mu) / 2, a copy for e^(-mu d) of the calls, and the
    copy wins half of the races.
    """
    n, tolerance = (200_000, 1) if full_size else (10_000, 4)
    delay_ms = math.log(10) * MEAN_MS
    tree = {
        "pattern": "hedged",
        "hedge": {
            "policy": "fixed",
            "delay_ms": delay_ms,
            "budget_share": 1.0,
            "budget_burst": 1.0,
        },
    }
    make = PATTERNS["hedged"](Traffic.model_validate(tree))
    times, copies, won = [], 0, 0
    world = World(exponential(10))
    for start in range(0, n, 5000):  # in parts: a conversation is kept until its part is over
        for request in world.run(
            make,
            [asked(i, world.now_ns + (i - start) * 100 * MS) for i in range(start, start + 5000)],
        ):
            times.append((request.done_at_ns - request.planned.scheduled_at_ns) / MS)
            copies += "hedge" in request.causes
            won += request.done.winner == 1
    times.sort()

    assert quantile(times, 0.99) == pytest.approx(
        (delay_ms + math.log(100) * MEAN_MS) / 2, rel=0.02 * tolerance
    )
    assert copies / n == pytest.approx(0.1, abs=0.003 * tolerance)
    assert won / copies == pytest.approx(0.5, abs=0.02 * tolerance)


@pytest.mark.parametrize(
    ("quantile_", "first_ms"), [(0.5, 5.0), (0.9, 5.0), (0.9, 5000.0), (0.95, 5.0)]
)
def test_the_adaptive_delay_hedges_the_share_that_its_quantile_leaves(
    full_size, quantile_, first_ms
):
    """From either side, though a first copy that lost is known to have waited so long only."""
    n, tolerance = (20_000, 1) if full_size else (4000, 2)
    tree = {
        "pattern": "hedged",
        "hedge": {
            "policy": "adaptive", "quantile": quantile_, "delay_ms": first_ms, "budget_share": 1.0, "window_s": 20.0,
        },
    }  # fmt: skip
    make = PATTERNS["hedged"](Traffic.model_validate(tree))
    requests = World(exponential(11)).run(make, [asked(i, i * 50 * MS) for i in range(n)])
    settled = requests[1000:]

    assert sum("hedge" in r.causes for r in settled) / len(settled) == pytest.approx(
        1 - quantile_,
        rel=0.1 * tolerance,  # each window knows some hundred times only
    )
