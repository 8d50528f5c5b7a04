"""One engine, step by step: what a call emits, refusals, cancellations, routing and hooks."""

from dataclasses import replace

import pytest
from simulator.engine.measuring import gauges

from tailgauge.simulator.engine.config import EngineConfig, Prefill, StepTime
from tailgauge.simulator.engine.engine import Engine
from tailgauge.simulator.engine.job import Hooks, Job

MS = 1_000_000
CONFIG = EngineConfig(StepTime(10.0, 0.0, 0.0, Prefill(0.1)), slots=2)
EVER = 2**62


def happened(emissions, key=None):
    return [(e.kind, e.at_ns / MS, e.tokens) for e in emissions if key is None or e.job.key == key]


def ending(emissions, key):
    return next(
        e for e in emissions if e.job.key == key and e.kind in ("finished", "cancelled", "refused")
    )


def test_a_call_emits_all_that_happens_to_it():
    engine = Engine(CONFIG, 1)
    engine.submit(Job("a", prompt_tokens=100, output_tokens=3), 5 * MS)

    assert happened(engine.advance(EVER)) == [
        ("admitted", 5, 0),
        ("prefill_started", 5, 0),
        ("first_token", 25, 1),
        ("tokens", 35, 1),
        ("tokens", 45, 1),
        ("finished", 45, 3),
    ]


def test_a_driver_wakes_at_each_step_or_only_when_something_changes():
    fine, coarse = Engine(CONFIG, 1), Engine(CONFIG, 1, tokens=False)
    wakes = []
    for engine in (fine, coarse):
        engine.submit(Job("a", 100, 4), 0)
        times = []
        while (due := engine.next_due_ns()) is not None:
            times.append(due / MS)
            engine.advance(due)
        wakes.append(times)

    assert wakes == [[20, 30, 40, 50], [20, 50]]


@pytest.mark.parametrize(
    ("cap", "taken"), [(None, [True] * 5), (0, [True] * 2 + [False] * 3), (2, [True] * 4 + [False])]
)
def test_a_full_queue_refuses(cap, taken):
    engine = Engine(replace(CONFIG, queue_cap=cap), 1)

    assert [engine.submit(Job(i, 10, 10), i) for i in range(5)] == taken
    assert [e.job.key for e in engine.advance(5) if e.kind == "refused"] == [
        i for i in range(5) if not taken[i]
    ]


def test_a_call_that_can_never_fit_into_memory_is_refused():
    engine = Engine(replace(CONFIG, kv_blocks=10), 1)

    assert [engine.submit(Job(n, n, 10), 0) for n in (150, 151)] == [True, False]


def test_gauges_tell_who_runs_and_waits_and_how_full_memory_is():
    engine = Engine(replace(CONFIG, kv_blocks=20), 1)
    for key in range(3):
        engine.submit(Job(key, 31, 40), 0)
    engine.advance(27 * MS)  # one holds 33 tokens, 3 blocks, the other 32, 2 blocks

    assert gauges(engine) == [(2, 1, 5 / 20)]

    engine.advance(40 * MS)

    assert gauges(engine) == [(2, 1, 6 / 20)]


CANCELS = {  # mode: when it ends, tokens, of these after the cancellation at 35 ms (steps end at 20, 30, 40, ... ms)
    "immediate": (35, 2, 0),
    "next_step": (40, 3, 1),
    "after_ms": (60, 5, 3),  # 18 ms later, at the end of that step
    "never": (110, 10, 8),
}


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("mode", CANCELS)
def test_a_cancelled_call_ends_by_its_mode(mode, tokens):
    engine = Engine(replace(CONFIG, cancel_mode=mode, cancel_after_ms=18), 1, tokens=tokens)
    job = Job("a", 100, 10)
    engine.submit(job, 0)
    engine.cancel(job, 35 * MS)

    call = ending(engine.advance(EVER), "a").call

    assert (call.ended_ns / MS, call.tokens, call.wasted_tokens) == CANCELS[mode]
    assert gauges(engine) == [(0, 0, 0)]


