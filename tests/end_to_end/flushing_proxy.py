"""A proxy that passes an answer on in pieces: `python flushing_proxy.py URL MODE`; it prints its own URL.

MODE: `every:MS`, at the ticks of a clock; `after:MS`, so long after the first byte that waits; `chunks:A-B`, each A to B events
with content;
`bytes:N`, each N bytes. What is left goes on when the answer has been silent for half a second, or has ended.
"""

from __future__ import annotations

import random
import re
import select
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

IDLE_S = 0.5
CONTENT = re.compile(rb'text_delta|"content": ?"[^"]')
ANSWER_END = b"0\r\n\r\n"


class Buffer:
    """Bytes of one connection on their way to the client, and when they go on."""

    def __init__(self, mode: str) -> None:
        self.kind, _, size = mode.partition(":")
        least, _, most = size.partition("-")
        self.least = int(least)
        self.most = int(most or least)
        self.held = b""
        self.flush_at = 0.0
        self.events = random.randint(self.least, self.most)
        self.body_began = False

    def add(self, data: bytes) -> bool:
        """Keep these bytes, and return whether all goes on now."""
        now = time.monotonic()
        if not self.held:
            self.flush_at = now + IDLE_S
            if self.kind == "every":
                period_s = self.least / 1000
                self.flush_at = (now // period_s + 1) * period_s
            if self.kind == "after":
                self.flush_at = now + self.least / 1000
        self.held += data
        if self.held.endswith(ANSWER_END):
            return True
        if self.kind == "bytes":
            return len(self.held) >= self.least
        return self.kind == "chunks" and len(CONTENT.findall(self.held)) >= self.events

    def wait_s(self) -> float:
        """How long to wait for more bytes."""
        return max(0.0, self.flush_at - time.monotonic()) if self.held else IDLE_S

    def take(self) -> bytes:
        """All that is kept."""
        data = self.held
        self.held = b""
        self.events = random.randint(self.least, self.most)
        return data


def serve(client: socket.socket, endpoint: tuple[str, int], mode: str) -> None:
    """Pass on what comes from either side until one of them closes."""
    target = socket.create_connection(endpoint)
    for side in (client, target):
        side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = Buffer(mode)
    while True:
        readable, _, _ = select.select([client, target], [], [], buffer.wait_s())
        if client in readable:
            request = client.recv(1 << 16)
            if not request:
                break
            target.sendall(request)
        is_due = buffer.held != b"" and time.monotonic() >= buffer.flush_at
        if target in readable:
            data = target.recv(1 << 16)
            if not data:
                break
            is_due |= buffer.add(data)
        if is_due:
            client.sendall(buffer.take())
    if buffer.held:
        client.sendall(buffer.take())
    client.close()
    target.close()


def main() -> None:
    """Serve until killed."""
    url = urlsplit(sys.argv[1])
    endpoint = (url.hostname or "", url.port or 80)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client, endpoint, sys.argv[2]), daemon=True).start()


if __name__ == "__main__":
    main()
