"""The workers of a run as the master knows them: identity, state, last counters, losses, and the live verdict on them.

starting -> running -> drained       failed: it reported that it cannot continue
              |  ^
              v  |                   lost: gone, or silent for SILENT_S; after another message it takes part again
             lost

A master that is stalled receives nothing: silence counts from its return. What it missed then is in `master_stalled`.

Also here: where every scheduled request went, counted by the master.

    scheduled  = dispatched + client_drop + not_reached + lost
    dispatched = sum of ended classes + censored

The counts of a drained worker are taken as reported. For a lost worker only its rows count, and the rest of its leases is
`lost`. The analysis repeats the sum from Parquet.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailgauge import quantile_sketch
from tailgauge.channel import traffic_counters
from tailgauge.clock import monotonic_ns
from tailgauge.master import progress as describe
from tailgauge.rows.parquet import schema
from tailgauge.rows.run_folder import MARK, RunFolder
from tailgauge.rows.schema import CENSORED, CLIENT_DROP
from tailgauge.thresholds import (
    BUSY_CPU,
    DEGRADED,
    DROPS,
    INVALID,
    LATE_MS,
    LATE_SHARE,
    VALID,
    WORST_FIRST,
)

if TYPE_CHECKING:
    from gevent.event import Event

LATE_SECONDS = (
    0.01  # share of the seconds with a stall from which on stalls that are over are named
)
OVERDUE_S = (
    2.0  # a worker that sends nothing for so long is shown as silent; it sends once a second
)
SILENT_S = 4.0  # a worker that sends nothing for so long gets no more slices
RETURN_S = 20.0
WRITING_S = 120.0  # for compacting hours of parts; also without progress of a transfer
STALL_S = 2.0  # between two looks at the workers, which are fractions of a second apart
# By the worker, for run.json.
_RECORDED = (
    "clock",
    "stamps",
    "reader",
    "priority",
    "counts",
    "rows",
    "unwritten",
    "why",
    "task_errors",
)
CROWD = 200  # workers; with more of them each sends less often, because the master has one core


Lease = tuple[
    int, int, int, int
]  # begin and end of a slice in ns of the run; number of shares; which one
Span = tuple[int, int | None]


@dataclass(slots=True)
class RunWorker:
    """One worker."""

    node: str
    number: int
    hello: dict[str, Any]
    last_message_ns: int
    state: str = "running"  # starting, running, drained, failed, lost
    late_ns: int | None = None  # start of a late joiner, in ns of the run
    ready: bool = False
    delivered: bool = False  # every row was transferred to the master
    opened: bool = False  # its connections are open
    leased: int = 0  # requests; in a closed loop the number that the worker reports
    held: list[Lease] = field(default_factory=list)
    silent: list[Span] = field(default_factory=list)  # times without a message, in ns of the run
    missing: list[dict[str, float]] = field(
        default_factory=list
    )  # stretches whose arrivals left no row
    counters: dict[str, Any] = field(default_factory=dict)  # its last message with counters
    record: dict[str, Any] = field(
        default_factory=dict
    )  # facts of its `ready`, then of its `drained`

    @property
    def has_drained(self) -> bool:
        """Whether its final counts have arrived."""
        return bool(self.record.get("counts"))

    @property
    def lacks_rows(self) -> bool:
        """Whether it has drained with rows that it could not write or transfer."""
        is_elsewhere = not self.delivered and not self.record.get("shared", True)
        return self.has_drained and (is_elsewhere or any(self.record.get("unwritten", {}).values()))

    @property
    def has_left(self) -> bool:
        """Whether it drained by itself, because it was stopped from outside."""
        return self.state == "drained" and bool(self.record.get("why"))

    @property
    def watch(self) -> dict[str, Any]:
        """The worker's figures for the live verdict."""
        watch: dict[str, Any] = self.counters.get("watch", {})
        return watch

    def count(self, name: str) -> int:
        """One of the worker's last counts; 0 before its first counters."""
        return int(self.counters["counts"][name]) if self.counters else 0

    @property
    def has_sent_all(self) -> bool:
        """Whether all that it leased was sent, and has ended."""
        if not self.counters:
            return not self.leased
        sent = self.count("dispatched") + self.count("client_drop")
        return sent >= self.leased and not self.counters["in_flight"]

    def facts(self) -> dict[str, Any]:
        """The worker's entry in run.json."""
        known = {key: self.record.get(key) for key in _RECORDED}
        known["counts"] = known["counts"] or self.counters.get("counts")
        if not self.has_drained and self.counters.get("clock"):
            known["clock"] = self.counters["clock"]  # newer than that of its `ready`
        hello = {k: self.hello[k] for k in ("name", "host", "pid")}
        silent = [{"from_s": _s(since), "to_s": _s(until)} for since, until in self.silent]
        return {
            "worker": self.number, **hello, "state": self.state, "leased": self.leased, **known,
            "late_s": _s(self.late_ns), "silent": silent, "missing": self.missing,
        }  # fmt: skip


