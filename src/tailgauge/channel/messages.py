"""Our messages on Locust's channel between the master of a run and its workers.

Rule: control, clock pings, one counter message a second, finished parts in pieces; never one message per request. Every
message is sealed with the run's token, and what does not open is dropped, counted and told. Handlers run on greenlets of
their own, because Locust's listener must not wait (it carries the heartbeats); only the clock's answer is immediate.

    worker -> master   hello     who I am, until welcome         master -> worker   welcome  known from now on
                      ready     endpoint and recorder stand                       refused  why not (not sealed)
                      tried     preflight's outcome, what was learnt              plan     what to run
                      opened    how many connections are open                     try      do the preflight
                      ping      t0                                                open     open them beforehand
                      counters  once a second                                     go       start time, share
                      guarded   a limit of the run is reached                     pong     t0, t1, t2
                      part      a piece of a finished part                        slice    arrivals, a lease
                      drained   final counts                                      got      how much of a part is here
                      failed    why this worker cannot go on                      drain    stop and finish
                                                                                  hurry    close what is open
                                                                                  home     every row is here
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
from locust.exception import RPCError

from tailgauge.channel.auth import Seal, SealError

log = logging.getLogger("tailgauge")

FROM_WORKER = (
    "hello", "ready", "tried", "opened", "ping", "counters", "guarded", "part", "drained", "failed",
)  # fmt: skip
FROM_MASTER = (
    "welcome", "refused", "plan", "try", "open", "go", "pong", "slice", "got", "drain", "hurry", "delivered",
)  # fmt: skip
REFUSED = "refused"  # for one that has no token or another one
_IMMEDIATE = ("ping", "pong")
_PREFIX = "tailgauge:"

Handler = Callable[[str, dict[str, Any]], None]


class Link:
    """Sends and hears messages through a Locust runner: master, worker, or local (which talks to itself).

    `on_unsealed(node, kind)` is told of each message that did not open.
    """

    def __init__(self, runner: Any, seal: Seal) -> None:
        self._runner, self._seal = runner, seal
        self.on_unsealed: Callable[[str, str], None] = lambda *_: None

    def subscribe(self, kind: str, handler: Handler) -> None:
        """Call `handler(sender, data)` for each message of this kind; a worker's sender is itself."""

        def listener(environment: Any, msg: Any) -> None:  # noqa: ARG001 - Locust's keywords
            if kind == REFUSED:
                data = {"why": str((msg.data or {}).get("why", ""))[:500]}
            else:
                try:
                    data = self._seal.open(kind, self._worker(msg.node_id), msg.data)
                except SealError:
                    self.on_unsealed(msg.node_id, kind)
                    return
            if kind in _IMMEDIATE:
                handler(msg.node_id, data)
            else:
                gevent.spawn(handler, msg.node_id, data)

        self._runner.register_message(_PREFIX + kind, listener)

    def send(self, kind: str, data: dict[str, Any], to: str | None = None) -> bool:
        """To the master, or from the master to the worker `to`; whether the channel took it."""
        told = data if kind == REFUSED else self._seal.close(kind, self._worker(to), data)
        try:
            self._runner.send_message(_PREFIX + kind, told, client_id=to)
        except RPCError as error:
            log.warning("%s could not be sent: %s", kind, error)
            return False
        return True

    def _worker(self, node: str | None) -> str:
        """The worker that a message is from or for; a worker's runner knows itself, and every message there is its own."""
        return str(getattr(self._runner, "client_id", None) or node or "")
