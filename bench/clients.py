"""The clients under test: each runs a load on one core and says what it saw and what it used.

Tailgauge runs as `tailgauge run` with one worker, as a user starts it; only its cores are chosen from outside. With two
cores, the master and the report share the server's core and count in the figures of the whole process tree only.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
from measure import Result, Used, measured
from reference_server import (
    Load,
    RequestLog,
    RigError,
    Server,
    compiled,
    on_core,
    ordered,
    read_log,
    serving,
)

from tailgauge_analysis.stats.quantiles import CLIENT, TOO_FEW

PATIENCE_S = 180
LOOK_S = 0.25
FIGURES = {("ttft", "sent"), ("chunk_gap", None)}
Client = Callable[[Load, "Cores", Path], Result]


@dataclass(frozen=True, slots=True)
class Cores:
    """Where the processes run: server, client, and the master of our run."""

    server: int
    clients: tuple[int, ...]
    master: int

    @classmethod
    def found(cls) -> Cores:
        """The first that this process may use; the master has one that is neither the server's nor a client's, if any."""
        free = sorted(os.sched_getaffinity(0))
        if len(free) < 2:
            raise RigError("two cores are needed: one for the server, one for the client")
        if len(free) < 4:
            return cls(free[0], (free[1],), free[2] if len(free) == 3 else free[0])
        return cls(free[0], (free[1], free[2]), free[3])


def reference(load: Load, cores: Cores, folder: Path) -> Result:
    """The native client."""

    def line(server: Server, log: Path) -> list[Any]:
        if load.rate_per_s:
            users = [f"--arrivals={write_arrivals(load.arrivals_s(), folder)}"]
        else:
            users = [
                f"--streams={load.streams}",
                f"--spacing={load.spacing_ms}",
                f"--seconds={load.duration_s}",
            ]
        return [
            compiled("client"),
            f"--port={server.port}",
            *users,
            f"--protocol={load.protocol}",
            f"--log={log}",
        ]

    return _logged(load, cores, folder, line)


def write_arrivals(arrivals_s: Any, folder: Path) -> Path:
    """Write when requests are due, for the native client."""
    path = folder / "arrivals.bin"
    path.write_bytes(np.rint(1e9 * arrivals_s).astype("<i8").tobytes())
    return path


def locust(load: Load, cores: Cores, folder: Path) -> Result:
    """Locust with geventhttpclient, by hand."""

    def line(server: Server, log: Path) -> list[Any]:
        spacing = 0 if load.rate_per_s else load.spacing_ms
        sizes = (load.streams, load.duration_s, spacing, load.chunks, load.rate_per_s or 0)
        return [
            sys.executable,
            Path(__file__).parent / "locust_client.py",
            server.url,
            log,
            *map(str, sizes),
        ]

    return _logged(load, cores, folder, line)


def tailgauge(load: Load, cores: Cores, folder: Path) -> Result:
    """Ours."""
    with serving(load, cores.server, folder) as server:
        scenario = folder / "rig.toml"
        scenario.write_text(_scenario(load, server))
        line = [
            sys.executable,
            "-m",
            "tailgauge",
            "run",
            str(scenario),
            f"--workers={load.workers}",
            "--json",
        ]
        began_ns = time.monotonic_ns()
        tree_s, samples = _run(
            [*line, f"--out={folder}", "--max-requests=10000000"], cores, load, folder
        )
    runs = list(folder.glob("runs/*/workers"))
    pages = list(folder.glob("reports/*/report.html"))
    if len(runs) != 1 or len(pages) != 1:
        raise RigError(f"no run was made: {(folder / 'output.txt').read_text()[-2000:]}")
    assert server.log is not None
    result = _read(load, runs[0].parent, server, tree_s, samples)
    verdict, mark, invalid = _verdict(pages[0].with_name("report.json"))
    page_ns = pages[0].stat().st_mtime_ns - (time.time_ns() - time.monotonic_ns())
    return replace(
        result,
        verdict=verdict,
        mark=mark,
        ttft_invalid="ttft_sent" in invalid,
        gap_invalid="chunk_gap" in invalid,
        first_request_s=(server.log.began_ns.min() - began_ns) / 1e9,
        page_s=(page_ns - server.log.at_ns.max()) / 1e9,
    )


def machine() -> str:
    """This machine, what runs on it, and the day."""
    info = Path("/proc/cpuinfo")
    models = (
        [
            text.partition(":")[2].strip()
            for text in info.read_text().splitlines()
            if "model name" in text
        ]
        if info.exists()
        else []
    )
    kind = models[0] if models else platform.machine()
    day = datetime.now(UTC).date().isoformat()
    return f"{os.cpu_count()} cores ({kind}), {platform.system()} {platform.release().partition('-')[0]}, Python {platform.python_version()}, {day}"


def _scenario(load: Load, server: Server) -> str:
    trusted = f'ca_file = "{server.authority}"\n' if server.authority else ""
    arrival = f'process = "closed"\n[arrival.closed]\nusers = {load.streams}\nthink_s = 0'
    most = 2 * load.streams + 100
    if load.rate_per_s:
        process = "poisson" if load.poisson else "constant"
        arrival = f'process = "{process}"\nrate_per_s = {load.rate_per_s}'
        most = round(load.rate_per_s * load.answer_s) * 2 + 100
    return (
        f'reader = "{load.reader}"\n[target]\nurl = "{server.url}"\nprotocol = "{load.protocol}"\nconnections = {most}\n{trusted}'
        f"[arrival]\n{arrival}\n"
        f"[stages]\nduration_s = {load.duration_s:.3f}\nwarmup_s = {load.settled_s:.6f}\n"
        f'[traffic.chat]\npattern = "streaming"\nprompt_tokens = 16\noutput_tokens = {load.chunks}\n'
        f"[limits]\nin_flight_per_worker = {most}\n"
    )


def _logged(
    load: Load, cores: Cores, folder: Path, line: Callable[[Server, Path], list[Any]]
) -> Result:
    """One load through a client that writes a log as the server's."""
    log = folder / "seen.bin"
    with serving(load, cores.server, folder) as server:
        output = _run_client(line(server, log), cores.clients[0], load)
    seen, seconds = read_log(log), np.array(output["seconds"])
    used = Used(
        seconds[:, 0].astype(np.int64), seconds[:, 1], float(seconds[-1, 1]), output["tree_s"]
    )
    return measured(load, int(seen.began_ns.min()), server, seen, used)


