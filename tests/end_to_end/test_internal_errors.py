"""A fault of our own in the middle of a run: its exit code is 70, wherever it comes up."""

import re

import pytest
from starting.command import QUICK

BREAKS = """
PATTERNS = []
from tailgauge.worker.run import WorkerRun

begin = WorkerRun.go


def go(run, data):
    begin(run, data)
    {fault}


WorkerRun.go = go
"""
FAULTS = {
    "a call cannot be prepared": "for each in run.attempts._endpoints.values(): each.prepared = each.send = None",
    "a row cannot be made": "run.attempts._record = None",
    "a second cannot be closed": "run.housekeeping.health.row = None",
    "a slice of the schedule cannot be taken": "run.dispatcher.lease = None",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_an_internal_error_in_the_middle_of_a_run_exits_70(start, tmp_path, fault):
    plugin = tmp_path / "breaks.py"
    plugin.write_text(BREAKS.format(fault=FAULTS[fault]), encoding="utf-8")
    env = {"TMPDIR": str(tmp_path)}
    line = (
        "run",
        "streaming",
        "--rate=20",
        "--duration=20",
        "--workers=2",
        "--plugin",
        plugin,
        "--set=limits.connect_timeout_s=1",
    )

    done = start(*line, *QUICK, env=env).finish(60)

    assert done.code == 70, done.stderr
    assert done.run.facts["state"] == "error"
    notes = " ".join(done.run.facts["notes"])
    assert re.search(
        r"worker \d on \S+ failed: internal error: TypeError: .*\(traceback: \S+\)", notes
    )
    traces = [path.read_text() for path in tmp_path.glob("tailgauge-error-*.txt")]
    assert any("Traceback" in trace and "TypeError: " in trace for trace in traces)
    assert "The run failed before its end: internal error" in done.report_text
