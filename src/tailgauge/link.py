"""Our messages on Locust's channel between the owner of a run and its workers.

Rule: control, clock pings, one counter message a second; never one message per request. Handlers run on greenlets of
their own, because Locust's listener must not wait (it carries the heartbeats); only the clock's answer is immediate.

    worker -> owner   hello     who I am (at test_start)          owner -> worker   plan     what to run
                      ready     endpoint and recorder stand                         try      do the preflight
                      tried     preflight's outcome, what was learnt                go       start time, share
                      opened    how many connections are open                       open     open them beforehand
                      ping      t0                                                  pong     t0, t1, t2
                      counters  once a second                                       slice    arrivals, a lease
                      guarded   a limit of the run is reached
                      drained   final counts                                        drain    stop and finish
                      failed    why this worker cannot go on                        hurry    close what is open
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent

FROM_WORKER = ("hello", "ready", "tried", "opened", "ping", "counters", "guarded", "drained", "failed")
FROM_OWNER = ("plan", "try", "open", "go", "pong", "slice", "drain", "hurry")
_IMMEDIATE = ("ping", "pong")
_PREFIX = "tailgauge:"

Handler = Callable[[str, dict[str, Any]], None]


class Link:
    """Sends and hears messages through a Locust runner: master, worker, or local (which talks to itself)."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def hear(self, kind: str, handler: Handler) -> None:
        """Call `handler(sender, data)` for each message of this kind."""

        def listener(environment: Any, msg: Any) -> None:  # noqa: ARG001 - Locust's keywords
            if kind in _IMMEDIATE:
                handler(msg.node_id, msg.data)
            else:
                gevent.spawn(handler, msg.node_id, msg.data)

        self._runner.register_message(_PREFIX + kind, listener)

    def send(self, kind: str, data: dict[str, Any], to: str | None = None) -> None:
        """To the owner, or from the owner to the worker `to`."""
        self._runner.send_message(_PREFIX + kind, data, client_id=to)
