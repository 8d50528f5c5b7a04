"""One of three workers is stalled: the report names it with its seconds, the largest first, and no other.

Rule: the stall is made from outside, by signals or by other processes on its core; what is asserted is who is named and when.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import QUICK, Start

from tailgauge.schedule.lateness import CATCH_UP

pytestmark = pytest.mark.alone

STALLED = 1


def freeze(run: RunData, pid: int, *, after_s: float, lasts_s: float) -> None:
    """Stop a worker once the clock of the run is there."""
    time.sleep(max(0.0, after_s - (time.monotonic_ns() - run.facts["start_at_ns"]) / 1e9))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(lasts_s)
    os.kill(pid, signal.SIGCONT)


@contextmanager
def hogs(pid: int, number: int) -> Iterator[None]:
    """Processes that never rest on the one core that a worker may use."""
    core = min(os.sched_getaffinity(0))
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, {core})
    line = [
        sys.executable,
        "-c",
        f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass",
    ]
    busy = [
        subprocess.Popen(line, start_new_session=True) for _ in range(number)
    ]  # a session has its share
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def stalled(start: Start, how: str, seconds: int) -> Any:
    """The report of a run of three workers of which the second is stalled."""
    sets = [*QUICK, "--set=stages.warmup_s=0"]
    running = start("run", "streaming", "--rate=90", f"--duration={seconds}", "--workers=3", *sets)
    run = running.wait_for_start(0.5)
    pid = next(entry["pid"] for entry in run.facts["workers"] if entry["worker"] == STALLED)
    if how == "once":
        freeze(run, pid, after_s=seconds / 2 - 1, lasts_s=2)
    elif how == "again and again":
        for after_s in range(2, seconds - 1, 2):
            freeze(run, pid, after_s=after_s, lasts_s=0.2)
    else:
        with hogs(pid, 40):  # its share of the core is then less than it needs
            time.sleep(seconds - 1.5)
    done = running.finish()
    assert_conserved(done.run)
    return done.report_data


@pytest.mark.slow
@pytest.mark.parametrize("how", ["once", "again and again", "without a core"])
def test_the_worker_that_was_stalled_is_named_first(start, how):
    seconds = 12
    report = stalled(start, how, seconds)
    reasons = {reason["check"]: reason for reason in report["verdict"]["reasons"]}
    lags = {one["worker"]: one["loop_lag_max_ms"] for one in report["client"]}
    print(how, reasons["client_error"], lags)
    spells = report["bad_seconds"]["spells"]
    assert spells[0]["worker"] == STALLED == max(lags, key=lags.__getitem__)
    assert report["verdict"]["explanations"][1].startswith(f"worker {STALLED} ")
    assert [one["worst_ms"] for one in spells] == sorted(
        (one["worst_ms"] for one in spells), reverse=True
    )
    if how == "once":
        mine = [one for one in spells if one["worker"] == STALLED]
        frozen = (seconds / 2 - 1, seconds / 2 + 1)
        assert min(one["from_s"] for one in mine) <= frozen[0] + 0.1
        caught_up = frozen[1] + 2 / (CATCH_UP - 1)
        assert frozen[1] <= max(one["to_s"] for one in mine) <= caught_up + 2
        assert frozen[0] - 2 <= spells[0]["from_s"] <= spells[0]["to_s"] <= caught_up + 2


def test_a_worker_that_goes_on_after_it_was_given_up_adds_no_row(start, full_size):
    """Its folder is that of the run: the rows that it still has would be in no count."""
    if not full_size:
        pytest.skip("at full size")
    running = start("run", "streaming", "--rate=40", "--duration=5", "--workers=2", *QUICK)
    run = running.wait_for_start(2)
    pid = run.facts["workers"][STALLED]["pid"]
    os.kill(pid, signal.SIGSTOP)
    while run.facts["ended_at_ns"] is None and running.process.poll() is None:
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)

    done = running.finish()

    assert done.code == 3, done.stderr
    assert assert_conserved(done.run)["lost"] > 0
    assert done.run.facts["workers"][STALLED]["state"] == "lost"
