"""Very many slow streams on one worker: are they held, and what does each take?

    .venv/bin/python bench/slow_streams.py [--streams 10000] [--seconds 60] [--write]

Streams begin at an even rate; each brings a chunk a second, and the last has begun `--seconds` before the first ends. The
server is that of `make bench`. `--write` puts the table into docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import clients
import pyarrow.parquet as pq
from docs_page import replace_between
from reference_server import Load, RigError, serving

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.md"
BEGIN, END = "<!-- slow streams: begin -->", "<!-- slow streams: end -->"
RATE = 400  # streams that begin in a second
HEADS = "streams | held together, s | completed | chunks recorded | memory per stream, kB | worker's memory at most, MB | worker's core | read late, p99, ms"
SCENARIO = """[target]
url = "{url}"
protocol = "openai"
connections = {streams}
[arrival]
process = "constant"
rate_per_s = {rate}
[stages]
duration_s = {begin_s}
warmup_s = 0
[traffic.chat]
pattern = "streaming"
prompt_tokens = 16
output_tokens = {chunks}
[limits]
in_flight_per_worker = {streams}
attempt_deadline_s = {deadline_s}
drain_s = {deadline_s}
"""


def measure(streams: int, seconds: int, folder: Path) -> str:
    """The table's row. Raises RigError where the run did not do what it says."""
    cores, begin_s = clients.Cores.found(), streams / RATE
    load = Load(
        streams, seconds, chunks=round(seconds + begin_s + 3), ttft_ms=1000.0, gap_ms=1000.0
    )
    with serving(load, cores.server, folder) as server:
        scenario = folder / "slow.toml"
        scenario.write_text(
            SCENARIO.format(
                url=server.url, streams=streams, rate=RATE, begin_s=begin_s, chunks=load.chunks, deadline_s=load.chunks + 60
            )
        )  # fmt: skip
        line = [
            sys.executable,
            "-m",
            "tailgauge",
            "run",
            str(scenario),
            "--workers=1",
            f"--out={folder}",
        ]
        done = subprocess.run(
            [*line, "--max-requests=10000000"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    runs = list(folder.glob("runs/*/attempts"))
    if len(runs) != 1:
        raise RigError(f"no run was made: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    assert server.log is not None
    run = runs[0].parent
    attempts = pq.read_table(run / "attempts", columns=["ended", "stage", "chunks"]).to_pandas()
    attempts = attempts[attempts.stage != "preflight"]
    health = pq.read_table(run / "health").to_pandas().sort_values("at_ns")
    full = health[health.in_flight >= streams * 0.99]
    if full.empty:
        raise RigError(f"at most {health.in_flight.max()} streams together: {done.stdout[-2000:]}")
    each = (full.rss_bytes.median() - health.rss_bytes.iloc[0]) / full.in_flight.median()
    cells = (
        f"{streams:,}", f"{(full.at_ns.iloc[-1] - full.at_ns.iloc[0]) / 1e9 + 1:.0f}", f"{(attempts.ended == 'ok').mean():.2%}",
        f"{attempts.chunks.sum():,} of {server.log.at_ns.size:,}", f"{each / 1e3:.1f}", f"{health.rss_bytes.max() / 1e6:.0f}",
        f"{full.cpu_share.median():.0%}", f"{full.receive_lag_p99_ns.median() / 1e6:.2f}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="Very many slow streams on one worker.")
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/explanation/benchmarks.md"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(arguments.streams, arguments.seconds, Path(folder))
    text = f"Measured on {clients.machine()}.\n\n| {HEADS} |\n|{'---:|' * (HEADS.count('|') + 1)}\n{row}\n"
    print(text)
    if arguments.write:
        replace_between(BEGIN, END, text, PAGE)


if __name__ == "__main__":
    try:
        main()
    except RigError as error:
        sys.exit(f"slow_streams.py: {error}")
