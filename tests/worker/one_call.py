"""One call through the whole harness, and servers for it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import gevent
from transport.scripted_server import SSE, Server, chunk, stopwatch, until_read

from tailgauge.call import MAIN, Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Send
from tailgauge.protocols.table import Target
from tailgauge.protocols.target import Endpoint
from tailgauge.rows.schema import AttemptRow, RequestRow
from tailgauge.worker.attempts import Attempts, RequestRef
from tailgauge.worker.counters import Counters

END = b"0\r\n\r\n"
GAP_S = 0.02
ORIGIN = RequestRef(65536, "steady", "chat", 5)
PLAIN = Prompt.of("some words")


class Rows:
    """Keeps rows and chunks."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.kinds: list[int] = []
        self.chars: list[int] = []
        self.arrived: list[int] = []
        self.low: list[int] = []
        self.chunk_runs: list[tuple[int, int]] = []  # number of the first, count

    def attempt(self, row: Any) -> None:
        self.rows.append(row)

    request = attempt

    @property
    def attempts(self) -> list[AttemptRow]:
        return [row for row in self.rows if isinstance(row, AttemptRow)]

    @property
    def requests(self) -> list[RequestRow]:
        return [row for row in self.rows if isinstance(row, RequestRow)]

    def chunks(self, *key_first_chunks: Any) -> None:
        *_, first, chunks = key_first_chunks
        if chunks:
            self.chunk_runs.append((first, len(chunks)))
        self.kinds += chunks.kind
        self.chars += chunks.chars
        self.arrived += chunks.arrived
        self.low += chunks.low


WATCHES: dict[str, Any] = {}


def endpoint(url: str, protocol: str = "anthropic", **target: Any) -> Endpoint:
    """An endpoint with the stopwatch that all of the same trust share."""
    ca_file = target.pop("ca_file", None)
    watch = WATCHES.setdefault(str(ca_file), stopwatch(ca_file=ca_file))
    return Endpoint(url, Target(protocol=protocol, **target), watch)


def made(endpoints: Any, call: Call, book: Any = None) -> dict[str, Any]:
    """One call to its end: the row, the chunks, and what the pattern heard."""
    recorder, counters, received = Rows(), Counters(), []
    known = endpoints if isinstance(endpoints, dict) else {MAIN: endpoints}
    attempts = Attempts("run-1", known, recorder, counters, 10.0, cache=book)
    attempts.start(ORIGIN, Send(call, leg=1), 2, received.append)
    with gevent.Timeout(10):
        while attempts.open:
            gevent.sleep(0.002)
    return {
        "row": asdict(recorder.rows[0]), "kinds": recorder.kinds, "chars": recorder.chars, "arrived": recorder.arrived,
        "low": recorder.low, "received": [[type(event).__name__, asdict(event)] for event in received],
        "receive_lag": counters.receive_lag_max_ns,
    }  # fmt: skip


def recording(answer: bytes = b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}") -> Server:
    server: Server

    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            sock.sendall(answer)

    server = Server(handler)
    server.url = server.url.removesuffix("/v1")
    return server


def seen(server: Server) -> dict[str, Any]:
    head, _, body = server.requests[-1].partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    return {
        "first": lines[0],
        "headers": {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])},
        "body": json.loads(body) if body else None,
    }


def writing(pieces: list[bytes], head: bytes = SSE, end: bytes = END) -> tuple[Server, list[int]]:
    """A server that writes a piece every `GAP_S`, each in a segment of its own, and notes when."""
    wrote: list[int] = []
    server: Server

    def handler(sock: Any, _: int) -> None:
        while server.request(sock):
            sock.sendall(head)
            for piece in pieces:
                until_read(sock)
                gevent.sleep(GAP_S)
                wrote.append(monotonic_ns())
                sock.sendall(chunk(piece) if head.startswith(SSE[:-2]) else piece)
            sock.sendall(end)

    server = Server(handler)
    server.url = server.url.removesuffix("/v1")
    return server, wrote


def event(tree: Any, name: str = "") -> bytes:
    named = f"event: {name}\n" if name else ""
    return f"{named}data: {tree if isinstance(tree, str) else json.dumps(tree)}\n\n".encode()


def choice(**delta: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta}]})


def answer(status: str, body: Any) -> bytes:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    return head.encode() + text


def stream_of(*events: Any) -> bytes:
    """A whole stream, with its end mark."""
    body = b"".join(map(event, (*events, "[DONE]")))
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def stream(tokens: int) -> bytes:
    """An answer of one token to a prompt of so many, with the usage."""
    used = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    choice = {"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}
    return stream_of({"choices": [choice]}, {"choices": [], "usage": used})
