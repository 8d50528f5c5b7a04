"""Addresses that a user gives: HOST:PORT. No name is resolved."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit

from tailgauge.errors import UsageError

LOOPBACK = "127.0.0.1"
_USUAL_PORT = 5557  # of a master


class Address(NamedTuple):
    """An address to listen on or connect to; port 0: a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse(text: str, option: str, *, port: int | None = None) -> Address:
    """Parse HOST:PORT; with `port` HOST alone is enough. IPv6 addresses need brackets."""
    host, colon, tail = text.rpartition(":")
    if (not colon or text.endswith("]")) and port is not None:
        host = text
        tail = str(port)
    bare = host.removeprefix("[").removesuffix("]")
    if port is None and not colon and _is_host(text):
        raise UsageError(f"{option} {text}: expected HOST:PORT: write {text}:{_USUAL_PORT}")
    if "://" in text and _is_host(urlsplit(text).hostname or ""):
        raise UsageError(
            f"{option} {text}: expected HOST:PORT without http://: write {urlsplit(text).netloc}"
        )
    if not bare or any(c.isspace() or c in "/@" for c in bare) or (":" in bare and bare == host):
        raise UsageError(f"{option} {text}: expected HOST:PORT")
    if not tail.isdigit() or not 0 < int(tail) < 65536:
        raise UsageError(f"{option} {text}: expected HOST:PORT with a port from 1 to 65535")
    return Address(host, int(tail))


def _is_host(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9.-]+", text) is not None


def unused_proxy(url: str) -> str:
    """Return the variable of the environment that names a proxy for this URL, which no call uses; empty without one."""
    from urllib import request  # it takes a while

    parts = urlsplit(url)
    names = (f"{parts.scheme}_proxy", f"{parts.scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    name = next((name for name in names if os.environ.get(name)), "")
    is_excepted = bool(name) and bool(request.proxy_bypass_environment(parts.hostname or ""))  # type: ignore[attr-defined]
    return "" if is_excepted else name


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host: `localhost`, or a loopback address."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
