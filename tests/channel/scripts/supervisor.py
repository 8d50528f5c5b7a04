"""Script: a duty that fails twice and then ends, and Locust's own look at the CPU without a descriptor."""

from __future__ import annotations

import json
import logging

from tailgauge.channel import supervisor
from tailgauge.channel.supervisor import supervised

# isort: split
import gevent
import psutil
from locust import runners
from locust.env import Environment

lines: list[str] = []


class Kept(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines.append(self.format(record))


logging.getLogger().addHandler(Kept())
supervisor.PAUSE_S = 0.01
calls: list[int] = []


def duty(first: int) -> None:
    calls.append(first)
    if len(calls) < 4:
        raise OSError(24, "Too many open files", "/a")


supervised(duty, "the duty cannot be done")(7)
of_duty = list(lines)
lines.clear()

looks: list[int] = []


def cpu_percent(_: object) -> float:
    looks.append(1)
    if len(looks) < 3:
        raise OSError(24, "Too many open files") if len(looks) == 1 else psutil.AccessDenied(1)
    return 1.0


psutil.Process.cpu_percent = cpu_percent
runners.CPU_MONITOR_INTERVAL = 0.01
runner = Environment(user_classes=[]).create_local_runner()
with gevent.Timeout(20):
    while runner.current_cpu_usage != 1.0:
        gevent.sleep(0.01)
print(json.dumps({"duty": {"calls": calls, "lines": of_duty}, "locust": {"lines": lines}}))
