"""The closed forms 1-7 and 21: what queueing theory knows of systems that the engine can be set up as."""

import math
from math import factorial

import numpy as np
import pytest
from simulator.engine.measuring import (
    NEVER,
    Demands,
    assert_is,
    customers,
    exponential_ms,
    p99,
    poisson_ns,
    run,
    run_closed,
    sojourns_ms,
)

from tailgauge.simulator.engine.config import EngineConfig, StepTime

SERVICE_MS = 10.0


@pytest.fixture(scope="module")
def calls(full_size):
    """Number of calls: what the method asks for, or fewer."""
    return lambda full: full if full_size else min(full, 20_000)


@pytest.mark.parametrize(
    ("rho", "n", "mean_off", "p99_off"), [(0.5, 100_000, 0.05, 0.07), (0.8, 1_000_000, 0.05, 0.09)]
)
def test_row_1_mm1_sojourn_is_exponential(calls, rho, n, mean_off, p99_off):
    measured = sojourns_ms(rho, exponential_ms(SERVICE_MS, calls(n), 1), 1)

    expected = SERVICE_MS / (1 - rho)
    assert_is(expected, measured, np.mean, mean_off)
    assert_is(expected * math.log(100), measured, p99, p99_off)


@pytest.mark.parametrize(("rho", "n", "off"), [(0.5, 100_000, 0.05), (0.8, 1_000_000, 0.03)])
def test_row_2_md1_wait(calls, rho, n, off):
    waits = sojourns_ms(rho, np.full(calls(n), SERVICE_MS), 2) - SERVICE_MS

    assert_is(rho * SERVICE_MS / (2 * (1 - rho)), waits, np.mean, off)


