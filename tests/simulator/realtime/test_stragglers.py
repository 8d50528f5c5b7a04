"""Slow calls in real time: some, the same ones again, and many times slower."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from simulator.realtime.conftest import HELLO, Serve, named

CALLS = 24
SLOW = ("stragglers.slow_share=0.25", "stragglers.slow_factor=10")
LAWS = {"law": ("ttft_ms=10",), "engine": ("profile=tiny", "engine.slots=64", "engine.overhead_ms=0")}


@pytest.mark.parametrize("law", LAWS)
def test_some_calls_are_many_times_slower_and_always_the_same_ones(serve: Serve, law: str) -> None:
    slow = []
    for _ in range(2):
        endpoint = serve(*SLOW, *LAWS[law])

        def call(number: int, claude: Any = endpoint.claude) -> None:
            claude.messages.create(model="m", max_tokens=8, messages=HELLO, **named("r", number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(CALLS)))
        times = {row["request_id"]: row["ended_at_ns"] - row["received_at_ns"] for row in endpoint.truth("r")}
        middle = sorted(times.values())[CALLS // 2]
        slow.append({number for number, took in times.items() if took > 3 * middle})
    assert slow[0] == slow[1]
    assert 2 <= len(slow[0]) <= 12
