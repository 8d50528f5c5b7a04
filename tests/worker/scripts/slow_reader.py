"""Script: a slow reader, its effect on a server with small buffers, and what its stamps are worth."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import gevent.ssl
import trustme
from starting.script import case, print_facts
from transport.scripts.scripted_server import REST_S, SSE, Server, chunk
from worker.one_call import END, GAP_S, PLAIN, choice, endpoint, event, made

from tailgauge.call import Call
from tailgauge.clock import monotonic_ns

COUNT, SIZE, RATE = 150, 400, 100_000
FINISHED = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


def slow(bytes_per_s: float | None, **tls: Any) -> Any:
    """A server with small buffers that writes as fast as it may, and notes how long it was kept from it."""
    wrote: list[int] = []
    server: Server

    def handler(sock: Any, _: int) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while server.request(sock):
            sock.sendall(SSE)
            for number in range(COUNT):
                gevent.sleep(GAP_S if number < 2 else 0)
                wrote.append(monotonic_ns())
                sock.sendall(chunk(choice(content=f"{number:0{SIZE}d}")))
            wrote.append(monotonic_ns())
            sock.sendall(chunk(FINISHED + event("[DONE]")) + END)

    ca_file = tls.pop("ca_file", None)
    server = Server(handler, **tls)
    url = server.url.removesuffix("/v1").replace("http:", "https:" if tls else "http:")
    target, call = endpoint(url, "openai", ca_file=ca_file), Call(PLAIN, 7, bytes_per_s=bytes_per_s)
    facts = made(target, call)
    gevent.sleep(REST_S)
    made(target, replace(call, bytes_per_s=None))
    return {**facts, "wrote": wrote[: COUNT + 1], "connections": server.connections}


def trickle() -> Any:
    """A stream that never fills the buffers, so that each piece arrives as it is written, read in fewer and later reads."""
    before: list[int] = []
    after: list[int] = []
    server: Server

    def handler(sock: Any, _: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.request(sock)
        sock.sendall(SSE)
        for number in range(40):
            gevent.sleep(0.004)
            before.append(monotonic_ns())
            sock.sendall(chunk(choice(content=str(number))))
            after.append(monotonic_ns())
        sock.sendall(chunk(FINISHED + event("[DONE]")) + END)

    server = Server(handler)
    facts = made(
        endpoint(server.url.removesuffix("/v1"), "openai"), Call(PLAIN, 7, bytes_per_s=6000)
    )
    return {**facts, "before": before, "after": after}


@case
def slow_reader() -> Any:
    made_here, folder = trustme.CA(), Path(os.environ["FOLDER"])
    made_here.cert_pem.write_to_path(folder / "ca.pem")
    context = gevent.ssl.SSLContext(gevent.ssl.PROTOCOL_TLS_SERVER)
    made_here.issue_cert("127.0.0.1").configure_cert(context)
    return {
        "quick": slow(None),
        "trickle": trickle(),
        "plain": slow(RATE),
        "tls": slow(RATE, ssl_context=context, ca_file=str(folder / "ca.pem")),
    }


print_facts()
