"""Each fault as the official SDKs meet it, and as the server log has it."""

from __future__ import annotations

import time
from itertools import pairwise

import anthropic
import httpx2
import openai
import pytest
from simulator.http.conftest import REQUEST

TIMES = [(), ("profile=tiny",)]


def always(kind: str, **more: float) -> list[str]:
    return [
        f"faults.f.kind={kind}",
        "faults.f.share=1.0",
        *(f"faults.f.{key}={value}" for key, value in more.items()),
    ]


def texts(stream):
    return sum(event.type == "content_block_delta" for event in stream)


def test_an_overload_has_each_providers_own_status(serve):
    endpoint = serve(*always("status", status=529, retry_after_s=7))
    with pytest.raises(anthropic.APIStatusError) as caught:
        endpoint.message("r")
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
    assert type(caught.value).__name__ == "OverloadedError"
    assert caught.value.response.headers["retry-after"] == "7"
    with pytest.raises(openai.InternalServerError) as refused:
        endpoint.completion()
    assert refused.value.status_code == 503
    row = endpoint.row("r")
    assert (row["status"], row["fault"], row["billed_output_tokens"]) == (529, "status", None)


@pytest.mark.parametrize(
    ("status", "error"), [(429, anthropic.RateLimitError), (500, anthropic.InternalServerError)]
)
def test_a_status_comes_before_the_stream(serve, status, error):
    endpoint = serve(*always("status", status=status))
    with pytest.raises(error):
        endpoint.message(stream=True)


@pytest.mark.parametrize("times", TIMES)
def test_an_error_within_the_stream_is_raised_where_it_stands(serve, times):
    endpoint = serve(*always("error_event", at_chunk=3), *times)
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        endpoint.message("r", stream=True) as stream,
    ):
        list(stream)
    assert caught.value.type == "overloaded_error"
    row = endpoint.row("r", "billed_output_tokens")
    assert len(row["chunk_sent_at_ns"]) == row["output_tokens"] == 3
    assert (row["ended_at_ns"], row["cancelled_at_ns"], row["fault"]) == (None, None, "error_event")
    with (
        pytest.raises(openai.APIError),
        endpoint.completion(stream=True) as chunks,
    ):
        list(chunks)


@pytest.mark.parametrize("times", TIMES)
def test_a_cut_stream_ends_without_its_end_mark(serve, times):
    endpoint = serve(*always("cut", at_chunk=5), *times)
    events = endpoint.events("r")
    assert texts(events) == 5
    assert events[-1].type == "content_block_delta"
    assert endpoint.row("r", "billed_output_tokens")["ended_at_ns"] is None


@pytest.mark.parametrize("times", TIMES)
def test_a_reset_connection_is_one(serve, times):
    endpoint = serve(*always("reset", at_chunk=2), *times)
    with (
        pytest.raises((httpx2.ReadError, anthropic.APIConnectionError)),
        endpoint.message("r", stream=True) as stream,
    ):
        list(stream)
    row = endpoint.row("r", "billed_output_tokens")
    assert (row["output_tokens"], row["ended_at_ns"], row["fault"]) == (2, None, "reset")


@pytest.mark.parametrize("times", TIMES)
def test_a_stall_delays_all_that_follows(serve, times):
    endpoint = serve(*always("stall", at_chunk=4, seconds=0.5), *times)
    with endpoint.message("r", stream=True) as stream:
        assert texts(stream) == 20
    sent = endpoint.row("r")["chunk_sent_at_ns"]
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert gaps.index(max(gaps)) == 3
    assert max(gaps) > 450_000_000
    assert sorted(gaps)[-2] < 400_000_000


def test_headers_are_slow_or_early(serve):
    slow = serve(*always("slow_headers", seconds=0.4))
    early = serve(*always("early_headers"), "ttft_ms=400")
    rows = []
    for endpoint in (slow, early):
        before = time.monotonic_ns()
        with endpoint.message("r", stream=True) as stream:
            opened_ns = time.monotonic_ns() - before
            assert texts(stream) == 20
        row = endpoint.row("r")
        since = row["received_at_ns"]
        rows.append((opened_ns, row["headers_at_ns"] - since, row["chunk_sent_at_ns"][0] - since))
    (slow_open, slow_headers, slow_first), (early_open, early_headers, early_first) = rows
    assert slow_first >= slow_headers > 400_000_000
    assert slow_open > 400_000_000
    assert early_first > 400_000_000 > 2 * early_headers
    assert early_open < early_first


def test_pings_fill_a_silence(serve):
    endpoint = serve("ping_every_s=0.05", "chunk_gap_ms=30")
    with endpoint.claude.messages.with_streaming_response.create(
        **REQUEST, stream=True
    ) as response:
        raw = response.read().decode()
    assert raw.count("event: ping") >= 5
    assert raw.count("text_delta") == 20
    assert raw.index("message_start") < raw.index("event: ping")
    assert raw.rstrip().endswith('{"type":"message_stop"}')
