"""Messages of a worker with the token that come twice, or from another run, change nothing."""

from __future__ import annotations

import json

import gevent
import pytest
from fuzz.targets.worker_messages import SAMPLES, SETTINGS, Runner, deliver, from_json, master_of

from tailgauge.channel.auth import Seal
from tailgauge.channel.messages import Link
from tailgauge.clock import monotonic_ns
from tailgauge.master.run import Run

pytestmark = pytest.mark.gevent

SEAL = Seal("0123456789abcdef")
TRIED = {
    "calls": [],
    "learnt": [1.0, 0, True, [], []],
    "engines": {},
    "adaptations": {},
    "spent": [0, 0, None],
}


class Started:
    """What becomes of a run after these messages of the worker w1."""

    def __init__(self, *kinds: str, run_id: str = "", is_late: bool = False) -> None:
        runner = Runner()
        self.sent = runner.sent
        link = Link(runner, SEAL)
        self.run = run = Run(link, SETTINGS[0], lambda: 1, lambda _: True, lambda _: None)
        self.master = master_of(runner, SEAL)
        self.master.run = run
        run._start._is_plan_sent = is_late
        run._preflight.receive(TRIED)
        run._state.start_at_ns = monotonic_ns()
        text = SAMPLES.read_text(encoding="utf-8").replace("RUN", run_id or run.run_id)
        trees = [json.loads(line, object_hook=from_json) for line in text.splitlines()]
        samples = {tree["kind"]: tree["data"] for tree in trees}
        for kind in kinds:
            deliver(runner, SEAL, kind, samples[kind])
            gevent.sleep(0)
        self.states = {name: worker.state for name, worker in run.workers.by_node.items()}


def test_a_worker_that_repeats_its_hello_takes_part_once():
    started = Started("hello", "hello")

    assert started.states == {"w1": "running"}
    assert started.sent == ["tailgauge:welcome"] * 2


def test_a_worker_that_repeats_its_ready_joins_once():
    started = Started("hello", "ready", "ready", is_late=True)

    assert started.sent == ["tailgauge:welcome", "tailgauge:plan", "tailgauge:go"]
    assert started.states == {"w1": "running"}
    assert len(started.run.notes) == 1


def test_messages_of_another_run_are_left_out():
    started = Started("hello", "failed", "guarded", "drained", run_id="20260101T000000Z-other-0000")

    assert started.states == {"w1": "running"}
    assert (started.run.notes, started.run.failure) == ([], None)


def test_a_worker_that_fails_is_named():
    started = Started("hello", "ready", "failed", "failed")

    assert started.states == {"w1": "failed"}
    assert set(started.run.notes) == {"worker 0 on host failed: no space left"}
