"""Stamps of the kernel."""

from __future__ import annotations

import socket
from typing import Any

from tailgauge.clock import ANCILLARY, SO_TIMESTAMPNS
from tailgauge.transport.connection import KERNEL_STAMPS


def stamping_sockets() -> Any:
    """They keep the kernel's stamps enabled, which they are on return: the first packets after the switch have none."""
    if not KERNEL_STAMPS:
        return None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        taker, _ = listener.accept()
    taker.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    ancillary: list[Any] = []
    while not ancillary:
        sender.sendall(b"?")
        _, ancillary, *_ = taker.recvmsg(1, ANCILLARY)
    return sender, taker
