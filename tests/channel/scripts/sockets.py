"""Script: Locust's own runners, and somebody who sends them whatever there is."""

from __future__ import annotations

import os
import resource
import socket as tcp
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import gevent
import locust
import msgpack
import zmq.green as zmq
from channel.strangers import ESCAPE, STRANGE, Placeholder, master_runner, packed, token
from locust import runners
from locust.env import Environment
from locust.rpc import Message, zmqrpc
from starting.script import case, print_facts

from tailgauge.channel import sockets
from tailgauge.channel.auth import Seal
from tailgauge.channel.messages import Link

LARGE = (
    "import sys, zmq\n"
    "socket = zmq.Context().socket(zmq.DEALER)\n"
    "socket.connect(sys.argv[1])\n"
    "socket.send(bytes(300_000_000), copy=False)\n"
    "sys.stdin.read()\n"
)
ZEROMQ = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(52, b"\0")  # a greeting
runners.CONNECT_TIMEOUT = 0.3


TRIED = {
    "run": "r", "calls": [], "learnt": [1.0, 0, True, [], []], "engines": {}, "adaptations": {}, "spent": [1, 1, None],
}  # fmt: skip
OURS: dict[str, Any] = {  # sealed, so that only who has the token can send them
    "hello without content": ("hello", {}),
    "hello that is a list": ("hello", [1]),
    "hello with numbers": (
        "hello",
        {"name": 1, "host": 2, "pid": "x", "version": 3, "schema": "y", "child": 0},
    ),
    "counters without a run": ("counters", {}),
    "counters with words": ("counters", {"run": "r", "counts": "many"}),
    "a sketch of the wrong length": (
        "counters",
        {"run": "r", "watch": {"delays": b"1234567", "cpu": 0.1}},
    ),
    "part without a run": ("part", {}),
    "a ping without time": ("ping", {"t0": None}),
    "a preflight without its calls' results": ("tried", {**TRIED, "calls": [{}]}),
    "a cost that would take all memory": ("tried", {**TRIED, "spent": [1, 1, "1e999999999"]}),
    "a figure that is none": ("tried", {**TRIED, "learnt": [float("nan"), 0, True, [], []]}),
    "a limit that there is not": ("guarded", {"run": "r", "limit": "__class__"}),
    "what raises": ("pulse", {}),
}


def peer(port: int, name: bytes) -> Any:
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.identity, socket.linger = name, 0
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def answers(socket: Any, wait_s: float = 2.0) -> list[str]:
    found = []
    while socket.poll(int(wait_s * 1e3)):
        found.append(msgpack.unpackb(socket.recv())[0])
        wait_s = 0.05
    return found


@case
def strange() -> dict[str, Any]:
    """By name: number counted as dropped, and answers to an honest worker afterwards."""
    runner = master_runner()
    seal = Seal("")

    def fail(*_: Any) -> None:
        raise RuntimeError("the handler's fault")

    link = Link(runner, seal)
    for kind in ("hello", "counters", "part", "ping", "pulse", "tried", "guarded"):
        link.subscribe(kind, fail)
    honest, found = peer(runner.server.port, b"w1"), {}
    heartbeat = {"state": "ready", "current_cpu_usage": 1.5, "current_memory_usage": 7}
    honest.send(packed("client_ready", locust.__version__, "w1"))
    first = answers(honest)
    sealed = {
        name: [packed(f"tailgauge:{kind}", sealed_as(seal, kind, data), "w1")]
        for name, (kind, data) in OURS.items()
    }
    for name, frames in (STRANGE | sealed).items():
        sockets.dropped.clear()
        honest.send_multipart(frames)
        honest.send(packed("heartbeat", heartbeat, "w1"))
        found[name] = [answers(honest), sum(sockets.dropped.values())]
    other = peer(runner.server.port, b"\xff\xfe")
    other.send(packed("client_ready", locust.__version__, "w1"))
    named = peer(runner.server.port, ESCAPE.encode())
    sockets.dropped.clear()
    named.send(packed("client_ready", locust.__version__, ESCAPE))
    gevent.sleep(0.2)
    found["names of peers"] = [answers(honest, 0.1), sum(sockets.dropped.values())]
    client = runner.clients["w1"]
    state = [client.state, client.cpu_usage, client.user_classes_count, list(runner.clients)]
    return {"first": first, "found": found, "state": state}


