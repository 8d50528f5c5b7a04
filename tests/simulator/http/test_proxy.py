"""A buffering proxy in front: the same bytes, in fewer pieces and later."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
from simulator.http.conftest import HELLO, Serve, ServedForked, named

GAPS = ("chunk_gap_ms=10",)


def reads(endpoint: ServedForked, run: str) -> tuple[list[tuple[int, int]], bytes]:
    """(time, bytes) of each read of a stream that found something new, and all of it."""
    address = urlsplit(endpoint.url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=20)
    body = json.dumps({"model": "m", "max_tokens": 40, "messages": HELLO, "stream": True})
    connection.request("POST", "/v1/messages", body, named(run)["extra_headers"])
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
    ("mode", "most"),
    [("buffer_bytes=1500", 12), ("buffer_ms=100", 8), ("buffer_all=true", 2)],
)
@pytest.mark.parametrize("times", [GAPS, ("profile=tiny", "engine.step_ms=10", "engine.overhead_ms=1")])
def test_many_writes_leave_as_few(serve: Serve, mode: str, most: int, times: tuple[str, ...]) -> None:
    endpoint = serve(f"proxy.{mode}", *times)
    writes, whole = reads(endpoint, "r")
    assert whole.count(b"text_delta") == 40
    assert whole.endswith(b'{"type":"message_stop"}\n\n')
    assert bursts(writes) <= most
    row: dict[str, Any] = endpoint.row("r")
    assert len(row["chunk_sent_at_ns"]) == 40
    if mode == "buffer_all=true":
        assert writes[0][0] >= row["ended_at_ns"]


def test_without_a_proxy_each_chunk_leaves_alone(serve: Serve) -> None:
    times, _ = reads(serve(*GAPS), "r")
    assert bursts(times) > 20


def test_a_client_of_the_proxy_that_leaves_ends_its_call(serve: Serve) -> None:
    endpoint = serve("proxy.buffer_ms=20", "chunk_gap_ms=10")
    stream = endpoint.claude.messages.create(
        model="m", max_tokens=10_000, messages=HELLO, stream=True, **named("r")
    )
    next(stream)
    stream.close()
    assert endpoint.row("r", "cancelled_at_ns")["output_tokens"] < 10_000
