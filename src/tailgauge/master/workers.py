"""The workers of a run as the master knows them: identity, state, last counters, losses, and the live verdict on them.

starting -> running -> drained       failed: it reported that it cannot continue
              |  ^
              v  |                   lost: gone, or silent for SILENT_S; after another message it takes part again
             lost

A master that is stalled receives nothing: silence counts from its return. What it missed then is in `master_stalled`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailgauge import quantile_sketch
from tailgauge.channel import traffic_counters
from tailgauge.clock import monotonic_ns
from tailgauge.master.conservation import Share, conserve, count_rows
from tailgauge.master.progress import Progress
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import CLIENT_DROP
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

# Stalls that are over are named if they were in more than this share of the seconds.
LATE_SECONDS = 0.01
# A worker that sends nothing for so long is shown as silent; it sends once a second.
OVERDUE_S = 2.0
SILENT_S = 4.0  # a worker that sends nothing for so long gets no more slices
STALL_S = 2.0  # between two looks at the workers, which are fractions of a second apart
# Facts of the worker's record that run.json repeats.
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

# Begin and end of a slice in ns of the run; number of shares; which one.
Lease = tuple[int, int, int, int]
Span = tuple[int, int | None]
Finding = tuple[str, str]  # verdict, reason


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
    leases: list[Lease] = field(default_factory=list)
    silent: list[Span] = field(default_factory=list)  # times without a message, in ns of the run
    # Stretches whose arrivals left no row.
    missing: list[dict[str, float]] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)  # its last message with counters
    # The facts of its `ready`, then of its `drained`.
    record: dict[str, Any] = field(default_factory=dict)

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
        """Return one of the worker's last counts; 0 before its first counters."""
        return int(self.counters["counts"][name]) if self.counters else 0

    @property
    def has_sent_all(self) -> bool:
        """Whether all that it leased was sent, and has ended."""
        if not self.counters:
            return not self.leased
        sent = self.count("dispatched") + self.count("client_drop")
        return sent >= self.leased and not self.counters["in_flight"]

    def facts(self) -> dict[str, Any]:
        """Return the worker's entry in run.json."""
        record = {key: self.record.get(key) for key in _RECORDED}
        record["counts"] = record["counts"] or self.counters.get("counts")
        if not self.has_drained and self.counters.get("clock"):
            record["clock"] = self.counters["clock"]  # newer than that of its `ready`
        silent = [{"from_s": _s(begin_ns), "to_s": _s(end_ns)} for begin_ns, end_ns in self.silent]
        return {
            "worker": self.number,
            **{key: self.hello[key] for key in ("name", "host", "pid")},
            "state": self.state,
            "leased": self.leased,
            **record,
            "late_s": _s(self.late_ns),
            "silent": silent,
            "missing": self.missing,
        }


