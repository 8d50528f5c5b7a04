"""Answers that end badly, each over a real connection and through a whole call."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import gevent
from transport.scripts.scripted_server import Server, until_read
from transport.scripts.scripted_server import chunk as framed
from wire.bad_ends import BAD_ENDS, BadEnd
from worker.one_call import PLAIN, endpoint, made

from tailgauge.call import Call

FACTS = ("ended", "error_type", "error_class", "error_body", "stop_reason", "chunks", "status")
PAUSE_S = 0.001


def play(sock: Any, end: BadEnd) -> None:
    """Send an answer as its framing says."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    closes = end.framing == "close"
    framing = "connection: close" if closes else "transfer-encoding: chunked"
    sock.sendall(
        f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{framing}\r\n\r\n".encode()
    )
    for event in end.events:
        sock.sendall(event if closes else framed(event))
        gevent.sleep(PAUSE_S)
    if end.framing == "whole":
        sock.sendall(b"0\r\n\r\n")
    elif end.framing == "reset":
        until_read(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def row_of(end: BadEnd) -> dict[str, Any]:
    """Make one call of a server that ends so."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        if server.request(sock):
            play(sock, end)

    server = Server(handler)
    url = server.url.removesuffix("/v1")
    row = made(endpoint(url, end.protocol), Call(PLAIN, 2))["row"]
    return {name: row[name] for name in FACTS}


print(json.dumps({name: row_of(end) for name, end in BAD_ENDS.items()}))
