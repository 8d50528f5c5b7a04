"""A gateway that reads an engine's answers to their end, whoever still listens: disconnects do not pass through it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


@contextlib.contextmanager
def reading_to_the_end(url: str, kept: list[bytes] | None = None) -> Iterator[str]:
    """Address of the gateway before an engine. `kept`: what clients send, piece by piece."""
    engine = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(
            target=_accept, args=(listening, engine.hostname, engine.port, kept), daemon=True
        ).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def _accept(listening: socket.socket, host: str, port: int, kept: list[bytes] | None) -> None:
    with contextlib.suppress(OSError):  # the test is over
        while True:
            client, _ = listening.accept()
            engine = socket.create_connection((host, port))
            threading.Thread(target=_forward, args=(client, engine, kept), daemon=True).start()
            threading.Thread(target=_answer, args=(engine, client), daemon=True).start()


def _forward(client: socket.socket, engine: socket.socket, kept: list[bytes] | None) -> None:
    """What the client asks. That it is gone is kept to oneself."""
    with contextlib.suppress(OSError):
        while piece := client.recv(1 << 16):
            if kept is not None:
                kept.append(piece)
            engine.sendall(piece)


def _answer(engine: socket.socket, client: socket.socket) -> None:
    with engine, client:
        while piece := engine.recv(1 << 16):
            with contextlib.suppress(OSError):
                client.sendall(piece)
        with contextlib.suppress(OSError):
            client.shutdown(
                socket.SHUT_RDWR
            )  # a socket that another thread reads is not closed by its close
