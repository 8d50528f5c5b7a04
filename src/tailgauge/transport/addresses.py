"""Addresses of a host, looked up on an OS thread: the system's resolver waits, and the hub must not.

Rule: literal addresses cost nothing; a name without an address is a ConnectError like any other.
"""

from __future__ import annotations

import _socket
from typing import Any

import gevent
from gevent import get_hub

from tailgauge.clock import monotonic_ns
from tailgauge.transport.connection import ConnectError


def resolve(host: str, port: int, timeout_s: float) -> tuple[list[Any], int]:
    """Addresses of a host and the nanoseconds it took; literal addresses cost nothing."""
    started = monotonic_ns()
    try:
        return _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM, 0, _socket.AI_NUMERICHOST), 0
    except (_socket.gaierror, UnicodeError):
        pool = get_hub().threadpool
    try:
        with gevent.Timeout(timeout_s):
            found = pool.apply(_look_up, (host, port))
    except gevent.Timeout:
        raise ConnectError("timeout", f"no address for {host} in time") from None
    if isinstance(found, str):
        raise ConnectError("dns", f"no address for {host}: {found}")
    return found, monotonic_ns() - started


def _look_up(host: str, port: int) -> list[Any] | str:
    """Addresses, or why there are none: what is raised in the pool's thread would be printed there."""
    try:
        return _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)
    except _socket.gaierror as error:
        return error.strerror or str(error)
    except UnicodeError as error:
        return str(error)
