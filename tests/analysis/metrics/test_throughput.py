"""Rates of a run beside the endpoint's own counts in the same seconds, above capacity and in closed loops."""

import numpy as np
import pytest
from dry_run.in_memory import UNBOUNDED
from run_folders.dry_runs import dry_run_report

from tailgauge.rows.schema import TURNS
from tailgauge_analysis.metrics.throughput import Throughput, Work

CAPACITY = 9.5  # requests/s: 8 slots, 40 steps of 20 ms and more
LOADS = {
    "1.25x": {"arrival": {"rate_per_s": 1.25 * CAPACITY}},
    "32 users": {"arrival": {"process": "closed", "closed": {"users": 32, "think_s": 0.5}}},
    "128 users": {"arrival": {"process": "closed", "closed": {"users": 128, "think_s": 0.5}}},
    "256 users": {"arrival": {"process": "closed", "closed": {"users": 256, "think_s": 0.5}}},
}


def run_of(out, load, *, seconds, **more):
    tree = {
        "stages": {"duration_s": seconds * 10 / 9},
        "limits": UNBOUNDED,
        "simulated": {"profile": "tiny", "engine": {"replicas": 1, "slots": 8, "step_ms": 20.0}},
        "traffic": {"chat": {"prompt_tokens": 50, "output_tokens": 40}},
    }
    return dry_run_report({**tree, **LOADS[load], **more}, out)


def is_steady(run, at_ns):
    """Which of these times are in the steady stage."""
    facts = run.report["run"]
    return (at_ns >= facts["steady_from_s"] * 1e9) & (at_ns < facts["steady_to_s"] * 1e9)


def seconds_of(run):
    return run.report["run"]["steady_to_s"] - run.report["run"]["steady_from_s"]


@pytest.mark.parametrize(
    ("offered", "completed", "text"),
    [
        (
            10.42,
            0.796,
            "10.4 requests/s offered, 0.796/s completed within the 45 s of the steady stage",
        ),
        (9.78, 9.81, "9.78 requests/s offered, 9.81/s completed (some sent in the warm-up)"),
        (11.32, 11.34, "11.3 requests/s offered, 11.3/s completed"),
        (5.0, 5.0, "5 requests/s offered, 5/s completed"),
        (None, 5.0, ""),
        (5.0, None, ""),
    ],
)
def test_more_than_was_offered_is_explained(offered, completed, text):
    assert Throughput(offered_per_s=offered, completed_per_s=completed, seconds=45.0).text == text


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_requests_and_tokens_per_second_are_the_endpoints_own(load, tmp_path, full_size):
    """Requests scheduled in the window that end at any time would be 25% too many, or one wave of users."""
    run = run_of(tmp_path, load, seconds=240 if full_size else 45)
    facts = run.report["run"]
    ended = is_steady(run, run.log["ended_at_ns"]).sum()
    sent = is_steady(run, np.concatenate(run.log["chunks"].to_list())).sum()

    assert facts["completed_per_s"] == pytest.approx(ended / seconds_of(run), rel=0.03)
    assert facts["completed_per_s"] == pytest.approx(CAPACITY, rel=0.1)
    assert facts["output_tokens_per_s"] == pytest.approx(sent / seconds_of(run), rel=0.03)
    if load == "1.25x":
        assert facts["offered_per_s"] > 1.15 * facts["completed_per_s"]


@pytest.mark.slow
def test_goodput_per_second_counts_the_good_requests_that_ended_in_the_stage(tmp_path):
    bound = {"slo": {"quick": "ttft_sched p90 < 3000ms"}}
    run = run_of(tmp_path, "1.25x", seconds=45, **bound)
    is_good = run.log["first_ns"] - run.log["scheduled_at_ns"] <= 3000e6
    good = (is_good & is_steady(run, run.log["ended_at_ns"])).sum()

    assert run.report["goodput"]["per_s"] == pytest.approx(good / seconds_of(run), rel=0.01)


@pytest.mark.slow
def test_answers_that_were_broken_off_count_the_tokens_that_came(tmp_path):
    """Half of the answers end at the 20th of 40 tokens; they have no usage."""
    fault = {"cut": {"kind": "cut", "share": 0.5, "at_chunk": 20}}
    tree = {"arrival": {"rate_per_s": 20.0}, "simulated": {"chunk_gap_ms": 10.0, "faults": fault}}
    run = run_of(tmp_path, "1.25x", seconds=30, **tree)
    facts = run.report["run"]
    sent = is_steady(run, np.concatenate(run.log["chunks"].to_list())).sum()

    assert facts["output_tokens_per_s"] == pytest.approx(sent / seconds_of(run), rel=0.03)
    assert facts["accepted_per_s"] == pytest.approx(facts["offered_per_s"], rel=0.02)
    assert facts["completed_per_s"] < 0.6 * facts["accepted_per_s"]


def of_sessions(rng, seconds, *, turns, lasts_s):
    """Sessions that arrive at random, one in 2 s; their turns come evenly over `lasts_s`."""
    begun = rng.uniform(-lasts_s, seconds, rng.poisson((seconds + lasts_s) / 2))
    turn = np.tile(np.arange(turns), len(begun))
    at_s = np.repeat(begun, turns) + turn * lasts_s / turns
    return at_s, np.repeat(np.arange(len(begun)), turns) * TURNS + turn


def of_users(rng, seconds, *, users, spread):
    """Users of a closed loop, each at a pace that lasts."""
    pace = np.exp(spread * rng.standard_normal(users) - spread**2 / 2)
    counts = rng.poisson(pace * seconds)
    turn = np.concatenate([np.arange(count) for count in counts])
    return rng.uniform(0, seconds, counts.sum()), np.repeat(np.arange(users), counts) * TURNS + turn


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "of", "rate"),
    [
        (of_sessions, {"turns": 4, "lasts_s": 20.0}, 2.0),
        (of_sessions, {"turns": 20, "lasts_s": 90.0}, 10.0),
        (of_sessions, {"turns": 1, "lasts_s": 1.0}, 0.5),
        (of_users, {"users": 40, "spread": 0.3}, 40.0),
    ],
    ids=["short sessions", "long sessions", "single requests", "users"],
)
def test_the_interval_of_a_rate_knows_sessions_and_users(draw, of, rate, full_size):
    held = []
    for seed in range(300 if full_size else 20):
        at_s, ids = draw(np.random.default_rng(seed), 120.0, **of)
        inside = (at_s >= 0) & (at_s < 120.0)
        at_s = at_s[inside]
        work = Work(
            seconds=120.0,
            amounts=np.ones(len(at_s)),
            begun_s=at_s,
            ended_s=at_s,
            of=ids[inside],
            is_closed=draw is of_users,
        )
        found = work.rate()
        held.append(found.low <= rate <= found.high)
    assert np.mean(held) >= (0.92 if full_size else 0.85)
