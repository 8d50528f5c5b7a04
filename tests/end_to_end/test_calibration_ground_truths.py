"""What is reported of an endpoint whose times are known: TTFT, time per output token and chunk gaps, by its send stamps.

Truth: the endpoint's log, not its plan, whose timers are late too. Bounds: medians within 0.5 ms (and 1 ms for their
interval), p99 within 5 ms; Kolmogorov-Smirnov distance 1.63/sqrt(n) + 0.01, where values within 0.5 ms count as equal,
as a constant would have a distance of 1 for any delay on the way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import numpy as np
import psutil
import pytest
from end_to_end.first_chunks import Firsts
from run_folders.run_data import RunData, assert_conserved
from starting.command import NO_SDK

pytestmark = [pytest.mark.alone, pytest.mark.slow]

BIAS_MS, CI_MS, P99_MS = 0.5, 1.0, 5.0
LATE_MS = 2.0
DISTRIBUTIONS = {
    "constant": (),
    "exponential": ("simulated.ttft_exponential=true",),
    "lognormal": ("simulated.ttft_sigma=0.5",),
}
CHUNKS = 5


def distance(reported: np.ndarray, logged: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance of two samples in ms, each value of one moved by BIAS_MS in its favour."""

    def excess(early: np.ndarray, late: np.ndarray) -> float:
        early, late = np.sort(early) + BIAS_MS, np.sort(late)
        at = np.concatenate([early, late])
        shares = (np.searchsorted(one, at, "right") / len(one) for one in (early, late))
        return float(np.max(np.subtract(*shares)))

    return max(0.0, excess(reported, logged), excess(logged, reported))


def close(reported: np.ndarray, logged: np.ndarray, what: str) -> None:
    bias = np.median(reported) - np.median(logged)
    tail = np.quantile(reported, 0.99) - np.quantile(logged, 0.99)
    apart = distance(reported, logged)
    print(
        f"{what}: n {len(reported)}, median off {bias:+.3f} ms, p99 off {tail:+.3f} ms, distance {apart:.4f}"
    )
    assert abs(bias) <= BIAS_MS + CI_MS
    assert abs(tail) <= P99_MS
    assert apart <= 1.63 / np.sqrt(len(reported)) + 0.01


def gaps(run: RunData) -> tuple[np.ndarray, np.ndarray]:
    """Chunk gaps between exactly stamped neighbours, as reported and as written, in ms."""
    server_log = run.table("target").explode("chunk_sent_at_ns")
    server_log["chunk_index"] = server_log.groupby("request_id").cumcount()
    keys = ["request_id", "leg", "attempt", "chunk_index"]
    both = (
        run.table("chunks")
        .merge(server_log[[*keys, "chunk_sent_at_ns"]], on=keys)
        .sort_values(keys)
    )
    follows = (both.chunk_index > 0) & both.low_at_ns.isna() & both.low_at_ns.shift().isna()
    reported, logged = (
        both.arrived_at_ns.diff()[follows],
        both.chunk_sent_at_ns.astype("int64").diff()[follows],
    )
    return reported.to_numpy(float) / 1e6, logged.to_numpy(float) / 1e6


def per_token(run: RunData) -> tuple[np.ndarray, np.ndarray]:
    attempts = run.table("attempts").query("stage != 'preflight' and ended == 'ok'")
    server_log = run.table("target")[["request_id", "chunk_sent_at_ns"]]
    rows = attempts.merge(server_log, on="request_id", validate="one_to_one")
    written = rows.chunk_sent_at_ns.map(lambda sent: (sent[-1] - sent[0]) / (len(sent) - 1))
    reported = (rows.last_content_at_ns - rows.first_content_at_ns) / (rows.output_tokens - 1)
    return reported.to_numpy(float) / 1e6, written.to_numpy(float) / 1e6


def waits_ms(run: RunData, due_ns: np.ndarray) -> np.ndarray:
    """What arrivals at these times wait for each other where each takes as much of one core as it did in this run.

    Lindley's recursion, with the CPU time of a request as the service time of all: nothing where they come evenly.
    """
    cpu_s = json.loads((run.path / "workers" / "0.json").read_text())["cpu_s"]
    service_ns = (cpu_s["at_end"] - cpu_s["at_start"]) * 1e9 / len(due_ns)
    waits = [0.0]
    for gap in np.diff(due_ns):
        waits.append(max(0.0, waits[-1] + service_ns - gap))
    return np.array(waits) / 1e6


