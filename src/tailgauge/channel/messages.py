"""Messages on Locust's channel between the master of a run and its workers.

Control, clock pings, counters once a second (of many workers less often), finished parts in pieces; no message per request.
Every message is sealed with the run's token; one without its mark or its form is dropped, counted and reported. Each
handler runs on its own greenlet, because Locust's listener also carries the heartbeats and must not wait; only clock pings
are answered at once.

    worker -> master                              master -> worker
    hello     identity, repeated until welcome     welcome    accepted
    ready     endpoint and recorder are ready      refused    reason
    tried     result of the preflight              plan       what to run
    opened    connections are open                 try        do the preflight
    ping      t0                                   open       open connections beforehand
    counters  once a second                        go         start time, share of the limits
    guarded   a limit of the run is reached        pong       t0, t1, t2
    part      a piece of a finished part           slice      arrivals: a lease
    drained   final counts, after all parts        got        how much of a part has arrived
    failed    why this worker cannot continue      drain      stop and finish
    pulse     busy, but alive: see sockets.py      hurry      close open requests
                                                   delivered  every row was transferred
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Any

import gevent
from locust.exception import RPCError
from locust.rpc.protocol import Message

from tailgauge.channel import sockets
from tailgauge.channel.auth import Seal, SealError
from tailgauge.channel.sockets import BY_NAME, MALFORMED, drop, fits
from tailgauge.clock import monotonic_ns
from tailgauge.errors import TailgaugeError, failure
from tailgauge.quantile_sketch import is_packed

log = logging.getLogger("tailgauge")

_IMMEDIATE = ("ping", "pong")
_PREFIX = "tailgauge:"
_UNSEALED = "messages that this run's token does not authenticate were dropped"

_TEXT = str | None
# A cost is a fraction: a number like 1e999999999 would take all memory.
_COST = re.compile(r"\d{1,60}(?:/[1-9]\d{0,60})?")
_LIMITS = ("max_requests", "max_tokens", "max_cost")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_cost(value: object) -> bool:
    return value is None or (isinstance(value, str) and _COST.fullmatch(value) is not None)


def _is_plain(value: object) -> bool:
    """Return whether run.json can hold a value."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str) or _is_finite(value)


def _plain(shape: Any) -> Callable[[object], bool]:
    """Return a test for values of a shape that run.json can hold, whatever else is in them."""
    return lambda value: fits(value, shape) and _is_plain(value)


_RUN = {"run": str}
_CLOCK = _plain({"offset_ns": int | None, "error_ns": int | None, "drift_ppb": int | None})
_COUNTS = {
    "leased": int,
    "dispatched": int,
    "client_drop": int,
    "not_reached": int,
    "censored": int,
    "ended": BY_NAME,
}
_CALL = {
    "request_id": int,
    "target": str,
    "ended": str,
    "status": int | None,
    "error_type": _TEXT,
    "message": _TEXT,
    "model": _TEXT,
    "needed": bool,
    "stop_reason": _TEXT,
    "marked": bool,
    "streamed": bool | None,
    "wanted_whole": bool,
    "url": _TEXT,
    "words": int,
    "input_tokens": int | None,
    "cached_tokens": int | None,
}
_TRIED = {
    "calls": [_plain(_CALL)],
    "engines": {str: _TEXT},
    "adaptations": {str: (_TEXT, _TEXT)},
    "spent": (int | None, int | None, _is_cost),
    "learnt": (_is_finite, int, bool, [str], [(str, str, int)]),
}
_TRAFFIC = {
    "requests": BY_NAME,
    "attempts": BY_NAME,
    "tokens": [int],
    "ttft": is_packed,
    "tpot": is_packed,
    "e2e": is_packed,
}
_COUNTERS = {
    "counts": _plain(_COUNTS),
    "in_flight": int,
    "chunks": int,
    "unshipped": int,
    "traffic": [(str, str, _TRAFFIC)],
    "watch": {"delays": is_packed, "cpu": _is_finite, "stalled_s": _is_finite},
    "clock": _CLOCK,
}
_RECORD = {
    "state": str,
    "why": _TEXT,
    "clock": _CLOCK,
    "reader": _TEXT,
    "priority": _TEXT,
    "stamps": _TEXT,
    "counts": _COUNTS,
    "rows": BY_NAME,
    "unwritten": BY_NAME,
    "shared": bool,
    "refused": _TEXT,
    "faults": [str],
    "task_errors": BY_NAME,
    "answers": int | None,
    "folder": str,
    "remarks": [str],
}
# What the master relies on, see `fits`; a worker trusts its master.
_SHAPES: dict[str, Any] = {
    "hello": {"name": str, "host": str, "pid": int, "version": str, "schema": int, "child": bool},
    "ready": {**_RUN, "clock": _CLOCK, "shared": bool, "folder": str},
    "waiting": {**_RUN, "text": str},
    "tried": {**_RUN, **_TRIED},
    "opened": {**_RUN, "missing": [str]},
    "ping": {"t0": int},
    "counters": {**_RUN, **_COUNTERS},
    "guarded": {**_RUN, "limit": _LIMITS.__contains__},
    "part": _RUN,
    "drained": {**_RUN, **_COUNTERS, "record": _plain(_RECORD)},
    "failed": {**_RUN, "why": str, "target": bool},
}

