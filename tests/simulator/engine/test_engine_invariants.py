"""Whatever comes, in whatever order: nothing is lost, nothing leaks, and the driver's grain does not matter."""

from functools import partial
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.engine.fluid import Fluid
from simulator.engine.measuring import gauges

from tailgauge.scenario.simulated import CancelMode, Router
from tailgauge.simulator.engine.config import EngineConfig, Prefill, StepTime
from tailgauge.simulator.engine.engine import Engine
from tailgauge.simulator.engine.job import ENDINGS, Hooks, Job

MS = 1_000_000
EVER = 2**62
STEPS = StepTime(5.0, 0.25, 0.5, Prefill(0.0625, 100, 0.125, base_ms=1.0))
# Gap before it, prompt, output, cancelled so long after (None: never).
CALL = st.tuples(
    st.integers(0, 60 * MS),
    st.integers(1, 250),
    st.integers(1, 80),
    st.one_of(st.none(), st.integers(0, 600 * MS)),
)


class Uneven(Hooks):
    """Every third call is slow, every fourth is cached in part; counts what it was called for."""

    def __init__(self):
        self.open = {}

    def cached_tokens(self, job, replica, now_ns):  # noqa: ARG002
        self.open.setdefault(job.key, 0)
        return 40 if job.key % 4 == 0 else 0

    def slowdown(self, job, replica, now_ns):  # noqa: ARG002
        return (1.0, 1.0, 2.5)[job.key % 3]

    def first_token(self, job, replica, now_ns):  # noqa: ARG002
        self.open[job.key] += 1

    def ended(self, job, replica, now_ns, tokens):  # noqa: ARG002
        assert self.open.pop(job.key) == (1 if tokens else 0)


def served(slowdown):
    return partial(Fluid, work_ms=lambda job: float(job.output_tokens), slowdown=slowdown)


@st.composite
def configs(draw):
    return EngineConfig(
        STEPS,
        replica=draw(st.sampled_from([None, None, None, served(0.0), served(0.5)])),
        replicas=draw(st.integers(1, 3)),
        router=draw(st.sampled_from(get_args(Router))),
        slots=draw(st.integers(1, 5)),
        queue_cap=draw(st.sampled_from([None, 0, 3])),
        token_budget=draw(st.sampled_from([8, 64, 500])),
        kv_blocks=draw(st.sampled_from([None, 21, 40])),
        draft_tokens=draw(st.sampled_from([0, 3])),
        overhead_ms=draw(st.sampled_from([0.0, 8.0])),
        overhead_sigma=0.5,
        cancel_mode=draw(st.sampled_from(get_args(CancelMode))),
        cancel_after_ms=draw(st.sampled_from([0.0, 30.0])),
    )


def drive(config, calls, *, tokens, late):
    """Everything that happened. A late driver looks only when it has something to say."""
    hooks = Uneven()
    engine = Engine(config, 1, hooks, tokens=tokens)
    todo, at = [], 0
    for key, (gap, prompt, output, leaves) in enumerate(calls):
        at += gap
        job = Job(key, prompt, output)
        todo.append((at, key, engine.submit, job))
        if leaves is not None:
            todo.append((at + leaves, key, engine.cancel, job))
    out = []
    for at_ns, _, act, job in sorted(todo, key=lambda entry: entry[:2]):
        while not late and (due := engine.next_due_ns()) is not None and due <= at_ns:
            out += engine.advance(due)
        act(job, at_ns)
    out += engine.advance(EVER)
    assert gauges(engine) == [(0, 0, 0.0)] * config.replicas
    assert hooks.open == {}
    return out


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(config=configs(), calls=st.lists(CALL, min_size=1, max_size=14))
def test_nothing_is_lost_and_every_driver_sees_the_same(config, calls):
    fine = drive(config, calls, tokens=True, late=False)
    endings = {e.job.key: e for e in fine if e.kind in ENDINGS}

    assert sorted(endings) == list(range(len(calls)))
    for key, (kind, call, at_ns, tokens) in endings.items():
        mine = [
            e for e in fine if e.job.key == key and e.kind in {"first_token", "tokens"} and e.tokens
        ]
        assert [e.at_ns for e in mine] == call.chunk_times_ns.tolist()
        assert [e.tokens for e in mine] == call.chunk_tokens.tolist()
        assert all(a.at_ns < b.at_ns for a, b in pairwise(mine))
        assert call.ended_ns == at_ns
        assert sum(e.tokens for e in mine) == tokens
        if kind == "finished":
            assert tokens == call.job.output_tokens
    for tokens, late in ((False, False), (True, True), (False, True)):
        other = {
            e.job.key: (
                e.kind,
                e.at_ns,
                e.call.chunk_times_ns.tolist(),
                e.call.chunk_tokens.tolist(),
            )
            for e in drive(config, calls, tokens=tokens, late=late)
            if e.kind in ENDINGS
        }
        assert other == {
            key: (e.kind, e.at_ns, e.call.chunk_times_ns.tolist(), e.call.chunk_tokens.tolist())
            for key, e in endings.items()
        }
