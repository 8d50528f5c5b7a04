"""How late requests leave, and how many a second, beside the native client: `make bench`, or

    .venv/bin/python bench/sending.py [--quick] [--write] [--repeat 5] [--seconds 10] [--one-core] [--loads 400x1 800x20]

Late is the kernel's time of a request at the reference server minus the time at which it was due. Both clients replay the
same arrivals, in turn; a ratio is taken within a repetition, and medians over the repetitions are given.

    Poisson     a rate per second and the chunks of an answer; p50, p99 and maximum of how late they are
    herd        requests that are all due at the same instant, over connections that an earlier herd left open
    throughput  users of a closed loop without think time, whose answers have one chunk and come at once

`--one-core`: all our processes share one core, and the server has the other; else only the server is pinned, but for the
closed loop, whose client has a core of its own. `--write` puts the tables into docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import clients
import numpy as np
import pyarrow.parquet as pq
import tables
from docs_page import replace_between
from measure import Result
from reference_server import Load, RequestLog, RigError, Server, compiled, on_core, serving

LOADS = ("200x1", "400x1", "800x1", "2000x1", "800x20")
HERDS: tuple[int, ...] = (2000, 4000)
HERD_AT_S = 2.5  # a herd opens the connections at 0, the one that counts comes then
USERS = 64
WARMUP_S = 2.0
PATIENCE_S = 120
FIRST_S = 0.25  # of a trace: times that all are whole seconds would be spread over them
BEGIN, END = "<!-- sending: begin -->", "<!-- sending: end -->"
NAMES = ("reference", "tailgauge")
LATE = ("p99", "latest")  # figures of lateness on the page


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests are due, in s since the start, and the chunks of their answers; what comes before WARMUP_S is left out."""

    at_s: Any
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class Due:
    """The requests that a client sent, of those that were to be sent: their numbers and times."""

    planned: int
    request: Any
    due_ns: Any
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """One run: how late its requests came to the server, in ms, and the verdict of its report."""

    p50: float
    p99: float
    latest: float
    requests: int
    planned: int
    verdict: str


Client = Callable[[Arrivals, Server, Path], Due]
Runs = dict[str, list[Sent]]  # by client
Results = dict[str, list[Result]]


def poisson(rate_per_s: float, chunks: int, seconds: float) -> Arrivals:
    """Draw random, independent arrivals."""
    load = Load(1, WARMUP_S + seconds, chunks, rate_per_s=rate_per_s, poisson=True)
    at_s = load.arrivals_s()
    return Arrivals(at_s[at_s < WARMUP_S + seconds], chunks)


def herd(size: int) -> Arrivals:
    """Return two herds; the second counts."""
    return Arrivals(np.repeat([0.0, HERD_AT_S], size))


def reference(arrivals: Arrivals, server: Server, folder: Path) -> Due:
    """Replay the arrivals by the native client."""
    file = clients.write_arrivals(arrivals.at_s, folder)
    line: list[Any] = [compiled("client"), f"--port={server.port}", f"--arrivals={file}"]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=arrivals.at_s[-1] + PATIENCE_S, check=False
    )
    if done.returncode:
        raise RigError(f"the native client failed: {done.stderr[-2000:]}")
    due_ns = json.loads(done.stdout)["begin_ns"] + np.rint(1e9 * arrivals.at_s).astype(np.int64)
    counted = np.flatnonzero(arrivals.at_s >= WARMUP_S)
    return Due(len(counted), counted, due_ns[counted])


def tailgauge(arrivals: Arrivals, server: Server, folder: Path) -> Due:
    """Replay them by ours."""
    trace = folder / "arrivals.csv"
    rows = (f"{FIRST_S + at_s:.9f},16,{arrivals.chunks}" for at_s in arrivals.at_s)
    trace.write_text("\n".join(("Timestamp,Request tokens,Response tokens", *rows)) + "\n")
    duration_s = arrivals.at_s[-1] + 0.5
    scenario = folder / "sending.toml"
    scenario.write_text(_scenario(server.url, trace, duration_s))
    line: list[Any] = [sys.executable, "-m", "tailgauge", "run", scenario]
    line += ["--workers=1", "--json", f"--out={folder}"]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=duration_s + PATIENCE_S, check=False
    )
    runs = list(folder.glob("runs/*/attempts"))
    pages = list(folder.glob("reports/*/report.json"))
    if len(runs) != 1 or len(pages) != 1:
        raise RigError(f"no run was made: {done.stderr[-2000:]}")
    attempts = pq.read_table(
        runs[0], columns=["request_id", "scheduled_at_ns", "stage"]
    ).to_pandas()
    steady = attempts[attempts.stage == "steady"]
    verdict = json.loads(pages[0].read_text())["verdict"]["status"]
    planned = int(np.count_nonzero(arrivals.at_s >= WARMUP_S))
    due_ns = steady.scheduled_at_ns.to_numpy(np.int64)
    return Due(planned, steady.request_id.to_numpy(), due_ns, verdict)


