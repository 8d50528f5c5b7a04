"""A worker whose clock is not its master's: the offset is measured, and its rows come to lie on the clock of the run.

Both clocks are of one kernel, so that the true offset is known: the one worker's clock is set forward in its own process, and
its kernel seems another one.
"""

import socket

import numpy as np
import pytest
from run_folders.run_data import assert_conserved
from starting.command import QUICK
from starting.programs import LOCUST

from tailgauge_analysis.reading.frames import load

SHIFT_NS = 50_000_000
SETS = (*QUICK, "--set=arrival.rate_per_s=30")
FORWARD = f"""
import time
from tailgauge import clock
clock.monotonic_ns = lambda: time.monotonic_ns() + {SHIFT_NS}
clock.boot_id = lambda: "another kernel"
clock.WALL.refresh()
"""


def test_row_30_a_worker_that_is_50_ms_ahead_is_put_in_its_place(
    start, checkout, tmp_path, full_size
):
    if not full_size:
        pytest.skip("three processes of Locust: at full size")
    (tmp_path / "ahead").mkdir()
    (tmp_path / "ahead" / "sitecustomize.py").write_text(FORWARD)
    locustfile = str(checkout / "locustfiles" / "streaming.py")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    master = start(
        "-f", locustfile, "--master", "--master-bind-host=127.0.0.1", f"--master-bind-port={port}", "--headless",
        "-u", "1", "--expect-workers", "2", "--set", "stages.duration_s=12", *SETS, program=LOCUST,
    )  # fmt: skip
    line = ("-f", locustfile, "--worker", "--master-host=127.0.0.1", f"--master-port={port}")
    workers = [
        start(*line, program=LOCUST),
        start(*line, program=LOCUST, env={"PYTHONPATH": str(tmp_path / "ahead")}),
    ]
    done = master.finish()
    assert [w.finish(30).code for w in workers] == [0, 0]
    assert_conserved(done.run)

    clocks = {w["worker"]: w["clock"] for w in done.run.facts["workers"]}
    ((ahead, found),) = [(n, c) for n, c in clocks.items() if c["offset_ns"]]
    (same,) = [c for n, c in clocks.items() if n != ahead]
    assert abs(found["offset_ns"] + SHIFT_NS) <= found["error_ns"] < 20_000_000
    assert abs(found["drift_ppb"]) < 1_000_000
    assert same == {"offset_ns": 0, "error_ns": 0, "drift_ppb": None}

    frames = load([done.run.path])
    keys = ["request_id", "leg", "attempt"]
    both = frames.attempts.merge(frames.server_log, on=keys, suffixes=("", "_there"))
    both = both[both["worker"] == ahead]
    assert len(both) > 50
    there = both["received_at_ns"] - both["sent_at_ns"]
    back = both["first_content_at_ns"] - both["first_chunk_sent_at_ns"]
    for direction in (
        there,
        back,
    ):  # nothing arrives before it was sent, but for what the offset may be wrong by
        assert direction.min() >= -found["error_ns"]
        assert np.median(direction) < 20_000_000
