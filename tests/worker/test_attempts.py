"""Whole calls, from the SDK's request to the attempt's row, against a scripted server, for both protocols."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from transport.scripted_server import REST_S, SSE, Server, chunk, stopwatch
from worker.one_call import END, ORIGIN, Rows

from tailgauge.call import MAIN, Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Send
from tailgauge.protocols.table import Target
from tailgauge.protocols.target import Endpoint
from tailgauge.quantile_sketch import middle
from tailgauge.worker.attempts import Attempts, RequestRef
from tailgauge.worker.counters import Counters

pytestmark = pytest.mark.gevent

BOTH = pytest.mark.parametrize("protocol", ["anthropic", "openai"])
CAPTURES = Path(__file__).parents[1] / "protocols" / "captures"
CAPTURED = {
    "anthropic": (CAPTURES / "llamacpp_messages.sse").read_bytes(),
    "openai": (CAPTURES / "llamacpp_chat.sse").read_bytes(),
}


class Caller:
    """An endpoint with a server and what its calls leave behind; `answer` is bytes, or plays the server's part."""

    def __init__(
        self, protocol: str, answer: bytes | Callable[[Any], None], deadline_s: float = 5.0
    ) -> None:
        self.answer = answer
        self.server = Server(self._serve)
        self.rows = Rows()
        self.counters = Counters()
        self.events: list[Any] = []
        url = self.server.url.removesuffix("/v1")
        endpoint = Endpoint(url, Target(protocol=protocol), stopwatch())
        self.attempts = Attempts("run-1", {MAIN: endpoint}, self.rows, self.counters, deadline_s)
        self.attempts.warm_up()
        assert self.server.connections == 0, "warming up sends nothing"

    def _serve(self, sock: Any, _: int) -> None:
        while self.server.request(sock):
            if callable(self.answer):
                self.answer(sock)
                return
            sock.sendall(self.answer)

    def start(self, origin: RequestRef = ORIGIN, leg: int = 1, attempt: int = 2) -> Any:
        call = Call(Prompt.of("some words"), 4)
        return self.attempts.start(origin, Send(call, leg=leg), attempt, self.events.append)

    def wait(self) -> Any:
        """The row of the only call."""
        with gevent.Timeout(10):
            while self.attempts.open:
                gevent.sleep(0.005)
        gevent.sleep(REST_S)
        (row,) = self.rows.rows
        return row


def error(status: int, kind: str, *headers: str) -> bytes:
    body = json.dumps({"type": "error", "error": {"type": kind, "message": "no"}})
    lines = (
        f"HTTP/1.1 {status} Reason",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    )
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


TIMES = ("dispatched_at_ns", "sent_at_ns", "first_byte_at_ns", "headers_at_ns", "first_event_at_ns", "first_content_at_ns",
         "last_content_at_ns", "stopped_at_ns", "ended_at_ns")  # fmt: skip


@BOTH
def test_a_stream_becomes_a_row_and_its_chunks(protocol):
    head = SSE.replace(b"\r\n\r\n", b"\r\nrequest-id: req_9\r\n\r\n", 1)
    caller = Caller(protocol, head + chunk(CAPTURED[protocol]) + END)
    caller.start()
    row = caller.wait()

    assert (row.ended, row.status, row.error_type, row.chunks) == ("ok", 200, None, 4)
    assert (row.request_id, row.leg, row.attempt) == (65536, 1, 2)
    assert (row.stage, row.traffic, row.protocol) == ("steady", "chat", protocol)
    assert (row.asked_model, row.model, row.server_request_id) == ("tiny", "tiny", "req_9")
    assert row.output_tokens == 4
    assert (row.connection_is_new, row.dns_ns, row.tls_ns) == (True, 0, 0)
    times = [getattr(row, name) for name in TIMES]
    assert times == sorted(times)
    assert row.cancelled_at_ns is None
    assert caller.rows.chunk_runs == [(0, 4)]
    assert [type(event).__name__ for event in caller.events] == ["FirstContent", "Ended"]
    assert (caller.attempts.in_flight(), caller.counters.chunks) == (0, 4)
    ((key, traffic),) = caller.counters.traffic.items()
    assert key == ("chat", "main")
    assert (len(traffic.ttft), len(traffic.tpot)) == (1, 0)
    asked = row.input_tokens + (row.cache_read_input_tokens or 0)
    assert (traffic.input_tokens, traffic.output_tokens) == (asked, 4)


def half(protocol: str, then: Callable[[Any], Any]) -> Callable[[Any], None]:
    def play(sock: Any) -> None:
        sock.sendall(SSE + chunk(CAPTURED[protocol][:900]))
        then(sock)

    return play


