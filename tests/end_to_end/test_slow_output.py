"""A reader of the command's output that does not read for a while."""

import fcntl
import json
import time

import pytest
from starting.command import NO_SDK, Running, until
from starting.programs import TAILGAUGE

pytestmark = pytest.mark.slow

SILENT_S = 30  # after which a worker takes a master for lost


def test_every_result_arrives_though_it_is_read_late(tmp_path):
    line = [
        TAILGAUGE,
        "run",
        "quickstart",
        "quickstart",
        "--duration=2",
        "--set=stages.warmup_s=0",
        "--json",
        *NO_SDK,
    ]
    running = Running([*line, f"--out={tmp_path}"], tmp_path, {}, None)
    assert running.process.stdout is not None
    fcntl.fcntl(running.process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    until(lambda: list(tmp_path.glob("reports/*/report.json")), 60)
    time.sleep(2.5 * SILENT_S)
    done = running.finish(120)

    found = [json.loads(text) for text in done.stdout.splitlines()]
    assert [one["state"] for one in found] == ["complete"] * 2, done.stderr
    assert min(map(len, done.stdout.splitlines())) > 4096