def punctual(run: RunData, *, idle: bool) -> None:
    """Sent at most 2 ms late at p99 and never in bunches, but for what arrivals at random wait for each other.

    Unless `quiet`, but for the time without a core, too.
    """
    attempts = run.attempts().sort_values("scheduled_at_ns")
    late = (attempts.sent_at_ns - attempts.scheduled_at_ns).to_numpy() / 1e6
    health = run.table("health")
    waited_ms = 0.0 if idle else health.core_wait_ns.max() / 1e6
    gaps, planned = np.diff(attempts.sent_at_ns), np.diff(attempts.scheduled_at_ns)
    wide = planned > 0.99 * planned.mean()  # two that were to come at once are no bunch
    bunched = ((gaps < planned / 5) & wide).mean()
    queued = waits_ms(run, attempts.scheduled_at_ns.to_numpy())
    print(
        f"late p50 {np.median(late):.3f}, p99 {np.quantile(late, 0.99):.3f} ms, {bunched:.2%} bunched; of one queue p99 "
        f"{np.quantile(queued, 0.99):.3f} ms; without a core for {waited_ms:.1f} ms"
    )
    assert np.median(late) <= LATE_MS + waited_ms / 10
    assert np.quantile(late, 0.99) <= LATE_MS + np.quantile(queued, 0.99) + waited_ms
    assert bunched <= 0.01 + 2 * waited_ms / 1e3


def test_known_times_come_out_as_they_were(start, full_size):
    names = DISTRIBUTIONS if full_size else ("exponential",)
    rate, seconds = (100, 60) if full_size else (100, 4)
    for name in names:
        texts = (
            "arrival.process=constant", "simulated.ttft_ms=80", "simulated.chunk_gap_ms=20", "stages.warmup_s=0",
            f"traffic.chat.output_tokens={CHUNKS}", "target.preopened=100", *DISTRIBUTIONS[name],
        )  # fmt: skip
        sets = [*NO_SDK, *(f"--set={text}" for text in texts)]
        run = (
            start("run", "streaming", f"--rate={rate}", f"--duration={seconds}", *sets, into=name)
            .finish(180)
            .run
        )

        assert assert_conserved(run)["ended"] == pytest.approx({"ok": rate * seconds})
        firsts = Firsts.of(run)
        print(name, firsts)
        assert (firsts.reported >= firsts.logged).mean() > 0.999, (
            "nothing arrives before it was written"
        )
        close(firsts.reported[firsts.exact], firsts.logged[firsts.exact], f"{name}: TTFT")
        close(*gaps(run), f"{name}: chunk gap")
        close(*per_token(run), f"{name}: time per output token")
        punctual(run, idle=False)


def test_the_distance_sees_what_is_wrong_and_forgives_what_is_allowed():
    draws = np.random.default_rng(1).exponential(80, 2000)

    assert distance(draws + 0.4, draws) == 0
    assert distance(draws + 20, draws) > 0.2
    assert distance(np.full(50, 100.0), np.full(50, 99.0)) == 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="the ground-truth server is built with cc")
@pytest.mark.parametrize("process", ["constant", "poisson"])
def test_500_requests_per_second_leave_one_core_at_their_times(
    start, full_size, checkout, tmp_path, process
):
    """Against the native server, each on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    if not full_size or len(cores) < 2:
        pytest.skip("at full size only, on two cores: make verify")
    subprocess.run(
        [
            "cc",
            "-O2",
            "-std=gnu11",
            "-o",
            tmp_path / "server",
            checkout / "bench" / "rig" / "server.c",
            "-ldl",
        ],
        check=True,
    )
    line = [
        "taskset",
        "-c",
        str(cores[0]),
        tmp_path / "server",
        "--log",
        tmp_path / "log",
        "--ttft=50",
        "--chunks=5",
    ]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        running = start(
            "run", "streaming", f"--target={url}", "--rate=500", "--duration=30", f"--set=arrival.process={process}",
            "--set=traffic.chat.output_tokens=5", "--set=traffic.chat.prompt_tokens=50", "--set=target.preopened=200",
            "--max-requests=100000",
        )  # fmt: skip
        run = running.wait_for_start(-1)
        for child in psutil.Process(running.process.pid).children():
            for thread in child.threads():
                os.sched_setaffinity(thread.id, {cores[1]})
        done = running.finish(180)
    finally:
        server.terminate()
        server.communicate(timeout=10)
    assert assert_conserved(run)["client_drop"] == 0
    assert done.code in {0, 3, 5}
    punctual(run, idle=True)