def pace(workers: int) -> int:
    """Return the seconds between messages with counters; parts are written less often by the same factor."""
    return -(-max(1, workers) // CROWD)


class RunWorkers:
    """The workers of one run by Locust's node name; `alive` tests a worker's process."""

    def __init__(self, alive: Callable[[str], bool]) -> None:
        self._alive = alive
        self.by_node: dict[str, RunWorker] = {}
        # Times in ns in which the master itself did not run.
        self.stalls: list[tuple[int, int]] = []
        self._looked_ns = 0
        # Seconds of the run with a stall, and how long it was.
        self._late_seconds: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self.by_node)

    def __iter__(self) -> Iterator[RunWorker]:
        return iter(self.by_node.values())

    def add(self, node: str, hello: dict[str, Any], *, late: bool = False) -> RunWorker:
        """Add a worker that reported for the run, or `late` for the rest of it."""
        worker = RunWorker(
            node=node, number=len(self.by_node), hello=hello, last_message_ns=monotonic_ns()
        )
        if late:
            worker.state = "starting"
        self.by_node[node] = worker
        return worker

    def living(self) -> list[RunWorker]:
        """Return the running workers."""
        return [worker for worker in self if worker.state == "running"]

    def have_sent_all(self) -> bool:
        """Return whether every running worker has sent what it leased, and all of it has ended."""
        running = self.living()
        return bool(running) and all(worker.has_sent_all for worker in running)

    def is_gone(self, worker: RunWorker) -> bool:
        """Return whether its process has ended."""
        return not self._alive(worker.node)

    def look(self) -> int:
        """Return the time in ns, and note if the master was stalled since the last call, which is a fraction of a second ago."""
        now_ns = monotonic_ns()
        if self._looked_ns and now_ns - self._looked_ns > STALL_S * 1e9:
            self.stalls.append((self._looked_ns, now_ns))
        self._looked_ns = now_ns
        return now_ns

    def stalled(self, start_at_ns: int | None) -> list[dict[str, float]]:
        """Return when the master itself did not run, in seconds of the run."""
        if start_at_ns is None:
            return []
        stalled = []
        for begin_ns, end_ns in self.stalls:
            begin_s = max(0, begin_ns - start_at_ns) / 1e9
            end_s = max(0, end_ns - start_at_ns) / 1e9
            stalled.append({"from_s": begin_s, "to_s": end_s})
        return stalled

    def silent_s(self, worker: RunWorker, since_ns: int, now_ns: int) -> float:
        """Return for how long a worker has sent nothing. A stall of the master itself does not count."""
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
        """Return whether a lost worker has sent a message; ends its silence. The caller sets its new state."""
        if worker.state != "lost" or not worker.silent or worker.silent[-1][1] is not None:
            return False
        worker.silent[-1] = (worker.silent[-1][0], passed_ns)
        return True

    def progress(self, passed_s: float, duration_s: float) -> Progress:
        """Return the sums over the workers' last counters, and the live verdict on them.

        `passed_s`: since the start. Notes the seconds in which a worker is stalled, which later verdicts count.
        """
        progress = Progress(passed_s, duration_s)
        messages: dict[traffic_counters.Key, list[dict[str, Any]]] = {}
        for worker in self:
            if not worker.counters:
                continue
            self._add_counters(progress, worker)
            for traffic, target, message in worker.counters["traffic"]:
                messages.setdefault((traffic, target), []).append(message)
        for key, counted in messages.items():
            progress.traffic[key] = traffic_counters.total(counted)
        progress.all = traffic_counters.combined(progress.traffic.values())
        progress.rejected = self._rejected()
        stalls = self._stalls(passed_s)
        if stalls:
            progress.stalled_s = max(stall.late_s for stall in stalls)
            second = int(passed_s)
            self._late_seconds[second] = max(
                progress.stalled_s, self._late_seconds.get(second, 0.0)
            )
        median_ms = quantile_sketch.quantile(progress.all.ttft, 0.5)
        progress.verdict, progress.reason = live_verdict(
            list(self), median_ms, stalls, self._past_stalls(passed_s)
        )
        return progress

    def _add_counters(self, progress: Progress, worker: RunWorker) -> None:
        """Add a worker's last counters. Nothing is open any more in a process that has ended."""
        counters = worker.counters
        progress.sent += counters["counts"]["dispatched"]
        progress.dropped += counters["counts"]["client_drop"]
        progress.chunks += counters["chunks"]
        if self.is_gone(worker):
            return
        progress.in_flight += counters["in_flight"]
        progress.waiting += counters.get("waiting", 0)
        slot_wait_s = counters.get("slot_wait_ns", 0) / 1e9
        progress.slot_wait_s = max(progress.slot_wait_s, slot_wait_s)

    def _past_stalls(self, passed_s: float) -> str:
        """Say in how many seconds a worker was late; empty where they are too few to matter."""
        seconds = len(self._late_seconds)
        if not seconds or seconds <= LATE_SECONDS * passed_s:
            return ""
        worst_s = max(self._late_seconds.values())
        return f"workers were stalled in {seconds:,} of {passed_s:,.0f} s, by up to {worst_s:.1f} s"

    def _stalls(self, passed_s: float) -> list[Stall]:
        """Return the running workers that have sent nothing for long, or say that they were late in their last second."""
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
        """Return the 4xx with which the last calls of every worker ended, counted over them; None if they ended otherwise."""
        streaks = []
        kinds = set()
        for worker in self:
            traffic = worker.counters.get("traffic", ())
            if not any(counters["attempts"] for *_, counters in traffic):
                continue  # it has made no call yet
            streak = worker.counters.get("rejections", {})
            if not streak.get("in_a_row"):
                return None
            streaks.append(streak)
            kinds.add((streak.get("target"), streak.get("status")))
        if len(kinds) != 1:
            return None
        return {**streaks[0], "in_a_row": sum(streak["in_a_row"] for streak in streaks)}

    def conservation(
        self, scheduled: int | None, folder: RunFolder, *, final: bool
    ) -> dict[str, Any]:
        """Return the counts over all workers; with `final`, the rows count for a worker whose rows are not all here.

        `scheduled` is None in a closed loop: its requests are those that the workers or their rows report.
        """
        shares = []
        for worker in self:
            counts = worker.record.get("counts") or worker.counters.get("counts") or {}
            share = Share(worker.leased, counts)
            if final and (worker.state == "lost" or worker.lacks_rows):
                share = _share_of_rows(worker, counts, folder, is_closed=scheduled is None)
            shares.append(share)
        if scheduled is None:
            scheduled = sum(share.leased for share in shares)
        return conserve(scheduled, shares)


