"""Retries against the simulated limits: the polite policy keeps to the time it is given, the naive one makes a storm."""

import math

import pytest
from dry_run.in_memory import UNBOUNDED, exponential_ms, flow, queueing, run_in_memory

from tailgauge.scenario.simulated import StragglersTable
from tailgauge.simulator.behaviours.stragglers import Stragglers

OUTAGE_S, CYCLE_S = 20, 120


def throttled(full_size, **traffic):
    """Three times the calls that the limit allows."""
    seconds = 1200 if full_size else 40
    return {
        "arrival": {"rate_per_s": 15.0},
        "stages": {"duration_s": seconds, "warmup_s": 0.0},
        "limits": {**UNBOUNDED, "drain_s": 600.0},
        "simulated": {"ttft_ms": 20.0, "limits": {"rpm": 300, "burst": 5}},
        "traffic": {"main": {"prompt_tokens": 10, "output_tokens": 2, **traffic}},
    }


def retried(kept):
    """Each retry with the attempt that it repeats."""
    pairs = []
    for rows in kept.by_request().values():
        numbered = {row.attempt: row for row in rows}
        pairs += [(numbered[row.of_attempt], row) for row in rows if row.cause == "retry"]
    return pairs


def early(kept):
    """Retries before the time that the target named."""
    return sum(
        retry.sent_at_ns < before.ended_at_ns + math.ceil((before.retry_after_s or 0) * 1e9)
        for before, retry in retried(kept)
    )


@pytest.mark.slow
def test_polite_retries_never_come_before_the_time_that_the_target_names(full_size):
    wide = {"max_retries": 20, "budget_share": 1.0, "budget_burst": 1e6, "deadline_s": 3600.0}
    kept = run_in_memory(throttled(full_size, retry={"policy": "polite", **wide}))

    refused = sum(row.status == 429 for row in kept.attempts)
    assert refused >= (10_000 if full_size else 300)
    assert len(retried(kept)) >= refused // 2
    assert all(before.retry_after_s for before, _ in retried(kept))
    assert early(kept) == 0


def test_naive_retries_come_early_and_are_a_storm(full_size):
    tree = throttled(full_size, retry={"policy": "naive", "max_retries": 10, "naive_wait_s": 0.1})
    tree["stages"]["duration_s"] /= 2
    kept = run_in_memory(tree)

    assert early(kept) > 0.9 * len(retried(kept))
    assert len(kept.attempts) > 4 * len(kept.requests)


def test_the_retry_budget_is_never_exceeded(full_size):
    budget = {"budget_share": 0.2, "budget_burst": 5.0, "max_retries": 10}
    kept = run_in_memory(throttled(full_size, retry={"policy": "polite", **budget}))

    calls = retries = 0
    for row in sorted(kept.attempts, key=lambda row: row.dispatched_at_ns):
        retries += row.cause == "retry"
        calls += row.cause != "retry"
        assert retries <= 5 + 0.2 * calls + 1e-9
    assert retries > 5


def test_no_copy_is_sent_of_a_call_that_was_refused_nor_while_the_target_asks_for_patience(
    full_size,
):
    hedge = {
        "policy": "fixed",
        "delay_ms": 10.0,
        "budget_share": 1.0,
        "budget_burst": 1e6,
        "throttle_tokens": 0,
    }
    kept = run_in_memory(throttled(full_size, pattern="hedged", hedge=hedge))

    until_ns = 0
    copies = 0
    for row in sorted(kept.attempts, key=lambda row: row.dispatched_at_ns):
        if row.cause == "hedge":
            copies += 1
            assert row.sent_at_ns >= until_ns
        if row.retry_after_s:
            until_ns = max(until_ns, row.ended_at_ns + row.retry_after_s * 1e9)
    assert copies > 0
    assert any(row.hedge_held == "pushback" for row in kept.requests)


@pytest.fixture(scope="module")
def outage():
    """A table and a seed with one outage of 20 s, early in the first two minutes, and when it ends."""
    table = {
        "brownout_factor": 50.0,
        "brownout_on_s": OUTAGE_S,
        "brownout_off_s": CYCLE_S - OUTAGE_S,
    }
    for seed in range(100):
        stragglers = Stragglers(StragglersTable(**table), seed)
        bad = [s for s in range(CYCLE_S) if stragglers.brownout(0, s * 10**9) > 1]
        if 10 <= bad[0] <= 20:
            return table, seed, bad[-1] + 1
    raise AssertionError("no seed puts the outage there")


def goodput(outage, policy):
    """Share of the calls that went well, of those scheduled from 40 s after the outage to the end."""
    table, seed, end_s = outage
    tree = flow(
        8 * (CYCLE_S - 10), 8.0, retry={"policy": policy, "max_retries": 10, "naive_wait_s": 0.1}
    )
    tree["limits"] = {**UNBOUNDED, "attempt_deadline_s": 2.0, "drain_s": 30.0}
    tree |= {"simulated": {"stragglers": table}, "seed": seed}
    servers = queueing(
        exponential_ms(100), slots=1, queue_cap=40, cancel_mode="never"
    )  # 0.8 of the load
    kept = run_in_memory(tree, engine=servers)
    later = [row for row in kept.requests if row.scheduled_at_ns > (end_s + 40) * 10**9]
    return sum(row.ended == "ok" for row in later) / len(later)


@pytest.mark.slow
def test_naive_retries_keep_an_outage_alive_after_its_end_and_others_do_not(outage):
    """Clients that give up and try again make a server work on what nobody waits for: it never catches up."""
    assert goodput(outage, "naive") < 0.3
    assert goodput(({}, *outage[1:]), "naive") > 0.95
    assert goodput(outage, "none") > 0.9
    assert goodput(outage, "polite") > 0.9
