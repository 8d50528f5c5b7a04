"""After a pause of the master, of its link or of a worker no second brings the target more than twice what was planned.

Rule: pauses are made from outside, by signals; what is counted is in the endpoint's own log, by its clock.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders.run_data import assert_conserved
from starting.command import QUICK, Finished, Start, free_port

RELAY = Path(__file__).parents[1] / "many_machines" / "relay.py"
PER_S, SECONDS, PAUSED_AT_S = 20, 22, 2.5
LOAD = (
    "run", "streaming", f"--rate={PER_S}", f"--duration={SECONDS}", "--set=arrival.process=constant",
    "--set=stages.warmup_s=0", *QUICK,
)  # fmt: skip


@dataclass(frozen=True)
class Pause:
    """A run in which somebody was stopped for a while."""

    done: Finished
    counts: dict[str, Any]
    busiest: int  # requests in any second, by the endpoint's log
    most: (
        float  # twice what was planned, and what piles up while this machine keeps a worker waiting
    )
    reasons: dict[str, str]
    worker: int  # number of the worker that was stopped

    @property
    def notes(self) -> str:
        return " | ".join(self.done.run.facts["notes"])


def paused(start: Start, who: str, seconds: float) -> Pause:
    """Stop the master, its link, or a worker."""
    relay, worker, env = None, None, {"TAILGAUGE_TOKEN": "the token of the test"}
    if who == "link":
        port, through = free_port(), free_port()
        line = [sys.executable, str(RELAY), "127.0.0.1", str(through), "127.0.0.1", str(port), "0"]
        relay = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        running = start(*LOAD, "--expect-workers=1", f"--bind=127.0.0.1:{port}", env=env, into=who)
        worker = start("worker", f"--master=127.0.0.1:{through}", env=env)
    else:
        running = start(*LOAD, "--workers=2", into=who)
    try:
        run = running.wait_for_start(0.5)
        entry = run.facts["workers"][-1]
        pid = {
            "master": running.process.pid,
            "worker": entry["pid"],
            "link": relay.pid if relay else 0,
        }[who]
        time.sleep(max(0.0, PAUSED_AT_S - (time.monotonic_ns() - run.facts["start_at_ns"]) / 1e9))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        done = running.finish()
        assert worker is None or worker.finish(30).code == 0
    finally:
        if relay is not None:
            relay.kill()
            relay.communicate()
    counts = assert_conserved(done.run)
    log = done.run.table("target").query("request_id >= 0")
    assert log.client_request_id.is_unique
    at_s = np.sort(log.received_at_ns.to_numpy()) / 1e9
    busiest = int(max(np.searchsorted(at_s, at_s + 1) - np.arange(len(at_s))))
    lags_s = done.run.table("health").loop_lag_max_ns / 1e9
    most = 2 * PER_S * (1 + lags_s[lags_s < 1].max())  # the pause itself is longer
    verdict = done.report_data["verdict"]
    reasons = {
        reason["check"]: f"{reason['text']} {reason['advice']}" for reason in verdict["reasons"]
    }
    return Pause(done, counts, busiest, most, reasons, entry["worker"])


FULL = pytest.mark.skipif(
    os.environ.get("TAILGAUGE_FULL") != "1", reason="make verify: other lengths"
)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [11, pytest.param(3, marks=FULL), pytest.param(15, marks=FULL)])
def test_a_link_that_was_away_leaves_what_is_overdue_unsent_and_is_named(start, seconds):
    pause = paused(start, "link", seconds)

    print(pause.counts, pause.busiest, pause.most, pause.reasons, pause.notes)
    assert pause.busiest <= pause.most
    assert pause.counts["lost"] == 0
    if seconds > 10:  # of the slices on their way the first was due while the link was away
        assert pause.counts["not_reached"] > PER_S
        assert (
            "the link between the master and worker 0 was away from 00:0" in pause.reasons["unsent"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [7, pytest.param(3, marks=FULL), pytest.param(10, marks=FULL)])
def test_a_worker_that_was_stopped_sends_late_below_twice_the_pace_and_is_named(start, seconds):
    pause = paused(start, "worker", seconds)
    rows = pause.done.run.requests()
    late_s = (rows.dispatched_at_ns - rows.scheduled_at_ns) / 1e9

    print(pause.counts, pause.busiest, pause.most, pause.reasons, pause.notes)
    assert pause.busiest <= pause.most
    assert (late_s > 1.5).sum() > PER_S / 2, "it sent late what was due meanwhile"
    cause = f"Look at the cause: worker {pause.worker} had an event loop"
    assert cause in pause.reasons["client_error"]
    if seconds > 5:  # of which the master notices the silence
        assert "was suspended" in pause.reasons["client_error"]


@FULL
@pytest.mark.parametrize("seconds", [3, 8, 10])  # in the short form: test_load_not_sent
def test_a_master_that_was_stopped_leaves_what_is_overdue_unsent_and_is_named(start, seconds):
    pause = paused(start, "master", seconds)

    print(pause.counts, pause.busiest, pause.most, pause.reasons, pause.notes)
    assert pause.busiest <= pause.most
    if seconds > 7.5:  # beyond what the workers held
        assert pause.counts["not_reached"] >= PER_S / 2
        assert "the master was stalled from 00:0" in pause.reasons["unsent"]
