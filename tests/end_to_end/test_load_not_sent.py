"""Load that was never sent: a reason with its share, exit code 3, and the same from `tailgauge report` of the folder.

Rule: processes are frozen for much longer than it takes to notice it; what is asserted are counts and order, never times.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from run_folders.run_data import assert_conserved
from starting.command import NO_SDK, QUICK, Finished, free_port, run_command
from starting.programs import LOCUST

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def judged(done: Finished, out: Path) -> Any:
    """The verdict on a run: the same when its folder is reported again."""
    again = run_command(["tailgauge", "report", done.run.path, "--out", out / "again", "--json"])
    first = done.report_data
    second = json.loads(Path(json.loads(again.stdout)["report"]["json"]).read_text())
    assert (again.returncode, second["verdict"]) == (done.code, first["verdict"])
    return first


def reasons(report: Any) -> dict[str, Any]:
    return {reason["check"]: reason for reason in report["verdict"]["reasons"]}


def test_a_master_that_is_frozen_to_the_end_leaves_most_of_the_load_unsent(start, tmp_path):
    seconds = 25
    running = start("run", "streaming", "--rate=10", f"--duration={seconds}", "--workers=2", *QUICK)
    run = running.wait_for_start(0.5)
    os.kill(running.process.pid, signal.SIGSTOP)
    try:
        running.wait_for_start(seconds + 0.5)
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
    done = running.finish()

    counts = assert_conserved(run)
    assert (run.facts["state"], done.code) == ("complete", 3)
    leased = sum(worker["leased"] for worker in run.facts["workers"])
    assert counts["not_reached"] == counts["scheduled"] - leased > 0.1 * counts["scheduled"]
    assert (counts["lost"], [worker["silent"] for worker in run.facts["workers"]]) == (0, [[], []])
    report = judged(done, tmp_path)
    reason = reasons(report)["unsent"]
    assert (report["verdict"]["status"], reason["verdict"]) == ("INVALID", "INVALID")
    assert reason["text"].startswith(f"{counts['not_reached']} requests (")
    assert "the master was stalled from 00:0" in reason["text"]
    assert "lost" not in reasons(report)


def test_a_worker_that_cannot_send_in_time_has_lost_nothing(start, tmp_path):
    """Ten times what one core can send; below a cap that it cannot reach, so that none is dropped there."""
    sets = [*QUICK[:2], *NO_SDK, "--set=traffic.chat.output_tokens=5", "--set=stages.warmup_s=0"]
    sets += ["--set=limits.in_flight_per_worker=5000"]
    done = start("run", "streaming", "--rate=12000", "--duration=3", "--workers=1", *sets).finish()

    counts = assert_conserved(done.run)
    (worker,) = done.run.facts["workers"]
    assert (done.code, worker["state"], worker["silent"], counts["lost"]) == (3, "drained", [], 0)
    assert counts["not_reached"] > 0.1 * counts["scheduled"]
    report = judged(done, tmp_path)
    found = reasons(report)
    assert not {"lost", "conservation"} & found.keys()
    assert "Worker 0 held" in found["unsent"]["text"]
    assert re.search(
        r"could not send them in time\. One worker sent [\d,]+ requests/s", found["unsent"]["text"]
    )
    assert "run folder" not in found["unsent"]["advice"]


def test_a_worker_whose_hub_is_blocked_is_busy_and_not_lost(start, tmp_path):
    """A listener blocks the hub for longer than a worker may be silent; then all is sent, late."""
    port = str(free_port())
    line = ("-f", str(HERE / "blocked_locustfile.py"))
    sets = ["--set=arrival.rate_per_s=10", "--set=stages.duration_s=9", "--set=stages.warmup_s=0"]
    as_master = f"--master --master-bind-host=127.0.0.1 --master-bind-port={port}".split()
    as_worker = f"--worker --master-host=127.0.0.1 --master-port={port}".split()
    one = ["--headless", "-u", "1", "--expect-workers", "1"]
    master = start(*line, *as_master, *one, *sets, *NO_SDK, program=LOCUST)
    worker = start(*line, *as_worker, program=LOCUST)
    done = master.finish()

    assert worker.finish(30).code == 0
    counts = assert_conserved(done.run)
    (entry,) = done.run.facts["workers"]
    assert (entry["state"], entry["silent"], counts["lost"]) == ("drained", [], 0)
    assert "was lost" not in " ".join(done.run.facts["notes"])
    lags = done.run.table("health").loop_lag_max_ns
    assert lags.max() > 5e9, "the hub was blocked"
    report = judged(done, tmp_path)
    assert report["verdict"]["status"] != "VALID"
    assert "worker 0" in json.dumps(report["verdict"])
