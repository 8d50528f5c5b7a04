"""Script: attacks on the port of a run's master, each bounded in time: PORT, name of a worker, run id.

`TAILGAUGE_TOKEN` is that of the run. Each case has what came back; what the run makes of them is the test's.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

import gevent
import locust
import msgpack
import zmq.green as zmq
from channel.strangers import packed, token
from starting.script import CASES, case, print_facts

from tailgauge.channel.auth import TOKEN, Seal
from tailgauge.channel.sockets import TO_MASTER, protect
from tailgauge.rows.schema import SCHEMA_VERSION

PORT = int(sys.argv[1])
VICTIM, RUN_ID = sys.argv[2:]
GIVEN = os.environ.pop(TOKEN)
SEAL = Seal(GIVEN)
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01"
CONNECTIONS = 300
WAIT_S = 10.0  # for what comes
NOTHING_S = 0.5  # where nothing may come
NAMES = (f"stranger_{number}" for number in itertools.count())
Frames = Callable[[str], list[bytes]]  # of a sender of this name
PART = {
    "run": RUN_ID, "worker": 0, "table": "health", "name": "part-0-777777.parquet", "size": 4, "sha256": "0" * 64, "offset": 0,
    "bytes": b"PAR1",
}  # fmt: skip
LIE = {"run": RUN_ID, "why": "a lie", "target": True, "text": "a lie"}
held: list[socket.socket] = []  # connections that stay open while the others go on


def connected() -> socket.socket:
    return socket.create_connection(("127.0.0.1", PORT), WAIT_S)


def answer(*pieces: bytes, pause_s: float = 0.0) -> dict[str, Any]:
    """What comes back for these bytes, and whether the master closed the connection."""
    found = b""
    with connected() as peer:
        peer.settimeout(NOTHING_S)
        try:
            for piece in pieces:
                peer.sendall(piece)
                time.sleep(pause_s)
            while data := peer.recv(65536):
                found += data
        except TimeoutError:
            return {"closed": False, "bytes": len(found), "messages": messages_in(found)}
        except OSError:
            pass
    return {"closed": True, "bytes": len(found), "messages": messages_in(found)}


def messages_in(found: bytes) -> bool:
    """Whether something of a run is in what came."""
    return b"tailgauge" in found or RUN_ID.encode() in found


def peer_with(text: str, name: str, port: int = PORT) -> Any:
    """A ZeroMQ socket of somebody with this token, or without one."""
    peer = zmq.Context.instance().socket(zmq.DEALER)
    peer.identity = name.encode()
    peer.linger = 0
    with token(text):
        protect(peer, 1 << 26)
    peer.connect(f"tcp://127.0.0.1:{port}")
    return peer


def kinds(peer: Any, wait_s: float) -> list[str]:
    """Kinds of the messages that come, the first within so many seconds."""
    found = []
    while peer.poll(int(wait_s * 1000)):
        found.append(msgpack.unpackb(peer.recv(), strict_map_key=False)[0])
        wait_s = 0.1
    peer.close()
    return found


def replies(text: str, frames: Frames, wait_s: float = NOTHING_S) -> list[str]:
    """What somebody with this token is sent after these frames."""
    name = next(NAMES)
    peer = peer_with(text, name)
    for frame in frames(name):
        try:
            peer.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            break
    return kinds(peer, wait_s)


def sealed(kind: str, data: dict[str, Any], name: str, seal: Seal = SEAL) -> bytes:
    return packed(f"tailgauge:{kind}", seal.close(kind, name, data), name)


def hello(version: str) -> dict[str, Any]:
    return {
        "name": "stranger",
        "host": "h",
        "pid": 1,
        "version": version,
        "schema": SCHEMA_VERSION,
        "child": False,
        "plugins": {},
    }


# --- without the token ------------------------------------------------------------------------------------------


@case
def half_open_connections() -> int:
    held.extend(connected() for _ in range(CONNECTIONS))
    return len(held)


@case
def garbage() -> list[dict[str, Any]]:
    return [answer(secrets.token_bytes(size)) for size in (1000, 70_000)]


@case
def http() -> dict[str, Any]:
    return answer(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")


@case
def tls_hello() -> str:
    context = ssl.create_default_context()
    with connected() as peer:
        try:
            context.wrap_socket(peer, server_hostname="localhost").close()
        except (ssl.SSLError, OSError) as error:
            return type(error).__name__
    return "a handshake"


@case
def a_greeting_byte_by_byte() -> dict[str, Any]:
    return answer(*[GREETING[i : i + 1] for i in range(len(GREETING))], pause_s=0.1)


@case
def an_enormous_frame() -> dict[str, Any]:
    """Without encryption, behind a whole greeting."""
    greeting = GREETING[:10] + b"\x03\x01NULL".ljust(22, b"\0") + bytes(32)
    return answer(greeting, b"\x06" + (1 << 62).to_bytes(8, "big") + b"x" * 1000)


@case
def a_forged_handshake() -> dict[str, Any]:
    greeting = GREETING[:10] + b"\x03\x01CURVE".ljust(22, b"\0") + bytes(32)
    return answer(greeting, b"\x04\xc8\x05HELLO" + secrets.token_bytes(194))


@case
def no_token() -> list[str]:
    return replies(
        "",
        lambda me: [
            packed("client_ready", locust.__version__, me),
            sealed("hello", hello("0.1.0"), me),
        ],
    )


@case
def another_token() -> list[str]:
    text = "another token as long"
    seal = Seal(text)
    return replies(
        text, lambda me: [packed("client_ready", "2", me), sealed("hello", {}, me, seal)]
    )


@case
def messages_of_plain_locust() -> list[str]:
    """Of a plain Locust worker: it says that it is ready, that all users are there, and that everybody ends."""
    kinds_sent = ("client_stopped", "quit", "spawning")
    return replies(
        "",
        lambda _: [
            packed("client_ready", "2", VICTIM),
            *(packed(kind, None, VICTIM) for kind in kinds_sent),
        ],
    )


@case
def a_recorded_connection() -> dict[str, Any]:
    """What a worker with the token sent, sent again over a connection of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    recorded = bytearray()

    def carry(source: Any, sink: Any, note: Callable[[bytes], object]) -> None:
        while data := source.recv(65536):
            note(data)
            sink.sendall(data)

    def relay() -> None:
        here = listener.accept()[0]
        there = connected()
        there.settimeout(None)
        gevent.spawn(carry, here, there, recorded.extend)
        gevent.spawn(carry, there, here, len)

    gevent.spawn(relay)
    peer = peer_with(GIVEN, "recorded_1", listener.getsockname()[1])
    peer.send(sealed("hello", hello("0.0.1"), "recorded_1"))
    first = kinds(peer, WAIT_S)
    return {
        "first": first,
        "again": answer(bytes(recorded)),
        "is_readable": b"stranger" in recorded,
    }


