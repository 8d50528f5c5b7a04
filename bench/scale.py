"""Cost of a worker in the master: `make scale`, or

    .venv/bin/python bench/scale.py [--workers 2 8 32 64] [--seconds 40] [--write]

Real workers as on other machines (a token, no shared folder, so every row is transferred), each with almost no load, so
that the cost of a worker itself is measured: CPU time of the master, messages and bytes on Locust's channel (counted.py),
memory, over the steady part of a run. A line through the sizes is extrapolated as far as workers report at the same pace.
The largest size runs twice more: at the pace of 1,000 workers, and in the master's folder without transfers. `--write`
updates the table in docs/explanation/decisions. Needs the right to mount (root).
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import counted
import numpy as np
import psutil
from clients import machine
from docs_page import replace_between

from tailgauge.master.workers import CROWD, pace

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "decisions" / "0009-many-machines.md"
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"
SIZES = (2, 8, 32, 64)
FAR = 1_000
AS_IT_IS, AT_THE_PACE, ONE_FOLDER = "", f", at the pace of {FAR:,}", ", in the master's folder"
MIB = 1 << 20
GROUP = 4  # workers that load their modules at the same time
# The SDK is loaded before a worker connects, as if each had a machine of its own; else all load it at once, at `plan`.
WORKER = (
    "import tailgauge.locust_app.launch, anthropic; from tailgauge.cli.main import main; main()"
)
RATE = 0.5  # request rate of one worker: enough for a part of every table every 4 s
SETTLE_S, MARGIN_S = 10.0, 2.0  # of a run, before and after what is measured
LONGER_S = 32.0  # at the slower pace, so that as many parts fall into what is measured
START_S, END_S = 600.0, 300.0


@dataclass(frozen=True, slots=True)
class Size:
    """A run with so many workers."""

    workers: int
    kind: str  # AS_IT_IS, or what was different
    core: float  # of the master, in the steady part
    messages_in: float  # a second
    bytes_in: float
    messages_out: float
    bytes_out: float
    memory: float  # bytes of the master, at the end of the steady part
    connecting_s: float  # from the start of the first worker until all are connected
    starting_s: float  # from then to the first arrival
    starting_cpu_s: float  # of the master, in that time
    ending_s: float  # from the last arrival until every row is delivered
    lost: int  # requests that did not end well


@contextmanager
def master(
    workers: int, seconds: float, folder: Path, token: str, port: int, crowd: int
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`tailgauge run` that waits for its workers, and the file of its counts."""
    counts, out = folder / "counts", folder / "master"
    out.mkdir()
    line = [sys.executable, str(Path(counted.__file__)), "run", "streaming", f"--expect-workers={workers}", f"--bind=127.0.0.1:{port}",
            f"--rate={RATE * workers}", f"--duration={seconds}", "--set=arrival.process=constant", "--set=traffic.chat.output_tokens=5",
            f"--out={out}"]  # fmt: skip
    env = {**os.environ, "COUNTS": str(counts), "CROWD": str(crowd), "TAILGAUGE_TOKEN": token}
    with (folder / "output.txt").open("w") as output:
        run = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, env=env
        )
        try:
            yield run, counts
        finally:
            run.kill()


def hidden(out: Path) -> list[str]:
    """A command before a worker's own that hides the master's folder from it: takes the right to mount."""
    return ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none '{out}' && exec \"$@\"", "sh"]


@contextmanager
def started(
    workers: int,
    folder: Path,
    token: str,
    port: int,
    prefix: list[str],
    there: Callable[[int], None],
) -> Iterator[None]:
    """These workers, a group at a time; `there(n)` waits until n are connected."""
    env = {**os.environ, "TAILGAUGE_TOKEN": token}
    children: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(workers):
            line = [
                *prefix,
                sys.executable,
                "-c",
                WORKER,
                "worker",
                f"--master=127.0.0.1:{port}",
                f"--out={folder / str(number)}",
            ]
            with (folder / f"{number}.log").open("w") as log:
                children.append(
                    subprocess.Popen(
                        line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
                    )
                )
            if len(children) % GROUP == 0 or len(children) == workers:
                there(len(children))
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def connected(run: subprocess.Popen[str], output: Path, wanted: int) -> None:
    """Wait until so many workers are connected to the master."""
    deadline = time.monotonic() + START_S
    while _connections(run.pid) < wanted:
        if run.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{wanted} workers did not connect: {output.read_text()[-2000:]}")
        time.sleep(0.2)


