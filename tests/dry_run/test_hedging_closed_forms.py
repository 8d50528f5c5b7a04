"""Rows 10 to 12 of the method, and the load under which hedging collapses: real policies against the servers of queueing theory."""

import math
from random import Random
from statistics import mean

import numpy as np
import pytest
from dry_run.in_memory import OPEN_BUDGET, exponential_ms, flow, queueing, run_in_memory

from tailgauge.simulator.behaviours.stragglers import prompt_key

MEAN_S = 0.1
BATCHES = 20


@pytest.fixture(scope="module")
def n(full_size):
    return lambda full, short=1000: full if full_size else short


def hedged(policy, delay_s=0.0, **more):
    return {
        "pattern": "hedged",
        "hedge": {"policy": policy, "delay_ms": delay_s * 1e3, **OPEN_BUDGET, **more},
    }


def hedges(kept):
    return [row for row in kept.attempts if row.cause == "hedge"]


def off(values, expected, statistic):
    """Distance to the expected, and four standard errors of the measured value."""
    batches = [statistic(batch) for batch in np.array_split(np.asarray(values), BATCHES)]
    return abs(statistic(np.asarray(values)) - expected), 4 * np.std(batches, ddof=1) / math.sqrt(
        BATCHES
    )


def p99(values):
    return float(np.quantile(values, 0.99))


@pytest.mark.slow("1.0", "2.995732273553991")
@pytest.mark.parametrize("delay_in_means", [0.0, 1.0, math.log(20)])
def test_row_10_hedged_exponential(n, delay_in_means):
    delay_s, count = delay_in_means * MEAN_S, n(200_000)
    policy = "fixed" if delay_s else "immediate"
    kept = run_in_memory(
        flow(count, 200.0, **hedged(policy, delay_s)), engine=queueing(exponential_ms(100))
    )
    count = len(kept.requests)

    times = kept.latencies_s(0)
    expected = (delay_s + math.log(100) * MEAN_S) / 2
    distance, error = off(times, expected, p99)
    assert distance <= max(0.02 * expected, error)
    extra = math.exp(-delay_in_means)
    sent = len(hedges(kept))
    assert abs(sent / count - extra) <= max(0.003, 4 * math.sqrt(extra * (1 - extra) / count))
    won = sum(row.winner == 1 for row in kept.requests)
    assert abs(won / sent - 0.5) <= max(
        0.02, 2 / math.sqrt(sent)
    )  # of the hedged ones, as nothing remembers


@pytest.mark.slow("False")
@pytest.mark.parametrize("independent", [True, False])
def test_row_11_bimodal(n, independent):
    """P(slow) is q*q where the copies are drawn apart, and still q where they share what makes them slow."""
    q, fast_ms, slow_ms = 0.1, 50.0, 2000.0

    def work_ms(key):
        return slow_ms if Random(key if independent else prompt_key(key)).random() < q else fast_ms

    kept = run_in_memory(flow(n(300_000), 50.0, **hedged("fixed", 0.2)), engine=queueing(work_ms))

    slow = [time > 1.0 for time in kept.latencies_s(0)]
    expected = q * q if independent else q
    assert abs(mean(slow) - expected) <= 4 * math.sqrt(expected * (1 - expected) / len(slow))


def duplication_ratio(rho, count):
    """Mean response with every call sent twice, to that with every call sent once, at 20 servers; losers run on."""
    means = []
    for policy in ("off", "immediate"):
        servers = queueing(
            exponential_ms(100), replicas=20, slots=1, router="random", cancel_mode="never"
        )
        rate = rho * 20 / MEAN_S
        kept = run_in_memory(flow(count, rate, **hedged(policy)), engine=servers)
        means.append(mean(kept.latencies_s()))
    return means[1] / means[0]


@pytest.mark.slow
def test_row_12_full_duplication_helps_below_a_third_of_the_load_and_hurts_above(n):
    """Of exponential servers; (1 - rho) / 2(1 - 2 rho) is 1 at a third."""
    count = n(100_000, 1500)

    assert duplication_ratio(0.25, count) < 1 < duplication_ratio(0.40, count)


def collapse(cancel_mode, policy, count):
    """p99 and share of hedges at 20 servers and 0.6 of their load; 3% of (prompt, server) pairs ten times slower."""
    unloaded_p95_s = 0.3
    slow = {"size_sigma": 0.5, "slow_share": 0.03, "slow_factor": 10.0}
    servers = queueing(
        lambda _: MEAN_S * 1e3, replicas=20, slots=1, router="random", cancel_mode=cancel_mode
    )
    mean_work_s = MEAN_S * math.exp(0.125) * (1 + 0.03 * 9)
    kept = run_in_memory(
        flow(count, 0.6 * 20 / mean_work_s, **hedged(policy, unloaded_p95_s))
        | {"simulated": {"stragglers": slow}},
        engine=servers,
    )
    return p99(kept.latencies_s(0.2)), len(hedges(kept)) / len(kept.requests)


@pytest.mark.slow
def test_the_same_load_and_policy_help_when_losers_are_stopped_and_collapse_when_they_run_on(n):
    count = n(20_000, 2000)
    plain, _ = collapse("immediate", "off", count)
    stopped, few = collapse("immediate", "fixed", count)
    running_on, many = collapse("never", "fixed", count)

    assert stopped < 0.7 * plain
    assert running_on > 1.5 * plain
    assert few < 0.4 < many