def _share_of_rows(
    worker: RunWorker, counts: dict[str, Any], folder: RunFolder, *, is_closed: bool
) -> Share:
    """Return the share of a worker whose rows count; `counts` are those that it reported."""
    row_counts = count_rows(folder, worker.number, CLIENT_DROP)
    rows = row_counts["dispatched"] + row_counts["client_drop"]
    if worker.state != "lost":  # it reported what it did not reach
        reported = counts["dispatched"] + counts["client_drop"]
        return Share(worker.leased, row_counts, max(0, reported - rows))
    if is_closed:  # rows may be newer than its last counters
        worker.leased = max(worker.leased, rows)
    return Share(worker.leased, row_counts, worker.leased - rows)


def _s(ns: int | None) -> float | None:
    if ns is None:
        return None
    return round(ns / 1e9, 3)


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
    past_stalls: str = "",
) -> Finding:
    """Return the live verdict on the workers' last counters, and the reason of the worst finding; "" without.

    It names what the report will surely name: the effect on each figure shows only in the rows.
    """
    candidates = (
        _lost(workers),
        _dropped(workers),
        _delayed(workers, ttft_p50_ms),
        _stalled(stalls, past_stalls),
    )
    findings = [finding for finding in candidates if finding]
    if not findings:
        return VALID, ""
    verdict, reason = min(findings, key=lambda finding: WORST_FIRST.index(finding[0]))
    busy = [worker for worker in workers if worker.watch.get("cpu", 0.0) >= BUSY_CPU]
    if busy:
        reason += f"; worker {busy[0].number} is at {busy[0].watch['cpu']:.0%} of its core"
    return verdict, reason


def _lost(workers: Sequence[RunWorker]) -> Finding | None:
    numbers = [str(worker.number) for worker in workers if worker.state in {"lost", "failed"}]
    if not numbers:
        return None
    verb = "is" if len(numbers) == 1 else "are"
    return INVALID, f"worker {', '.join(numbers)} {verb} gone"


def _stalled(stalls: Sequence[Stall], past_stalls: str) -> Finding | None:
    """Name the worker that is latest; without one, the stalls until now that matter."""
    if not stalls:
        return (DEGRADED, past_stalls) if past_stalls else None
    worst = max(stalls, key=lambda stall: stall.late_s)
    if worst.is_silent:
        return DEGRADED, f"worker {worst.worker} has been silent for {worst.late_s:.0f} s"
    return DEGRADED, f"worker {worst.worker} was stalled for {worst.late_s:.1f} s"


def _dropped(workers: Sequence[RunWorker]) -> Finding | None:
    drops = sum(worker.count("client_drop") for worker in workers)
    if not drops:
        return None
    scheduled = drops + sum(worker.count("dispatched") for worker in workers)
    verdict = INVALID if drops > DROPS * scheduled else DEGRADED
    return verdict, f"{drops:,} of {scheduled:,} requests dropped at the in-flight cap"


def _delayed(workers: Sequence[RunWorker], ttft_p50_ms: float | None) -> Finding | None:
    """Find every second request so late that no interval of the median is wide enough to hide it."""
    delays = quantile_sketch.total(worker.watch.get("delays", b"") for worker in workers)
    late_ms = quantile_sketch.quantile(delays, 0.5)
    if late_ms is None or ttft_p50_ms is None:
        return None
    if late_ms <= max(LATE_MS, LATE_SHARE * ttft_p50_ms):
        return None
    return DEGRADED, f"half of the requests are sent {late_ms:,.0f} ms late or more"
