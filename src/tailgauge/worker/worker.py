"""A worker process: receives the master's messages and passes each to the task of its run.

It sends hello until the master accepts or refuses it, and then takes part in each run. Messages of an earlier run are
ignored.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent

import tailgauge
from tailgauge import __version__, descriptors
from tailgauge.channel.messages import Handler, Link
from tailgauge.clock import boot_id
from tailgauge.errors import InternalError, TailgaugeError, TargetError
from tailgauge.machine import shortage
from tailgauge.plugins import plugin
from tailgauge.protocols.table import SDKS
from tailgauge.rows.recorder import RecorderError
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.transport.connection import hold_kernel_stamps
from tailgauge.worker.run import Task

log = logging.getLogger("tailgauge")
SWITCH_S = (
    0.0005  # a thread that builds a Parquet part gives the interpreter back to the hub within this
)
HELLO_S = 1.0
PACKAGE = str(Path(tailgauge.__file__).parent)
CHATTY = ("httpx2", "httpcore2", *SDKS)  # they log each request
FAILURES = (TailgaugeError, RecorderError, OSError)
OF_A_RUN: dict[
    str, Callable[[Task, dict[str, Any]], object]
] = {  # message -> what the task of its run does
    "try": lambda task, _: task.preflight(),
    "open": lambda task, _: task.preopen(),
    "go": Task.go,
    "slice": lambda task, data: task.dispatcher.lease(data["rows"]),
    "got": lambda task, data: task.part_sender.got(data),
    "drain": lambda task, data: task.drain(
        data["seconds"], sends=data["sends"], serves=data["serves"]
    ),
    "hurry": lambda task, _: task.dispatcher.hurry(),
    "delivered": lambda task, _: task.delivered(),
    "pong": lambda task, data: task.clock.answer(data["t0"], data["t1"], data["t2"]),
}


def prepare_process() -> None:
    """Permit as many open files (one per stream) as the system allows, and short turns of writer threads."""
    descriptors.raise_limit()
    sys.setswitchinterval(SWITCH_S)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


class Worker:
    """One worker process, in one run at a time. `out`: folder of rows that the master does not have yet."""

    def __init__(
        self, link: Link, name: str, out: Path, on_ended: Any, *, is_child: bool = False
    ) -> None:
        self._link = link
        self._name = name
        self._out = out
        self._on_ended = on_ended
        self._is_child = is_child
        self.task: Task | None = None
        self._welcome = False
        self.refused: str | None = None  # the master's reason
        self.left = ""  # folder with rows that were not transferred
        self.on_refused: Callable[[], None] = lambda: None
        self._holder = hold_kernel_stamps()
        self._print_error = gevent.get_hub().handle_error
        gevent.get_hub().handle_error = self._on_hub_error
        for kind, handler in (
            ("welcome", self._welcomed),
            ("refused", self._refused),
            ("plan", self._plan),
        ):
            link.subscribe(kind, handler)
        for kind, action in OF_A_RUN.items():
            link.subscribe(kind, self._for_task(action))

    def hello(self) -> None:
        """Send hello until the master answers."""
        hello = {
            "name": self._name,
            "host": platform.node(),
            "pid": os.getpid(),
            "boot_id": boot_id(),
        }
        hello |= {"version": __version__, "schema": SCHEMA_VERSION, "child": self._is_child}
        hello |= {"plugins": plugin.hashes()}
        while not self._welcome and self.refused is None:
            self._link.send("hello", hello)
            gevent.sleep(HELLO_S)

    def finish(self, reason: str, *, master_gone: bool = True) -> bool:
        """End a run in progress early. Rows are transferred, or stay readable on this machine."""
        task = self.task
        if task is None or task.finished.is_set():
            return False
        log.warning("%s: closing open requests and writing rows", reason)
        task.leave(reason, master_gone=master_gone)
        self.left = "" if task.is_delivered else str(task.folder.path)
        return True

    def _on_hub_error(self, context: Any, kind: Any, error: Any, trace: Any) -> None:
        """An error that nothing caught, in whatever greenlet or callback. One of our own code ends the run."""
        # Neither Ctrl-C nor an exit is an error: the hub passes them to the main greenlet, wherever they came.
        ends_run = isinstance(error, Exception) and (
            isinstance(error, MemoryError) or _is_ours(trace)
        )
        if ends_run and self.task is not None:
            gevent.spawn(self.task.on_error, error)  # not here: the hub may not wait
        else:
            self._print_error(context, kind, error, trace)

    def _welcomed(self, _: str, data: dict[str, Any]) -> None:  # noqa: ARG002 - a handler's arguments
        if not self._welcome:
            self._welcome = True
            if self._link.has_other_end:
                log.info("connected to the master; waiting for a run")

    def _refused(self, _: str, data: dict[str, Any]) -> None:
        if not self._welcome:  # not sealed: ignored once accepted
            self.refused = data["why"]
            self.on_refused()

    def _plan(self, _: str, data: dict[str, Any]) -> None:
        try:
            self.task = Task(self._link, self._name, data, self._out, self._on_ended)
            self.task.prepare()
        except Exception as error:  # noqa: BLE001 - the master learns of it
            failure: Exception = error
            if shortage(error) or plugin.fault(error) or not isinstance(error, FAILURES):
                failure = plugin.failure(error)
            log.warning("this worker cannot take part: %s", failure)
            reason = {
                "why": str(failure),
                "target": isinstance(failure, TargetError),
                "internal": isinstance(failure, InternalError),
            }
            self._link.send("failed", {"run": data["run"]["run_id"], **reason})

    def _for_task(self, action: Callable[[Task, dict[str, Any]], object]) -> Handler:
        """A handler that ignores messages of an earlier run."""

        def handle(_: str, data: dict[str, Any]) -> None:
            task = self.task
            if task is None or task.run_id != data["run"]:
                return
            try:
                action(task, data)
            except Exception as error:  # noqa: BLE001 - the master learns of it
                log.warning("a message of the master could not be followed: %s", error)
                task.on_error(error)

        return handle


def _is_ours(trace: Any) -> bool:
    """Return whether an error came through code of this package."""
    return any(
        frame.f_code.co_filename.startswith(PACKAGE) for frame, _ in traceback.walk_tb(trace)
    )
