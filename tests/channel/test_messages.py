"""Messages on Locust's channel: a slow handler delays nobody, and the clock's answer waits for nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from tailgauge.channel import sockets
from tailgauge.channel.auth import Seal
from tailgauge.channel.messages import Link, TooLargeError

pytestmark = pytest.mark.gevent

SEAL = Seal("the token of the run")
OTHER = Seal("another token")


class Runner:
    """Keeps listeners and what was sent."""

    def __init__(self) -> None:
        self.listeners: dict[str, Any] = {}
        self.sent: list[Any] = []
        self.client_id: str | None = None

    def register_message(self, kind: str, listener: Any) -> None:
        self.listeners[kind] = listener

    def send_message(self, kind: str, data: Any, client_id: Any = None) -> None:
        self.sent.append((kind, data, client_id))

    def receive(self, kind: str, data: Any) -> None:
        message = SimpleNamespace(node_id="w1", data=data)
        self.listeners[f"tailgauge:{kind}"](environment=None, msg=message)


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def link(runner) -> Link:
    return Link(runner, SEAL)


@pytest.fixture
def received(link) -> list[tuple[str, str]]:
    """Sender and kind of what reached a handler; those but the clock's are slow."""
    received = []

    def note(sender: str, data: Any) -> None:
        received.append((sender, data["kind"]))

    def note_slowly(sender: str, data: Any) -> None:
        gevent.sleep(0.05)
        note(sender, data)

    for kind in ("ping", "pong"):
        link.subscribe(kind, note)
    for kind in ("slice", "tally"):
        link.subscribe(kind, note_slowly)
    return received


def test_only_the_clocks_messages_are_handled_at_once(runner, received):
    for kind in ("slice", "ping", "tally", "pong"):
        runner.receive(kind, SEAL.close(kind, "w1", {"kind": kind, "t0": 1}))

    assert received == [("w1", "ping"), ("w1", "pong")]
    gevent.sleep(0.2)
    assert received[2:] == [("w1", "slice"), ("w1", "tally")]


def test_what_has_no_mark_of_the_token_reaches_no_handler_and_is_reported(runner, received):
    """Bare, empty, another token's, another kind's, another worker's."""
    data = {"kind": "slice"}
    sockets.dropped.clear()
    for message in (
        data,
        None,
        OTHER.close("slice", "w1", data),
        SEAL.close("plan", "w1", data),
        SEAL.close("slice", "w2", data),
    ):
        runner.receive("slice", message)
    gevent.sleep(0.2)

    assert sockets.report() == [
        "messages that this run's token does not authenticate were dropped: 5"
    ]
    assert received == []


def test_messages_carry_our_prefix_and_their_addressee(runner, link):
    link.send("plan", {"a": 1}, "w1")
    runner.client_id = "me"
    link.send("hello", {"b": 2})

    (plan, sealed_plan, to_worker), (hello, sealed_hello, to_master) = runner.sent
    assert (plan, to_worker) == ("tailgauge:plan", "w1")
    assert SEAL.open("plan", "w1", sealed_plan) == {"a": 1}
    assert (hello, to_master) == ("tailgauge:hello", None)
    assert SEAL.open("hello", "me", sealed_hello) == {"b": 2}


def test_what_its_receiver_would_refuse_is_not_sent(runner, link):
    text = r"^a message 'plan' has 67,1\d\d,\d\d\d bytes: expected at most 67,107,840$"
    with pytest.raises(TooLargeError, match=text):
        link.send("plan", {"a": bytes(sockets.TO_WORKER)}, "w1")

    assert runner.sent == []
