"""What holds for every pattern, whatever becomes of its calls: found by random tables and random outcomes."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from patterns.scripted_calls import MS, Outcome, S, World, asked, fails

from tailgauge.call import JOB_FETCH, MESSAGE
from tailgauge.patterns.events import Cancel, Ended, FirstContent, Give, Send, Taken, Wait
from tailgauge.patterns.table import OPTIONAL, PATTERNS, Traffic
from tailgauge.rows.schema import (
    ENDED_CLASSES,
    HEDGE,
    HEDGE_HELD,
    OVERLOADED,
    RATE_LIMITED,
    RETRY,
    SERVED,
)

_RETRY = st.fixed_dictionaries({
    "policy": st.sampled_from(["none", "polite", "naive"]), "max_retries": st.integers(0, 4),
    "budget_share": st.sampled_from([0.0, 0.1, 1.0]), "budget_burst": st.sampled_from([1.0, 3.0]),
    "deadline_s": st.sampled_from([0.5, 60.0]), "base_s": st.sampled_from([0.01, 0.5]),
})  # fmt: skip
_HEDGE = st.fixed_dictionaries({
    "policy": st.sampled_from(["fixed", "adaptive", "single_r", "immediate"]),
    "delay_ms": st.sampled_from([0.0, 50.0, 300.0]), "warm_up": st.sampled_from([1, 20]),
    "budget_share": st.sampled_from([0.0, 0.1, 1.0]), "budget_burst": st.sampled_from([1.0, 3.0]),
    "throttle_tokens": st.sampled_from([0.0, 4.0]),
})  # fmt: skip
_FAN_OUT = st.fixed_dictionaries({
    "legs": st.integers(1, 5), "join": st.sampled_from(["all", "first_k", "deadline"]),
    "deadline_s": st.sampled_from([0.1, 1.0]), "order": st.sampled_from(["parallel", "sequential"]),
    "partial": st.sampled_from(["fail", "accept"]), "at_once": st.sampled_from([None, 1, 2]),
    "at_once_per_worker": st.sampled_from([None, 1, 3]),
})  # fmt: skip
_LEAVING = st.fixed_dictionaries({
    "share": st.sampled_from([0.0, 0.5, 1.0]), "after_chunks": st.just(3), "after_s": st.sampled_from([0.1, 0.4]),
    "resubmit": st.booleans(),
})  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> Traffic:
    """Any table that a scenario may have."""
    pattern = draw(st.sampled_from(sorted(set(PATTERNS) - {"cached"})))
    tree = {"pattern": pattern, "retry": draw(_RETRY)}
    if pattern in {"hedged", "fan_out"}:
        tree["hedge"] = draw(_HEDGE)
    if pattern == "streaming":
        tree["cancel"] = draw(_LEAVING)
        tree["fallback"] = draw(st.sampled_from([{}, {"after_s": 0.2, "model": "small"}]))
    if pattern == "fan_out":
        tree["fan_out"] = draw(_FAN_OUT)
    if pattern == "structured":
        tree["structured"] = {"mode": draw(st.sampled_from(["one_call", "two_calls"]))}
    if pattern == "job":
        tree["job"] = {
            "poll_s": 0.3, "backoff": draw(st.sampled_from([1.0, 2.0])), "poll_max_s": 1.0, "deadline_s": 2.0,
        }  # fmt: skip
        tree["cancel"] = {
            "share": draw(st.sampled_from([0.0, 0.5, 1.0])),
            "after_s": draw(st.sampled_from([0.1, 0.4])),
        }
    if pattern == "resume":
        tree["resume"] = {
            "after_chunks": draw(st.sampled_from([None, 5])), "after_s": draw(st.sampled_from([None, 0.3])),
            "cuts": 2, "wait_s": draw(st.sampled_from([0.0, 0.2])), "reconnections": 3,
        }  # fmt: skip
    if pattern == "batch":
        tree["batch"] = {"requests": 2, "poll_s": 0.3, "deadline_s": 2.0}
    return Traffic.model_validate(tree)


def any_outcome(seed):
    """Random outcomes, the same for the same seed."""
    rng = Random(seed)

    def outcome(_request, send, _attempt, _now):
        wait = rng.choice([0, 20, 80, 200, 600]) * MS
        ended = rng.choice(["ok"] * 6 + ["censored"] + [c for c in ENDED_CLASSES if c != "ok"])
        content = (
            wait
            if ended == "ok" or (ended in {"stream_error", "timeout"} and rng.random() < 0.5)
            else None
        )
        text = json.dumps({
            "id": "b", "processing_status": rng.choice(["in_progress", "ended"]),
            "name": "/jobs/1", "ended": rng.choice([None, "ok", "timeout", "server_error"]),
            "is_fetched": rng.choice([False, True]),
        })  # fmt: skip
        if send.call.kind == JOB_FETCH:
            text = json.dumps({"result": {"type": rng.choice(["succeeded", "expired"])}})
        return Outcome(
            content,
            wait + rng.choice([0, 10, 400]) * MS,
            ended,
            retry_after_s=rng.choice([None, 0.0, 0.3])
            if ended in {"rate_limited", "overloaded"}
            else None,
            should_retry=rng.choice([None, None, True, False]),
            text=text if ended == "ok" else None,
            chunks_ns=None if content is None else content + 5 * MS,
        )

    return outcome


@settings(max_examples=300)
@given(tables(), st.integers(0, 10**6))
def test_every_pattern_keeps_its_promises_whatever_happens(traffic, seed):
    rng = Random(seed)
    times = sorted(rng.randrange(2 * S) for _ in range(8))
    legs = traffic.fan_out.total if traffic.pattern == "fan_out" else 1
    world = World(any_outcome(seed))
    arrivals = [asked(i, at, legs, draw=rng.random(), seed=seed) for i, at in enumerate(times)]
    requests = world.run(
        PATTERNS[traffic.pattern](traffic), arrivals
    )  # which sees that each of them ends

    for request in requests:
        check_one(request, traffic)
    assert not any(world.taken.values())
    limit = traffic.fan_out.at_once_per_worker
    assert limit is None or world.most_taken.get("legs", 0) <= limit
    check_budgets(requests, traffic)
    check_pushback(requests)


def check_one(request, traffic):
    """One request's conversation."""
    done = request.done
    assert done is not None
    assert done.ended in (*ENDED_CLASSES, "censored")
    assert done.hedge_held is None or done.hedge_held in HEDGE_HELD
    # What a pattern opened it also closed, and every place that it heard of was given back.
    assert request.left_open == set()
    assert len(request.steps(Taken)) == len(request.steps(Give))
    if done.winner is not None:
        first_contents = {(e.what.leg, e.what.attempt) for e in request.steps(FirstContent)}
        whole = {
            (e.what.leg, e.what.attempt) for e in request.steps(Ended) if e.what.ended in SERVED
        }
        assert (0, done.winner) in first_contents | whole
    by_leg: dict[int, Counter] = {}
    for send in request.sends:
        by_leg.setdefault(send.leg, Counter())[send.cause] += 1
    for causes in by_leg.values():
        assert causes["primary"] <= 1
        assert causes[HEDGE] <= 1
        assert not (causes[HEDGE] and causes[RETRY])
        assert causes["fallback"] + causes["resubmit"] <= 2
    check_order(request, traffic)


