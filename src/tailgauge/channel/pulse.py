"""A worker's pulse: a thread of the system tells the master that the worker lives, while its hub is too busy to send anything.

A suspended or dead process has no pulse, nor has one behind a cut network. A process whose hub hangs for ever has one.
Rule: nothing here waits for the hub. The socket is the thread's own, because a ZeroMQ socket belongs to one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import zmq
from gevent import monkey
from locust.rpc.protocol import Message

from tailgauge.clock import monotonic_ns

_sleep: Callable[[float], None] = monkey.get_original("time", "sleep")
_start: Callable[..., int] = monkey.get_original("_thread", "start_new_thread")


def beat(
    runner: Any, sealed: Message, last_sent_ns: Callable[[], int], ended: Callable[[], bool], every_s: float
) -> None:
    """From another thread, send `sealed` to the master of a Locust worker every `every_s` without another message."""
    address = f"tcp://{runner.master_host}:{runner.master_port}"
    by_ipv6 = bool(runner.client.socket.getsockopt(zmq.IPV6))
    _start(_beat, (address, by_ipv6, sealed, last_sent_ns, ended, every_s))


def _beat(
    address: str,
    by_ipv6: bool,
    sealed: Message,
    last_sent_ns: Callable[[], int],
    ended: Callable[[], bool],
    every_s: float,
) -> None:
    body = sealed.serialize()  # type: ignore[no-untyped-call]
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.ipv6 = 0, by_ipv6
        socket.identity = f"{sealed.node_id}-{monotonic_ns()}".encode()
        connected = False
        while not ended():
            _sleep(every_s)
            if monotonic_ns() - last_sent_ns() < 2 * every_s * 1e9:
                continue
            if not connected:
                socket.connect(address)
                connected = True
            with contextlib.suppress(zmq.Again):  # the master does not read: the next one may arrive
                socket.send(body, zmq.NOBLOCK)