def test_row_2_mg1_wait_is_that_of_pollaczek_and_khinchine(calls):
    rho, n = 0.5, calls(100_000)
    work = np.random.default_rng(3).gamma(0.5, SERVICE_MS / 0.5, n)  # CV^2 = 2
    waits = sojourns_ms(rho, work, 3) - work[n // 10 :]

    rate = rho / float(work.mean())
    assert_is(rate * float(np.mean(work**2)) / (2 * (1 - rho)), waits, np.mean, 0.05)


@pytest.mark.parametrize("servers", [2, 8])
def test_row_3_mmc_wait_is_erlang_c(calls, servers):
    rho, work = 0.8, exponential_ms(SERVICE_MS, calls(1_000_000), 4)
    n = len(work)
    waits = sojourns_ms(rho, work, 4, servers=servers, slots=servers) - work[n // 10 :]

    load = rho * servers
    last = load**servers / factorial(servers) / (1 - rho)
    erlang_c = last / (sum(load**k / factorial(k) for k in range(servers)) + last)
    assert_is(erlang_c * float(work.mean()) / (servers * (1 - rho)), waits, np.mean, 0.05)


@pytest.mark.parametrize("service", ["exponential", "constant"])
def test_row_4_mg_infinity_in_flight_is_poisson(calls, service):
    n, in_flight = calls(100_000), 20.0
    work = np.full(n, SERVICE_MS) if service == "constant" else exponential_ms(SERVICE_MS, n, 5)
    at = poisson_ns(in_flight * 1e3 / SERVICE_MS, n, 5)
    config, demands = customers(work)
    measured = run(config, at, demands, 5)

    ends = np.sort(measured.ended)
    times = np.arange(at[n // 20], at[-1], int(2 * SERVICE_MS * 1e6))
    in_service = np.searchsorted(at, times, "right") - np.searchsorted(ends, times, "right")
    assert_is(in_flight, in_service, np.mean, 0.03)
    assert_is(in_flight, in_service, np.var, 0.03)


@pytest.mark.parametrize("size_ms", [2.0, 10.0, 30.0])
def test_row_5_processor_sharing_stretches_every_size_alike(calls, size_ms):
    rho = 0.7
    work = exponential_ms(SERVICE_MS, calls(1_000_000), 6)
    measured = sojourns_ms(rho, work, 6, slots=None, slowdown=1.0)
    sizes = work[len(work) // 10 :]
    alike = np.abs(sizes / size_ms - 1) < 0.1

    assert_is(1 / (1 - rho), measured[alike] / sizes[alike], np.mean, 0.06)


@pytest.mark.parametrize("users", [2, 40])
def test_row_6_closed_loop_obeys_the_response_time_formula(calls, users):
    n, think_ms, slots = calls(100_000), 100.0, 1
    work = exponential_ms(SERVICE_MS, n, 7)
    thinks = np.random.default_rng(8).exponential(think_ms * 1e6, n + users).astype(np.int64)
    config, demands = customers(work, slots=slots)
    measured = run_closed(config, thinks, users, demands, 7)

    ended = measured.ended
    done = ended >= 0  # the last of each user may be under way still
    sent, ended = measured.sent[done], ended[done]
    demand_s = float(work[: len(sent)].mean()) / 1e3
    rate = len(ended) / (ended.max() / 1e9)
    response_s, think_s = (
        float(np.mean(ended - sent)) / 1e9,
        float(thinks[: len(sent)].mean()) / 1e9,
    )
    off = max(0.001, 2 * users / len(sent))  # each user's last cycle is open
    assert rate == pytest.approx(users / (response_s + think_s), rel=off)
    assert rate <= min(1 / demand_s, users / (demand_s + think_s)) * (1 + off)


def test_row_7_little(calls):
    """L by counting who is there at each event, lambda and W from the calls of the same window."""
    n = calls(100_000)
    at = poisson_ns(0.8e3 / SERVICE_MS, n, 9)
    work = exponential_ms(SERVICE_MS, n, 9)
    config, demands = customers(work, slots=1)
    measured = run(config, at, demands, 9)
    sent, ended = measured.sent, measured.ended

    window = ended.max() - sent.min()
    times = np.concatenate([sent, ended])
    order = np.argsort(times, kind="stable")
    there = np.cumsum(np.repeat([1, -1], n)[order])
    mean_there = float(np.sum(there[:-1] * np.diff(times[order])) / window)
    assert mean_there == pytest.approx(n / window * float(np.mean(ended - sent)), rel=0.001)


def test_row_21_m_tokens_per_chunk_every_g_ms():
    """chunk gap = g, tpot = g * (chunks - 1) / (n - 1), coalescing m: to the nanosecond."""
    m, gap_ms, chunks, calls = 4, 30, 25, 3
    config = EngineConfig(StepTime(gap_ms), slots=1, draft_tokens=m - 1)
    n = m * chunks
    at = np.arange(calls) * 10**10
    measured = run(config, at, Demands(np.full(calls, 100), np.full(calls, n)), 1)

    for call in measured.calls.values():
        assert set(np.diff(call.chunk_times_ns).tolist()) == {gap_ms * 1_000_000}
        assert call.chunk_tokens.tolist() == [m] * chunks
    span, output = measured.last - measured.first, measured.tokens
    assert (span / (output - 1) == gap_ms * 1e6 * (chunks - 1) / (n - 1)).all()
    assert (output / measured.chunks == m).all()


def test_one_server_without_a_queue_refuses_as_erlang_b_says():
    n = 20_000
    config, demands = customers(exponential_ms(10.0, n, 2), slots=1, queue_cap=0)
    measured = run(config, poisson_ns(100, n, 2), demands, 2)

    assert len(measured.refused) / n == pytest.approx(0.5, abs=0.02)  # load 1
    assert set(measured.first[sorted(measured.refused)].tolist()) == {NEVER}


def test_the_same_seed_gives_the_same_times_and_another_one_others():
    def first(seed):
        return run(
            "sonnet", poisson_ns(5, 300, 1), Demands(np.full(300, 200), np.full(300, 20)), seed
        ).first.tolist()

    assert first(1) == first(1)
    assert first(2) != first(1)