def check_order(request, traffic):
    """What must not happen after something else did."""
    open_: set[tuple[int, int]] = set()
    committed: dict[int, int] = {}  # attempt that won, by leg
    refused: set[int] = set()  # legs with a 429 or 529
    not_before: dict[int, int] = {}  # when a leg may be sent again
    causes: dict[tuple[int, int], str] = {}
    numbers: Counter = Counter()
    joined = request.done.joined_at_ns
    for entry in request.log:
        what = entry.what
        if isinstance(what, Send):
            assert what.call.kind == MESSAGE or traffic.pattern in {"batch", "job"}
            key = (what.leg, numbers[what.leg])
            numbers[what.leg] += 1
            open_.add(key)
            causes[key] = what.cause
            assert joined is None or entry.at_ns <= joined
            if what.cause == HEDGE:
                assert what.leg not in refused
                assert what.leg not in committed
            if what.cause == RETRY:
                assert entry.at_ns >= not_before.get(what.leg, 0) or traffic.retry.policy == "naive"
                if traffic.retry.policy == "polite":
                    assert (
                        entry.at_ns
                        <= request.planned.scheduled_at_ns + traffic.retry.deadline_s * S
                    )
            if what.cause in {"resubmit", "poll", "cancel", "resume"}:  # a call of its own
                committed.pop(what.leg, None)
        elif isinstance(what, Cancel):
            open_.discard((what.leg, what.attempt))
        elif isinstance(what, FirstContent) and (what.leg, what.attempt) in open_:
            committed.setdefault(what.leg, what.attempt)
        elif isinstance(what, Ended):
            open_.discard((what.leg, what.attempt))
            if what.ended in {RATE_LIMITED, OVERLOADED}:
                refused.add(what.leg)
                not_before[what.leg] = what.at_ns + round((what.retry_after_s or 0) * S)
        elif isinstance(what, Wait):
            # Losers are closed before the next event is waited for.
            for leg, winner in committed.items():
                assert not any(key[0] == leg and key[1] != winner for key in open_), request.log


def check_budgets(requests, traffic):
    """At no time more additional calls than the budgets give."""
    acts = sorted(
        ((entry.at_ns, entry.what.cause) for request in requests for entry in request.steps(Send)),
        key=lambda act: (act[0], act[1] in {HEDGE, RETRY}),
    )
    calls = hedges = retries = 0
    for _, cause in acts:
        hedges += cause == HEDGE
        retries += cause == RETRY
        calls += cause not in {HEDGE, RETRY}
        assert hedges <= traffic.hedge.budget_burst + traffic.hedge.budget_share * calls + 1e-9
        if traffic.retry.policy == "polite":
            assert retries <= traffic.retry.budget_burst + traffic.retry.budget_share * calls + 1e-9


def check_pushback(requests):
    """No hedge anywhere before the `retry-after` of the target has elapsed."""
    entry = sorted((s for r in requests for s in r.log), key=lambda s: s.at_ns)
    back_at = 0
    for at_ns, group in _by_time(entry):
        # Of the same instant the order over all requests is not known: only what is pending from before counts.
        assert not (
            at_ns < back_at and any(isinstance(w, Send) and w.cause == HEDGE for w in group)
        )
        for what in group:
            if isinstance(what, Ended) and what.retry_after_s:
                back_at = max(back_at, what.at_ns + round(what.retry_after_s * S))


def _by_time(entry):
    groups: dict[int, list] = {}
    for one in entry:
        groups.setdefault(one.at_ns, []).append(one.what)
    return groups.items()


def test_the_same_run_again_is_the_same_run():
    tree = {"pattern": "streaming", "retry": {"policy": "polite", "budget_share": 1.0}}
    traffic = Traffic.model_validate(tree)

    def logs(seed):
        arrivals = [asked(i, i * S, seed=seed) for i in range(50)]
        world = World(lambda *_: fails("overloaded", 3))
        return [request.log for request in world.run(PATTERNS["streaming"](traffic), arrivals)]

    assert logs(1) == logs(1)
    assert logs(1) != logs(2)


def test_a_pattern_uses_keys_that_exist():
    assert set(Traffic.model_fields) >= OPTIONAL
