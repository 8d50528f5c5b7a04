"""Script: whole calls, from the SDK's request to the attempt's row, against a scripted server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import gevent
from starting.script import CASES, case, print_facts
from transport.scripts.scripted_server import REST_S, SSE, Server, chunk, stopwatch

from tailgauge.call import MAIN, Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Send
from tailgauge.protocols.table import Target
from tailgauge.protocols.target import Endpoint
from tailgauge.quantile_sketch import middle
from tailgauge.worker.attempts import Attempts, RequestRef
from tailgauge.worker.counters import Counters

HERE = Path(__file__).parents[2] / "protocols" / "captures"
CAPTURED = {
    "anthropic": (HERE / "llamacpp_messages.sse").read_bytes(),
    "openai": (HERE / "llamacpp_chat.sse").read_bytes(),
}
END = b"0\r\n\r\n"
ORIGIN = RequestRef(65536, "steady", "chat", 5)


class Rows:
    """Keeps attempt rows and counts chunks."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.chunk_runs: list[list[int]] = []

    def attempt(self, row: Any) -> None:
        self.rows.append(row)

    def chunks(self, *key_first_chunks: Any) -> None:
        *_, first, chunks = key_first_chunks
        if chunks:
            self.chunk_runs.append([first, len(chunks)])


def made(
    protocol: str, answer: Any, deadline_s: float = 5.0, meanwhile: Any = None,
    origin: RequestRef = ORIGIN, leg: int = 1, attempt: int = 2,
) -> dict[str, Any]:  # fmt: skip
    """One call; `answer` is bytes, or plays the server's part."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            if callable(answer):
                answer(sock)
                return
            sock.sendall(answer)

    server = Server(handler)
    recorder, counters, received = Rows(), Counters(), []
    target = Target(protocol=protocol)
    endpoint = Endpoint(server.url.removesuffix("/v1"), target, stopwatch())
    attempts = Attempts("run-1", {MAIN: endpoint}, recorder, counters, deadline_s)
    attempts.warm_up()
    warm = server.connections
    exchange = attempts.start(
        origin, Send(Call(Prompt.of("some words"), 4), leg=leg), attempt, received.append
    )
    if meanwhile:
        meanwhile(attempts)
    with gevent.Timeout(10):
        while attempts.open:
            gevent.sleep(0.005)
    gevent.sleep(REST_S)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    return {
        "row": asdict(recorder.rows[0]), "rows": len(recorder.rows), "chunk_runs": recorder.chunk_runs,
        "received": [type(event).__name__ for event in received], "ended": received[-1].ended, "requests": len(server.requests),
        "first": lines[0], "headers": {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])},
        "body": body.decode(), "warm": warm, "counters": [attempts.in_flight(), counters.chunks, counters.reads],
        "delays": [middle(bin_) for bin_ in counters.delays], "stamps": exchange.user_stamps, **counted(counters),
    }  # fmt: skip


def counted(counters: Counters) -> dict[str, Any]:
    """What the live view gets of the one call."""
    ((key, of),) = counters.traffic.items()
    sketches = {name: [middle(bin_) for bin_ in getattr(of, name)] for name in ("ttft", "tpot")}
    return {
        "counted": key,
        "attempts": of.attempts,
        "tokens": [of.input_tokens, of.output_tokens],
        **sketches,
    }


def error(status: int, kind: str, *headers: str) -> bytes:
    body = b'{"type":"error","error":{"type":"%b","message":"no"}}' % kind.encode()
    head = "".join(f"{line}\r\n" for line in headers).encode()
    return (
        b"HTTP/1.1 %d Reason\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
        % (
            status,
            len(body),
            head,
            body,
        )
    )


def started(protocol: str, then: Any) -> Any:
    def play(sock: Any) -> None:
        sock.sendall(SSE + chunk(CAPTURED[protocol][:900]))
        then(sock)

    return play


@case
def waited_for_a_slot() -> Any:
    """Scheduled 2 s ago and dispatched 0.1 s later; since then its leg waited."""
    scheduled = monotonic_ns() - 2 * 10**9
    origin = RequestRef(0, "steady", "chat", scheduled, scheduled + 10**8)
    return made("openai", SSE + chunk(CAPTURED["openai"]) + END, origin=origin, leg=0, attempt=0)


@case
def at_once() -> Any:
    """Calls one after the other: two answered, one that is large, one never answered; one more, and one cut."""
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
    recorder, counters = Rows(), Counters()
    endpoint = Endpoint(server.url.removesuffix("/v1"), Target(protocol="openai"), stopwatch())
    attempts = Attempts("run-1", {MAIN: endpoint}, recorder, counters, 0.4)
    out: dict[str, Any] = {"at_once": [], "events": []}
    for number, text in enumerate(("first", "second", "word " * 4000, "silence", "again", "cut")):
        received: list[Any] = []
        exchange = attempts.start(ORIGIN, Send(Call(Prompt.of(text), 4)), number, received.append)
        out["at_once"].append(exchange.sent_at_ns is not None)
        with gevent.Timeout(10):
            while attempts.open:
                gevent.sleep(0.005)
        out["events"].append([type(event).__name__ for event in received])
        gevent.sleep(REST_S)
    out["ended"] = [row.ended for row in recorder.rows]
    out["new"] = [row.connection_is_new for row in recorder.rows]
    out["chunks"] = counters.chunks
    return out


for _protocol, _stream in CAPTURED.items():

    @case
    def a_stream(protocol: str = _protocol, stream: bytes = _stream) -> Any:
        return made(
            protocol,
            SSE.replace(b"\r\n\r\n", b"\r\nrequest-id: req_9\r\n\r\n", 1) + chunk(stream) + END,
        )

    @case
    def limited(protocol: str = _protocol) -> Any:
        return made(
            protocol,
            error(429, "rate_limit_error", "retry-after: 7", "x-ratelimit-remaining-requests: 0"),
        )

    @case
    def refused(protocol: str = _protocol) -> Any:
        return made(protocol, error(401, "authentication_error"))

    @case
    def overloaded(protocol: str = _protocol) -> Any:
        return made(protocol, error(529, "overloaded_error"))

    @case
    def broken(protocol: str = _protocol) -> Any:
        return made(protocol, error(500, "api_error", "x-should-retry: true"))

    @case
    def moved(protocol: str = _protocol) -> Any:
        return made(
            protocol,
            b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        )

    @case
    def cut(protocol: str = _protocol) -> Any:
        return made(protocol, started(protocol, lambda _: None))

    @case
    def too_long(protocol: str = _protocol) -> Any:
        return made(protocol, started(protocol, lambda sock: sock.recv(1)), deadline_s=0.3)

    @case
    def never_answered(protocol: str = _protocol) -> Any:
        return made(protocol, lambda sock: sock.recv(1), deadline_s=0.3)

    @case
    def censored(protocol: str = _protocol) -> Any:
        def meanwhile(attempts: Any) -> None:
            gevent.sleep(0.2)
            attempts.record_open()
            attempts.abort_open("censored")

        return made(protocol, started(protocol, lambda sock: sock.recv(1)), meanwhile=meanwhile)

    for _name in (
        "a_stream",
        "limited",
        "refused",
        "overloaded",
        "broken",
        "moved",
        "cut",
        "too_long",
        "never_answered",
        "censored",
    ):
        CASES[f"{_protocol} {_name}"] = CASES.pop(_name)

print_facts()