@pytest.mark.parametrize("mode", ["immediate", "next_step"])
def test_cancelling_frees_the_slot_for_who_waits_and_moves_nobody_else(mode):
    engine = Engine(replace(CONFIG, cancel_mode=mode, kv_blocks=40), 1)
    jobs = [Job(i, 100, 10) for i in range(4)]
    for job in jobs:
        engine.submit(job, 0)
    engine.cancel(jobs[1], 45 * MS)
    engine.cancel(jobs[2], 46 * MS)  # waits

    out = engine.advance(EVER)

    assert ending(out, 2).at_ns == 46 * MS
    assert happened(out, 3)[0] == ("admitted", 50, 0)
    assert [ending(out, i).kind for i in range(4)] == [
        "finished",
        "cancelled",
        "cancelled",
        "finished",
    ]
    assert gauges(engine) == [(0, 0, 0)]


def test_a_call_can_be_cancelled_on_its_way_to_the_replica():
    engine = Engine(replace(CONFIG, overhead_ms=50), 1)
    job = Job("a", 100, 10)
    engine.submit(job, 0)
    engine.cancel(job, 20 * MS)

    assert happened(engine.advance(EVER)) == [("cancelled", 20, 0)]
    assert engine.next_due_ns() is None


def replicas(config, calls):
    """Replica of each call, all open at once."""
    engine = Engine(replace(config, replicas=4), 1)
    for i in range(calls):
        engine.submit(Job(i, 10, 10), i)
    ended = [e for e in engine.advance(EVER) if e.kind == "finished"]
    return [e.call.replica for e in sorted(ended, key=lambda e: e.job.key)]


def test_least_loaded_deals_out_in_turn():
    assert replicas(CONFIG, 8) == [0, 1, 2, 3] * 2


def test_random_uses_every_replica_and_repeats_by_seed():
    config = replace(CONFIG, router="random")
    first = replicas(config, 40)

    assert set(first) == {0, 1, 2, 3}
    assert replicas(config, 40) == first


class Recorded(Hooks):
    """Half of a prompt is cached, calls are twice as slow on replica 0, and everything emitted is kept."""

    def __init__(self):
        self.emitted = []

    def cached_tokens(self, job, replica, now_ns):  # noqa: ARG002
        self.emitted.append(("asked", job.key, now_ns / MS))
        return job.prompt_tokens // 2

    def slowdown(self, job, replica, now_ns):  # noqa: ARG002
        return 2.0 if replica == 0 else 1.0

    def first_token(self, job, replica, now_ns):  # noqa: ARG002
        self.emitted.append(("first", job.key, now_ns / MS))

    def ended(self, job, replica, now_ns, tokens):  # noqa: ARG002
        self.emitted.append(("ended", job.key, now_ns / MS, tokens))


@pytest.mark.parametrize("tokens", [True, False])
def test_hooks_are_asked_at_admission_and_told_in_the_order_of_time(tokens):
    hooks = Recorded()
    engine = Engine(replace(CONFIG, replicas=2), 1, hooks, tokens=tokens)
    engine.submit(Job("slow", 200, 3), 0)
    engine.submit(Job("quick", 200, 3), 0)
    engine.advance(EVER)

    # 100 tokens are left to compute: 10 ms at full speed. A slow call's tokens come every other step.
    assert hooks.emitted == [
        ("asked", "slow", 0),
        ("asked", "quick", 0),
        ("first", "quick", 20),
        ("first", "slow", 30),
        ("ended", "quick", 40, 3),
        ("ended", "slow", 70, 3),
    ]


def test_a_call_draws_the_same_whatever_else_is_there():
    config = replace(
        CONFIG,
        slots=8,
        overhead_ms=20,
        overhead_sigma=1.0,
        draft_tokens=4,
    )
    chunks = []
    for others in (0, 5):
        engine = Engine(config, 7)
        for key in [*range(others), "a"]:
            engine.submit(Job(key, 10, 60), 0)
        call = ending(engine.advance(EVER), "a").call
        chunks.append((call.entered_ns, call.chunk_tokens.tolist()))

    assert chunks[0] == chunks[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": None, "queue_cap": 1}, "queue_cap"),
        ({"token_budget": 2}, "token_budget"),
        ({"timing": StepTime(0.0)}, "step_ms"),
    ],
)
def test_values_that_do_not_fit_together_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_a_call_must_be_possible_and_its_key_its_own():
    engine = Engine(CONFIG, 1)
    engine.submit(Job("a"), 0)

    for job, message in ((Job("a"), "key"), (Job("c", 0), "token")):
        with pytest.raises(ValueError, match=message):
            engine.submit(job, 0)
