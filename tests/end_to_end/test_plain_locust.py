"""The same locustfiles under plain Locust record the same rows: headless, and with workers. With its page: test_live_view."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
import zmq
from run_folders.run_data import assert_conserved
from starting.command import QUICK, free_port
from starting.programs import LOCUST

SETS = (*QUICK, "--set=arrival.rate_per_s=30")


NONSENSE = (
    b"", b"\xc1", b"\x91" * 100_000, msgpack.packb(("client_ready", "2", None)), msgpack.packb(("quit", None, {"a": 1})),
    msgpack.packb(("client_ready", "2", "\x1b[2J\nstranger")),
)  # fmt: skip


@pytest.fixture
def locustfile(checkout: Path) -> str:
    return str(checkout / "locustfiles" / "streaming.py")


@pytest.mark.slow
def test_headless_in_one_process_the_schedule_drives_the_load(start, checkout, locustfile):
    scenario = str(checkout / "scenarios" / "quickstart.toml")
    line = ("-f", locustfile, "--headless", "-u", "1", "-t", "16s", "--scenario", scenario, *SETS)

    done = start(*line, program=LOCUST).finish()

    counts = assert_conserved(done.run)
    assert counts["ended"].get("ok", 0) > 30
    assert counts["not_reached"] > 0, "-t ends admission before the scenario's 30 s"
    assert done.run.facts["state"] == "cut_short"
    assert "The run was cut short (Stop on the web page, or Locust's -t)" in done.report_text
    assert (done.report / "report.html").exists()
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_master_and_workers_share_one_run_folder(start, locustfile):
    port = str(free_port())
    master = start(
        "-f", locustfile, "--master", "--master-bind-host=127.0.0.1", f"--master-bind-port={port}", "--headless",
        "-u", "1", "--expect-workers", "2", "--set", "stages.duration_s=5", *SETS, program=LOCUST,
    )  # fmt: skip
    workers = [
        start(
            "-f",
            locustfile,
            "--worker",
            "--master-host=127.0.0.1",
            f"--master-port={port}",
            program=LOCUST,
        )
        for _ in range(2)
    ]

    master.wait_for_start(0.5)
    with (
        zmq.Context() as context,
        context.socket(zmq.DEALER) as stranger,
    ):  # no token: nothing keeps it out
        stranger.identity, stranger.linger = b"\x1b[2Jstranger", 1000
        stranger.connect(f"tcp://127.0.0.1:{port}")
        for message in NONSENSE:
            stranger.send(message)
    done = master.finish()

    assert [w.finish(30).code for w in workers] == [0, 0]
    assert f"undecodable messages were dropped: {len(NONSENSE)}" in done.run.facts["notes"]
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    counts = assert_conserved(done.run)
    assert counts["scheduled"] == counts["ended"]["ok"] > 100
    assert [w["state"] for w in done.run.facts["workers"]] == ["drained", "drained"]
    assert all(w["counts"]["dispatched"] > 0 for w in done.run.facts["workers"]), (
        "-u 1 does not matter"
    )
    assert done.code in {0, 3, 5}, done.stderr  # the verdict depends on the machine


def test_two_user_classes_are_refused_by_name(start, tmp_path):
    two = tmp_path / "two.py"
    two.write_text(
        "from tailgauge.locust_app.users import Traffic\n"
        "class One(Traffic):\n    scenario = 'streaming'\n"
        "class Two(Traffic):\n    scenario = 'streaming'\n"
    )

    done = start("-f", str(two), "--headless", "-t", "3s", program=LOCUST).finish(30)

    assert done.code == 2
    assert "expected one user class, got 2 (One, Two)" in done.stderr