def pace(workers: int) -> int:
    """Seconds between messages with counters; parts are written less often by the same factor."""
    return -(-max(1, workers) // CROWD)


class RunWorkers:
    """The workers of one run by Locust's node name; `alive` tests a worker's process."""

    def __init__(self, alive: Callable[[str], bool]) -> None:
        self._alive = alive
        self.by_node: dict[str, RunWorker] = {}
        self.stalls: list[
            tuple[int, int]
        ] = []  # times in ns in which the master itself did not run
        self._looked_ns = 0
        self._late_seconds: dict[
            int, float
        ] = {}  # seconds of the run with a stall, and how long it was

    def __len__(self) -> int:
        return len(self.by_node)

    def __iter__(self) -> Iterator[RunWorker]:
        return iter(self.by_node.values())

    def add(self, node: str, hello: dict[str, Any], *, late: bool = False) -> RunWorker:
        """A worker reported for the run, or `late` for the rest of it."""
        worker = RunWorker(
            node, len(self.by_node), hello, monotonic_ns(), "starting" if late else "running"
        )
        self.by_node[node] = worker
        return worker

    def living(self) -> list[RunWorker]:
        """Running workers."""
        return [m for m in self if m.state == "running"]

    def have_sent_all(self) -> bool:
        """Whether every running worker has sent what it leased, and all of it has ended."""
        running = self.living()
        return bool(running) and all(worker.has_sent_all for worker in running)

    def is_gone(self, worker: RunWorker) -> bool:
        """Whether its process has ended."""
        return not self._alive(worker.node)

    def look(self) -> int:
        """The time in ns, and whether the master ran since the last look; called often while workers are waited for."""
        now_ns = monotonic_ns()
        if self._looked_ns and now_ns - self._looked_ns > STALL_S * 1e9:
            self.stalls.append((self._looked_ns, now_ns))
        self._looked_ns = now_ns
        return now_ns

    def stalled(self, start_at_ns: int | None) -> list[dict[str, float]]:
        """When the master itself did not run, in seconds of the run."""
        if start_at_ns is None:
            return []
        times = [[max(0, at_ns - start_at_ns) / 1e9 for at_ns in span] for span in self.stalls]
        return [{"from_s": from_s, "to_s": to_s} for from_s, to_s in times]

    def silent_s(self, worker: RunWorker, since_ns: int, now_ns: int) -> float:
        """For how long the master has listened to a worker in vain."""
        back_ns = self.stalls[-1][1] if self.stalls else 0
        return (now_ns - max(worker.last_message_ns, since_ns, back_ns)) / 1e9

    def newly_lost(self, start_at_ns: int) -> list[RunWorker]:
        """Mark and return workers that are gone or silent for too long, counted from the start of the run."""
        lost = []
        patience_s = SILENT_S + pace(len(self)) - 1
        now_ns = self.look()
        for worker in self.living():
            since_ns = start_at_ns + (worker.late_ns or 0)
            if self.silent_s(worker, since_ns, now_ns) > patience_s or self.is_gone(worker):
                worker.state = "lost"
                worker.silent.append((max(worker.last_message_ns, since_ns) - start_at_ns, None))
                lost.append(worker)
        return lost

    def is_back(self, worker: RunWorker, passed_ns: int) -> bool:
        """Whether a lost worker has sent a message; ends its silence. The caller sets its new state."""
        if worker.state != "lost" or not worker.silent or worker.silent[-1][1] is not None:
            return False
        worker.silent[-1] = (worker.silent[-1][0], passed_ns)
        return True

    def progress(self, passed_s: float, duration_s: float) -> describe.Progress:
        """Sums over the last counters, for the live display."""
        progress = describe.Progress(passed_s, duration_s)
        messages: dict[traffic_counters.Key, list[dict[str, Any]]] = {}
        for worker in [worker for worker in self if worker.counters]:
            counters = worker.counters
            counts = worker.counters["counts"]
            progress.sent += counts["dispatched"]
            progress.dropped += counts["client_drop"]
            progress.in_flight += 0 if self.is_gone(worker) else counters["in_flight"]
            progress.waiting += 0 if self.is_gone(worker) else counters.get("waiting", 0)
            slot_wait_s = 0.0 if self.is_gone(worker) else counters.get("slot_wait_ns", 0) / 1e9
            progress.slot_wait_s = max(progress.slot_wait_s, slot_wait_s)
            progress.chunks += counters["chunks"]
            for traffic, target, message in counters["traffic"]:
                messages.setdefault((traffic, target), []).append(message)
        progress.traffic = {key: traffic_counters.total(some) for key, some in messages.items()}
        progress.all = traffic_counters.combined(progress.traffic.values())
        median_ms = quantile_sketch.quantile(progress.all.ttft, 0.5)
        progress.rejected = self._rejected()
        stalls = self._stalls(passed_s)
        progress.stalled_s = max((stall.late_s for stall in stalls), default=0.0)
        if stalls:
            second = int(passed_s)
            self._late_seconds[second] = max(
                progress.stalled_s, self._late_seconds.get(second, 0.0)
            )
        progress.verdict, progress.reason = live_verdict(
            list(self), median_ms, stalls, self._stalled_before(passed_s)
        )
        return progress

    def _stalled_before(self, passed_s: float) -> str:
        """Say in how many seconds a worker was late; empty where they are too few to matter."""
        seconds = len(self._late_seconds)
        if not seconds or seconds <= LATE_SECONDS * passed_s:
            return ""
        worst_s = max(self._late_seconds.values())
        return f"workers were stalled in {seconds:,} of {passed_s:,.0f} s, by up to {worst_s:.1f} s"

    def _stalls(self, passed_s: float) -> list[Stall]:
        """The running workers that have sent nothing for long, or say that they were late in their last second."""
        stalls = []
        now_ns = monotonic_ns()
        start_at_ns = now_ns - int(max(0.0, passed_s) * 1e9)
        for worker in self.living():
            silent_s = self.silent_s(worker, start_at_ns + (worker.late_ns or 0), now_ns)
            if silent_s > OVERDUE_S + pace(len(self)) - 1:
                stalls.append(Stall(worker.number, silent_s, is_silent=True))
            elif worker.watch.get("stalled_s"):
                stalls.append(Stall(worker.number, worker.watch["stalled_s"], is_silent=False))
        return stalls

    def _rejected(self) -> dict[str, Any] | None:
        """The same 4xx with which the last calls of every worker ended, counted over them; None: they ended otherwise."""
        called = [
            worker.counters
            for worker in self
            if any(c["attempts"] for *_, c in worker.counters.get("traffic", ()))
        ]
        streaks = [counters.get("rejections", {}) for counters in called]
        kinds = {(one.get("target"), one.get("status")) for one in streaks if one.get("in_a_row")}
        if len(kinds) != 1 or not all(one.get("in_a_row") for one in streaks):
            return None
        return {**streaks[0], "in_a_row": sum(one["in_a_row"] for one in streaks)}

    def conservation(
        self, scheduled: int | None, folder: RunFolder, *, final: bool
    ) -> dict[str, Any]:
        """The counts over all workers; with `final`, the rows count for a worker whose rows are not all here.

        `scheduled` is None in a closed loop: its requests are those that the workers or their rows report.
        """
        shares = [self._share(worker, folder, scheduled is None, final=final) for worker in self]
        if scheduled is None:
            scheduled = sum(share.leased for share in shares)
        return conserve(scheduled, shares)

    def _share(self, worker: RunWorker, folder: RunFolder, closed: bool, *, final: bool) -> Share:
        counts: dict[str, Any] = worker.record.get("counts") or worker.counters.get("counts") or {}
        if not final or not (worker.state == "lost" or worker.lacks_rows):
            return Share(worker.leased, counts)
        here = count_rows(folder, worker.number, CLIENT_DROP)
        seen = here["dispatched"] + here["client_drop"]
        if worker.state != "lost":  # it reported what it did not reach
            return Share(
                worker.leased, here, max(0, counts["dispatched"] + counts["client_drop"] - seen)
            )
        if closed:  # rows may be newer than its last counters
            worker.leased = max(worker.leased, seen)
        return Share(worker.leased, here, worker.leased - seen)


def _s(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e9, 3)


Finding = tuple[str, str]  # verdict, reason


@dataclass(frozen=True, slots=True)
class Stall:
    """A worker that is late now: it sends nothing, or its requests and reads were late."""

    worker: int
    late_s: float
    is_silent: bool


def live_verdict(
    workers: Sequence[RunWorker],
    ttft_p50_ms: float | None = None,
    stalls: Sequence[Stall] = (),
    stalled_before: str = "",
) -> Finding:
    """The live verdict on the workers' last counters, the worst with its reason; "" without.

    It names what the report will surely name: the effect on each figure shows only in the rows.
    """
    findings = (
        _lost(workers),
        _dropped(workers),
        _delayed(workers, ttft_p50_ms),
        _stalled(stalls, stalled_before),
    )
    found = [finding for finding in findings if finding]
    if not found:
        return VALID, ""
    verdict, reason = min(found, key=lambda finding: WORST_FIRST.index(finding[0]))
    busy = [one for one in workers if one.watch.get("cpu", 0.0) >= BUSY_CPU]
    if busy:
        reason += f"; worker {busy[0].number} is at {busy[0].watch['cpu']:.0%} of its core"
    return verdict, reason


def _lost(workers: Sequence[RunWorker]) -> Finding | None:
    gone = [str(one.number) for one in workers if one.state in {"lost", "failed"}]
    return (
        (INVALID, f"worker {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone")
        if gone
        else None
    )


def _stalled(stalls: Sequence[Stall], before: str) -> Finding | None:
    """Name the worker that is latest; without one, the stalls until now that matter."""
    if not stalls:
        return (DEGRADED, before) if before else None
    worst = max(stalls, key=lambda stall: stall.late_s)
    if worst.is_silent:
        return DEGRADED, f"worker {worst.worker} has been silent for {worst.late_s:.0f} s"
    return DEGRADED, f"worker {worst.worker} was stalled for {worst.late_s:.1f} s"


def _dropped(workers: Sequence[RunWorker]) -> Finding | None:
    drops = sum(one.count("client_drop") for one in workers)
    scheduled = drops + sum(one.count("dispatched") for one in workers)
    if not drops:
        return None
    text = f"{drops:,} of {scheduled:,} requests dropped at the in-flight cap"
    return (INVALID if drops > DROPS * scheduled else DEGRADED), text


def _delayed(workers: Sequence[RunWorker], ttft_p50_ms: float | None) -> Finding | None:
    """Every second request so late that no interval of the median is wide enough to hide it."""
    delays = quantile_sketch.total(one.watch.get("delays", b"") for one in workers)
    late = quantile_sketch.quantile(delays, 0.5)
    if late is None or ttft_p50_ms is None or late <= max(LATE_MS, LATE_SHARE * ttft_p50_ms):
        return None
    return DEGRADED, f"every second request is sent {late:,.0f} ms late or more"


def drain_workers(
    workers: RunWorkers, send_drain: Callable[[RunWorker], object], changed: Event, drain_s: float,
    note: Callable[[str], None],
) -> None:  # fmt: skip
    """Drain every worker and wait: each finishes its open requests and transfers its rows.

    The master waits as long as messages of a worker arrive; a silent one is lost RETURN_S after its last message.
    `changed` is set whenever a message of a worker arrives.
    """
    may_drain = {"running", "failed", "lost"}
    waiting = [m for m in workers if m.ready and m.state in may_drain and not workers.is_gone(m)]
    began_ns = monotonic_ns()
    for worker in waiting:
        send_drain(worker)
    until_ns = began_ns + int((drain_s + WRITING_S) * 1e9)
    moved = dict.fromkeys((m.number for m in waiting), (-1, began_ns))
    while waiting := [m for m in waiting if not m.has_drained]:
        now_ns = workers.look()
        for worker in list(waiting):
            unshipped = int(worker.counters.get("unshipped", 0))
            if unshipped != moved[worker.number][0]:
                moved[worker.number] = (unshipped, monotonic_ns())
            silent_s = workers.silent_s(worker, began_ns, now_ns)
            late = monotonic_ns() > max(until_ns, moved[worker.number][1] + int(WRITING_S * 1e9))
            if workers.is_gone(worker):
                why = "was lost before it drained"
            elif silent_s > RETURN_S:
                why = f"sent nothing for {silent_s:.0f} s during the drain"
            elif late:
                why = "did not drain in time"
            else:
                continue
            worker.state = "lost"
            note(f"worker {worker.number} {why}")
            waiting.remove(worker)
        changed.clear()
        changed.wait(timeout=0.5)


# --- conservation -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Share:
    """One worker's part of the counts."""

    leased: int
    counts: dict[str, Any] | None
    lost: int = 0  # leased requests without a count or a row


def conserve(scheduled: int, shares: Sequence[Share]) -> dict[str, Any]:
    """The conservation counts of run.json."""
    every = [share.counts or {} for share in shares]
    names = ("dispatched", "client_drop", "censored")
    dispatched, dropped, censored = (sum(counts.get(name, 0) for counts in every) for name in names)
    lost = sum(share.lost for share in shares)
    ended = Counter[str]()
    for counts in every:
        ended.update(counts.get("ended", {}))
    return {
        "scheduled": scheduled, "dispatched": dispatched, "client_drop": dropped,
        "not_reached": scheduled - dispatched - dropped - lost, "lost": lost, "ended": dict(ended), "censored": censored,
    }  # fmt: skip


def count_rows(folder: RunFolder, worker: int, drop: str) -> dict[str, Any]:
    """Counts of a lost worker, from its request rows; unreadable parts count nothing."""
    ended = Counter(
        name for table in _left(folder, worker, "ended") for name in table["ended"].to_pylist()
    )
    dropped = ended.pop(drop, 0)
    censored = ended.pop(CENSORED, 0)
    dispatched = ended.total() + censored
    return {
        "dispatched": dispatched,
        "client_drop": dropped,
        "ended": dict(ended),
        "censored": censored,
    }


def request_ids(folder: RunFolder, worker: int) -> set[int]:
    """Requests of which a worker wrote a row."""
    tables = _left(folder, worker, "request_id")
    return {number for table in tables for number in table["request_id"].to_pylist()}


def _left(folder: RunFolder, worker: int, column: str) -> list[pa.Table]:
    """A column of a worker's request rows, without the preflight's; a part that has no such rows is left out."""
    tables: dict[str, pa.Table] = {}
    wanted = pa.schema([schema("requests").field(name) for name in ("stage", column)])
    for part in sorted((folder.path / "requests").glob(f"part-{worker}-*.parquet")):
        with contextlib.suppress(
            OSError, KeyError, ValueError, pa.ArrowException
        ):  # the analysis reports it
            table = pq.read_table(part, columns=wanted.names, page_checksum_verification=True)
            typed = wanted.with_metadata(table.schema.metadata)
            tables[part.name] = table.select(wanted.names).cast(typed)
    replaced = {name for table in tables.values() for name in _replaced_by(table)}
    counted = [table for name, table in tables.items() if name not in replaced]
    return [table.filter(pc.not_equal(table["stage"], "preflight")) for table in counted]


def _replaced_by(table: pa.Table) -> list[str]:
    """Names of the parts that a compacted one replaces: a kill may have left both."""
    named: bytes = (table.schema.metadata or {}).get(f"{MARK}.replaces".encode(), b"")
    return named.decode("utf-8", "replace").split(",")
