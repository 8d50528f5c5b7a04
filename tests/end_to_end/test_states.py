"""How a run that did not go to its end is called, and its exit code."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.request

import pytest
from run_folders.run_data import assert_conserved
from starting.command import NO_SDK, QUICK, free_port, until

SLOW = ("--set=traffic.chat.output_tokens=3000",)  # half a minute each


def listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_workers_are_waited_for_is_an_interrupt(start, number):
    port = free_port()
    line = ("run", "streaming", "--expect-workers=2", f"--bind=127.0.0.1:{port}", *NO_SDK)
    running = start(*line, env={"TAILGAUGE_TOKEN": "a token of some length"})
    until(lambda: listens(port))

    running.signal(number)
    done = running.finish(30)

    assert done.code == 130
    assert "tailgauge: interrupted before the run began" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (done.out / "runs").exists()


def test_stop_on_the_web_page_cuts_the_run_short_and_the_report_says_so(start, full_size):
    if not full_size:
        pytest.skip("at full size: -t does the same, see test_plain_locust.py")
    port = free_port()
    running = start(
        "run", "streaming", "--rate=30", "--duration=60", f"--web=127.0.0.1:{port}", *QUICK
    )
    running.wait_for_start(3)

    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/stop", method="POST"), timeout=20
    ):
        done = running.finish()

    assert done.run.facts["state"] == "cut_short"
    assert assert_conserved(done.run)["not_reached"] > 0
    assert "The run was cut short (Stop on the web page, or Locust's -t)" in done.report_text
    assert done.code in {0, 3, 5}, done.stderr  # the verdict depends on the machine


@pytest.mark.slow
@pytest.mark.parametrize("when", ["during the run", "during the drain"])
def test_a_run_whose_workers_were_all_killed_is_not_complete(start, when):
    seconds = 60 if when == "during the run" else 3
    running = start(
        "run",
        "streaming",
        "--rate=20",
        f"--duration={seconds}",
        "--workers=2",
        *QUICK,
        *SLOW,
    )
    run = running.wait_for_start(4)
    time.sleep(0.5)  # the drain has begun
    until(lambda: list((run.path / "requests").glob("part-*.parquet")))
    for worker in run.facts["workers"]:
        os.kill(worker["pid"], signal.SIGKILL)

    done = running.finish(60)

    facts = done.run.facts
    assert (facts["state"], done.code) == ("failed", 3), done.stderr
    assert [worker["state"] for worker in facts["workers"]] == ["lost", "lost"]
    assert any(
        "lost connection to every worker: the run has ended" in note for note in facts["notes"]
    )
    counts = assert_conserved(done.run)
    assert counts["lost"] > 0
    assert "Traceback" not in done.stderr
    assert done.report_data["verdict"]["status"] == "INVALID"
