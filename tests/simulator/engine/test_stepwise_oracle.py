"""The planned steps against a plain simulation of every single one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.engine import stepwise
from simulator.engine.measuring import gauges

from tailgauge.simulator.engine.config import EngineConfig, Prefill, StepTime
from tailgauge.simulator.engine.engine import Engine
from tailgauge.simulator.engine.job import Job

TIMING = StepTime(5.0, 0.25, 0.5, Prefill(0.0625, 100, 0.125, base_ms=1.0))
CALL = st.tuples(st.integers(0, 60_000_001), st.integers(1, 300), st.integers(1, 60))


@st.composite
def configs(draw):
    return EngineConfig(
        TIMING,
        slots=draw(st.integers(1, 6)),
        token_budget=draw(st.sampled_from([8, 64, 500])),
        kv_blocks=draw(st.sampled_from([None, 23, 40])),
        block_tokens=16,
    )


def engine_times(config, arrivals, *, tokens):
    engine = Engine(config, 1, tokens=tokens)
    emitted = {i: [] for i in range(len(arrivals))}
    kept = {}
    emissions = []
    for i, (at, prompt, output) in enumerate(arrivals):
        while tokens and (due := engine.next_due_ns()) is not None and due <= at:
            emissions += engine.advance(due)
        assert engine.submit(Job(i, prompt, output), at)
    while (due := engine.next_due_ns()) is not None:
        emissions += engine.advance(due)
    for emission in emissions:
        if emission.kind in ("first_token", "tokens"):
            emitted[emission.job.key].append(emission.at_ns)
        if emission.kind == "finished":
            kept[emission.job.key] = emission.call.chunk_times_ns.tolist()
            assert emission.tokens == emission.job.output_tokens
    assert gauges(engine) == [(0, 0, 0.0)]
    return [kept[i] for i in emitted], list(emitted.values())


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(config=configs(), calls=st.lists(CALL, min_size=1, max_size=12))
def test_planned_steps_are_those_of_a_plain_simulation(config, calls):
    # Steps take multiples of 500 ns. With another remainder for each, no call arrives at the very end of a step, where
    # either order is right.
    times_ns = np.cumsum([gap // 500 * 500 for gap, _, _ in calls])
    arrivals = [
        (int(at) + i, prompt, output)
        for i, (at, (_, prompt, output)) in enumerate(zip(times_ns, calls, strict=True))
    ]
    expected = stepwise.chunk_times_ns(config, arrivals)

    kept, _ = engine_times(config, arrivals, tokens=False)
    kept_too, emitted = engine_times(config, arrivals, tokens=True)

    assert kept == expected
    assert kept_too == expected
    assert emitted == expected


@pytest.mark.parametrize("tokens", [True, False])
def test_many_calls_in_a_row_move_the_ledger_and_lose_no_step(tokens):
    config = EngineConfig(TIMING, slots=4, token_budget=64, kv_blocks=400)
    arrivals = [(i * 900_000_001, 50, 1_500) for i in range(12)]

    kept, _ = engine_times(config, arrivals, tokens=tokens)

    assert kept == stepwise.chunk_times_ns(config, arrivals)
