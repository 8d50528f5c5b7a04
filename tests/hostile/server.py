"""A target that means harm, on raw sockets, in a process of its own: each request meets one behaviour of `behaviours`.

Rule: `python server.py PORT_FILE` serves until its standard input ends, then prints a JSON list of what it did.

The path chooses: `/NAME/...` always shows that behaviour, and `/mix/...` all of them in turn, with a fair answer now and
then. The first two requests of a path are answered fairly, for the preflight, unless it begins with `/now/`. Which protocol
it uses shows at its end.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hostile.answers import CLOSE, RESET, WAIT, Request, fair
from hostile.behaviours import BEHAVIOURS, CROWD, mix

FIRST = 2  # requests of each path and protocol that are answered fairly
PATIENCE_S = 60.0
PROTOCOLS = {"completions": "openai", "messages": "anthropic"}  # by the end of their path


class Server:
    """Listens on loopback; `did` notes each answer: behaviour, whom, bytes sent, when it last sent or hung up, whether it was cut off."""

    def __init__(self) -> None:
        self.did: list[dict[str, Any]] = []
        self._asked: dict[str, int] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(PATIENCE_S)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (request := _request(client)) is not None:
                self._answer(client, request)

    def _choose(self, path: str) -> str:
        """The behaviour that is due on a path."""
        with self._lock:
            number = self._asked[path] = self._asked.get(path, -1) + 1
        now, _, rest = path.lstrip("/").partition("/")
        if now == "now":
            return rest.partition("/")[0]
        number -= FIRST
        if now == "mix" and number >= 0:
            names = mix()
            return names[number % len(names)]
        if now == "crowd" and number >= 0:
            return CROWD[number % len(CROWD)]
        return "fair" if number < 0 or now == "crowd" else now

    def _answer(self, client: socket.socket, request: str) -> None:
        first, *lines = request.partition("\r\n\r\n")[0].split("\r\n")
        path, headers = first.split()[1], dict(line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in headers.items()}
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        asked = Request(PROTOCOLS.get(path.rpartition("/")[2], "sse"), key)
        name = self._choose(path)
        note = {
            "behaviour": name,
            "path": path,
            "id": headers["x-client-request-id"],
            "request": request,
            "bytes": 0,
            "cut": True,
            "last_at_ns": None,
        }
        try:
            for piece in fair(asked) if name == "fair" else BEHAVIOURS[name].send(asked):
                perform(client, piece)
                if isinstance(piece, bytes):
                    note["bytes"] += len(piece)
                if isinstance(piece, bytes) or piece in {CLOSE, RESET}:
                    note["last_at_ns"] = time.monotonic_ns()
            note["cut"] = False
        finally:
            self.did.append(note)


def perform(client: socket.socket, piece: bytes | float) -> None:
    """Send bytes, wait, or hang up."""
    if isinstance(piece, bytes):
        client.sendall(piece)
    elif piece in {CLOSE, RESET}:
        hang_up(client, reset=piece == RESET)
    elif piece == WAIT:
        client.recv(1)
    else:
        time.sleep(piece)


def hang_up(client: socket.socket, *, reset: bool) -> None:
    """No more of this connection."""
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    else:
        client.shutdown(socket.SHUT_WR)


def _request(client: socket.socket) -> str | None:
    """A request, once it has come whole; None if the client hangs up before."""
    data, whole = b"", None
    while whole is None or len(data) < whole:
        piece = client.recv(65_536)
        if not piece:
            return None
        data += piece
        if whole is None and (end := data.find(b"\r\n\r\n")) >= 0:
            lengths = re.findall(rb"(?im)^content-length:\s*(\d+)", data[:end])
            whole = end + 4 + sum(map(int, lengths))
    return data.decode("latin-1")


if __name__ == "__main__":
    server = Server()
    Path(sys.argv[1]).write_text(str(server.port))
    sys.stdin.read()
    print(json.dumps(server.did))