# --- with the token ---------------------------------------------------------------------------------------------


@case
def another_version() -> list[str]:
    return replies(GIVEN, lambda me: [sealed("hello", hello("0.0.1"), me)], WAIT_S)


@case
def in_the_name_of_a_worker() -> list[str]:
    """Sealed with the token under its name, over a connection of another name."""
    lies = [sealed(kind, {**LIE, "record": {}}, VICTIM) for kind in ("failed", "drained")]
    return replies(
        GIVEN,
        lambda _: [*lies, packed("quit", None, VICTIM), packed("client_stopped", None, VICTIM)],
    )


@case
def without_a_seal() -> list[str]:
    marked = {"body": msgpack.packb(LIE), "mark": bytes(32)}
    return replies(
        GIVEN,
        lambda me: [packed("tailgauge:failed", LIE, me), packed("tailgauge:failed", marked, me)],
    )


@case
def a_seal_of_another_message() -> list[str]:
    """A sealed message under the name of another kind, and of another worker."""

    def frames(me: str) -> list[bytes]:
        waiting = SEAL.close("waiting", me, LIE)
        failed = SEAL.close("failed", VICTIM, LIE)
        return [packed("tailgauge:failed", waiting, me), packed("tailgauge:failed", failed, me)]

    return replies(GIVEN, frames)


@case
def results_of_another_form() -> list[str]:
    kinds_sent = ("ready", "tried", "counters", "drained", "failed")
    return replies(GIVEN, lambda me: [sealed(kind, {"run": RUN_ID}, me) for kind in kinds_sent])


@case
def messages_of_a_stranger() -> list[str]:
    """Who has the token and no place in the run ends nothing and delivers nothing."""
    parts = (PART, {**PART, "worker": 1, "name": "part-1-777777.parquet"})
    return replies(
        GIVEN, lambda me: [sealed("failed", LIE, me), *(sealed("part", part, me) for part in parts)]
    )


@case
def an_enormous_message() -> list[str]:
    return replies(
        GIVEN, lambda me: [sealed("part", {**PART, "bytes": bytes(TO_MASTER + 1000)}, me)]
    )


if __name__ == "__main__":
    for attack_name, attack in CASES.items():  # all at once
        CASES[attack_name] = gevent.spawn(attack).get
    print_facts(limit_s=60)
    os._exit(0)
