"""A disk that fills during a run and stays full: the run ends, says what it lost and why, and so does a later report."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from starting.command import NO_SDK, commands, run_command
from starting.programs import TAILGAUGE

SCENARIO = (
    "--set=stages.duration_s=5",
    "--set=stages.warmup_s=0",
    "--set=arrival.rate_per_s=20",
    *NO_SDK,
)


@contextmanager
def filled(disk: Path, *, again: bool = False) -> Iterator[None]:
    """Take all that is left of a disk; `again`: also what becomes free later."""
    over = threading.Event()
    ballast = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def fill() -> None:
        with suppress(OSError):
            while True:
                os.write(ballast, bytes(65536))
        with suppress(OSError):
            while True:
                os.write(ballast, bytes(512))

    def go_on() -> None:
        while not over.wait(0.001):
            fill()

    fill()
    filling = threading.Thread(target=go_on)
    if again:
        filling.start()
    yield
    over.set()
    if again:
        filling.join()
    os.close(ballast)


@pytest.mark.slow
@pytest.mark.parametrize(("at_s", "again"), [(1.0, False), (4.0, False), (2.0, True)])
def test_a_disk_that_stays_full_ends_the_run_with_its_cause(small_disk, at_s, again):
    disk = small_disk(24_000_000)
    line = [TAILGAUGE, "run", "quickstart", "--workers=1", f"--out={disk}", *SCENARIO]
    with commands() as start:
        running = start(line, disk, {}, None)
        run = running.wait_for_start(at_s)
        with filled(disk, again=again):
            done = running.finish(120)
            record = json.loads((run.path / "run.json").read_text())
            later = run_command([TAILGAUGE, "report", run.path, f"--out={disk}/elsewhere"])

    assert done.code == 3, done.stderr
    assert "Traceback" not in done.stderr
    output = " ".join((done.stdout + done.stderr).split())
    assert "no space is left" in output, output
    if again:  # nothing could be written any more, also not that it has ended
        assert record["state"] == "running"
        return
    assert record["state"] != "running"
    assert record["ended_at_ns"]
    assert "no space is left" in json.dumps([record["notes"], record["workers"]])
    assert list((disk / "reports").glob("*/report.html"))
    (disk / "ballast").unlink()
    again_made = run_command([TAILGAUGE, "report", run.path, f"--out={disk}"])
    assert again_made.returncode == 3
    assert "no space is left" in " ".join(again_made.stdout.split())
    assert later.returncode in {2, 3, 70}  # there is no room for a second one
    assert "Traceback" not in later.stderr