def _run_client(line: list[Any], core: int, load: Load) -> dict[str, Any]:
    """Run a client that prints one line of JSON."""
    with on_core(core):
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=load.duration_s + PATIENCE_S, check=False
        )
    if done.returncode:
        raise RigError(f"{Path(line[0]).name} failed: {done.stderr[-2000:]}")
    output: dict[str, Any] = json.loads(done.stdout)
    return output


def _run(
    line: list[str], cores: Cores, load: Load, folder: Path
) -> tuple[float, list[tuple[int, float]]]:
    """Run our client to its end, its worker on a core of its own.

    Returns the CPU seconds of all its processes, and those of the worker over time.
    """
    with (folder / "output.txt").open("w") as output, on_core(cores.master):
        child = subprocess.Popen(line, stdout=output, stderr=output)
    deadline = time.monotonic() + load.duration_s + PATIENCE_S
    pid, samples = 0, []
    while not pid:
        samples += _workers_cpu(child.pid, cores.clients)
        time.sleep(LOOK_S)
        pid, _, usage = os.wait4(child.pid, os.WNOHANG)
        if time.monotonic() > deadline:
            child.kill()
            raise RigError("our client did not end")
    child.returncode = 0  # it was waited for above
    return usage.ru_utime + usage.ru_stime, samples


