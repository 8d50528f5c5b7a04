"""Script: a worker with the token that repeats its messages, or sends those of another run."""

from __future__ import annotations

import json
import os
from typing import Any

import gevent
from fuzz.targets.worker_messages import SAMPLES, SETTINGS, Runner, deliver, from_json, master_of
from starting.script import case, print_facts

from tailgauge.channel.auth import Seal
from tailgauge.channel.messages import Link
from tailgauge.clock import monotonic_ns
from tailgauge.master.run import Run

SEAL = Seal("0123456789abcdef")


def started(kinds: list[str], *, run_id: str = "", is_late: bool = False) -> dict[str, Any]:
    """What becomes of a run after these messages of the worker w1."""
    runner = Runner()
    master = master_of(runner, SEAL)
    master.run = run = Run(
        Link(runner, SEAL), SETTINGS[0], lambda: 1, lambda _: True, lambda _: None
    )
    run._start._is_plan_sent = is_late
    run._preflight.receive(
        {
            "calls": [],
            "learnt": [1.0, 0, True, [], []],
            "engines": {},
            "adaptations": {},
            "spent": [0, 0, None],
        }
    )
    run._state.start_at_ns = monotonic_ns()
    texts = SAMPLES.read_text(encoding="utf-8").replace("RUN", run_id or run.run_id).splitlines()
    trees = [json.loads(text, object_hook=from_json) for text in texts]
    samples = {tree["kind"]: tree["data"] for tree in trees}
    for kind in kinds:
        deliver(runner, SEAL, kind, samples[kind])
        gevent.sleep(0)
    states = {name: worker.state for name, worker in run.workers.by_node.items()}
    return {"sent": runner.sent, "workers": states, "notes": run.notes, "failure": str(run.failure)}


@case
def repeated_hello() -> dict[str, Any]:
    return started(["hello", "hello"])


@case
def repeated_ready() -> dict[str, Any]:
    return started(["hello", "ready", "ready"], is_late=True)


@case
def of_another_run() -> dict[str, Any]:
    return started(["hello", "failed", "guarded", "drained"], run_id="20260101T000000Z-other-0000")


@case
def repeated_failed() -> dict[str, Any]:
    return started(["hello", "ready", "failed", "failed"])


if __name__ == "__main__":
    print_facts()
    os._exit(0)
