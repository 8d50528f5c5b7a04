"""Cost of one client under a known load, and its errors against the server log.

Figures are of the steady window unless their name states otherwise. The reference is the server's send time. TTFT is from
sending the request to its first chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import median, mode
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of one client. Times in ms, CPU in us; None if unknown, as most figures of a program that is not ours."""

    requests: int  # begun and ended within the window
    ttft_mean: float
    ttft_mean_error: float  # of the reported mean against that of the server log
    ttft_p50_error: float
    ttft_p99_error: float
    ttft_p99_reference: float
    gap_p99_error: float | None
    gap_p99_reference: float
    us_per_chunk_tree: float | None
    server_cpu_share: float
    server_late_p99: float  # of its sends, against its plan
    lost: int | None = (
        None  # requests of the server log that the client lacks, or has with other chunks
    )
    rate: float | None = None  # chunks/s
    us_per_chunk: float | None = None  # steady
    us_per_chunk_whole: float | None = None
    us_per_request: float | None = None  # steady: everything that its requests cost, by the request
    cpu_share: float | None = None
    writer_share: float | None = None  # of the process's CPU time over the whole run
    ttft_each_p99: float | None = None  # p99 of the errors of single requests
    gap_each_p99: float | None = None
    lag_p50: float | None = None  # stamp of a chunk after its send
    exact: float | None = None  # share of chunks with an exact stamp
    bytes_per_chunk: float | None = None
    reader: str | None = None  # compiled or python
    verdict: str | None = None  # of the run's report on its measurement
    mark: str | None = (
        None  # of p99 of TTFT since sent or of gaps in the report; "": neither has one
    )
    ttft_invalid: bool = False  # by the report's error of this figure, or of the whole run
    gap_invalid: bool = False
    first_request_s: float | None = None  # from the command
    page_s: float | None = None  # from the last chunk

    @property
    def honest(self) -> bool:
        """Reported p99 of TTFT and of gaps within 5% of the server log's, nothing lost, and VALID if it has a verdict."""
        ttft, gap = abs(self.ttft_p99_error), abs(self.gap_p99_error or 0)
        exact = ttft <= 0.05 * self.ttft_p99_reference and gap <= 0.05 * self.gap_p99_reference
        return exact and not self.lost and self.verdict in {None, "VALID"}


def median_of(results: list[Result]) -> Result:
    """Every figure's own median over the repetitions; of words the most frequent."""
    middle: dict[str, Any] = {}
    for one in fields(Result):
        values = [getattr(result, one.name) for result in results]
        average: Any = mode if isinstance(values[0], str | bool) else median
        middle[one.name] = None if None in values else average(values)
    return Result(**middle)


def measured(
    load: Load,
    start_ns: int,
    server: Server,
    seen: RequestLog,
    used: Used,
    counted: Any = None,
) -> Result:
    """Compare a client's log with the server's; `start_ns` is the start of the load.

    `counted`: the numbers of the requests of which the client's own figures are, instead of those sent in the steady window.
    """
    server_log = server.log
    assert server_log is not None
    since, until = start_ns + int(load.settled_s * 1e9), start_ns + int(load.duration_s * 1e9)
    both, mine, theirs = np.intersect1d(
        seen.request, server_log.request, assume_unique=True, return_indices=True
    )
    same = seen.chunks[mine] == server_log.chunks[theirs]
    lost = len(server_log.request) - int(np.count_nonzero(same))
    inside = (server_log.began_ns[theirs] >= since) & (server_log.began_ns[theirs] < until)
    inside = same & (inside if counted is None else np.isin(both, counted))
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
        rate=sent_in_window / (window[1] - window[0]) * 1e9,
        us_per_chunk=window[2] / sent_in_window * 1e6,
        us_per_chunk_whole=used.whole_s / whole * 1e6,
        us_per_chunk_tree=None if used.tree_s is None else used.tree_s / whole * 1e6,
        us_per_request=window[2] / asked * 1e6 if asked else None,
        cpu_share=window[2] / (window[1] - window[0]) * 1e9,
        writer_share=None if used.writer_s is None else used.writer_s / used.whole_s,
        ttft_mean=float(ttft.mean()) / 1e6,
        ttft_mean_error=float(ttft.mean() - ttft_reference.mean()) / 1e6,
        ttft_p50_error=_quantile(ttft, 0.5) - _quantile(ttft_reference, 0.5),
        ttft_p99_error=_p99(ttft) - _p99(ttft_reference),
        ttft_each_p99=_p99(np.abs(ttft - ttft_reference)),
        gap_p99_error=_p99(gap) - _p99(gap_reference),
        gap_each_p99=_p99(np.abs(gap - gap_reference)),
        lag_p50=_quantile(at - at_reference, 0.5),
        exact=None if exact is None else float(exact.mean()),
        ttft_p99_reference=_p99(ttft_reference),
        gap_p99_reference=_p99(gap_reference),
        server_cpu_share=server.summary["cpu_share"],
        server_late_p99=server.summary["late_p99_ms"],
        lost=lost,
    )


def reported(
    server: Server, ttft: dict[str, float], gap_p99: float | None, tree_s: float
) -> Result:
    """What another program reports of all its requests (`mean`, `p50`, `p99` in ms) against the server log."""
    log = server.log
    assert log is not None
    ttft_reference = log.at_ns[log.starts] - log.began_ns
    later = np.ones(len(log.at_ns), bool)
    later[log.starts] = False
    gap_reference = _p99(np.diff(log.at_ns, prepend=0)[later])
    return Result(
        requests=len(log.request),
        ttft_mean=ttft["mean"],
        ttft_mean_error=ttft["mean"] - float(ttft_reference.mean()) / 1e6,
        ttft_p50_error=ttft["p50"] - _quantile(ttft_reference, 0.5),
        ttft_p99_error=ttft["p99"] - _p99(ttft_reference),
        ttft_p99_reference=_p99(ttft_reference),
        gap_p99_error=None if gap_p99 is None else gap_p99 - gap_reference,
        gap_p99_reference=gap_reference,
        us_per_chunk_tree=tree_s / len(log.at_ns) * 1e6,
        server_cpu_share=server.summary["cpu_share"],
        server_late_p99=server.summary["late_p99_ms"],
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
    return (
        int(used.at_ns[first]),
        int(used.at_ns[last]),
        float(used.cpu_s[last] - used.cpu_s[first]),
    )


def _p99(nanoseconds: Any) -> float:
    return _quantile(nanoseconds, 0.99)


def _quantile(nanoseconds: Any, q: float) -> float:
    return (
        float(np.quantile(nanoseconds, q, method="inverted_cdf")) / 1e6
        if len(nanoseconds)
        else float("nan")
    )
