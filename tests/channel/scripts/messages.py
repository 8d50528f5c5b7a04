"""Script: the link over a runner that is none."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gevent

from tailgauge.channel import sockets
from tailgauge.channel.auth import Seal
from tailgauge.channel.messages import Link, TooLargeError


class Runner:
    """Keeps listeners and what was sent."""

    def __init__(self) -> None:
        self.listeners: dict[str, Any] = {}
        self.sent: list[Any] = []
        self.client_id: str | None = None

    def register_message(self, kind: str, listener: Any) -> None:
        self.listeners[kind] = listener

    def send_message(self, kind: str, data: Any, client_id: Any = None) -> None:
        self.sent.append([kind, data, client_id])


runner = Runner()
seal, other = Seal("the token of the run"), Seal("another token")
link = Link(runner, seal)
received: list[Any] = []


def slow(sender: str, data: Any) -> None:
    gevent.sleep(0.05)
    received.append([sender, data.get("kind")])


for kind in ("ping", "pong", "slice", "tally"):
    link.subscribe(
        kind,
        (lambda sender, data: received.append([sender, data["kind"]]))
        if kind in {"ping", "pong"}
        else slow,
    )


def comes(kind: str, data: Any, node: str = "w1") -> None:
    runner.listeners[f"tailgauge:{kind}"](
        environment=None, msg=SimpleNamespace(node_id=node, data=data)
    )


for kind in ("slice", "ping", "tally", "pong"):
    comes(kind, seal.close(kind, "w1", {"kind": kind, "t0": 1}))
at_once = list(received)
gevent.sleep(0.2)
later = received[2:]

sockets.dropped.clear()
comes("slice", {"kind": "slice"})
comes("slice", None)
comes("slice", other.close("slice", "w1", {"kind": "slice"}))
comes("slice", seal.close("plan", "w1", {"kind": "slice"}))
comes("slice", seal.close("slice", "w2", {"kind": "slice"}))
gevent.sleep(0.2)
dropped = sockets.report()

link.send("plan", {"a": 1}, "w1")
((kind, sealed, to),) = runner.sent
sent = [[kind, seal.open("plan", "w1", sealed), to]]
try:
    link.send("plan", {"a": bytes(sockets.TO_WORKER)}, "w1")
except TooLargeError as error:
    too_large = [str(error), len(runner.sent)]
runner.client_id = "me"
runner.sent.clear()
link.send("hello", {"b": 2})
((kind, sealed, to),) = runner.sent
sent.append([kind, seal.open("hello", "me", sealed), to])
print(
    json.dumps(
        {
            "at_once": at_once,
            "later": later,
            "sent": sent,
            "kinds": sorted(runner.listeners),
            "dropped": dropped,
            "too_large": too_large,
            "after": len(received) - 2 - len(later),
        }
    )
)