def sealed_as(seal: Seal, kind: str, data: Any) -> dict[str, bytes]:
    return seal.close(kind, "w1", data)


@case
def flood() -> list[Any]:
    """Answers within a flood of nonsense."""
    runner = master_runner()
    bad, honest = peer(runner.server.port, b"bad"), peer(runner.server.port, b"w1")
    for _ in range(2000):
        bad.send(b"\xc1")
    honest.send(packed("client_ready", locust.__version__, "w1"))
    return answers(honest)


@case
def large() -> dict[str, Any]:
    """How much more memory one message of 300 MB costs its receiver, and the largest that arrives."""
    server = zmqrpc.Server("127.0.0.1", 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = [sys.executable, "-c", LARGE, f"tcp://127.0.0.1:{server.port}"]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as sender:
        with gevent.Timeout(3, False):
            server.recv_from_client()
        sender.kill()
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    honest = peer(server.port, b"w1")
    honest.send(packed("tailgauge:part", {"body": bytes(sockets.TO_MASTER - 100)}, "w1"))
    name, message = server.recv_from_client()
    forging = zmq.Context.instance().socket(zmq.ROUTER)
    client = zmqrpc.Client("127.0.0.1", forging.bind_to_random_port("tcp://127.0.0.1"), "w1")
    return {
        "kib": kib, "arrived": [name, message.type, len(message.data["body"])],
        "client": client.socket.maxmsgsize,
    }  # fmt: skip


@case
def worker() -> dict[str, Any]:
    """A worker of a master that sends nonsense: what it counts, and whether it still answers."""
    forging = zmq.Context.instance().socket(zmq.ROUTER)
    port = forging.bind_to_random_port("tcp://127.0.0.1")

    def accept() -> None:
        name, _ = forging.recv_multipart()
        forging.send_multipart([name, packed("ack", {"index": 0}, name.decode())])

    gevent.spawn(accept)
    runner: Any = Environment(
        user_classes=[Placeholder], events=locust.event.Events()
    ).create_worker_runner("127.0.0.1", port)
    name, found = runner.client_id.encode(), {}
    theirs = dict(list(STRANGE.items())[: list(STRANGE).index("ready without version")])
    theirs["spawn without content"] = [packed("spawn", None, runner.client_id)]
    theirs["spawn with words"] = [packed("spawn", {"timestamp": "x"}, runner.client_id)]
    theirs["a class of users that is none"] = [packed("update_user_class", 7, runner.client_id)]
    for key, frames in theirs.items():
        sockets.dropped.clear()
        forging.send_multipart([name, *(f for f in frames)])
        found[key] = number_dropped()
    runner.last_heartbeat_timestamp = None
    forging.send_multipart([name, packed("heartbeat", None, runner.client_id)])
    gevent.sleep(0.2)
    return {"found": found, "receives": runner.last_heartbeat_timestamp is not None}


def number_dropped() -> int:
    """How many messages are counted as dropped, once one is."""
    with gevent.Timeout(5, False):
        while not sockets.dropped:
            gevent.sleep(0.01)
    return sum(sockets.dropped.values())


def attempt(master: str, worker: str) -> list[Any]:
    """Kind of the message that arrived, or why the worker was refused; how many connections the master counts."""
    sockets.dropped.clear()
    with token(master):
        server = zmqrpc.Server("127.0.0.1", 0)
    arrived: list[str] = []
    gevent.spawn(lambda: arrived.append(server.recv_from_client()[1].type))
    with token(worker):
        client = zmqrpc.Client("127.0.0.1", server.port, "w1")
        try:
            for _ in range(50):
                client.send(Message("client_ready", "2.0", "w1"))
                gevent.sleep(0.1)
                if arrived:
                    break
        except ConnectionRefusedError as error:
            arrived.append(str(error))
    gevent.sleep(0.1)
    refused = sockets.dropped[sockets.REFUSED] > 0
    client.close(0)
    server.close(0)
    return [arrived, refused]


@case
def tokens() -> dict[str, Any]:
    ours, other = "the token of the run", "another token as long"
    return {
        "same": attempt(ours, ours), "other": attempt(ours, other), "none": attempt(ours, ""),
        "only the worker": attempt("", ours), "neither": attempt("", ""),
    }  # fmt: skip


class Late(Message):
    """A message between whose look for a refusal and whose sending is time for a handshake."""

    def serialize(self) -> Any:
        gevent.sleep(0.05)
        return super().serialize()


@case
def refused_as_they_send() -> list[str]:
    """Of workers without the master's token, why five of them could not send their first message."""
    why: list[str] = []
    with token("the token of the run"):
        server = zmqrpc.Server("127.0.0.1", 0)
    for _ in range(60):
        if len(why) == 5:
            break
        client = zmqrpc.Client("127.0.0.1", server.port, "w1")
        try:
            client.send(Late("client_ready", "2.0", "w1"))
        except Exception as error:  # noqa: BLE001 - the test shows it
            why.append(f"{type(error).__name__}: {error}")
        client.close(0)
    return why


@case
def no_master_yet() -> list[str]:
    """A tunnel whose other end has no master accepts and closes: nobody was refused."""
    listener = tcp.create_server(("127.0.0.1", 0))

    def close_each() -> None:
        while True:
            listener.accept()[0].close()

    gevent.spawn(close_each)
    with token("the token of the run"):
        client = zmqrpc.Client("127.0.0.1", listener.getsockname()[1], "w1")
        for _ in range(15):
            client.send(Message("client_ready", "2.0", "w1"))
            gevent.sleep(0.1)
    return ["waits", client.failures < 5 and client.events is not None]


@case
def no_refusal() -> list[Any]:
    """What a worker says of others at the master's port: a web server, and a ZeroMQ socket where nobody has a token."""
    answers = []
    for greeting in (b"HTTP/1.1 400 Bad Request\r\n" + bytes(64), ZEROMQ):
        listener = tcp.create_server(("127.0.0.1", 0))
        answer = gevent.spawn(lambda: listener.accept()[0].sendall(greeting))  # noqa: B023
        port = listener.getsockname()[1]
        peer = SimpleNamespace(last_endpoint=f"tcp://127.0.0.1:{port}".encode())
        answers.append(sockets._refusal(peer, is_encrypted=greeting != ZEROMQ))
        answer.join()
    return answers


def overheard(text: str) -> bool:
    """Whether somebody on the way reads what is sent."""
    with token(text):
        server = zmqrpc.Server("127.0.0.1", 0)
        listener, seen = tcp.create_server(("127.0.0.1", 0)), bytearray()

        def carry(source: Any, sink: Any) -> None:
            while data := source.recv(65536):
                seen.extend(data)
                sink.sendall(data)

        def relay() -> None:
            here, there = listener.accept()[0], tcp.create_connection(("127.0.0.1", server.port))
            gevent.joinall([gevent.spawn(carry, here, there), gevent.spawn(carry, there, here)])

        gevent.spawn(relay)
        client = zmqrpc.Client("127.0.0.1", listener.getsockname()[1], "w1")
        client.send(Message("tailgauge:plan", {"body": b"a prompt that nobody else reads"}, "w1"))
        assert server.recv_from_client()[1].data == {"body": b"a prompt that nobody else reads"}
        return b"nobody else reads" in seen


@case
def overheard_in_transit() -> list[bool]:
    return [overheard("the token of the run"), overheard("")]


if __name__ == "__main__":
    print_facts()
    os._exit(0)  # Locust's greenlets never end
