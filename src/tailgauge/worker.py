"""A worker's ear: takes the owner's messages and hands each to the task of its run.

Rule: everything a worker knows comes in messages; those of an earlier run are for no one.
"""

from __future__ import annotations

import logging
import os
import platform
import resource
import sys
from typing import Any

from tailgauge.clock import boot_id, monotonic_ns, offset_from_ping
from tailgauge.errors import TailgaugeError
from tailgauge.link import Link
from tailgauge.offsets import Ping
from tailgauge.recorder import RecorderError
from tailgauge.task import Task
from tailgauge.transport.connection import hold_kernel_stamps

log = logging.getLogger("tailgauge")
SWITCH_S = 0.0005  # a thread that builds a Parquet part gives the interpreter back to the hub within this
CHATTY = ("httpx2", "httpcore2", "anthropic", "openai")  # they log a line a request
FAILURES = (TailgaugeError, RecorderError, OSError)


def prepare_process() -> None:
    """As many open files as the system permits (each stream is one), and short turns for writer threads."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.setswitchinterval(SWITCH_S)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


class Worker:
    """One worker process; takes part in one run at a time."""

    def __init__(self, link: Link, name: str, on_ended: Any) -> None:
        self._link = link
        self._name = name
        self._on_ended = on_ended
        self._task: Task | None = None
        self._holder = hold_kernel_stamps()
        for kind, handler in (("plan", self._plan), ("try", self._try), ("open", self._open), ("go", self._go),
                              ("slice", self._slice), ("drain", self._drain), ("hurry", self._hurry),
                              ("pong", self._pong)):  # fmt: skip
            link.hear(kind, handler)

    def hello(self) -> None:
        """Tell the owner that this worker is there (at Locust's test_start)."""
        self._link.send(
            "hello", {"name": self._name, "host": platform.node(), "pid": os.getpid(), "boot_id": boot_id()}
        )

    def finish(self, reason: str) -> None:
        """End the run in progress without the owner's word: it is gone. What was recorded stays readable."""
        if self._task is not None and not self._task.finished.is_set():
            log.warning("%s: closing what is open and writing what was recorded", reason)
            self._task.dispatcher.hurry()
            self._task.drain(0.0)

    def _plan(self, _: str, data: dict[str, Any]) -> None:
        try:
            self._task = Task(self._link, self._name, data, self._on_ended)
            self._task.prepare()
        except Exception as error:
            if not isinstance(error, FAILURES):
                log.exception("the plan could not be taken")
            self._link.send(
                "failed",
                {
                    "run": data["run"]["run_id"],
                    "why": str(error),
                    "target": isinstance(error, TailgaugeError),
                },
            )

    def _mine(self, data: dict[str, Any]) -> Task | None:
        """The task that a message is about; late messages of an earlier run are for no one."""
        return self._task if self._task is not None and self._task.run_id == data["run"] else None

    def _try(self, _: str, data: dict[str, Any]) -> None:
        if task := self._mine(data):
            task.preflight()

    def _open(self, _: str, data: dict[str, Any]) -> None:
        if task := self._mine(data):
            task.preopen()

    def _go(self, _: str, data: dict[str, Any]) -> None:
        if task := self._mine(data):
            task.go(data)

    def _slice(self, _: str, data: dict[str, Any]) -> None:
        if task := self._mine(data):
            task.dispatcher.lease(data["rows"])

    def _drain(self, _: str, data: dict[str, Any]) -> None:
        if task := self._mine(data):
            task.drain(data["seconds"])

    def _hurry(self, _: str, data: dict[str, Any]) -> None:
        if task := self._mine(data):
            task.dispatcher.hurry()

    def _pong(self, _: str, data: dict[str, Any]) -> None:
        if task := self._mine(data):
            now = monotonic_ns()
            task.pings.append(Ping(now, offset_from_ping(data["t0"], data["t1"], data["t2"], now)))
            task.ponged.set()
