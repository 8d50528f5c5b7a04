"""What a person sees of a run: the master in a terminal of 80 columns and 24 rows, and a worker started by hand."""

import re
import subprocess

import pytest
from run_folders.run_data import RunData
from starting.command import QUICK, free_port
from starting.programs import TAILGAUGE, environment
from starting.terminal import run_in_terminal

TOKEN = {"TAILGAUGE_TOKEN": "a-token-of-this-test-that-is-long-enough"}
LIMITED = (
    "--duration=8", "--set=simulated.limits.rpm=600", "--set=simulated.limits.burst=40",
    "--set=traffic.chat.retry.policy=none",
)  # fmt: skip


@pytest.mark.slow
def test_no_line_wraps_at_eighty_columns_progress_keeps_errors_and_429s_and_a_worker_says_what_it_does(
    tmp_path,
):
    at = f"127.0.0.1:{free_port()}"
    worker = subprocess.Popen(
        [TAILGAUGE, "worker", f"--master={at}", f"--out={tmp_path}"],
        cwd=tmp_path, env=environment(TOKEN), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    line = [TAILGAUGE, "run", "quickstart", "--expect-workers=1", f"--bind={at}", *LIMITED, *QUICK]
    code, screen = run_in_terminal(line, tmp_path, TOKEN)
    _, log = worker.communicate(timeout=30)
    (folder,) = (tmp_path / "runs").iterdir()
    run = RunData(folder)
    attempts = run.attempts()
    limited, sent = (
        int((attempts["ended"] == "rate_limited").sum()),
        run.facts["conservation"]["dispatched"],
    )
    counts = [re.findall(r"(\d+) sent .* (\d+) err  (\d+) 429$", text) for text in screen.shown]
    seen = [tuple(map(int, one[0])) for one in counts if one]

    broken = "".join(screen.wrapped).lstrip()
    assert not broken or broken.startswith("--set 'target.sse.body={"), (
        "nothing but a long value to copy"
    )
    assert len(screen.wrapped) <= 4, "of two commands"
    assert (
        screen.lines[0]
        == "quickstart  1 worker  simulated endpoint  50 requests/s for 8s, 7.2 s measured"
    )
    assert code in {1, 3}, (
        "so many errors fail the default objective; 3 on a machine that is too busy"
    )
    assert any("FAIL" in text for text in screen.lines)
    assert len(seen) >= 8
    assert seen == sorted(seen)
    assert seen[-1] == (sent, limited, limited)
    assert 50 < limited < sent
    lines = [
        text for text in log.splitlines() if not re.match(r"tailgauge: \d+ s: ", text)
    ]  # where it took 10 s
    assert lines == [
        "tailgauge: connected to the master; waiting for a run",
        f"tailgauge: joined run {folder.name} as worker 0",
        f"tailgauge: sends 50 requests/s for 8 s to {run.facts['target']['url']}: chat (streaming)",
        f"tailgauge: worker 0 done: {sent} sent, 0 open, {limited} errors, {limited} 429s; rows are in {folder}",
    ]
