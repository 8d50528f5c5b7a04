"""How servers and gateways end a stream badly: none is `ok`. The cases and their sources are in `bad_ends.py`."""

from __future__ import annotations

import re
import socket
import struct
from typing import Any

import gevent
import pytest
from transport.scripted_server import Server, until_read
from transport.scripted_server import chunk as framed
from wire.bad_ends import BAD_ENDS, BadEnd
from worker.one_call import PLAIN, endpoint, made

from tailgauge.call import Call

pytestmark = pytest.mark.gevent

SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|[\w.-]+/[\w.-]+: \S+|[\w.-]+\.\w+/\S+")


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
    return made(endpoint(url, end.protocol), Call(PLAIN, 2))["row"]


@pytest.mark.parametrize("end", BAD_ENDS.values(), ids=BAD_ENDS)
def test_a_stream_that_ends_badly_is_no_success(end):
    row = row_of(end)
    error_type = row["error_type"] if end.error_type is None and end.error_text else end.error_type

    assert row["ended"] != "ok"
    assert (row["ended"], row["error_type"]) == (end.ended, error_type)
    assert (row["error_class"], row["stop_reason"]) == (end.error_class, end.stop_reason)
    assert end.error_text in (row["error_body"] or "")
    assert row["status"] == 200


def test_each_names_what_it_was_read_from():
    assert [name for name, end in BAD_ENDS.items() if not SOURCE.match(end.source)] == []


def test_many_servers_and_gateways_are_among_them():
    names = ("vLLM", "SGLang", "TGI", "LMDeploy", "llama.cpp", "Ollama", "LiteLLM", "nginx", "Azure", "OpenRouter", "DeepSeek",
             "Gemini", "Envoy", "Anthropic", "LM Studio", "Portkey")  # fmt: skip

    assert [name for name in names if not any(name in end for end in BAD_ENDS)] == []
