"""Script: a hedge whose two answers lie in their sockets at the same moment, read by the real transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gevent
from starting.script import case, print_facts
from transport.scripts.scripted_server import SSE, Server, chunk, stopwatch

from tailgauge.call import MAIN, Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.concurrency_gate import Gates
from tailgauge.patterns.events import Done, Ended, Request, Send, Wait
from tailgauge.patterns.settings import Hedge
from tailgauge.patterns.table import PATTERNS, Traffic
from tailgauge.protocols.table import Target
from tailgauge.protocols.target import Endpoint
from tailgauge.transport.connection import Connection
from tailgauge.worker.attempt_row import RequestRef
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.driver import Drive
from tailgauge.worker.timers import HubTime

STREAM = (
    Path(__file__).parents[2] / "protocols" / "captures" / "llamacpp_messages.sse"
).read_bytes()
HEDGED = PATTERNS["hedged"](
    Traffic(
        pattern="hedged", hedge=Hedge(policy="immediate", budget_share=1.0, throttle_tokens=0.0)
    )
).steps


class Rows:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def attempt(self, row: Any) -> None:
        self.rows.append(row)

    def chunks(self, *_: Any) -> None:
        """Counted in the row."""


def both(request_of: Request) -> Any:
    """The control: two copies, both read to their ends."""
    for _ in range(2):
        yield Send(Call(request_of.prompt, request_of.output_tokens))
    left = 2
    while left:
        left -= isinstance((yield Wait()), Ended)
    return Done("ok")


def made(make: Any) -> Any:
    """Both answers are written before the client looks at either; what it then does with its sockets, in order."""
    server: Server
    socks: list[Any] = []
    done = gevent.event.Event()

    def handler(sock: Any, _: int) -> None:
        server.request(sock)
        sock.sendall(SSE)
        socks.append(sock)
        done.wait()

    server = Server(handler)
    rows, log = Rows(), []
    endpoint = Endpoint(server.url.removesuffix("/v1"), Target(protocol="anthropic"), stopwatch())
    attempts = Attempts("run-1", {MAIN: endpoint}, rows, Counters(), 5.0)
    attempts.warm_up()
    over: list[int] = []
    request_of = Request(0, monotonic_ns(), (Prompt.of("some words"),), 4)
    origin = RequestRef(0, "steady", "chat", request_of.scheduled_at_ns)
    drive = Drive(
        make(request_of),
        origin,
        attempts,
        gates=Gates(),
        on_end=lambda _: over.append(monotonic_ns()),
        timing=HubTime(),
    )
    drive.begin()
    while len(socks) < 2 or any(
        one.exchange.headers_at_ns is None for one in attempts.open.values()
    ):
        gevent.sleep(0.002)

    really_read, really_close = Connection.pass_on, Connection.close

    def read(self: Connection, *read_now: Any) -> Any:
        log.append(["read", self.number])
        return really_read(self, *read_now)

    def close(self: Connection) -> None:
        log.append(["close", self.number])
        really_close(self)

    Connection.pass_on, Connection.close = read, close  # type: ignore[method-assign]
    for sock in socks:
        sock.sendall(chunk(STREAM) + b"0\r\n\r\n")  # fits: it is sent without a switch of greenlets
    unread = len(log)
    with gevent.Timeout(5):
        while attempts.open:
            gevent.sleep(0.002)
    Connection.pass_on, Connection.close = really_read, really_close  # type: ignore[method-assign]
    ends = []
    for sock in socks:
        try:
            sock.settimeout(0.05)
            ends.append("EOF" if not sock.recv(1) else "data")
        except TimeoutError:
            ends.append("open")
        except OSError as error:
            ends.append(type(error).__name__)
    done.set()
    return {
        "unread": unread,
        "log": log,
        "ends": sorted(ends),
        "rows": [
            [row.attempt, row.ended, row.chunks, row.connection, row.cause] for row in rows.rows
        ],
        "winner": drive.done.winner if drive.done else None,
        "ended": drive.done.ended if drive.done else None,
    }


@case
def hedged() -> Any:
    return made(HEDGED)


@case
def control() -> Any:
    return made(both)


print_facts()
