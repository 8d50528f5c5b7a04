"""A reader of the command's output that does not read for a while."""

from __future__ import annotations

import fcntl
import json
import subprocess
import time
from pathlib import Path

from starting.programs import TAILGAUGE, environment

SILENT_S = 30  # after which a worker takes a master for lost


def test_every_result_arrives_though_it_is_read_late(tmp_path: Path, full_size: bool) -> None:
    line = [TAILGAUGE, "run", "quickstart", "quickstart", "--duration=2", "--set=stages.warmup_s=0", "--json"]
    process = subprocess.Popen(
        [*line, f"--out={tmp_path}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment({}), text=True,
    )  # fmt: skip
    assert process.stdout is not None
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    ended = tmp_path / "reports"
    until = time.monotonic() + 60
    while not list(ended.glob("*/report.json")) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(2.5 * SILENT_S if full_size else 2)
    out, err = process.communicate(timeout=120)

    found = [json.loads(text) for text in out.splitlines()]
    assert [one["state"] for one in found] == ["complete"] * 2, err
    assert min(map(len, out.splitlines())) > 4096
