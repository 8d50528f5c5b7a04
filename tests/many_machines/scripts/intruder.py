"""Somebody who speaks Locust's protocol and has no token: `intruder.py HOST PORT SECONDS VICTIM`, one JSON object printed.

Rule: it says that it is ready, greets the master with a mark of its own making, and speaks in the name of the worker VICTIM;
then it prints what kinds of messages it was sent.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

import msgpack
import zmq

ME = "intruder_0"
FORGED = b"\0" * 32
LIES = ("hello", "ready", "tried", "counters", "drained", "failed", "part", "guarded")


def main() -> None:
    host, port, seconds, victim = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    socket = zmq.Context().socket(zmq.DEALER)
    socket.identity, socket.linger = ME.encode(), 0
    socket.connect(f"tcp://{host}:{port}")
    kinds: dict[str, int] = {}
    deadline = time.monotonic() + seconds
    report(socket, "client_ready", -1, ME)
    while time.monotonic() < deadline:
        report(
            socket,
            "heartbeat",
            {"state": "running", "current_cpu_usage": 0, "current_memory_usage": 0},
            ME,
        )
        for kind in LIES:
            for name in (ME, victim):
                data = {"run": "none", "limit": "max_cost", "why": "a lie", "name": name}
                report(socket, f"tailgauge:{kind}", data, name)
                report(
                    socket, f"tailgauge:{kind}", {"body": msgpack.dumps(data), "mark": FORGED}, name
                )
        while socket.poll(500):
            kind, *_ = msgpack.loads(socket.recv(), strict_map_key=False)
            kinds[kind] = kinds.get(kind, 0) + 1
    print(json.dumps({"kinds": kinds}), flush=True)


def report(socket: zmq.Socket, kind: str, data: object, name: str) -> None:
    with contextlib.suppress(zmq.Again):  # the master has closed the connection
        socket.send(msgpack.dumps((kind, data, name)), zmq.NOBLOCK)


if __name__ == "__main__":
    main()
