"""A gateway in front that holds answers back: the same bytes, in one piece and later."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from anthropic import APITimeoutError
from simulator.http.conftest import HELLO, ServedForked, named

GAPS = ("chunk_gap_ms=10",)


def reads(endpoint: ServedForked, run: str) -> tuple[list[tuple[int, int]], bytes]:
    """(time, bytes) of each read of a stream that found something new, and all of it."""
    address = urlsplit(endpoint.url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=20)
    body = json.dumps({"model": "m", "max_tokens": 40, "messages": HELLO, "stream": True})
    connection.request("POST", "/gateway/v1/messages", body, named(run)["extra_headers"])
    response = connection.getresponse()
    times, whole = [], b""
    while data := response.read1(1_000_000):
        times.append((time.monotonic_ns(), len(data)))
        whole += data
    connection.close()
    return times, whole


def bursts(times: list[tuple[int, int]]) -> int:
    """Reads with a pause of more than 3 ms before them."""
    return 1 + sum(b - a > 3_000_000 for (a, _), (b, _) in pairwise(times))


@pytest.mark.parametrize(
    "times", [GAPS, ("profile=tiny", "engine.step_ms=10", "engine.overhead_ms=1")]
)
def test_a_held_answer_leaves_at_its_end(serve, times):
    endpoint = serve("gateway.holds=true", *times)
    writes, whole = reads(endpoint, "r")
    assert whole.count(b"text_delta") == 40
    assert whole.endswith(b'{"type":"message_stop"}\n\n')
    assert bursts(writes) == 1
    row = endpoint.row("r")
    assert len(row["chunk_sent_at_ns"]) == 40
    assert writes[0][0] >= row["ended_at_ns"]


def test_without_it_each_chunk_leaves_alone(serve):
    times, _ = reads(serve(*GAPS), "r")
    assert bursts(times) > 20


def test_a_client_that_leaves_the_gateway_ends_its_call(serve):
    endpoint = serve("gateway.holds=true", "chunk_gap_ms=10")
    client = endpoint.claude.with_options(
        base_url=f"{endpoint.url}/gateway", timeout=0.5, max_retries=0
    )
    with pytest.raises(APITimeoutError):
        client.messages.create(
            model="m", max_tokens=10_000, messages=HELLO, stream=True, **named("r")
        )
    assert endpoint.row("r", "cancelled_at_ns")["output_tokens"] < 10_000
