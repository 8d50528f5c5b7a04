"""A long run, and whether anything grows in it: `make soak`, or

    .venv/bin/python bench/soak.py [--minutes 30] [--keep DIR]

2,000 chunks/s on two workers against the simulated endpoint on this machine, observed from outside: every 2 s the
anonymous memory and open files of each process, and the newest part of each worker. For the second half, the upper end of
the 95% interval of a fitted slope (slope.py) must be below the limit of each row; else it exits with 1. The endpoint's log
is so short that it is full when the second half begins.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pyarrow.parquet as pq
from slope import growth, growth_behind_bursts

EVERY_S = 2.0
RATE, CHUNKS = 50, 40  # request rate, chunks of each
POOL = 100  # connections that each worker opens beforehand and keeps: four times what it needs, so that none is added later
TTFT_MS, GAP_MS = 100, 20
MIB = 1 << 20
GROWN_MEMORY, GROWN_LAG = 0.03, 0.25  # over the second half, as shares of their levels
GROWN_FILES = 2.0
LAGS = (  # with a tolerance in us for other processes on the machine
    ("receive_lag_p50_ns", "receive lag p50", 100),
    ("receive_lag_p99_ns", "receive lag p99", 1000),
    ("dispatch_late_p99_ns", "lateness p99", 1000),
)
YOUNG_S = 10.0  # a worker writes a part at least every 5 s
MOST_BYTES = 256 * MIB  # of a compacted part
LOG_STAMPS = 20_000  # ten seconds
ENDPOINT = (
    "from tailgauge.simulator.http.server_log import ServerLog; "
    "ServerLog.__init__.__defaults__ = ({stamps},); from tailgauge.cli.main import main; main()"
)
REPORT_S = 300.0


@dataclass(slots=True)
class Watched:
    """Samples of one process."""

    process: psutil.Process
    at_s: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)

    def look(self, now_s: float) -> None:
        """One sample."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        kib = next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1]
        self.at_s.append(now_s)
        self.mib.append(int(kib) / 1024)
        self.files.append(self.process.num_fds())


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was looked at, what came out, what is permitted."""

    what: str
    found: str
    permitted: str
    holds: bool


@contextmanager
def serving(stamps: int = LOG_STAMPS) -> Iterator[tuple[psutil.Process, str]]:
    """The simulated endpoint, whose log keeps `stamps` times, and its address."""
    code = ENDPOINT.format(stamps=stamps)
    line = [sys.executable, "-c", code, "endpoint", "--port=0", "--lifeline", f"--set=ttft_ms={TTFT_MS}", f"--set=chunk_gap_ms={GAP_MS}"]  # fmt: skip
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield psutil.Process(child.pid), child.stdout.readline().split()[-1]
        finally:
            child.stdin.close()


def soak(minutes: float, folder: Path) -> list[Row]:
    """One run of this many minutes, summarized."""
    folder.mkdir(parents=True, exist_ok=True)
    line = [*run_line(minutes, folder), "--workers=2"]
    with serving() as (endpoint, url), (folder / "output.txt").open("w") as output:
        run = subprocess.Popen(
            [*line, f"--target={url}"], stdout=subprocess.PIPE, stderr=output, text=True
        )
        try:
            seen, youngest = _watch(run, endpoint, folder, 60 * minutes)
            out, _ = run.communicate(timeout=REPORT_S)
        finally:
            run.kill()
    rows = [row for name, watched in seen.items() for row in _of_process(name, watched)]
    return [*rows, *_of_run(folder, json.loads(out), youngest)]


def run_line(minutes: float, folder: Path) -> list[str]:
    """The command of the load, without its workers."""
    return [
        sys.executable, "-m", "tailgauge", "run", "streaming", "--json", f"--out={folder}", f"--rate={RATE}",
        f"--duration={60 * minutes:g}", "--set=arrival.process=constant", f"--set=traffic.chat.output_tokens={CHUNKS}",
        f"--set=target.connections={POOL}", f"--set=target.preopened={POOL}",
    ]  # fmt: skip


def _watch(
    run: subprocess.Popen[str], endpoint: psutil.Process, folder: Path, seconds: float
) -> tuple[dict[str, Watched], float]:
    """Look at every process until shortly before the end of the schedule; also the age of the oldest youngest part."""
    seen: dict[str, Watched] = {}
    start_s = started(run, folder)
    workers = [p for p in psutil.Process(run.pid).children() if p.name().startswith("worker")]
    for number, process in enumerate(sorted(workers, key=lambda p: p.pid)):
        seen[f"worker {number}"] = Watched(process)
    seen |= {"master": Watched(psutil.Process(run.pid)), "endpoint": Watched(endpoint)}
    youngest = 0.0
    for tick in range(1, int((seconds - EVERY_S) / EVERY_S) + 1):
        time.sleep(max(0.0, start_s + tick * EVERY_S - time.monotonic()))
        if run.poll() is not None:
            raise SystemExit(f"the run ended early: {(folder / 'output.txt').read_text()[-2000:]}")
        for watched in seen.values():
            watched.look(time.monotonic() - start_s)
        if tick > YOUNG_S / EVERY_S:
            youngest = max(youngest, *(_youngest(folder, number) for number in range(len(workers))))
        if tick % 30 == 0:
            print(
                f"{tick * EVERY_S / 60:4.0f} min  "
                + "  ".join(f"{n} {w.mib[-1]:.1f} MiB" for n, w in seen.items()),
                flush=True,
            )
    return seen, youngest


def started(run: subprocess.Popen[Any], folder: Path) -> float:
    """When the schedule of a run began, on this machine's monotonic clock; SystemExit where it does not."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and run.poll() is None:
        for path in folder.glob("runs/*/run.json"):
            if start := json.loads(path.read_text())["start_at_ns"]:
                return float(start) / 1e9
        time.sleep(0.1)
    raise SystemExit(f"the run did not start: {(folder / 'output.txt').read_text()[-2000:]}")


