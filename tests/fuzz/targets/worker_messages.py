"""Messages of a worker that has the token: whatever they say, the master does its duties to the end and writes run.json.

An input has a message in JSON a line, as `samples/messages.jsonl`; a value `{"bytes": "00ff"}` stands for bytes.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent

from tailgauge.channel import messages
from tailgauge.channel.auth import Seal
from tailgauge.clock import monotonic_ns
from tailgauge.errors import InternalError, TailgaugeError
from tailgauge.locust_app.users import Master
from tailgauge.master import run_json
from tailgauge.master.run import Run
from tailgauge.plan.resolve import resolve

SAMPLES = Path(__file__).parents[1] / "samples" / "messages.jsonl"
FOLDER = Path(tempfile.mkdtemp(prefix="tailgauge-fuzz-"))
SCENARIOS = ("quickstart", "mix")
SETTINGS = [resolve(name, [], FOLDER) for name in SCENARIOS]
OTHER = "w2"  # an honest worker, beside whom the messages come
HELLO = {"name": "other", "host": "b", "pid": 7, "version": "0", "schema": 1, "child": True}
MOST_MESSAGES = 60

VERSIONS = run_json.installed_versions()

os.chdir(FOLDER)
run_json.installed_versions = lambda: VERSIONS  # which takes half of the time of a check
logging.disable(logging.CRITICAL)
messages.InternalError = SimpleNamespace(of=str)  # type: ignore[misc,assignment] - it would write a file each time


class Runner:
    """Locust's runner, as far as the channel needs one."""

    def __init__(self) -> None:
        self.listeners: dict[str, Any] = {}
        self.sent: list[str] = []  # kinds

    def register_message(self, kind: str, listener: Any) -> None:
        self.listeners[kind] = listener

    def send_message(self, kind: str, *_: Any, **__: Any) -> None:
        """Keep the kind."""
        self.sent.append(kind)


def master_of(runner: Runner, seal: Seal) -> Master:
    """A master without Locust."""
    hook = SimpleNamespace(add_listener=lambda _: None)
    environment = SimpleNamespace(
        runner=runner, events=SimpleNamespace(test_start=hook, test_stopping=hook)
    )
    return Master(environment, None, seal, stays=False)


def corpus() -> list[bytes]:
    lines = SAMPLES.read_bytes().splitlines(keepends=True)
    without_an_end = [
        line for line in lines if b'"drained"' not in line and b'"failed"' not in line
    ]
    return [
        b"".join(lines),
        b"".join(without_an_end),
        b"".join(lines[:5]),
        *(lines[0] + lines[3] + line for line in lines),
    ]


def check(data: bytes) -> None:
    runner = Runner()
    seal = Seal("0123456789abcdef")
    master = master_of(runner, seal)
    master.run = run = Run(
        messages.Link(runner, seal),
        SETTINGS[len(data) % 2],
        lambda: 1,
        lambda _: True,
        lambda _: None,
    )
    try:
        run.folder.create()
        for message in read(data, run.run_id):
            deliver(runner, seal, *message)
        gevent.sleep(0)
        run.on_hello(OTHER, HELLO)
        do_duties(
            run, lambda: [deliver(runner, seal, *message) for message in read(data, run.run_id)]
        )
    finally:
        shutil.rmtree(run.folder.path, ignore_errors=True)


def read(data: bytes, run_id: str) -> list[tuple[str, Any]]:
    """The messages of an input; a line that is none is left out."""
    found = []
    for line in data.replace(b"RUN", run_id.encode()).splitlines()[:MOST_MESSAGES]:
        try:
            tree = json.loads(line, object_hook=from_json)
            found.append((str(tree["kind"]), tree["data"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return found


def from_json(tree: dict[str, Any]) -> Any:
    if tree.keys() == {"bytes"} and isinstance(tree["bytes"], str):
        return bytes.fromhex(tree["bytes"])
    return tree


def deliver(runner: Runner, seal: Seal, kind: str, data: Any) -> None:
    """Let a message of the worker w1 arrive."""
    listener = runner.listeners.get(f"tailgauge:{kind}")
    try:
        sealed = seal.close(kind, "w1", data)
    except (OverflowError, ValueError, UnicodeEncodeError):
        return  # no worker can send it
    if listener is not None:
        listener(None, SimpleNamespace(node_id="w1", data=sealed))


def do_duties(run: Run, again: Any) -> None:
    """Do the duties of a master, from the preflight to run.json; a refusal ends them, too."""
    assert OTHER in run.workers.by_node or run._state.is_draining, "an honest worker takes part"
    run._start._is_plan_sent = True
    run._state.wait_until = lambda *_: None  # type: ignore[method-assign] - nobody answers here
    try:
        if run._preflight.result is not None:
            run._preflight.make()
            run._engine_metrics._targets = []
            run._start.go()
    except InternalError:
        raise
    except TailgaugeError:
        return  # the run ends with it
    if run.start_at_ns is not None:
        run._state.start_at_ns = monotonic_ns() - 2_000_000_000
        run._admission.leases.up_to(2_000_000_000)
    again()
    gevent.sleep(0)
    run.snapshot()
    run._admission.protect_target()
    run._admission.note_losses()
    run._drain.settle()
    run._record.write(ended=True)
    assert isinstance(run.has_lost_rows, bool)
    facts = json.loads(run.folder.run_json.read_text(encoding="utf-8"), parse_constant=refuse)
    assert facts["run_id"] == run.run_id


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")
