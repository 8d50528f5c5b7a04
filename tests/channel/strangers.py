"""Frames that a stranger may send to the port of a master, and what sends and receives them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import locust
import msgpack
from locust.env import Environment

from tailgauge.channel.auth import TOKEN

ESCAPE = "\x1b[2J\nw1"


class Placeholder(locust.User):
    """Locust wants one."""


def packed(*message: Any) -> bytes:
    return msgpack.packb(message)


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


ENTRY = {  # of Locust's statistics
    "name": "chat", "method": "POST", "last_request_timestamp": 5.0, "start_time": 1.0, "num_requests": 3, "num_none_requests": 0,
    "num_failures": 1, "total_response_time": 30.0, "max_response_time": 12.0, "min_response_time": 8.0,
    "total_content_length": 0, "response_times": {10: 3}, "num_reqs_per_sec": {1: 3}, "num_fail_per_sec": {1: 1},
}  # fmt: skip
# By name: frames behind a peer's name; None for the name of w1.
STRANGE: dict[str, list[bytes]] = {
    "nothing": [b""],
    "two frames": [packed("quit", None, "w1"), b""],
    "no msgpack": [b"\xc1"],
    "cut off": [packed("heartbeat", {"state": "ready"}, "w1")[:-4]],
    "more behind it": [packed("quit", None, "w1") * 2],
    "nested deeply": [nested(100_000)],
    "nested as data": [b"\x93\xa4quit" + nested(500) + b"\xa2w1"],
    "a huge array that is not there": [b"\xdd\xff\xff\xff\xff"],
    "a huge map that is not there": [b"\x93\xa4quit\xdf\xff\xff\xff\xff"],
    "an empty array": [packed()],
    "four fields": [packed("quit", None, "w1", 1)],
    "a number": [msgpack.packb(7)],
    "text": [msgpack.packb("abc")],
    "a table": [msgpack.packb({"type": "quit", "data": None, "node_id": "w1"})],
    "no node": [packed("quit", None, None)],
    "a table as node": [packed("quit", None, {"a": 1})],
    "a list as node": [packed("client_ready", "2.0", ["w1"])],
    "bytes as node": [packed("quit", None, b"\xff\xfe")],
    "an empty node": [packed("client_ready", "2.0", "")],
    "another's node": [packed("client_ready", "2.0", "w2")],
    "a node with control characters": [packed("client_ready", "2.0", ESCAPE)],
    "no kind": [packed(None, None, "w1")],
    "a table as kind": [packed({}, None, "w1")],
    "an unknown kind": [packed("shutdown", None, "w1")],
    "an unknown kind with control characters": [packed(ESCAPE, None, "w1")],
    "text that is no UTF-8": [b"\x93\xa4quit\xc0\xa2\xff\xfe"],
    "a date that is none": [packed("quit", {"__datetime__": True, "as_str": 7}, "w1")],
    "an object of a database": [packed("quit", {"__ObjectId__": True, "as_str": "x"}, "w1")],
    "ready without version": [packed("client_ready", None, "w1")],
    "ready with a number": [packed("client_ready", 7, "w1")],
    "ready with a table": [packed("client_ready", {"a": 1}, "w1")],
    "a heartbeat without content": [packed("heartbeat", None, "w1")],
    "a heartbeat without figures": [packed("heartbeat", {"state": "ready"}, "w1")],
    "a heartbeat with words": [packed("heartbeat", {"state": 1, "current_cpu_usage": "a lot", "current_memory_usage": []}, "w1")],
    "users that are none": [packed("spawning_complete", {"user_classes_count": {"Placeholder": "many"}}, "w1")],
    "users as a list": [packed("spawning_complete", {"user_classes_count": [1]}, "w1")],
    "statistics without content": [packed("stats", None, "w1")],
    "statistics that are none": [packed("stats", {"stats": 1, "stats_total": 2, "errors": 3, "user_classes_count": 4}, "w1")],
    "statistics that add up to nothing": [packed("stats", {"stats": [{**ENTRY, "num_requests": 0}], "stats_total": ENTRY, "errors": {}, "user_classes_count": {}}, "w1")],
    "logs without content": [packed("logs", None, "w1")],
    "logs of nobody": [packed("logs", {"logs": ["x"]}, "w1")],
    "an exception without text": [packed("exception", {"msg": {}, "traceback": []}, "w1")],
    "a wish for locustfiles that there are not": [packed("locustfile", {"version": "2.0"}, "w1")],
    "a wish for locustfiles without a version": [packed("locustfile", 7, "w1")],
    "ours without content": [packed("tailgauge:hello", None, "w1")],
    "ours with a list": [packed("tailgauge:hello", [1, 2], "w1")],
    "ours without a mark": [packed("tailgauge:hello", {"body": b"\x80", "mark": b""}, "w1")],
}  # fmt: skip


@contextlib.contextmanager
def token(text: str) -> Iterator[None]:
    os.environ[TOKEN] = text
    yield
    os.environ.pop(TOKEN)


def master_runner() -> Any:
    return Environment(
        user_classes=[Placeholder], events=locust.event.Events()
    ).create_master_runner("127.0.0.1", 0)
