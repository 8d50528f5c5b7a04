"""A server that stalls again and again: every request is sent at its time, and the waits are all counted.

Truth: with stalls of S seconds every T, requests that arrive u seconds into a stall wait S - u, so that the quantile p of
the time to the first content since scheduled is S - T (1 - p) + base for p > 1 - S / T. A client that waits for answers
would send hardly anything in a stall and see nothing of it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from run_folders.run_data import assert_conserved
from starting.command import NO_SDK
from starting.endpoint import Endpoint
from starting.endpoint import endpoint as simulated_endpoint

pytestmark = pytest.mark.alone


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """A simulated endpoint that answers at once: else a stall also delays those before it."""
    with simulated_endpoint("--set=ttft_ms=1", "--set=chunk_gap_ms=0", cwd=tmp_path) as started:
        yield started
        os.kill(started.pid, signal.SIGCONT)


def stall(pid: int, at_ns: int, seconds: float) -> tuple[int, int]:
    """Stop the process for a while; returns when it really stood."""
    time.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic_ns()
    time.sleep(seconds)
    ended = time.monotonic_ns()
    os.kill(pid, signal.SIGCONT)
    return began, ended


@pytest.mark.slow
def test_stalls_of_the_server_show_their_analytic_quantiles(start, endpoint):
    url, pid = endpoint.url, endpoint.pid
    stall_s, every_s, stalls, rate = 2.0, 20.0, 4, 40.0
    running = start(
        "run", "streaming", f"--target={url}", f"--rate={rate}", f"--duration={every_s * stalls}",
        "--set=arrival.process=constant", "--set=stages.warmup_s=0", "--set=traffic.chat.output_tokens=2",
        "--set=traffic.chat.prompt_tokens=5", *NO_SDK,
    )  # fmt: skip
    run = running.wait_for_start(0)
    begin = run.facts["start_at_ns"]
    middle = (every_s - stall_s) / 2
    stalled = [
        stall(pid, begin + int((k * every_s + middle) * 1e9), stall_s) for k in range(stalls)
    ]
    assert running.finish().code in {
        0,
        3,
        5,
    }  # how the verdict judges such a target is not at stake here

    assert_conserved(run)
    rows = run.attempts()
    at, first = rows.scheduled_at_ns.to_numpy(), rows.first_content_at_ns.to_numpy()
    waited, back = (first - at) / 1e9, np.zeros(len(rows))
    for began, ended in stalled:
        back[(at >= began) & (at < ended)] = ended
    within = back > 0
    real_s = np.mean([ended - began for began, ended in stalled]) / 1e9
    base = np.median((first - back)[within]) / 1e9  # of a server that finds all who waited at once
    assert len(rows) == rate * every_s * stalls, "nothing was left out"
    assert within.sum() == pytest.approx(rate * real_s * stalls, abs=2 * stalls), (
        "nor sent at another time"
    )
    assert np.median(waited[~within]) < base < 0.3
    share = real_s / every_s
    spread = (
        np.quantile((first - back)[within], 0.95) / 1e9 - base
    )  # a busy machine does not find all at once
    for p in (1 - 0.75 * share, 1 - 0.5 * share, 1 - 0.25 * share):
        expected = real_s - every_s * (1 - p) + base
        assert np.quantile(waited, p) == pytest.approx(expected, abs=0.03 + spread)
    late = (rows.sent_at_ns - rows.scheduled_at_ns).to_numpy()[within] / 1e9
    lag_s = (
        run.table("health").loop_lag_max_ns.max() / 1e9
    )  # what the machine took from the client itself
    assert np.quantile(late, 0.9) < 0.03 + lag_s, "sent while the server stood"
