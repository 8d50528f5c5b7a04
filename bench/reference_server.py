"""A native reference server, compiled here, and the logs of it and of a client about the same requests.

A log has the start of each request and the time at which each chunk was sent or received, on CLOCK_MONOTONIC, which all
processes of a machine share. The sources are in rig/; the binaries in build/rig, outside of git.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
BUILT = HERE.parent / "build" / "rig"
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
_ENTRY = np.dtype(
    [("request", "<i8"), ("leg", "<i4"), ("attempt", "<i4"), ("status", "<i4"), ("chunks", "<i4"),
     ("began", "<i8"), ("ended", "<i8")]
)  # fmt: skip
_GOLDEN = 0.6180339887


class RigError(Exception):
    """A measurement could not be made; says why."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop without think time, or an open loop; answers of equally many chunks at an even pace.

    Users of a closed loop start one after the other, so that their chunks spread evenly over a gap, or all at once. In
    batches, the server makes the chunks of all streams at the same instants, as an engine does.
    """

    streams: int  # users of the closed loop
    seconds: float  # of steady load, after all users have started
    chunks: int = 200
    ttft_ms: float = 200.0
    gap_ms: float = 20.0
    protocol: str = "openai"
    tls: bool = False
    at_once: bool = False
    batch: bool = False
    changing: bool = False  # fields beside the text change in every event
    rate_per_s: float | None = None  # of an open loop
    poisson: bool = False  # arrivals of the open loop: random, else at equal gaps
    workers: int = 1
    reader: str = "compiled"
    seed: int = 1  # of the chunks' texts; 0: all alike

    @property
    def spacing_ms(self) -> float:
        """Between two users' first requests: about 2 s for all, with phases spread evenly over a gap."""
        if self.at_once:
            return 0.0
        share = 2000 / self.streams / self.gap_ms
        golden = int(share) + _GOLDEN if share >= 1 else 1 / (int(1 / share) + _GOLDEN)
        return golden * self.gap_ms

    @property
    def settled_s(self) -> float:
        """Start of the steady window: users who start at once are measured from their first request on."""
        if self.rate_per_s:
            return max(1.0, 1.2 * self.answer_s)
        return 2 * self.streams * self.spacing_ms / 1e3

    @property
    def answer_s(self) -> float:
        """Duration of an answer."""
        return (self.ttft_ms + (self.chunks - 1) * self.gap_ms) / 1e3

    @property
    def duration_s(self) -> float:
        """New requests are sent until then."""
        return self.settled_s + self.seconds

    def arrivals_s(self) -> Any:
        """When the requests of the open loop are due, from its start."""
        assert self.rate_per_s is not None
        count = round(self.rate_per_s * self.duration_s)
        gaps = np.ones(count)
        if self.poisson:
            gaps = np.random.default_rng(self.seed).exponential(size=count)
        return (np.cumsum(gaps) - gaps[0]) / self.rate_per_s


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Requests and their chunks in order: as the server sent them, or as a client received them."""

    request: Any  # int64, ascending
    began_ns: Any
    chunks: Any  # number of chunks of each
    at_ns: Any  # of every chunk
    exact: Any = None  # bool of every chunk; None if the client does not know

    @property
    def starts(self) -> Any:
        """Where in `at_ns` each request's chunks begin."""
        return np.cumsum(self.chunks) - self.chunks

    def sent_between(self, since_ns: int, until_ns: int) -> int:
        """Chunks within a time."""
        return int(np.count_nonzero((self.at_ns >= since_ns) & (self.at_ns < until_ns)))


def compiled(name: str) -> Path:
    """Build one of the native programs, unless it is newer than its sources. Raises RigError without cc."""
    program, sources = BUILT / name, sorted((HERE / "rig").glob("*.[ch]"))
    if program.exists() and program.stat().st_mtime > max(
        source.stat().st_mtime for source in sources
    ):
        return program
    if shutil.which("cc") is None:
        raise RigError("cc not found: it builds the reference server and the reference client")
    BUILT.mkdir(parents=True, exist_ok=True)
    fresh = BUILT / f"{name}.{os.getpid()}"
    subprocess.run(["cc", *FLAGS, "-o", fresh, HERE / "rig" / f"{name}.c", "-ldl"], check=True)
    return fresh.replace(program)


def read_log(path: Path) -> RequestLog:
    """A log as the native programs write it; requests that broke off are left out."""
    data = path.read_bytes()
    if data[:8] != b"RIGLOG01":
        raise RigError(f"{path}: no log of the rig")
    count, stamps = np.frombuffer(data, "<i8", 2, 8)
    entries = np.frombuffer(data, _ENTRY, count, 24)
    at_ns = np.frombuffer(data, "<i8", stamps, 24 + count * _ENTRY.itemsize)
    whole = (entries["status"] == 200) & (entries["ended"] > 0) & (entries["request"] >= 0)
    return ordered(entries["request"], entries["began"], entries["chunks"], at_ns, whole)


def ordered(
    request: Any, began_ns: Any, chunks: Any, at_ns: Any, keep: Any, exact: Any = None
) -> RequestLog:
    """The requests to `keep`, by their number."""
    order = np.flatnonzero(keep)[np.argsort(request[keep], kind="stable")]
    sizes = chunks[order].astype(np.int64)
    starts = (np.cumsum(chunks, dtype=np.int64) - chunks)[order]
    rows = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    return RequestLog(
        request[order], began_ns[order], sizes, at_ns[rows], None if exact is None else exact[rows]
    )


@dataclass(slots=True)
class Server:
    """The server of one load; what follows the authority is set once it has ended."""

    port: int
    url: str
    authority: Path | None  # certificate to trust, under TLS
    summary: dict[str, Any] = field(default_factory=dict)
    log: RequestLog | None = None
    waited_ns: int = 0  # for a core


@contextmanager
def serving(load: Load, core: int, folder: Path) -> Iterator[Server]:
    """Serve a load on one core."""
    log = folder / "server.bin"
    line: list[str | Path] = [compiled("server"), "--log", log]
    line += [
        f"--ttft={load.ttft_ms}",
        f"--gap={load.gap_ms}",
        f"--chunks={load.chunks}",
        f"--seed={load.seed}",
    ]
    line += ["--batch"] * load.batch + ["--changing"] * load.changing
    authority = None
    if load.tls:
        authority, both = _certificate(folder)
        line += ["--tls", both]
    with on_core(core):
        child = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        port = child.stdout.readline().strip()
        if not port.isdigit():
            raise RigError(f"the reference server did not start (exit code {child.wait()})")
        scheme = "https" if load.tls else "http"
        server = Server(int(port), f"{scheme}://127.0.0.1:{port}", authority)
        yield server
        server.waited_ns = int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[1])
        child.terminate()
        server.summary = json.loads(child.stdout.readline())
        child.wait(30)
        server.log = read_log(log)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Children that are started meanwhile stay on a core."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """An authority's certificate, and a server's with its key."""
    import trustme

    made, authority, both = trustme.CA(), folder / "authority.pem", folder / "server.pem"
    made.cert_pem.write_to_path(authority)
    made.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    return authority, both
