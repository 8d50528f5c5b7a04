"""How late requests leave: arrivals of a Poisson process, against the times at which the reference server received them.

    .venv/bin/python bench/sending.py [--repeat 5] [--seconds 10] [--one-core] [--loads 400x1 800x1 800x20]

A load is a rate per second and the chunks of an answer; TTFT is 50 ms. Late is the kernel's time of the request at the
server minus the time at which it was due; the p99 of a run, and the median over the runs. `--one-core`: all our processes
share one core, and the server has the other; else nothing is pinned.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from reference_server import Load, RigError, on_core, serving

LOADS = ("200x1", "400x1", "800x1", "2000x1", "800x20")
WARMUP_S = 2.0
PATIENCE_S = 120


class Sent(NamedTuple):
    """One run: p50, p99 and maximum of how late its requests came to the server, in ms, and the verdict."""

    p50: float
    p99: float
    most: float
    requests: int
    verdict: str


def run(rate: float, chunks: int, seconds: float, *, one_core: bool) -> Sent:
    """Run one load. Raises RigError."""
    load = Load(streams=1, seconds=seconds, chunks=chunks, ttft_ms=50.0, rate_per_s=rate)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(load, cores[-1], folder) as server:
            scenario = folder / "sending.toml"
            scenario.write_text(_scenario(server.url, rate, chunks, seconds))
            line = [
                sys.executable,
                "-m",
                "tailgauge",
                "run",
                str(scenario),
                "--workers=1",
                "--json",
                f"--out={folder}",
            ]
            with on_core(cores[0]) if one_core else contextlib.nullcontext():
                done = subprocess.run(
                    line, capture_output=True, text=True, timeout=seconds + PATIENCE_S, check=False
                )
        runs = list(folder.glob("runs/*/attempts"))
        pages = list(folder.glob("reports/*/report.json"))
        if len(runs) != 1 or len(pages) != 1 or server.log is None:
            raise RigError(f"no run was made: {done.stderr[-2000:]}")
        rows = pq.read_table(runs[0], columns=["request_id", "scheduled_at_ns", "stage"]).to_pandas()
        rows = rows[rows.stage == "steady"].sort_values("request_id")
        _, mine, theirs = np.intersect1d(rows.request_id, server.log.request, return_indices=True)
        due_ns = rows.scheduled_at_ns.to_numpy(np.int64)[mine]
        late = (server.log.began_ns[theirs] - due_ns) / 1e6
        verdict = json.loads(pages[0].read_text())["verdict"]["status"]
    p50, p99 = np.quantile(late, [0.5, 0.99], method="inverted_cdf")
    return Sent(float(p50), float(p99), float(late.max()), len(late), verdict)


def _scenario(url: str, rate: float, chunks: int, seconds: float) -> str:
    return (
        f'[target]\nurl = "{url}"\nprotocol = "openai"\nconnections = 10000\n'
        f'[arrival]\nprocess = "poisson"\nrate_per_s = {rate}\n'
        f"[stages]\nduration_s = {seconds + WARMUP_S}\nwarmup_s = {WARMUP_S}\n"
        f'[traffic.chat]\npattern = "streaming"\nprompt_tokens = 16\noutput_tokens = {chunks}\n'
        "[limits]\nin_flight_per_worker = 10000\n"
    )


def main() -> None:
    """Run the loads in turn and print a line for each."""
    parser = argparse.ArgumentParser(description="How late requests leave.")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--one-core", action="store_true")
    parser.add_argument("--loads", nargs="+", default=LOADS, metavar="RATExCHUNKS")
    options = parser.parse_args()
    for name in options.loads:
        rate, chunks = name.split("x")
        runs = [
            run(float(rate), int(chunks), options.seconds, one_core=options.one_core)
            for _ in range(options.repeat)
        ]
        verdicts = ", ".join(sent.verdict for sent in runs)
        print(
            f"{rate:>5}/s x {chunks:>2}: late p50 {median(sent.p50 for sent in runs):6.3f} ms, "
            f"p99 {median(sent.p99 for sent in runs):7.3f} ms, most {median(sent.most for sent in runs):7.2f} ms "
            f"of {runs[0].requests:,} ({verdicts})",
            flush=True,
        )


if __name__ == "__main__":
    main()
