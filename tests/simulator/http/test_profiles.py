"""Engine profiles in real time: their order and their queue."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median

import anthropic
import pytest
from simulator.http.conftest import ServedForked


def ttft_ns(endpoint: ServedForked, calls: int = 7, run: str = "r") -> float:
    """Median of the endpoint's own times to the first chunk, of calls that come together."""

    def call(number):
        with endpoint.message(run, number, max_tokens=2, stream=True) as stream:
            list(stream)

    with ThreadPoolExecutor(calls) as pool:
        list(pool.map(call, range(calls)))
    return median(
        row["chunk_sent_at_ns"][0] - row["received_at_ns"] for row in endpoint.server_log(run)
    )


def test_the_server_log_has_an_engines_stages_in_order(serve):
    endpoint = serve("profile=tiny", "engine.replicas=3")
    endpoint.message("r", max_tokens=9)
    row = endpoint.row("r")
    stages = (
        "received_at_ns",
        "admitted_at_ns",
        "prefill_started_at_ns",
        "prefill_ended_at_ns",
        "ended_at_ns",
    )
    assert [row[stage] for stage in stages] == sorted(row[stage] for stage in stages)
    assert row["prefill_started_at_ns"] < row["prefill_ended_at_ns"]
    assert 0 <= row["replica"] < 3
    assert row["planned_ttft_ns"] is None


def test_a_full_queue_refuses(serve):
    endpoint = serve(
        "profile=tiny",
        "engine.slots=1",
        "engine.queue_cap=0",
        "engine.overhead_ms=0",
        "limits.itpm=60000",
    )
    with endpoint.message(max_tokens=2000, stream=True) as stream:
        next(stream)
        with pytest.raises(anthropic.APIStatusError) as caught:
            endpoint.message("r", max_tokens=2)
    assert caught.value.type == "overloaded_error"
    assert caught.value.response.headers["anthropic-ratelimit-input-tokens-limit"] == "60000"
    assert endpoint.row("r")["status"] == 529


def test_slots_are_shared_so_that_a_crowd_takes_longer(serve):
    endpoint = serve("profile=tiny", "engine.slots=2", "engine.overhead_ms=0", "engine.step_ms=10")
    alone = min(ttft_ns(endpoint, 1, f"alone-{i}") for i in range(5))  # one may meet a busy machine
    assert ttft_ns(endpoint, 16) > 1.5 * alone
