"""Script: stamps beside the sender's own times, with a client that is asleep at the wheel.

The argument says whose: `kernel`; `user`, our own clock on purpose; `elsewhere`, a system whose kernel stamps nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import gevent
from transport.scripts.scripted_server import Payload, call, stopwatch

from tailgauge.transport import connection
from tailgauge.transport.exchange import Exchange

BLOCKED_S = 0.1
WHOSE = sys.argv[1]
if WHOSE == "elsewhere":
    connection.KERNEL_STAMPS = False


def block() -> None:
    """Stall the whole client, as a garbage collection would."""
    while True:
        gevent.sleep(0.03)
        time.sleep(BLOCKED_S)


with subprocess.Popen(
    [sys.executable, str(Path(__file__).with_name("pacing_server.py"))],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
) as server:
    port = int(server.stdout.readline())
    blocker = gevent.spawn(block)
    exchange = Exchange(Payload())
    with gevent.Timeout(20):
        call(stopwatch(user_clock=WHOSE == "user"), f"http://127.0.0.1:{port}", exchange=exchange)
    blocker.kill()
    sent = json.loads(server.stdout.readline())
    server.stdin.close()
reads = [
    (payload.decode(), low, arrived, read_at, at_rest)
    for payload, low, arrived, read_at, _, at_rest in exchange.decoder.fed
]
print(json.dumps({
    "user_stamps": exchange.user_stamps, "sent": sent, "reads": reads,
    "receive_lag_max_ns": exchange.receive_lag_max_ns, "sent_at_ns": exchange.sent_at_ns,
    "headers_at_ns": exchange.headers_at_ns, "ended_at_ns": exchange.ended_at_ns,
}))  # fmt: skip
