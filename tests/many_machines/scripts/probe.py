"""What a host of the tests' own networks can reach: `probe.py CASE ADDRESS PORT`, one JSON object printed.

Rule: standard library only; every wait is bounded.
"""

from __future__ import annotations

import json
import socket
import sys
import time

PACKETS = 4000
BYTES = 32 << 20


def catch(address: str, port: int) -> dict[str, object]:
    """Count the datagrams that arrive until none does for half a second."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        ear.bind((address, port))
        print("ready", flush=True)
        ear.settimeout(10)
        count = 0
        while True:
            try:
                ear.recv(100)
            except TimeoutError:
                return {"caught": count}
            count += 1
            ear.settimeout(0.5)


def throw(address: str, port: int) -> dict[str, object]:
    """Send as many datagrams, slowly enough for any buffer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mouth:
        for number in range(PACKETS):
            mouth.sendto(b"x", (address, port))
            if number % 50 == 0:
                time.sleep(0.002)
    return {"thrown": PACKETS}


def echo(address: str, port: int) -> dict[str, object]:
    """Answer a byte with a byte; swallow what is longer, and answer it once it is all there."""
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        server.settimeout(20)
        peer, _ = server.accept()
        with peer:
            peer.sendall(peer.recv(1))
            left = BYTES
            while left and (data := peer.recv(1 << 20)):
                left -= len(data)
            peer.sendall(b"y")
    return {"left": left}


def call(address: str, port: int) -> dict[str, object]:
    """Times of a byte there and back, and of many bytes there and a byte back, in seconds."""
    with socket.create_connection((address, port), 10) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        at = time.monotonic()
        peer.sendall(b"x")
        peer.recv(1)
        byte_s = time.monotonic() - at
        at = time.monotonic()
        peer.sendall(bytes(BYTES))
        peer.recv(1)
        return {"byte_s": byte_s, "bulk_s": time.monotonic() - at, "bytes": BYTES}


def reach(address: str, port: int) -> dict[str, object]:
    """Whether somebody there answers, if only that nobody listens."""
    try:
        socket.create_connection((address, port), 2).close()
    except ConnectionRefusedError:
        return {"reached": True}
    except OSError as error:
        return {"reached": False, "why": str(error)}
    return {"reached": True}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2], int(sys.argv[3]))), flush=True)
