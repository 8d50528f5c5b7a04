"""What must go on for as long as a process lives goes on after it has failed."""

from __future__ import annotations

import gevent
import psutil
import pytest
from locust import runners
from locust.env import Environment

from tailgauge.channel import supervisor
from tailgauge.channel.supervisor import supervised

pytestmark = pytest.mark.gevent


def test_a_duty_that_fails_is_named_once_and_begins_again(monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "PAUSE_S", 0.01)
    calls = []

    def duty(first):
        calls.append(first)
        if len(calls) < 4:
            raise OSError(24, "Too many open files", "/a")

    supervised(duty, "the duty cannot be done")(7)

    assert calls == [7] * 4
    (line,) = caplog.messages
    assert line.startswith(
        "the duty cannot be done: /a: no file descriptor is left to this process: "
    )


def test_locusts_look_at_the_cpu_goes_on_without_a_traceback(monkeypatch, caplog, capfd):
    answers = [OSError(24, "Too many open files"), psutil.AccessDenied(1)]

    def cpu_percent(process):
        if answers:
            raise answers.pop(0)
        return 1.0

    monkeypatch.setattr(psutil.Process, "cpu_percent", cpu_percent)
    monkeypatch.setattr(runners, "CPU_MONITOR_INTERVAL", 0.01)
    runner = Environment(user_classes=[]).create_local_runner()
    with gevent.Timeout(20):
        while runner.current_cpu_usage != 1.0:
            gevent.sleep(0.01)

    first, second = caplog.messages
    assert first.startswith(
        "the CPU use of this process cannot be read: no file descriptor is left"
    )
    assert second.startswith("the CPU use of this process cannot be read: (pid=1")
    assert "Traceback" not in capfd.readouterr().err