def _youngest(folder: Path, worker: int) -> float:
    """Age of a worker's last part of chunks, in seconds."""
    written = [
        path.stat().st_mtime for path in folder.glob(f"runs/*/chunks/part-{worker}-*.parquet")
    ]
    return time.time() - max(written, default=0.0)


def _of_process(name: str, watched: Watched) -> list[Row]:
    half = len(watched.at_s) // 2
    rows = []
    for what, unit, values in (("memory", " MiB", watched.mib), ("open files", "", watched.files)):
        found = growth(watched.at_s[half:], values[half:])
        bound = GROWN_MEMORY * found.level if unit else GROWN_FILES
        measured = (
            f"{found.level:.1f}{unit}, {found.change:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        )
        rows.append(
            Row(
                f"{name}: {what}",
                measured,
                f"at most +{bound:.2g}{unit} in the second half",
                found.within(bound),
            )
        )
    return rows


def _of_run(folder: Path, made: Mapping[str, Any], youngest: float) -> list[Row]:
    (run,) = folder.glob("runs/*")
    facts = json.loads((run / "run.json").read_text())
    rows = [row for number in range(2) for row in _of_health(run, number)]
    rows.append(
        Row(
            "age of the last part, at most",
            f"{youngest:.1f} s",
            f"{YOUNG_S:g} s",
            youngest <= YOUNG_S,
        )
    )
    parts = [
        path
        for table in ("requests", "attempts", "chunks", "health")
        for path in (run / table).glob("part-*")
    ]
    largest = max(path.stat().st_size for path in parts)
    rows.append(Row("parts in the end, and the largest", f"{len(parts)}, {largest / MIB:.1f} MiB", "8, 256 MiB", (len(parts), largest <= MOST_BYTES) == (8, True)))  # fmt: skip
    counts, duration_s = facts["conservation"], facts["scenario"]["stages"]["duration_s"]
    every = counts["ended"] == {"ok": counts["scheduled"]}
    rows.append(
        Row("requests", f"{counts['scheduled']:,}, ended {counts['ended']}", "all ok", every)
    )
    rate = (
        sum(pq.read_metadata(path).num_rows for path in (run / "chunks").glob("part-*"))
        / duration_s
    )
    rows.append(
        Row(
            "chunks per second",
            f"{rate:,.0f}",
            f"{RATE * CHUNKS:,} within 2%",
            abs(rate / (RATE * CHUNKS) - 1) < 0.02,
        )
    )
    verdict = made["verdict"]
    fine = verdict != "INVALID" and made["exit_code"] == 0 and Path(made["report"]["html"]).exists()
    return [
        *rows,
        Row("report", f"{verdict}, exit code {made['exit_code']}", "not INVALID, 0", fine),
    ]


def _of_health(run: Path, worker: int) -> list[Row]:
    """Lags as the worker itself saw them, second by second."""
    (path,) = (run / "health").glob(f"part-{worker}-*.parquet")
    table = pq.read_table(
        path, columns=[*(column for column, *_ in LAGS), "queued_rows"]
    ).to_pydict()
    rows = []
    for column, name, floor in LAGS:
        values = [
            value / 1e3 for value in table[column][len(table[column]) // 2 :] if value is not None
        ]
        found = growth_behind_bursts(range(len(values)), values)
        bound = max(GROWN_LAG * found.level, floor)
        measured = (
            f"{found.level:,.0f} us, {found.change:+.0f} [{found.low:+.0f}, {found.high:+.0f}]"
        )
        rows.append(
            Row(
                f"worker {worker}: {name}",
                measured,
                f"at most +{bound:,.0f} us",
                found.within(bound),
            )
        )
    most = max(table["queued_rows"])
    permitted = RATE * (CHUNKS + 2) * YOUNG_S / 2
    rows.append(
        Row(
            f"worker {worker}: rows waiting, at most",
            f"{most:,}",
            f"{permitted:,.0f}",
            most <= permitted,
        )
    )
    return rows


def conclude(rows: Sequence[Row]) -> NoReturn:
    """Print the table, and exit with 1 where a row does not hold."""
    print("| what | found | permitted | |\n|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.what} | {row.found} | {row.permitted} | {'holds' if row.holds else 'DOES NOT HOLD'} |"
        )
    sys.exit(0 if all(row.holds for row in rows) else 1)


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the run, at least 3")
    parser.add_argument("--keep", type=Path, help="folder in which the run stays (default: none)")
    arguments = parser.parse_args()
    if arguments.minutes < 3:
        parser.error("--minutes: expected at least 3: less cannot tell growth from noise")
    with tempfile.TemporaryDirectory() as folder:
        rows = soak(arguments.minutes, arguments.keep or Path(folder))
    conclude(rows)


if __name__ == "__main__":
    main()
