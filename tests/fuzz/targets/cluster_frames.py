"""Frames on the port of a master: each is a message, or dropped and counted, and Locust goes on with the next."""

from __future__ import annotations

import logging
from typing import Any

import gevent
import locust
from channel.strangers import ENTRY, STRANGE, Placeholder, master_runner, packed
from locust import stats

from tailgauge.channel import sockets

HEARTBEAT = {"state": "running", "current_cpu_usage": 1.5, "current_memory_usage": 7}
STATS = {
    "stats": [ENTRY], "stats_total": ENTRY, "user_classes_count": {"Placeholder": 1}, "user_count": 1,
    "errors": {"a": {"name": "chat", "method": "POST", "error": "no", "occurrences": 2}},
}  # fmt: skip
REGULAR = (
    packed("client_ready", locust.__version__, "w1"),
    packed("heartbeat", HEARTBEAT, "w1"),
    packed("stats", STATS, "w1"),
    packed("spawning_complete", {"user_classes_count": {"Placeholder": 1}}, "w1"),
    packed("exception", {"msg": "x", "traceback": "y"}, "w1"),
    packed("logs", {"worker_id": "w1", "logs": ["x"]}, "w1"),
    packed("client_stopped", None, "w1"),
    packed("quit", None, "w1"),
)
RUNNER: Any = master_runner()

assert Placeholder
logging.disable(logging.CRITICAL)


def corpus() -> list[bytes]:
    return [*REGULAR, *(frames[0] for frames in STRANGE.values() if len(frames) == 1)]


def check(data: bytes) -> None:
    RUNNER.stats.clear_all()
    deliver(REGULAR[0])
    before = sockets.dropped.total()
    is_message = deliver(data)
    assert is_message or sockets.dropped.total() == before + 1
    gevent.sleep(0)
    deliver(REGULAR[0])
    deliver(REGULAR[1])
    assert RUNNER.clients["w1"].state == "running", "an honest heartbeat counts"
    stats.get_stats_summary(RUNNER.stats)
    stats.get_percentile_stats_summary(RUNNER.stats)
    stats.get_error_report_summary(RUNNER.stats)
    assert isinstance(RUNNER.user_count, int)


def deliver(frame: bytes) -> bool:
    """Let a frame of the worker w1 arrive, as the listener takes it; whether it is a message."""
    try:
        name, message = sockets._message(b"w1", frame)
    except Exception:  # noqa: BLE001 - as the listener does
        sockets.drop(sockets.UNDECODABLE)
        return False
    RUNNER.handle_message(name, message)
    return True