MOVED = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
RETRY_AFTER = ("retry-after: 7", "x-ratelimit-remaining-requests: 0")
FAILURES = [
    (error(429, "rate_limit_error", *RETRY_AFTER),
     {"ended": "rate_limited", "status": 429, "error_type": "rate_limit_error", "limit_kind": "requests", "retry_after_s": 7.0}),
    (error(401, "authentication_error"),
     {"ended": "client_error", "status": 401, "error_type": "authentication_error", "limit_kind": None}),
    (error(529, "overloaded_error"), {"ended": "overloaded", "status": 529, "error_type": "overloaded_error"}),
    (error(500, "api_error", "x-should-retry: true"), {"ended": "server_error", "status": 500, "error_type": "api_error"}),
    (MOVED, {"ended": "client_error", "status": 307}),
]  # fmt: skip


def assert_that_it_was_sent_once(caller: Caller, row: Any) -> None:
    assert len(caller.server.requests) == 1
    assert caller.events[-1].ended == row.ended
    assert caller.attempts.in_flight() == 0
    ((_, traffic),) = caller.counters.traffic.items()
    assert traffic.attempts == {row.ended: 1}


@BOTH
@pytest.mark.parametrize(("answer", "expected"), FAILURES)
def test_a_refusal_is_a_row_and_is_never_sent_again(protocol, answer, expected):
    caller = Caller(protocol, answer)
    caller.start()
    row = caller.wait()

    assert {name: getattr(row, name) for name in expected} == expected
    assert_that_it_was_sent_once(caller, row)


@BOTH
def test_a_stream_that_is_cut_is_truncated(protocol):
    caller = Caller(protocol, half(protocol, lambda _: None))
    caller.start()
    row = caller.wait()

    assert (row.ended, row.status, row.error_type) == ("truncated", 200, "connection_closed")
    assert_that_it_was_sent_once(caller, row)


@BOTH
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_call_that_takes_too_long_is_closed_and_says_when(protocol, is_answered):
    def silent(sock: Any) -> None:
        sock.recv(1)

    caller = Caller(protocol, half(protocol, silent) if is_answered else silent, 0.3)
    caller.start()
    row = caller.wait()

    assert (row.ended, row.status) == ("timeout", 200 if is_answered else None)
    assert (row.headers_at_ns is None) == (row.chunks == 0) == (not is_answered)
    assert row.cancelled_at_ns >= row.sent_at_ns
    assert_that_it_was_sent_once(caller, row)


@BOTH
def test_chunks_of_an_open_call_are_passed_on_once_when_it_is_censored(protocol):
    caller = Caller(protocol, half(protocol, lambda sock: sock.recv(1)))
    caller.start()
    gevent.sleep(0.2)
    caller.attempts.record_open()
    caller.attempts.abort_open("censored")
    row = caller.wait()

    assert (row.ended, row.status, row.ended_at_ns) == ("censored", 200, None)
    assert row.cancelled_at_ns >= row.sent_at_ns
    assert row.chunks > 0
    assert caller.rows.chunk_runs == [(0, row.chunks)]
    assert_that_it_was_sent_once(caller, row)


def test_waiting_for_a_slot_that_the_scenario_limits_is_no_late_sending():
    """Scheduled 2 s ago and dispatched 0.1 s later; since then its leg waited."""
    caller = Caller("openai", SSE + chunk(CAPTURED["openai"]) + END)
    scheduled_ns = monotonic_ns() - 2 * 10**9
    caller.start(RequestRef(0, "steady", "chat", scheduled_ns, scheduled_ns + 10**8), 0, 0)
    caller.wait()

    (late_ms,) = map(middle, caller.counters.delays)
    assert 90 < late_ms < 1000


def test_a_small_request_is_sent_when_it_begins_where_a_connection_rests():
    """It gives the events and rows of any other. One call is large, one never answered, one cut."""
    whole = SSE + chunk(CAPTURED["openai"]) + END
    cut = SSE + chunk(CAPTURED["openai"].partition(b"data: [DONE]")[0])
    answers = iter((whole, whole, whole, b"", whole, cut))
    server: Server

    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            answer = next(answers)
            sock.sendall(answer)
            if answer == cut:
                return

    server = Server(handler)
    rows = Rows()
    counters = Counters()
    endpoint = Endpoint(server.url.removesuffix("/v1"), Target(protocol="openai"), stopwatch())
    attempts = Attempts("run-1", {MAIN: endpoint}, rows, counters, 0.4)
    is_sent_at_once = []
    for number, text in enumerate(("first", "second", "word " * 4000, "silence", "again", "cut")):
        events = []
        exchange = attempts.start(ORIGIN, Send(Call(Prompt.of(text), 4)), number, events.append)
        is_sent_at_once.append(exchange.sent_at_ns is not None)
        while attempts.open:
            gevent.sleep(0.005)
        expected = ["Ended"] if text == "silence" else ["FirstContent", "Ended"]
        assert [type(event).__name__ for event in events] == expected
        gevent.sleep(REST_S)

    assert [row.connection_is_new for row in rows.rows] == [True, False, False, False, True, False]
    assert is_sent_at_once == [False, True, False, True, False, True]
    assert [row.ended for row in rows.rows] == ["ok", "ok", "ok", "timeout", "ok", "truncated"]
    assert counters.chunks == 5 * 4
