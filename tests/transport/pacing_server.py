"""A server of its own process: answers each request with events, and prints when it had sent each."""

from __future__ import annotations

import json
import socket
import sys
import time

EVENTS = 20
PAUSE_S = 0.01

with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.recv(65536)
    sock.sendall(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    sent = []
    for number in range(EVENTS):
        time.sleep(PAUSE_S)
        data = b"data: %d\n\n" % number
        before = time.monotonic_ns()
        sock.sendall(b"%x\r\n%b\r\n" % (len(data), data))
        sent.append([before, time.monotonic_ns()])
    time.sleep(PAUSE_S)
    sock.sendall(b"0\r\n\r\n")
    print(json.dumps(sent), flush=True)
    sys.stdin.read()
    sock.close()
