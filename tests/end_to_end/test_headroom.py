"""Headroom as a user types it: a dry run, then real runs, and one answer in every file; and its end by Ctrl-C."""

import json
import signal
from pathlib import Path

import psutil
import pytest
from run_folders.run_data import RunData, assert_conserved

ONE_RUN = ("--set=experiment.headroom.no_429=true", "--set=experiment.headroom.need=0")


def test_a_quiet_run_answers_in_every_file(start, full_size):
    if not full_size:
        pytest.skip("make verify: some 15 s of a core; dry runs test the plan itself")
    done = start(
        "run", "headroom", *ONE_RUN, "--set=experiment.headroom.step_s=5", "--json"
    ).finish(120)
    summary = json.loads(done.stdout)
    run = RunData(next((done.out / "runs").iterdir()))

    # Nothing was refused at today's rate, which is the least that the headers then allow.
    assert done.code == summary["exit_code"] == 0, done.stderr
    assert summary["result"]["outcome"] == "PASS"
    assert summary["facts"]["low_per_s"] == 4.0
    assert "dry run first" in done.stderr
    assert [one["verdict"] != "INVALID" for one in summary["runs"]] == [True]
    assert_conserved(run)
    assert not summary["dry_run"]
    # The limit is 600 requests a minute; between two answers of a busy machine it looks larger.
    assert summary["facts"]["low_per_s"] < summary["facts"]["high_per_s"] < 11
    assert "from one run" in summary["result"]["sentence"]
    for kind in ("html", "markdown", "json"):
        assert "without a single 429" in Path(summary["report"][kind]).read_text(encoding="utf-8")
    assert 'errors="0"' in Path(summary["report"]["junit"]).read_text(encoding="utf-8")


def test_ctrl_c_ends_the_run_and_the_experiment(start, full_size):
    if not full_size:
        pytest.skip("make verify: a second real run")
    running = start("run", "headroom", *ONE_RUN, "--set=experiment.headroom.step_s=60")
    children = psutil.Process(running.process.pid)
    run = running.wait_for_start(2, timeout_s=90)
    theirs = children.children(recursive=True)
    running.signal(signal.SIGINT)
    done = running.finish(60)

    assert done.code == 130, done.stderr
    assert run.facts["state"] == "interrupted"
    assert_conserved(run)
    assert theirs
    assert not psutil.wait_procs(theirs, timeout=5)[
        1
    ]  # one that has just ended may still be listed
    assert not list((done.out / "reports").glob("*-headroom-????/report.json"))