def _workers_cpu(master: int, cores: tuple[int, ...]) -> list[tuple[int, float]]:
    """Keep every thread of a worker on its core; when, and what CPU time all have taken (to 10 ms), seen from outside."""
    used_s, number = 0.0, 0
    with suppress(psutil.Error, OSError):
        for process in psutil.Process(master).children():
            if process.name().startswith("worker"):
                for thread in process.threads():
                    with suppress(OSError):
                        os.sched_setaffinity(thread.id, {cores[number % len(cores)]})
                used = process.cpu_times()
                used_s += used.user + used.system
                number += 1
        return [(time.monotonic_ns(), used_s)] if number else []
    return []


def _read(
    load: Load, run: Path, server: Server, tree_s: float, samples: list[tuple[int, float]]
) -> Result:
    outputs = [json.loads(file.read_text()) for file in sorted((run / "workers").glob("*.json"))]
    for output in outputs:
        if output["state"] != "drained":
            raise RigError(f"a worker did not end well: {output['state']}, {output['why']}")
    at_ns, cpu_s = (np.array(column) for column in zip(*samples, strict=True))
    whole_s = sum(output["cpu_s"]["at_end"] - output["cpu_s"]["at_start"] for output in outputs)
    used = Used(at_ns, cpu_s, whole_s, tree_s, sum(output["cpu_s"]["writer"] for output in outputs))
    columns = ["request_id", "sent_at_ns", "first_content_at_ns", "chunks", "ended", "stage"]
    attempts = pq.read_table(run / "attempts", columns=columns)
    kept = attempts.filter(
        (_column(attempts, "ended") == "ok") & (_column(attempts, "stage") != "preflight")
    )
    seen, stored = seen_by(run, kept)
    steady = kept.filter(
        _column(kept, "stage") != "warmup"
    )  # as the report has it: by when a request was due
    counted = _column(steady, "request_id") if len(steady) else None
    result = measured(load, outputs[0]["run"]["start_at_ns"], server, seen, used, counted)
    return replace(result, bytes_per_chunk=stored, reader=outputs[0]["reader"])


def _verdict(file: Path) -> tuple[str, str, set[str]]:
    """The report's verdict on the measurement, a mark of the p99s that are compared here, and which p99s are INVALID."""
    report = json.loads(file.read_text())
    marks = {
        row["percentiles"]["p99"]["mark"]
        for row in report["latency"]
        if (row["group"], row["population"]) == ("all", "completed")
        and (row["metric"], row["since"]) in FIGURES
    }
    verdict = report["verdict"]["status"]
    errors = [one for one in report["client_error"] if one["quantile"] == 0.99]
    invalid = {one["metric"] for one in errors if "INVALID" in {verdict, one["verdict"]}}
    return verdict, max(marks, key=lambda mark: (mark == CLIENT, mark), default=TOO_FEW), invalid


def _column(table: Any, name: str) -> Any:
    return table[name].to_numpy(zero_copy_only=False)


def seen_by(run: Path, attempts: Any) -> tuple[RequestLog, float]:
    """What the worker recorded, and the bytes that a chunk takes in its table."""
    files = sorted((run / "chunks").glob("*.parquet"))
    wanted = ["request_id", "chunk_index", "arrived_at_ns", "exact"]
    chunks = pq.read_table(run / "chunks", columns=wanted)
    request, index = _column(chunks, "request_id"), _column(chunks, "chunk_index")
    order = np.lexsort((index, request))
    order = order[np.isin(request[order], _column(attempts, "request_id"))]
    at_ns = _column(chunks, "arrived_at_ns")[order]
    exact = chunks["exact"].to_numpy()[order]
    known, counts = np.unique(request[order], return_counts=True)
    by_request = np.argsort(_column(attempts, "request_id"))
    sent_at_ns = _column(attempts, "sent_at_ns")[by_request].astype(np.int64)
    seen = ordered(known, sent_at_ns, counts, at_ns, np.ones(len(known), bool), exact)
    return seen, sum(file.stat().st_size for file in files) / chunks.num_rows
