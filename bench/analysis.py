"""How long a report takes, and how much memory: `make bench`, or

    .venv/bin/python bench/analysis.py [--rows 10M] [--workers 4] [--folder DIR] [--repeat 1] [--check]

Prints rows of the Markdown table in docs/explanation/benchmarks.md. Writes a run folder with so many chunk rows (run_folder.py), reads
its chunk columns with pyarrow alone, runs `tailgauge report` on it as a process, and prints both durations side by side,
because a busy machine slows both. `--check` fails if the report exceeds its limits. A folder given is kept and reused.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import run_folder

COLUMNS = (
    "request_id",
    "leg",
    "attempt",
    "chunk_index",
    "kind",
    "arrived_at_ns",
    "lag_ns",
    "chars",
    "exact",
)
BARS = {10_000_000: 20.0, 100_000_000: 240.0}  # rows -> most seconds
MOST_BYTES = 4 << 30
MOST_PAGE_BYTES = 8_000_000
UNITS = {"k": 10**3, "M": 10**6}
HEAD = (
    "| chunk rows | report | memory at most | report.html | seconds per million rows | bare read of the columns | ratio |\n"
    "|---:|---:|---:|---:|---:|---:|---:|"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """One report: its time, the most memory that its processes held together, the size of its page."""

    seconds: float
    peak_bytes: int
    page_bytes: int


def bare_read(folder: Path) -> float:
    """Seconds to decode the same columns, one row group at a time, and do nothing with them."""
    began = time.perf_counter()
    for part in sorted((folder / "chunks").glob("*.parquet")):
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=list(COLUMNS))
    return time.perf_counter() - began


def report(folder: Path, out: Path) -> Taken:
    """Run `tailgauge report` as a user would."""
    command = [sys.executable, "-m", "tailgauge", "report", str(folder), "--out", str(out)]
    began = time.perf_counter()
    with (out / "output.txt").open("w") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    peak, code = 0, None
    while code is None:
        peak = max(peak, _held(child.pid))
        code = _wait(child, 0.05)
    seconds = time.perf_counter() - began
    pages = list(out.glob("reports/*/report.html"))
    if len(pages) != 1:  # the exit code is the run's verdict, not the report's
        raise SystemExit(
            f"no report was made (exit code {code}): {(out / 'output.txt').read_text()[-2000:]}"
        )
    return Taken(seconds, peak, pages[0].stat().st_size)


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _held(pid: int) -> int:
    """Resident bytes of a process and its children: of each the most that it ever held, where the kernel says so."""
    total = 0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            status = Path(f"/proc/{one.pid}/status")
            lines = status.read_text().splitlines() if status.exists() else []
            most = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
            total += most[0] if most else one.memory_info().rss
    except (psutil.Error, OSError):
        return total  # it has just ended
    return total


def _rows(text: str) -> int:
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    return int(float(number) * unit)


def main() -> None:
    """Measure, and print a row a size."""
    parser = argparse.ArgumentParser(description="Time and memory of `tailgauge report`.")
    parser.add_argument(
        "--rows", type=_rows, nargs="+", default=[10_000_000], help="chunk rows, as 300k, 10M, 100M"
    )
    parser.add_argument("--workers", type=int, default=4, help="workers whose parts the run has")
    parser.add_argument(
        "--folder", type=Path, help="keep the run folders here (default: a temporary folder)"
    )
    parser.add_argument("--repeat", type=int, default=1, help="reports per size, one row each")
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    arguments = parser.parse_args()
    missed: list[str] = []
    print(
        f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        HEAD,
        sep="\n\n",
        flush=True,
    )
    with ExitStack() as stack:
        base = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for asked in arguments.rows:
            folder = base / f"{asked}-{arguments.workers}"
            if not (folder / "run.json").exists():
                folder.mkdir(parents=True, exist_ok=True)
                run_folder.write(folder, asked, arguments.workers)
            rows = run_folder.held(folder)
            for _ in range(arguments.repeat):
                with tempfile.TemporaryDirectory() as out:
                    bare, taken = bare_read(folder), report(folder, Path(out))
                print(
                    f"| {rows:,} | {taken.seconds:.1f} s | {taken.peak_bytes / 2**30:.2f} GiB | {taken.page_bytes / 1e6:.1f} MB "
                    f"| {taken.seconds / rows * 1e6:.2f} | {bare:.1f} s | {taken.seconds / bare:.1f} |",
                    flush=True,
                )
                if taken.seconds > BARS.get(asked, float("inf")):
                    missed.append(
                        f"{asked:,} rows took {taken.seconds:.1f} s, more than {BARS[asked]:g} s"
                    )
                if taken.peak_bytes > MOST_BYTES or taken.page_bytes > MOST_PAGE_BYTES:
                    missed.append(
                        f"{asked:,} rows: more than 4 GiB of memory, or than 8 MB of page"
                    )
    if arguments.check and missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
