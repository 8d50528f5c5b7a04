"""`tailgauge.run` makes the run that the command makes, and raises what the command says."""

import os
import signal
import subprocess
import sys
import time

import pytest
from starting.programs import environment

import tailgauge
from tailgauge.errors import TargetError, UsageError


@pytest.mark.slow
def test_a_dry_run_from_python_equals_that_of_the_command(tmp_path):
    arguments = {"duration": "20s", "overrides": {"seed": 5, "arrival.rate_per_s": 10.5}}
    made = tailgauge.run("quickstart", dry_run=True, out=tmp_path / "python", **arguments)
    command = [
        "run",
        "quickstart",
        "--dry-run",
        "--duration=20s",
        "--set=seed=5",
        "--set=arrival.rate_per_s=10.5",
    ]
    subprocess.run(
        [sys.executable, "-m", "tailgauge", *command, f"--out={tmp_path / 'command'}"],
        check=False, env=environment({}), capture_output=True, timeout=60,
    )  # fmt: skip
    import tailgauge_analysis

    (folder,) = (tmp_path / "command" / "runs").iterdir()
    other = tailgauge_analysis.load(folder)

    assert made.data["latency"] == other.data["latency"]
    assert made.folders[0].is_relative_to(tmp_path / "python")
    assert (tmp_path / "python" / "reports" / made.record["run_id"] / "report.html").exists()


@pytest.mark.slow
def test_a_real_run_is_returned_whatever_its_outcome(tmp_path):
    run = tailgauge.run(
        "quickstart", duration="5s", out=tmp_path,
        overrides={"slo.never": "ttft p50 < 1ms", "arrival.rate_per_s": 20},
    )  # fmt: skip

    assert run.answer["outcome"] == "FAIL"
    assert not run.record["dry_run"]
    assert len(run.requests) > 20


@pytest.mark.parametrize(
    ("scenario", "arguments", "message"),
    [
        ("nowhere", {}, "nowhere: no such file, and no packaged scenario"),
        ("headroom", {}, "use `tailgauge run headroom`"),
        ("-x.toml", {}, "^-x.toml: sede: unknown key"),
        ("quickstart", {"duration": "soon"}, "soon"),
        ("quickstart", {"overrides": {"arrival.rate": 1}}, "arrival.rate: unknown key"),
        ("quickstart", {"overrides": {"slo": {}}}, r"overrides\['slo'\]: expected a text"),
        ("quickstart", {"workers": -1}, "workers"),
    ],
)
def test_a_wrong_argument_raises_what_the_command_says(
    scenario, arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-x.toml").write_text("sede = 1\n")
    with pytest.raises(UsageError, match=message):
        tailgauge.run(scenario, out=tmp_path, **arguments)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_target_that_cannot_be_used_raises(tmp_path):
    with pytest.raises(TargetError, match=r"127\.0\.0\.1:9"):
        tailgauge.run(
            "quickstart", duration="5s", out=tmp_path,
            overrides={"target.url": "http://127.0.0.1:9", "target.protocol": "sse"},
        )  # fmt: skip


@pytest.mark.slow
def test_ctrl_c_ends_the_run_in_order_and_raises(tmp_path):
    code = "import sys, tailgauge; tailgauge.run('quickstart', duration='60s', out=sys.argv[1])"
    child = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        env=environment({}),
        stderr=subprocess.PIPE,
        text=True,
    )
    records = tmp_path / "runs"
    deadline = time.monotonic() + 60
    while not list(records.glob("*/requests/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(child.pid, signal.SIGINT)
    _, messages = child.communicate(timeout=90)

    assert "KeyboardInterrupt" in messages
    (folder,) = records.iterdir()
    import tailgauge_analysis

    run = tailgauge_analysis.load(folder)
    assert run.record["state"] == "interrupted"
    assert len(run.requests) > 0
