"""What the master knows of its workers: who they are, what they last said, and which of them are lost.

Rule: numbers as the workers said them, summed and nothing more; who is sent what is the master's business.

    joining -> running -> drained        failed: it said that it cannot go on
                  |  ^
                  v  |                   lost: gone, or silent for SILENT_S; who speaks again takes part again
                 lost
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tailgauge import quantile_sketch
from tailgauge.clock import monotonic_ns
from tailgauge.master import progress as describe
from tailgauge.master.conservation import Share, conserve, count_rows
from tailgauge.master.live_verdict import Watched, so_far
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import CLIENT_DROP

SILENT_S = 4.0  # a worker that says nothing for so long gets no more slices
CROWD = 200  # workers; of more of them each speaks less often, because the master has one core


Held = tuple[int, int, int, int]  # a slice's begin and end in ns of the run; of how many shares it was which
Span = tuple[int, int | None]


@dataclass(slots=True)
class Member:
    """One worker."""

    node: str
    number: int
    hello: dict[str, Any]
    heard_at_ns: int
    state: str = "running"  # joining, running, drained, failed, lost
    late_ns: int | None = None  # of a late joiner: when in the run it was told to begin
    ready: bool = False
    home: bool = False  # its rows came from elsewhere, and all of them are here
    opened: bool = False  # it has opened the connections that it was told to
    leased: int = 0  # requests handed to it; in a closed loop, those that it says it had
    held: list[Held] = field(default_factory=list)  # the slices handed to it
    silent: list[Span] = field(default_factory=list)  # when nothing was heard of it, in ns of the run
    missing: list[dict[str, float]] = field(default_factory=list)  # seconds whose arrivals left no row
    said: dict[str, Any] = field(default_factory=dict)
    self: dict[str, Any] = field(default_factory=dict)

    @property
    def has_drained(self) -> bool:
        """Whether its final counts are here."""
        return bool(self.self.get("counts"))

    @property
    def lacks_rows(self) -> bool:
        """Whether it has drained, and rows of it are not here: it could not write them, or could not bring them home."""
        away = not self.home and not self.self.get("shared", True)
        return self.has_drained and (away or any(self.self.get("unwritten", {}).values()))

    @property
    def has_left(self) -> bool:
        """Whether it drained by itself, because somebody told it to end."""
        return self.state == "drained" and bool(self.self.get("why"))

    def watched(self) -> Watched:
        """What the verdict so far is made of."""
        if not self.said:
            return Watched(self.number, self.state)
        counts = self.said["counts"]
        sent, dropped = counts["dispatched"], counts["client_drop"]
        return Watched(self.number, self.state, sent, dropped, self.said["watch"])

    def facts(self) -> dict[str, Any]:
        """Its entry in run.json."""
        known = {k: self.self.get(k) for k in ("clock", "stamps", "counts", "rows", "unwritten", "why")}
        known["counts"] = known["counts"] or self.said.get("counts")
        if not self.has_drained and self.said.get("clock"):
            known["clock"] = self.said["clock"]  # younger than what it said when it was ready
        hello = {k: self.hello[k] for k in ("name", "host", "pid")}
        silent = [
            {"from_s": _s(since), "to_s": None if until is None else _s(until)}
            for since, until in self.silent
        ]
        told = {
            "late_s": None if self.late_ns is None else _s(self.late_ns),
            "silent": silent,
            "missing": self.missing,
        }
        return {"worker": self.number, **hello, "state": self.state, "leased": self.leased, **known, **told}


@dataclass(frozen=True, slots=True)
class Workers:
    """What Locust knows of the workers: how many a run begins with, and whether one is still there."""

    expected: Callable[[], int]
    alive: Callable[[str], bool]


def pace(workers: int) -> int:
    """Seconds from one message with counters to the next; times as long as else until a worker writes its next part."""
    return -(-max(1, workers) // CROWD)


class Crew:
    """The workers of one run, by Locust's name of them; `alive` says whether a worker's process still is."""

    def __init__(self, alive: Callable[[str], bool]) -> None:
        self._alive = alive
        self.members: dict[str, Member] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def add(self, node: str, hello: dict[str, Any], *, late: bool = False) -> Member:
        """A worker reported for the run, or `late`, for what is left of it."""
        member = Member(node, len(self.members), hello, monotonic_ns(), "joining" if late else "running")
        self.members[node] = member
        return member

    def living(self) -> list[Member]:
        """Those that take part now."""
        return [m for m in self if m.state == "running"]

    def is_gone(self, member: Member) -> bool:
        """Whether its process has ended."""
        return not self._alive(member.node)

    def newly_lost(self, start_at_ns: int) -> list[Member]:
        """Mark and return those that are gone, or silent for too long, since the start of the run at the earliest."""
        lost, patience_s = [], SILENT_S + pace(len(self)) - 1
        for member in self.living():
            heard = max(member.heard_at_ns, start_at_ns + (member.late_ns or 0))
            if monotonic_ns() - heard > patience_s * 1e9 or self.is_gone(member):
                member.state = "lost"
                member.silent.append((heard - start_at_ns, None))
                lost.append(member)
        return lost

    def is_back(self, member: Member, passed_ns: int) -> bool:
        """Whether one that was taken for lost has spoken; its silence ends here, and what it is now is for the caller to say."""
        if member.state != "lost" or not member.silent or member.silent[-1][1] is not None:
            return False
        member.silent[-1] = (member.silent[-1][0], passed_ns)
        return True

    def progress(self, passed_s: float, duration_s: float) -> describe.Progress:
        """Sums over the last counters, for the live display."""
        progress = describe.Progress(passed_s, duration_s)
        told = [member.said for member in self if member.said]
        for said in told:
            counts = said["counts"]
            progress.sent += counts["dispatched"]
            progress.dropped += counts["client_drop"]
            progress.in_flight += said["in_flight"]
            progress.chunks += said["chunks"]
            _add(progress.ended, counts["ended"])
            _add(progress.attempts, said["attempts"])
        progress.ttft = bins = quantile_sketch.total(said["ttft"] for said in told)
        progress.ttft_p50_ms, progress.ttft_p99_ms = (
            quantile_sketch.quantile(bins, 0.5),
            quantile_sketch.quantile(bins, 0.99),
        )
        crew = [member.watched() for member in self]
        progress.verdict, progress.reason = so_far(crew, progress.ttft_p50_ms)
        return progress

    def conservation(self, scheduled: int | None, folder: RunFolder, *, final: bool) -> dict[str, Any]:
        """The books over all workers; of one whose rows are not all here, `final` counts those that are.

        `scheduled` is None in a closed loop, whose requests are what the workers say, or what their rows say.
        """
        shares = [self._share(member, folder, scheduled is None, final=final) for member in self]
        if scheduled is None:
            scheduled = sum(share.leased for share in shares)
        return conserve(scheduled, shares)

    def _share(self, member: Member, folder: RunFolder, closed: bool, *, final: bool) -> Share:
        counts: dict[str, Any] = member.self.get("counts") or member.said.get("counts") or {}
        if not final or not (member.state == "lost" or member.lacks_rows):
            return Share(member.leased, counts)
        here = count_rows(folder, member.number, CLIENT_DROP)
        seen = here["dispatched"] + here["client_drop"]
        if member.state != "lost":  # what it did not reach, it has told
            return Share(member.leased, here, max(0, counts["dispatched"] + counts["client_drop"] - seen))
        if closed:  # rows may be younger than its last words
            member.leased = max(member.leased, seen)
        return Share(member.leased, here, member.leased - seen)


def _add(into: dict[str, int], counts: dict[str, int]) -> None:
    for name, count in counts.items():
        into[name] = into.get(name, 0) + count


def _s(ns: int) -> float:
    return round(ns / 1e9, 3)