def _scenario(url: str, trace: Path, duration_s: float) -> str:
    return (
        f'[target]\nurl = "{url}"\nprotocol = "openai"\nconnections = 10000\n'
        f'[arrival]\nprocess = "trace"\n[arrival.trace]\nfile = "{trace}"\nformat = "burstgpt"\n'
        f"[stages]\nduration_s = {duration_s}\nwarmup_s = {WARMUP_S}\n"
        f'[traffic.chat]\npattern = "streaming"\n'
        "[limits]\nin_flight_per_worker = 10000\n"
    )


CLIENTS: dict[str, Client] = {"reference": reference, "tailgauge": tailgauge}


def run(name: str, arrivals: Arrivals, *, one_core: bool = False) -> Sent:
    """Replay the arrivals by one client. Raises RigError."""
    load = Load(streams=1, seconds=1.0, chunks=arrivals.chunks, ttft_ms=50.0)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        placed: AbstractContextManager[None] = on_core(cores[0]) if one_core else nullcontext()
        with serving(load, cores[-1], Path(folder)) as server, placed:
            due = CLIENTS[name](arrivals, server, Path(folder))
        assert server.log is not None
        return lateness(due, server.log)


def lateness(due: Due, log: RequestLog) -> Sent:
    """Hold when requests came to the server against when they were due. Raises RigError if none came."""
    common, mine, theirs = np.intersect1d(due.request, log.request, return_indices=True)
    if not len(common):
        raise RigError(f"none of {due.planned} requests came")
    late_ms = (log.began_ns[theirs] - due.due_ns[mine]) / 1e6
    p50, p99 = np.quantile(late_ms, [0.5, 0.99], method="inverted_cdf")
    return Sent(float(p50), float(p99), float(late_ms.max()), len(common), due.planned, due.verdict)


# --- the loads, each by both clients in turn ----------------------------------------------------------------------


def replayed(title: str, arrivals: Arrivals, repeat: int, *, one_core: bool) -> Runs:
    """Run both clients in turn, and print each run."""
    runs: Runs = {name: [] for name in NAMES}
    for _ in range(repeat):
        for name in NAMES:
            sent = run(name, arrivals, one_core=one_core)
            runs[name].append(sent)
            _print(
                f"{title:>20}  {name:9}  late p50 {sent.p50:6.3f} ms, p99 {sent.p99:7.3f} ms, "
                f"latest {sent.latest:7.2f} ms of {_count(sent)}  {sent.verdict}"
            )
    return runs


def throughput(repeat: int, seconds: float) -> Results:
    """Run a closed loop without think time."""
    load = Load(USERS, seconds, chunks=1, ttft_ms=0.0, at_once=True)
    cores = clients.Cores.found()
    results: Results = {name: [] for name in NAMES}
    for _ in range(repeat):
        for name, client in (("reference", clients.reference), ("tailgauge", clients.tailgauge)):
            with tempfile.TemporaryDirectory() as folder:
                result = client(load, cores, Path(folder))
            results[name].append(result)
            _print(
                f"{USERS:>14} users  {name:9}  {result.rate:,.0f} requests/s  {result.verdict or ''}"
            )
    return results


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- tables -------------------------------------------------------------------------------------------------------


def _late_row(load: str, runs: Runs) -> str:
    figures = []
    for name in ("tailgauge", "reference"):
        figures += [median(getattr(one, figure) for one in runs[name]) for figure in LATE]
    cells = " | ".join(f"{figure:.3f}" for figure in figures)
    return f"| {load} | {_verdicts(runs['tailgauge'])} | {cells} |"