def _connections(pid: int) -> int:
    held = psutil.Process(pid).net_connections("tcp")
    listening = {c.laddr.port for c in held if c.status == psutil.CONN_LISTEN}
    return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port in listening for c in held)


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def measure(workers: int, seconds: float, folder: Path, kind: str) -> Size:
    """One run with this many workers."""
    token, output, port = secrets.token_hex(16), folder / "output.txt", free_port()
    crowd = -(-workers // pace(FAR)) if kind == AT_THE_PACE else CROWD
    prefix, began = [] if kind == ONE_FOLDER else hidden(folder / "master"), time.monotonic()
    with (
        master(workers, seconds, folder, token, port, crowd) as (run, counts),
        started(workers, folder, token, port, prefix, lambda n: connected(run, output, n)),
    ):
        process, there = psutil.Process(run.pid), time.monotonic()
        cpu_s = _cpu_s(process)
        start_s = _start(folder, run, output)
        starting_cpu_s = _cpu_s(process) - cpu_s
        first = _look(process, counts, start_s + SETTLE_S)
        last = _look(process, counts, start_s + seconds - MARGIN_S)
        memory = process.memory_info().rss
        run.wait(seconds + END_S)
    facts = _facts(folder)
    span = last[0] - first[0]
    core, *passed = [(b - a) / span for a, b in zip(first[1:], last[1:], strict=True)]
    lost = facts["conservation"]["scheduled"] - facts["conservation"]["ended"].get("ok", 0)
    ending_s = (facts["ended_at_ns"] - facts["admission_end_at_ns"]) / 1e9
    took = there - began, start_s - there, starting_cpu_s, ending_s
    return Size(workers, kind, core, *_four(passed), memory, *_four(took), lost)


def _four(values: Sequence[float]) -> tuple[float, float, float, float]:
    a, b, c, d = values
    return a, b, c, d


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _look(process: psutil.Process, counts: Path, at_s: float) -> tuple[float, ...]:
    time.sleep(max(0.0, at_s - time.monotonic()))
    return (time.monotonic(), _cpu_s(process), *counted.read(counts))


def _facts(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("master/runs/*/run.json")
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts


def _start(folder: Path, run: subprocess.Popen[str], output: Path) -> float:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and run.poll() is None:
        if list(folder.glob("master/runs/*/run.json")) and (start := _facts(folder)["start_at_ns"]):
            time.sleep(max(0.0, start / 1e9 - time.monotonic()))
            return float(start) / 1e9
        time.sleep(0.05)
    notes = (
        "; ".join(_facts(folder)["notes"]) if list(folder.glob("master/runs/*/run.json")) else ""
    )
    raise SystemExit(f"the run did not start: {output.read_text()[-2000:]} {notes}")


def table(sizes: Sequence[Size]) -> str:
    """The measurements, and what they come to for FAR workers."""
    rows = [
        f"| {s.workers}{s.kind} | {s.core:.1%} | {s.messages_in:,.0f} | {s.bytes_in / 1e3:,.1f} | {s.memory / MIB:,.0f} | {s.ending_s:.1f} | {s.lost} |"
        for s in sizes
    ]
    head = (
        "| workers | master's core | messages/s in | kB/s in | memory, MiB | last arrival to every row received, s | failed requests |\n|"
        + "---:|" * 7
    )
    return "\n".join((f"Measured on {machine()}.", "", head, *rows, "", *far(sizes)))


def far(sizes: Sequence[Size]) -> list[str]:
    """A straight line through the sizes, drawn on as far as workers speak as often; and what FAR of them come to."""
    usual = [s for s in sizes if s.kind == AS_IT_IS]
    if len(usual) < 2:
        return []
    slope, base = _line(usual, [s.core for s in usual])
    messages, _ = _line(usual, [s.messages_in + s.messages_out for s in usual])
    carried, _ = _line(usual, [s.bytes_in + s.bytes_out for s in usual])
    memory, empty = _line(usual, [s.memory for s in usual])
    lines = [
        f"A worker costs {slope:.2%} of the master's core, {messages:.1f} messages/s, {carried / 1e3:.1f} kB/s and {memory / MIB:.2f} MiB.",
        f"A message costs {slope / messages * 1e6:.0f} us.",
        f"10% of a core is reached at {(0.1 - base) / slope:,.0f} workers; at {CROWD} it is {base + slope * CROWD:.0%}.",
    ]
    for one in sizes:
        each = (one.core - base) / one.workers
        if one.kind == AT_THE_PACE:
            messages, carried = ((a + b) / one.workers * FAR for a, b in _both(one))
            lines.append(
                f"At the pace of {FAR:,} workers each costs {each:.3%}: together {base + each * FAR:.0%} of a core, "
                f"{messages:,.0f} messages/s, {carried / 1e6:.1f} MB/s, {(empty + memory * FAR) / MIB:,.0f} MiB."
            )
        elif one.kind == ONE_FOLDER:
            lines.append(f"Receiving parts is {1 - each / slope:.0%} of what a worker costs.")
    return lines


def _line(sizes: Sequence[Size], values: Sequence[float]) -> tuple[float, float]:
    slope, base = np.polyfit([s.workers for s in sizes], values, 1)
    return float(slope), float(base)


def _both(size: Size) -> tuple[tuple[float, float], tuple[float, float]]:
    return (size.messages_in, size.messages_out), (size.bytes_in, size.bytes_out)


def write(text: str) -> None:
    """Put the table between its marks."""
    replace_between(BEGIN, END, f"{text}\n", PAGE)


def main() -> None:
    """Measure every size and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=40.0, help="length of each run")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/explanation/decisions"
    )
    arguments = parser.parse_args()
    sizes = []
    most = max(arguments.workers)
    for workers, kind in [
        *((n, AS_IT_IS) for n in arguments.workers),
        (most, AT_THE_PACE),
        (most, ONE_FOLDER),
    ]:
        seconds = arguments.seconds + (LONGER_S if kind == AT_THE_PACE else 0)
        with tempfile.TemporaryDirectory() as folder:
            sizes.append(measure(workers, seconds, Path(folder), kind))
        print(sizes[-1], flush=True)
    text = table(sizes)
    print(text)
    if arguments.write:
        write(text)


if __name__ == "__main__":
    main()
