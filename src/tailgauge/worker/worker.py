"""A worker process: receives the master's messages and passes each to the run that it takes part in.

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
from tailgauge.worker.run import WorkerRun

log = logging.getLogger("tailgauge")
# A thread that builds a Parquet part gives the interpreter back to the hub within this time.
SWITCH_S = 0.0005
HELLO_S = 1.0
PACKAGE = str(Path(tailgauge.__file__).parent)
CHATTY = ("httpx2", "httpcore2", *SDKS)  # they log each request
FAILURES = (TailgaugeError, RecorderError, OSError)
Action = Callable[[WorkerRun, dict[str, Any]], object]
# Messages about a run, and what it does with each.
ACTIONS: dict[str, Action] = {
    "try": lambda run, _: run.preflight(),
    "open": lambda run, _: run.preopen(),
    "go": WorkerRun.go,
    "slice": lambda run, data: run.dispatcher.lease(data["rows"]),
    "got": lambda run, data: run.delivery.sender.got(data),
    "drain": lambda run, data: run.drain(
        data["seconds"], sends=data["sends"], serves=data["serves"]
    ),
    "hurry": lambda run, _: run.dispatcher.hurry(),
    "delivered": lambda run, _: run.delivered(),
    "pong": lambda run, data: run.clock.answer(data["t0"], data["t1"], data["t2"]),
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
        self,
        link: Link,
        name: str,
        out: Path,
        on_ended: Callable[[str, str, float], None],
        *,
        is_child: bool = False,
    ) -> None:
        """Subscribe to the master's messages; `hello` reports this worker to it. Replaces the hub's error handler.

        `out`: folder of rows that the master does not have yet. `on_ended` gets the traffic table, the
        outcome and the time in ms of each request. `is_child`: the master has started this process.
        """
        self._link = link
        self._name = name
        self._out = out
        self._on_ended = on_ended
        self._is_child = is_child
        self.run: WorkerRun | None = None
        self._welcome = False  # the master has accepted it
        self.refused: str | None = None  # the master's reason
        self.left = ""  # folder with rows that were not transferred
        self.on_refused: Callable[[], None] = lambda: None
        # Kernel timestamps stay enabled as long as this socket is open.
        self._holder = hold_kernel_stamps()
        self._print_error = gevent.get_hub().handle_error  # the hub's own handler
        gevent.get_hub().handle_error = self._on_hub_error
        link.subscribe("welcome", self._on_welcome)
        link.subscribe("refused", self._on_refused)
        link.subscribe("plan", self._on_plan)
        for kind, action in ACTIONS.items():
            link.subscribe(kind, self._handler(action))

    def hello(self) -> None:
        """Send hello until the master answers."""
        hello = {
            "name": self._name,
            "host": platform.node(),
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "version": __version__,
            "schema": SCHEMA_VERSION,
            "child": self._is_child,
            "plugins": plugin.hashes(),
        }
        while not self._welcome and self.refused is None:
            self._link.send("hello", hello)
            gevent.sleep(HELLO_S)

    def finish(self, reason: str, *, master_gone: bool = True) -> bool:
        """End a run in progress early; return False if there was none.

        Rows are transferred, or stay readable on this machine in the folder `left`.
        """
        run = self.run
        if run is None or run.finished.is_set():
            return False
        log.warning("%s: closing open requests and writing rows", reason)
        run.leave(reason, master_gone=master_gone)
        self.left = ""
        if not run.delivery.is_delivered:
            self.left = str(run.folder.path)
        return True

    def _on_hub_error(self, context: Any, kind: Any, error: Any, trace: Any) -> None:
        """Take an error that nothing caught, in whatever greenlet or callback. One of our own code ends the run."""
        # Neither Ctrl-C nor an exit is an error: the hub passes them to the main greenlet, wherever they came.
        is_error = isinstance(error, Exception)
        ends_run = is_error and (isinstance(error, MemoryError) or _is_ours(trace))
        if ends_run and self.run is not None:
            # Not in this callback: the hub may not wait.
            gevent.spawn(self.run.state.on_error, error)
        else:
            self._print_error(context, kind, error, trace)

    def _on_welcome(self, _: str, data: dict[str, Any]) -> None:  # noqa: ARG002 - a handler's arguments
        if self._welcome:
            return
        self._welcome = True
        if self._link.has_other_end:
            log.info("connected to the master; waiting for a run")

    def _on_refused(self, _: str, data: dict[str, Any]) -> None:
        if not self._welcome:  # not sealed: ignored once accepted
            self.refused = data["why"]
            self.on_refused()

    def _on_plan(self, _: str, data: dict[str, Any]) -> None:
        try:
            self.run = WorkerRun(self._link, self._name, data, self._out, self._on_ended)
            self.run.prepare()
        except Exception as error:  # noqa: BLE001 - the master learns of it
            self._refuse_plan(data["run"]["run_id"], error)

    def _refuse_plan(self, run_id: str, error: Exception) -> None:
        """Tell the master that this worker cannot take part in a run, and why."""
        failure: Exception = error
        if shortage(error) or plugin.fault(error) or not isinstance(error, FAILURES):
            failure = plugin.failure(error)
        log.warning("this worker cannot take part: %s", failure)
        message = {
            "run": run_id,
            "why": str(failure),
            "target": isinstance(failure, TargetError),
            "internal": isinstance(failure, InternalError),
        }
        self._link.send("failed", message)

    def _handler(self, action: Action) -> Handler:
        """Return a handler that ignores messages of an earlier run."""

        def handle(_: str, data: dict[str, Any]) -> None:
            run = self.run
            if run is None or run.run_id != data["run"]:
                return
            try:
                action(run, data)
            except Exception as error:  # noqa: BLE001 - the master learns of it
                log.warning("a message of the master could not be followed: %s", error)
                run.state.on_error(error)

        return handle


def _is_ours(trace: Any) -> bool:
    """Return whether an error came through code of this package."""
    frames = traceback.walk_tb(trace)
    return any(frame.f_code.co_filename.startswith(PACKAGE) for frame, _ in frames)
