"""Slow calls in real time: some, the same ones again, and many times slower.

Rule: which calls are slow is read from what the endpoint planned for each, which no hiccup of the machine can move;
real times are held against the plan from below only.
"""

from __future__ import annotations

import pytest

from tailgauge.simulator.behaviours.tokens import text
from tailgauge.simulator.engine.config import PROFILES

CALLS, TOKENS, FACTOR = 24, 4, 10
SLOW = ("stragglers.slow_share=0.25", f"stragglers.slow_factor={FACTOR}")
TIMES = {"model": ("ttft_ms=10",), "engine": ("profile=tiny", "engine.overhead_ms=0")}
REQUEST = {
    "model": "m",
    "max_tokens": TOKENS,
    "messages": [{"role": "user", "content": text(250).decode()}],
}


def planned_ns(row):
    """To the first chunk: drawn by the latency model, or the engine's steps for the prompt of a call that is alone in it."""
    return row["planned_ttft_ns"] or row["prefill_ended_at_ns"] - row["prefill_started_at_ns"]


def decode_ns(times: str) -> int:
    """What a slow call's tokens after the first take at least."""
    gap_ms = 1.0 if times == "model" else PROFILES["tiny"].timing.step_ms
    return round((TOKENS - 1) * FACTOR * gap_ms * 1e6)


@pytest.mark.parametrize("times", TIMES)
def test_some_calls_are_many_times_slower_and_always_the_same_ones(serve, times):
    slow, quick = [], []
    for order in (range(CALLS), reversed(range(CALLS))):
        endpoint = serve(*SLOW, *TIMES[times])
        for number in order:
            endpoint.message("r", number, **REQUEST)
        rows = endpoint.rows("r")
        plans = {number: planned_ns(row) for number, row in rows.items()}
        took = {number: row["ended_at_ns"] - row["received_at_ns"] for number, row in rows.items()}
        usual = min(plans.values())
        slow.append({number for number, plan in plans.items() if plan > usual})

        assert len(plans) == CALLS
        assert len({plans[number] for number in slow[-1]}) == 1, "one factor for all of them"
        assert all(plans[number] > FACTOR / 2 * usual for number in slow[-1])
        assert all(took[number] >= plans[number] + decode_ns(times) for number in slow[-1])
        quick += [took[number] for number in plans if number not in slow[-1]]
    assert slow[0] == slow[1]
    assert 2 <= len(slow[0]) <= 12
    assert min(quick) < usual * FACTOR / 2, "the others do not wait for them"
