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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
from measure import Result, Used, measured
from reference_server import Load, RequestLog, RigError, Server, compiled, on_core, ordered, read_log, serving

from tailgauge.rows.chunk_encoding import plain

PATIENCE_S = 180
LOOK_S = 0.25
Client = Callable[[Load, "Cores", Path], Result]


@dataclass(frozen=True, slots=True)
class Cores:
    """Where the processes run: server, client, and the master of our run."""

    server: int
    client: int
    master: int

    @classmethod
    def found(cls) -> Cores:
        """The first two or three that this process may use."""
        free = sorted(os.sched_getaffinity(0))
        if len(free) < 2:
            raise RigError("two cores are needed: one for the server, one for the client")
        return cls(free[0], free[1], free[2] if len(free) > 2 else free[0])


def reference(load: Load, cores: Cores, folder: Path) -> Result:
    """The native client."""
    log = folder / "seen.bin"
    with serving(load, cores.server, folder) as server:
        line = [compiled("client"), f"--port={server.port}", f"--streams={load.streams}", "--log", log]
        line += [
            f"--seconds={load.duration_s}",
            f"--spacing={load.spacing_ms}",
            f"--protocol={load.protocol}",
        ]
        output = _run_client(line, cores.client, load)
    seen, seconds = read_log(log), np.array(output["seconds"])
    used = Used(seconds[:, 0].astype(np.int64), seconds[:, 1], float(seconds[-1, 1]), output["tree_s"])
    return measured(load, int(seen.began_ns.min()), server, seen, used)


def python(name: str) -> Client:
    """One of the clients in python_clients.py, as a process of its own."""

    def client(load: Load, cores: Cores, folder: Path) -> Result:
        log = folder / "seen.bin"
        with serving(load, cores.server, folder) as server:
            line = [sys.executable, Path(__file__).parent / "python_clients.py", name, server.url, log]
            asked = (load.streams, load.duration_s, load.spacing_ms, load.chunks)
            output = _run_client([*line, *map(str, asked)], cores.client, load)
        seen, seconds = read_log(log), np.array(output["seconds"])
        used = Used(seconds[:, 0].astype(np.int64), seconds[:, 1], output["whole_s"], output["tree_s"])
        return measured(load, int(seen.began_ns.min()), server, seen, used)

    return client


def tailgauge(load: Load, cores: Cores, folder: Path, options: tuple[str, ...] = ()) -> Result:
    """Ours."""
    with serving(load, cores.server, folder) as server:
        scenario = folder / "rig.toml"
        scenario.write_text(_scenario(load, server))
        line = [sys.executable, "-m", "tailgauge", "run", str(scenario), "--workers", "1", "--json"]
        tree_s, samples = _run(
            [*line, "--out", str(folder), "--max-requests", "10000000", *options], cores, load, folder
        )
    runs = list(folder.glob("runs/*/workers/0.json"))
    if len(runs) != 1:
        raise RigError(f"no run was made: {(folder / 'output.txt').read_text()[-2000:]}")
    return _read(load, runs[0].parents[1], server, tree_s, samples)


def with_options(*options: str) -> Client:
    """Ours with more options of `tailgauge run`."""
    return lambda load, cores, folder: tailgauge(load, cores, folder, options)


def knows(option: str) -> bool:
    """Whether `tailgauge run` has an option."""
    line = [sys.executable, "-m", "tailgauge", "run", "--help"]
    return option in subprocess.run(line, capture_output=True, text=True, check=True).stdout


def machine() -> str:
    """This machine, what runs on it, and the day."""
    info = Path("/proc/cpuinfo")
    models = (
        [text.partition(":")[2].strip() for text in info.read_text().splitlines() if "model name" in text]
        if info.exists()
        else []
    )
    kind = models[0] if models else platform.machine()
    day = datetime.now(UTC).date().isoformat()
    return f"{os.cpu_count()} cores ({kind}), {platform.system()} {platform.release().partition('-')[0]}, Python {platform.python_version()}, {day}"


def _scenario(load: Load, server: Server) -> str:
    trusted = f'ca_file = "{server.authority}"\n' if server.authority else ""
    return (
        f'[target]\nurl = "{server.url}"\nprotocol = "{load.protocol}"\nconnections = {2 * load.streams + 100}\n{trusted}'
        f'[arrival]\nprocess = "closed"\n[arrival.closed]\nusers = {load.streams}\nthink_s = 0\n'
        f"[stages]\nduration_s = {load.duration_s:.3f}\nwarmup_s = {load.settled_s:.6f}\n"
        f'[traffic.chat]\npattern = "streaming"\nprompt_tokens = 16\noutput_tokens = {load.chunks}\n'
        f"[limits]\nin_flight_per_worker = {2 * load.streams + 100}\n"
    )


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


def _run(line: list[str], cores: Cores, load: Load, folder: Path) -> tuple[float, list[tuple[int, float]]]:
    """Run our client to its end, its worker on a core of its own.

    Returns the CPU seconds of all its processes, and those of the worker over time.
    """
    with (folder / "output.txt").open("w") as output, on_core(cores.master):
        child = subprocess.Popen(line, stdout=output, stderr=output)
    deadline = time.monotonic() + load.duration_s + PATIENCE_S
    pid, samples = 0, []
    while not pid:
        samples += _workers_cpu(child.pid, cores.client)
        time.sleep(LOOK_S)
        pid, _, usage = os.wait4(child.pid, os.WNOHANG)
        if time.monotonic() > deadline:
            child.kill()
            raise RigError("our client did not end")
    child.returncode = 0  # it was waited for above
    return usage.ru_utime + usage.ru_stime, samples


def _workers_cpu(master: int, core: int) -> list[tuple[int, float]]:
    """Keep every thread of the worker on its core; when, and what CPU time it has taken (to 10 ms), seen from outside."""
    with suppress(psutil.Error, OSError):
        for process in psutil.Process(master).children():
            if process.name().startswith("worker"):
                for thread in process.threads():
                    with suppress(OSError):
                        os.sched_setaffinity(thread.id, {core})
                used = process.cpu_times()
                return [(time.monotonic_ns(), used.user + used.system)]
    return []


def _read(load: Load, run: Path, server: Server, tree_s: float, samples: list[tuple[int, float]]) -> Result:
    output = json.loads((run / "workers" / "0.json").read_text())
    if output["state"] != "drained":
        raise RigError(f"the worker did not end well: {output['state']}, {output['why']}")
    cpu = output["cpu_s"]
    at_ns, cpu_s = (np.array(column) for column in zip(*samples, strict=True))
    used = Used(at_ns, cpu_s, cpu["at_end"] - cpu["at_start"], tree_s, cpu["writer"])
    attempts = pq.read_table(
        run / "attempts",
        columns=["request_id", "sent_at_ns", "first_content_at_ns", "chunks", "ended", "stage"],
    )
    kept = attempts.filter((_column(attempts, "ended") == "ok") & (_column(attempts, "stage") != "preflight"))
    seen, stored = seen_by(run, kept)
    return measured(load, output["run"]["start_at_ns"], server, seen, used, stored)


def _column(table: Any, name: str) -> Any:
    return table[name].to_numpy(zero_copy_only=False)


def seen_by(run: Path, attempts: Any) -> tuple[RequestLog, float]:
    """What the worker recorded, and the bytes that a chunk takes in its table."""
    files = sorted((run / "chunks").glob("*.parquet"))
    wanted = ["request_id", "chunk_index", "arrived_at_ns", "exact", "gap_ns"]
    chunks = plain(pq.read_table(run / "chunks", columns=wanted))
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
