"""Cost of one client under a known load, and its errors against the server log.

Figures are of the steady window unless their name states otherwise. The reference is the server's send time. TTFT is from
sending the request to its first chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import numpy as np
from reference_server import Load, RequestLog, RigError, Server


@dataclass(frozen=True, slots=True)
class Used:
    """CPU time of a client's one process, and of the processes around it."""

    at_ns: Any  # moments within its run
    cpu_s: Any  # CPU time of the process until then
    whole_s: float  # from the start of the load until its last file is closed
    tree_s: float | None = None  # with imports, master and report
    writer_s: float | None = None  # of the whole, the writer's threads


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one client. Times in ms, CPU in us; None if unknown."""

    requests: int  # begun and ended within the window
    chunks: int  # sent within it
    rate: float  # chunks/s
    us_per_chunk: float  # steady
    us_per_chunk_whole: float
    us_per_chunk_tree: float | None
    us_per_request: float  # steady: everything that its requests cost, by the request
    cpu_share: float
    writer_share: float | None  # of the process's CPU time over the whole run
    ttft_p99_error: float  # of the reported p99 against that of the server log
    ttft_each_p99: float  # p99 of the errors of single requests
    gap_p99_error: float
    gap_each_p99: float
    lag_p50: float  # stamp of a chunk after its send
    lag_p99: float
    exact_first: float | None  # share of first chunks with an exact stamp
    exact: float | None  # of all chunks
    ttft_p99_reference: float
    gap_p99_reference: float
    bytes_per_chunk: float | None = None
    server_cpu_share: float = 0.0
    server_late_p99: float = 0.0  # of its sends, against its plan
    lost: int = 0  # requests of the server log that the client lacks, or has with other chunks

    @property
    def honest(self) -> bool:
        """Reported p99 of TTFT within 10% of the server log's, and of gaps within 5 ms."""
        return abs(self.ttft_p99_error) <= 0.1 * self.ttft_p99_reference and abs(self.gap_p99_error) <= 5.0


def median_of(results: list[Result]) -> Result:
    """Every figure's own median over the repetitions."""
    middle: dict[str, Any] = {}
    for one in fields(Result):
        values = [getattr(result, one.name) for result in results]
        middle[one.name] = None if None in values else median(values)
    return Result(**middle)


def measured(
    load: Load,
    start_ns: int,
    server: Server,
    seen: RequestLog,
    used: Used,
    bytes_per_chunk: float | None = None,
) -> Result:
    """Compare a client's log with the server's; `start_ns` is the start of the load."""
    server_log = server.log
    assert server_log is not None
    since, until = start_ns + int(load.settled_s * 1e9), start_ns + int(load.duration_s * 1e9)
    both, mine, theirs = np.intersect1d(
        seen.request, server_log.request, assume_unique=True, return_indices=True
    )
    same = seen.chunks[mine] == server_log.chunks[theirs]
    lost = len(server_log.request) - int(np.count_nonzero(same))
    inside = same & (server_log.began_ns[theirs] >= since) & (server_log.began_ns[theirs] < until)
    mine, theirs = mine[inside], theirs[inside]
    if not len(both) or not len(mine):
        raise RigError("no request of the steady window was seen by both: is the window too short?")
    rows, sent = _rows(seen, mine), _rows(server_log, theirs)
    firsts = np.cumsum(seen.chunks[mine]) - seen.chunks[mine]
    at, at_reference = seen.at_ns[rows], server_log.at_ns[sent]
    ttft, ttft_reference = (
        at[firsts] - seen.began_ns[mine],
        at_reference[firsts] - server_log.began_ns[theirs],
    )
    later = np.ones(len(at), bool)
    later[firsts] = False
    gap, gap_reference = np.diff(at, prepend=0)[later], np.diff(at_reference, prepend=0)[later]
    exact = None if seen.exact is None else seen.exact[rows]
    window = _between(used, since, until)
    sent_in_window = server_log.sent_between(window[0], window[1])
    asked = np.count_nonzero((server_log.began_ns >= window[0]) & (server_log.began_ns < window[1]))
    whole = len(server_log.at_ns)
    return Result(
        requests=len(mine),
        chunks=sent_in_window,
        rate=sent_in_window / (window[1] - window[0]) * 1e9,
        us_per_chunk=window[2] / sent_in_window * 1e6,
        us_per_chunk_whole=used.whole_s / whole * 1e6,
        us_per_chunk_tree=None if used.tree_s is None else used.tree_s / whole * 1e6,
        us_per_request=window[2] / asked * 1e6,
        cpu_share=window[2] / (window[1] - window[0]) * 1e9,
        writer_share=None if used.writer_s is None else used.writer_s / used.whole_s,
        ttft_p99_error=_p99(ttft) - _p99(ttft_reference),
        ttft_each_p99=_p99(np.abs(ttft - ttft_reference)),
        gap_p99_error=_p99(gap) - _p99(gap_reference),
        gap_each_p99=_p99(np.abs(gap - gap_reference)),
        lag_p50=_quantile(at - at_reference, 0.5),
        lag_p99=_p99(at - at_reference),
        exact_first=None if exact is None else float(exact[firsts].mean()),
        exact=None if exact is None else float(exact.mean()),
        ttft_p99_reference=_p99(ttft_reference),
        gap_p99_reference=_p99(gap_reference),
        bytes_per_chunk=bytes_per_chunk,
        server_cpu_share=server.summary["cpu_share"],
        server_late_p99=server.summary["late_p99_ms"],
        lost=lost,
    )


def _rows(of: RequestLog, chosen: Any) -> Any:
    sizes = of.chunks[chosen]
    return np.repeat(of.starts[chosen] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


def _between(used: Used, since_ns: int, until_ns: int) -> tuple[int, int, float]:
    """First and last moment known within a window, and the CPU seconds between them."""
    inside = np.flatnonzero((used.at_ns >= since_ns) & (used.at_ns <= until_ns))
    if len(inside) < 2:
        raise RigError("the steady window is shorter than two seconds")
    first, last = inside[0], inside[-1]
    return int(used.at_ns[first]), int(used.at_ns[last]), float(used.cpu_s[last] - used.cpu_s[first])


def _p99(nanoseconds: Any) -> float:
    return _quantile(nanoseconds, 0.99)


def _quantile(nanoseconds: Any, q: float) -> float:
    return (
        float(np.quantile(nanoseconds, q, method="inverted_cdf")) / 1e6 if len(nanoseconds) else float("nan")
    )
