"""Messages on Locust's channel between the master of a run and its workers.

Control, clock pings, one message with counters per second, finished parts in pieces; never a message per request. Every
message is sealed with the run's token; invalid ones are dropped, counted and reported. Each handler runs on its own
greenlet, because Locust's listener also carries the heartbeats and must not wait; only clock pings are answered at once.

    worker -> master                              master -> worker
    hello     identity, repeated until welcome     welcome    accepted
    ready     endpoint and recorder are ready      refused    reason (not sealed)
    tried     result of the preflight              plan       what to run
    opened    connections are open                 try        do the preflight
    ping      t0                                   open       open connections beforehand
    counters  once a second                        go         start time, share of the limits
    guarded   a limit of the run is reached        pong       t0, t1, t2
    part      a piece of a finished part           slice      arrivals: a lease
    drained   final counts                         got        how much of a part has arrived
    failed    why this worker cannot continue      drain      stop and finish
    pulse     busy, but alive: see pulse.py        hurry      close open requests
                                                   delivered  every row was transferred
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
from locust.exception import RPCError
from locust.rpc.protocol import Message

from tailgauge.channel import pulse
from tailgauge.channel.auth import Seal, SealError
from tailgauge.clock import monotonic_ns

log = logging.getLogger("tailgauge")

REFUSED = "refused"  # not sealed: the worker may have no token
_IMMEDIATE = ("ping", "pong")
_PREFIX = "tailgauge:"

Handler = Callable[[str, dict[str, Any]], None]


class Link:
    """Sends and receives messages through a Locust runner: master, worker, or local (which is both).

    `on_unsealed(node, kind)` is called for each message without a valid mark.
    """

    def __init__(self, runner: Any, seal: Seal) -> None:
        self._runner, self._seal = runner, seal
        self._sent_ns = monotonic_ns()
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
        """Send to the master, or from the master to the worker `to`; whether the channel accepted it."""
        sealed = data if kind == REFUSED else self._seal.close(kind, self._worker(to), data)
        try:
            self._runner.send_message(_PREFIX + kind, sealed, client_id=to)
            self._sent_ns = monotonic_ns()
        except RPCError as error:
            log.warning("%s could not be sent: %s", kind, error)
            return False
        return True

    def beat(self, ended: Callable[[], bool], every_s: float) -> None:
        """On a worker: have a pulse until `ended`; a local runner is its own master."""
        if getattr(self._runner, "master_host", None):
            name = self._worker(None)
            mark = self._seal.close("pulse", name, {})
            sealed = Message(f"{_PREFIX}pulse", mark, name)  # type: ignore[no-untyped-call]
            pulse.beat(self._runner, sealed, lambda: self._sent_ns, ended, every_s)

    def _worker(self, node: str | None) -> str:
        """The worker that sends or receives a message; on a worker it is always itself."""
        return str(getattr(self._runner, "client_id", None) or node or "")
