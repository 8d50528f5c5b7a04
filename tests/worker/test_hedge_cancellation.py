"""The loser of a hedge is closed before any other socket is read: two answers lie in their sockets at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gevent
import gevent.event
import pytest
from transport.scripted_server import SSE, Server, chunk
from worker.one_call import END, Rows, endpoint

from tailgauge.call import MAIN, Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.concurrency_gate import Gates
from tailgauge.patterns.events import Done, Ended, Request, Send, Wait
from tailgauge.patterns.settings import Hedge
from tailgauge.patterns.table import PATTERNS, Traffic
from tailgauge.transport.connection import Connection
from tailgauge.worker.attempt_row import RequestRef
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.driver import Drive
from tailgauge.worker.timers import HubTime

pytestmark = pytest.mark.gevent

STREAM = (Path(__file__).parents[1] / "protocols/captures/llamacpp_messages.sse").read_bytes()
HEDGE = Hedge(policy="immediate", budget_share=1.0, throttle_tokens=0.0)


def both(request: Request) -> Any:
    """The control: two copies, both read to their ends."""
    for _ in range(2):
        yield Send(Call(request.prompt, request.output_tokens))
    left = 2
    while left:
        left -= isinstance((yield Wait()), Ended)
    return Done("ok")


class Raced:
    """Both answers are written before the client looks at either; `log`: what it then does with its sockets, in order."""

    def __init__(self, pattern: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, int]] = []
        self.sockets: list[Any] = []
        self.may_end = gevent.event.Event()
        self.server = Server(self._serve)
        self.rows = Rows()
        url = self.server.url.removesuffix("/v1")
        attempts = Attempts("run-1", {MAIN: endpoint(url)}, self.rows, Counters(), 5.0)
        attempts.warm_up()
        request = Request(0, monotonic_ns(), (Prompt.of("some words"),), 4)
        self.drive = Drive(
            pattern(request),
            RequestRef(0, "steady", "chat", request.scheduled_at_ns),
            attempts,
            gates=Gates(),
            on_end=lambda _: None,
            timing=HubTime(),
        )
        self.drive.begin()
        while len(self.sockets) < 2 or any(
            one.exchange.headers_at_ns is None for one in attempts.open.values()
        ):
            gevent.sleep(0.002)
        for name in ("pass_on", "close"):
            monkeypatch.setattr(Connection, name, self._logged(name))
        for sock in self.sockets:
            sock.sendall(chunk(STREAM) + END)  # fits: it is sent without a switch of greenlets
        assert self.log == [], "both answers lay in their sockets before the first look"
        while attempts.open:
            gevent.sleep(0.002)

    def _serve(self, sock: Any, _: int) -> None:
        self.server.request(sock)
        sock.sendall(SSE)
        self.sockets.append(sock)
        self.may_end.wait()

    def _logged(self, name: str) -> Any:
        method = getattr(Connection, name)

        def call(connection: Connection, *arguments: Any) -> Any:
            self.log.append((name, connection.number))
            return method(connection, *arguments)

        return call


@pytest.mark.slow
def test_what_lay_in_the_losers_socket_is_never_read_after_the_winners_first_content(monkeypatch):
    pattern = PATTERNS["hedged"](Traffic(pattern="hedged", hedge=HEDGE)).steps
    race = Raced(pattern, monkeypatch)
    (winner,) = [row for row in race.rows.rows if row.ended == "ok"]
    (loser,) = [row for row in race.rows.rows if row.ended == "cancelled"]

    assert race.log[0] == ("pass_on", winner.connection)
    assert race.log[1] == ("close", loser.connection), "before anything happened to another socket"
    assert ("pass_on", loser.connection) not in race.log
    assert loser.chunks == 0
    assert (race.drive.done.winner, race.drive.done.ended) == (winner.attempt, "ok")
    resets = 0
    for sock in race.sockets:
        sock.settimeout(0.05)
        try:
            sock.recv(1)
        except ConnectionResetError:
            resets += 1
        except TimeoutError:
            pass
    assert resets == 1, "the loser's peer sees one"
    race.may_end.set()


def test_without_a_cancel_both_sockets_are_read_in_the_same_turn(monkeypatch):
    """The control: else the case above would prove nothing."""
    race = Raced(both, monkeypatch)

    assert sorted(race.log) == [
        ("pass_on", number) for number in sorted(row.connection for row in race.rows.rows)
    ]
    assert [row.ended for row in race.rows.rows] == ["ok", "ok"]
    race.may_end.set()