Handler = Callable[[str, dict[str, Any]], None]


class TooLargeError(TailgaugeError):
    """A message that its receiver would refuse."""


class Link:
    """Sends and receives messages through a Locust runner: master, worker, or local (which is both)."""

    def __init__(self, runner: Any, seal: Seal) -> None:
        self._runner = runner
        self._seal = seal
        self._sent_ns = monotonic_ns()

    def subscribe(self, kind: str, handler: Handler) -> None:
        """Call `handler(sender, data)` for each message of this kind; a worker's sender is itself.

        A message without a valid seal, without the form of its kind, or that the handler cannot take, is
        dropped and counted. Each handler runs on a greenlet of its own, but for the kinds that are answered
        at once.
        """

        def listener(environment: Any, msg: Any) -> None:  # noqa: ARG001 - Locust's keywords
            try:
                data = self._seal.open(kind, self._worker(msg.node_id), msg.data)
            except SealError:
                drop(_UNSEALED, msg.node_id, kind)
                return
            # Whether the data have the form of a message of this kind.
            if not fits(data, _SHAPES.get(kind, dict)):
                drop(MALFORMED, msg.node_id, kind)
            elif kind in _IMMEDIATE:
                handle(msg.node_id, data)
            else:
                gevent.spawn(handle, msg.node_id, data)

        def handle(node: str, data: dict[str, Any]) -> None:
            try:
                handler(node, data)
            except Exception as error:  # noqa: BLE001 - its content, or a fault of ours
                drop(MALFORMED, node, kind)
                log.warning("%s: %s", kind, failure(error))

        self._runner.register_message(_PREFIX + kind, listener)

    def send(self, kind: str, data: dict[str, Any], node: str | None = None) -> bool:
        """Send to the master, or from the master to the worker `node`. Return whether the channel accepted it."""
        sealed = self._seal.close(kind, self._worker(node), data)
        size = len(sealed["body"])
        limit = (sockets.TO_WORKER if node else sockets.TO_MASTER) - 1024
        if size > limit:
            raise TooLargeError(
                f"a message {kind!r} has {size:,} bytes: expected at most {limit:,}"
            )
        try:
            self._runner.send_message(_PREFIX + kind, sealed, client_id=node)
            self._sent_ns = monotonic_ns()
        except RPCError as error:
            log.warning("%s could not be sent: %s", kind, error)
            return False
        return True

    @property
    def has_other_end(self) -> bool:
        """Whether the master is another process: a local runner is its own."""
        return bool(getattr(self._runner, "master_host", None))

    def beat(self, ended: Callable[[], bool], every_s: float) -> None:
        """Send a pulse to the master until `ended`; nothing on a local runner."""
        if self.has_other_end:
            name = self._worker(None)
            mark = self._seal.close("pulse", name, {})
            sealed = Message(f"{_PREFIX}pulse", mark, name)  # type: ignore[no-untyped-call]
            sockets.beat(self._runner, sealed, lambda: self._sent_ns, ended, every_s)

    def _worker(self, node: str | None) -> str:
        """Return the worker that sends or receives a message; on a worker it is always itself."""
        return str(getattr(self._runner, "client_id", None) or node or "")