def _herd_rows(size: int, runs: Runs) -> list[str]:
    rows = []
    for name, sent in runs.items():
        cells = "- | -"  # those that never left have no time
        if all(one.requests == one.planned for one in sent):
            pairs = zip(sent, runs["reference"], strict=True)
            ratio = median(mine.latest / native.latest for mine, native in pairs)
            cells = f"{median(one.latest for one in sent):.1f} | {ratio:.2f}"
        rows.append(
            f"| {size:,} | {tables.NAMES[name]} | {cells} | {_counts(sent)} | {_verdicts(sent)} |"
        )
    return rows


def _count(sent: Sent) -> str:
    return (
        f"{sent.requests:,} of {sent.planned:,}"
        if sent.requests < sent.planned
        else f"{sent.planned:,}"
    )


def _counts(sent: list[Sent]) -> str:
    """The repetition with the fewest requests."""
    return _count(min(sent, key=lambda one: one.requests))


def _throughput_rows(results: Results) -> list[str]:
    rows = []
    for name, mine in results.items():
        rate = tables.middle(mine, "rate")
        ratio = tables.ratio(mine, results["reference"], "rate")
        shares = [
            tables.middle(mine, figure) or 0.0 for figure in ("cpu_share", "server_cpu_share")
        ]
        cells = " | ".join(f"{share:.0%}" for share in shares)
        rows.append(f"| {USERS} | {tables.NAMES[name]} | {rate:,.0f} | {ratio:.2f} | {cells} |")
    return rows


def _verdicts(sent: list[Sent]) -> str:
    return tables.counted(one.verdict for one in sent if one.verdict)


def page(late: dict[str, Runs], herds: dict[int, Runs], closed: Results, minutes: float) -> str:
    """All tables as Markdown."""
    late_rows = [_late_row(load, runs) for load, runs in late.items()]
    herd_rows = [row for size, runs in herds.items() for row in _herd_rows(size, runs)]
    parts = (
        f"Measured on {clients.machine()}, in {minutes:.0f} minutes; medians of the repetitions.",
        "### Poisson arrivals",
        tables.table("load | measurement | late p99, ms | latest, ms | C reference: late p99, ms | latest, ms", late_rows),
        "### Requests that are all due at once",
        tables.table("requests | client | until the last has left, ms | ratio to C | sent | measurement", herd_rows),
        "### Closed loop without think time",
        tables.table(
            "users | client | requests per second | ratio to C | client's CPU | server's CPU", _throughput_rows(closed)
        ),
    )  # fmt: skip
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run the loads, print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description="How late requests leave, and how many a second.")
    parser.add_argument(
        "--quick", action="store_true", help="one load of each, once, within a minute"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the docs")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="steady seconds of a load")
    parser.add_argument("--one-core", action="store_true", help="our processes share one core")
    parser.add_argument(
        "--loads", nargs="+", metavar="RATExCHUNKS", help="only these Poisson loads"
    )
    options = parser.parse_args()
    if options.write and (options.quick or options.one_core or options.loads):
        parser.error("--write: the page has all tables")
    began = time.monotonic()
    loads = options.loads or LOADS
    sizes = HERDS
    repeat = options.repeat
    seconds = options.seconds
    if options.quick:
        loads = options.loads or ("400x1",)
        sizes = HERDS[:1]
        repeat = 1
        seconds = 4.0
    late = {}
    for load in loads:
        rate, _, chunks = load.partition("x")
        title = f"{rate}/s, {tables.chunks_text(int(chunks))}"
        arrivals = poisson(float(rate), int(chunks), seconds)
        late[title] = replayed(title, arrivals, repeat, one_core=options.one_core)
    if options.loads:
        return
    herds = {
        size: replayed(f"herd of {size:,}", herd(size), repeat, one_core=options.one_core)
        for size in sizes
    }
    text = page(late, herds, throughput(repeat, min(seconds, 3.0)), (time.monotonic() - began) / 60)
    print(text)
    if options.write:
        replace_between(BEGIN, END, text, tables.PAGE)


if __name__ == "__main__":
    try:
        main()
    except RigError as error:
        sys.exit(f"sending.py: {error}")
