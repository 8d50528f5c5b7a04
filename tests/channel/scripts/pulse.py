"""Script: a worker's link and the socket of its master, while the worker's hub is busy, talks, or has ended."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import zmq
from locust.rpc.protocol import Message

from tailgauge.channel.auth import Seal
from tailgauge.channel.messages import Link

EVERY_S = 0.1
context = zmq.Context()
master = context.socket(zmq.ROUTER)
port = master.bind_to_random_port("tcp://127.0.0.1")
sent: list[str] = []
runner = SimpleNamespace(
    master_host="127.0.0.1",
    master_port=port,
    client_id="w1",
    client=SimpleNamespace(socket=context.socket(zmq.DEALER)),
    send_message=lambda kind, *_, **__: sent.append(kind),
)
seal, ended = Seal("the token of the run"), []
link = Link(runner, seal)


def received(wait_s: float = 0.3) -> list[Any]:
    """Kind, worker and content of what has arrived."""
    found = []
    while master.poll(int(wait_s * 1e3)):
        message = Message.unserialize(master.recv_multipart()[1])
        found.append(
            [message.type, message.node_id, seal.open("pulse", message.node_id, message.data)]
        )
    return found


link.beat(lambda: bool(ended), EVERY_S)
busy_until = time.monotonic() + 2
while time.monotonic() < busy_until:  # the hub runs in this thread
    pass
busy = received(0.05)
for _ in range(15):
    link.send("counters", {})
    time.sleep(EVERY_S)
    if _ < 3:
        received(0.0)  # one that was due before the first message
talks = received(0.0)
ended.append(True)
time.sleep(4 * EVERY_S)
received(0.0)
after = received(4 * EVERY_S)
local = SimpleNamespace(client_id=None)
Link(local, seal).beat(lambda: False, EVERY_S)
print(json.dumps({"busy": busy, "talks": talks, "after": after, "sent": len(sent)}))
