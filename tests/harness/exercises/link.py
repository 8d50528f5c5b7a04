"""Exercise: the link over a runner that is none."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gevent

from tailgauge.link import FROM_OWNER, FROM_WORKER, Link


class Runner:
    """Keeps listeners and what was sent."""

    def __init__(self) -> None:
        self.listeners: dict[str, Any] = {}
        self.sent: list[Any] = []

    def register_message(self, kind: str, listener: Any) -> None:
        self.listeners[kind] = listener

    def send_message(self, kind: str, data: Any, client_id: Any = None) -> None:
        self.sent.append([kind, data, client_id])


runner = Runner()
link = Link(runner)
heard: list[Any] = []


def slow(sender: str, data: Any) -> None:
    gevent.sleep(0.05)
    heard.append([sender, data["kind"]])


for kind in (*FROM_WORKER, *FROM_OWNER):
    link.hear(
        kind,
        (lambda sender, data: heard.append([sender, data["kind"]])) if kind in {"ping", "pong"} else slow,
    )
for kind in ("slice", "ping", "counters", "pong"):
    message = SimpleNamespace(node_id="w1", data={"kind": kind})
    runner.listeners[f"tailgauge:{kind}"](environment=None, msg=message)
at_once = list(heard)
gevent.sleep(0.2)
link.send("plan", {"a": 1}, "w1")
link.send("hello", {"b": 2})
print(
    json.dumps(
        {"at_once": at_once, "later": heard[2:], "sent": runner.sent, "kinds": sorted(runner.listeners)}
    )
)
