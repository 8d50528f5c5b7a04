"""Losses of each worker's share: requests without a row, when they were due, and what was found after all.

Rows win over counts. A request that the master counted as lost is found if its row is here. What a worker that ended by
itself held, and neither sent nor wrote, was never sent: it is not reached. If the master died, a worker's final record
gives its leased requests, or its last health row if it has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.reading.run_record import ENDED
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.text.formatting import clock, count, listed, plain, plural
from tailgauge_analysis.text.json_values import Json, whole

NEAR_S = 1.0  # missing arrivals that are closer than this are one stretch
MOST_WORKERS, MOST_STRETCHES = 3, 3  # in a sentence
SEE_LOG = "See the worker's log (memory, disk, machine, network), then run again."


@dataclass(frozen=True, slots=True)
class Loss:
    """One worker's share. `leased` is None if unknown; `left`: its requests without a row; `found`: rows in another folder
    than the master's; `not_sent`: held and not sent; `not_due`: of these, later turns of sessions that were not to be
    sent; `came_late`: of these, overdue when they arrived from the master.
    """

    worker: int
    host: str
    state: str
    recorded_state: str
    why: str
    leased: int | None
    rows: int
    left: int
    found: int
    not_sent: int
    not_due: int
    came_late: int
    missing: tuple[Stretch, ...]
    silent: tuple[Stretch, ...]
    late_s: float | None
    unwritten: dict[str, int]

    @property
    def unsent(self) -> int:
        """Requests that it should have sent."""
        return max(0, self.not_sent - self.not_due)

    @property
    def lost_at_s(self) -> float | None:
        """Since when it was silent for good, or else the first second that it left out."""
        last = self.silent[-1] if self.silent else None
        if last is not None and last.to_s is None:
            return last.from_s
        return self.missing[0].from_s if self.missing else None

    @property
    def is_gone(self) -> bool:
        """Failed, or lost and never ended by itself."""
        return self.state == "failed" or (self.state == "lost" and not self.has_ended)

    @property
    def has_ended(self) -> bool:
        """The worker's own record says how it ended."""
        return self.recorded_state in ENDED

    @property
    def is_accounted(self) -> bool:
        """Lost by the master, but all its leased requests have rows in its folder."""
        return self.state == "lost" and bool(self.found) and not self.left

    @property
    def is_absent(self) -> bool:
        """Neither a record nor a row of it is here."""
        return not self.recorded_state and not self.rows

    def is_bad(self, *, closed: bool) -> bool:
        """Requests of it have no row, or it did not finish. `closed`: the master recorded the end."""
        return bool(self.left) or (self.is_gone and not self.is_accounted) or (self.is_absent and not closed)


def losses(
    run: Json, requests: pd.DataFrame, health: pd.DataFrame, wrote: dict[tuple[str, int], int]
) -> tuple[Loss, ...]:
    """One entry per worker. `requests` without the preflight; `wrote`: rows that were read, by table and worker."""
    once = requests.drop_duplicates("request_id")
    counts = once["worker"].value_counts()
    elsewhere = once[once["folder"] > 0] if run["closed"] else once[:0]
    handed = health.groupby("worker")["scheduled"].max() if len(health) else pd.Series(dtype=np.float64)
    found = []
    for worker in run["workers"]:
        number = worker["worker"]
        mine = elsewhere[elsewhere["worker"] == number]
        rows, seen = int(counts.get(number, 0)), wrote.get(("requests", number), 0)
        leased = worker["leased"]
        if leased is None and not run["closed"]:  # its last health row has the requests leased so far
            leased = max(rows, int(handed.get(number, 0))) if handed.get(number, 0) > 0 else None
        lacks = worker["rows"].get("requests", 0) - seen
        left, not_sent = _left(worker, leased or 0, rows, lacks, len(mine), closed=run["closed"])
        still = _without(worker["missing"], mine) if left or not_sent else ()
        not_due, came_late = (whole(worker["counts"].get(name)) or 0 for name in ("not_due", "came_late"))
        of = (number, worker["host"], worker["state"], worker["recorded_state"], worker["why"])
        counted = (leased, rows, left, len(mine), not_sent, min(not_sent, not_due), min(not_sent, came_late))
        recorded = (tuple(worker["silent"]), worker["late_s"], worker["unwritten"])
        found.append(Loss(*of, *counted, still, *recorded))
    return tuple(found)


def _left(worker: Json, leased: int, rows: int, lacks: int, found: int, *, closed: bool) -> tuple[int, int]:
    """Requests that left no row, and those that were never sent. `lacks`: rows that it says it wrote and that are not here;
    `found`: those in another folder than the master's.
    """
    held, no_row = max(0, leased - rows), max(lacks, worker["unwritten"].get("requests", 0))
    if not closed:
        return max(no_row, held - (whole(worker["counts"].get("not_reached")) or 0)), 0
    counts, missing = worker["counts"], sum(one.requests for one in worker["missing"])
    if worker["state"] != "lost":
        sent = (whole(counts.get("dispatched")) or 0) + (whole(counts.get("client_drop")) or 0)
        not_sent = max(0, leased - sent) if counts else 0
        return max(no_row, missing - not_sent - found), not_sent
    if worker["recorded_state"] in ENDED and lacks <= 0:
        return min(no_row, held), max(0, held - no_row)
    return held, 0


def _without(missing: Sequence[Stretch], found: pd.DataFrame) -> tuple[Stretch, ...]:
    """The master's stretches less the arrivals that were found."""
    first = found[found["request_id"] % schema.TURNS == 0]
    at_s = first["scheduled_at_ns"].to_numpy(np.float64) / 1e9
    slack_s = NEAR_S / 2
    out = []
    for one in missing:
        until_s = one.from_s if one.to_s is None else one.to_s
        here = int(((at_s >= one.from_s - slack_s) & (at_s <= until_s + slack_s)).sum())
        if one.requests > here:
            out.append(Stretch(one.from_s, one.to_s, one.requests - here))
    return tuple(out)


def unseen(requests: pd.DataFrame, lost: int) -> tuple[Stretch, ...]:
    """When arrivals without a row were due, from their neighbours; those after the last row have no end."""
    first = requests[requests["request_id"] % schema.TURNS == 0].drop_duplicates("request_id")
    first = first.sort_values("request_id")
    number = (first["request_id"] // schema.TURNS).to_numpy(np.int64)
    at_s = first["scheduled_at_ns"].to_numpy(np.float64) / 1e9
    number, at_s = np.concatenate(([-1], number)), np.concatenate(([0.0], at_s))
    skipped: Ints = np.diff(number) - 1
    holes = np.flatnonzero(skipped)
    step: Floats = (at_s[holes + 1] - at_s[holes]) / (skipped[holes] + 1)
    out: list[Stretch] = []
    for hole, each in zip(holes, step, strict=True):
        since, until = round(float(at_s[hole] + each), 3), round(float(at_s[hole + 1] - each), 3)
        n = int(skipped[hole])
        last = out[-1] if out else None
        if last is not None and since - (last.to_s or 0.0) <= NEAR_S:
            out[-1] = Stretch(last.from_s, until, last.requests + n)
        else:
            out.append(Stretch(since, until, n))
    rest = lost - sum(one.requests for one in out)
    return (*out, Stretch(round(float(at_s[-1]), 3), None, rest)) if rest > 0 else tuple(out)


def sentences(workers: Sequence[Loss], *, closed: bool) -> list[str]:
    """What is missing, worker by worker, the most first. `closed`: the master recorded the end."""
    bad = [one for one in workers if one.is_bad(closed=closed)]
    bad.sort(key=lambda one: (-one.left, one.worker))
    lines = [_loss_sentence(one, closed=closed) for one in bad[:MOST_WORKERS]]
    if len(bad) > MOST_WORKERS:
        left = sum(one.left for one in bad[MOST_WORKERS:])
        more = f"{plural(len(bad) - MOST_WORKERS, 'more worker')} "
        lines.append(more + (f"left {plural(left, 'request')} without a row" if left else "did not finish"))
    return lines


def _loss_sentence(one: Loss, *, closed: bool) -> str:
    outcome = _outcome(one, closed=closed)
    if one.left:
        n, when = plural(one.left, "request"), due(one.missing)
        rows = f"{outcome}; {n}{when} have no row" if outcome else f"{n} of {_who(one)}{when} have no row"
        return rows + (f" ({count(one.found)} more are in the worker's folder)" if one.found else "")
    return f"{outcome}, but all its requests have rows" if one.state == "lost" else outcome


def _outcome(one: Loss, *, closed: bool) -> str:
    """How the worker ended; empty for a regular end."""
    if one.is_absent and not closed:
        return f"{_who(one)} has neither a record nor rows here"
    if not closed:
        return "" if one.has_ended else f"{_who(one)} left no final report"
    if one.state == "lost" and one.lost_at_s is not None:
        return f"{_who(one)} was lost at {one.lost_at_s:,.0f} s"
    return f"{_who(one)} did not finish" if one.state in {"lost", "failed"} else ""


def _who(one: Loss) -> str:
    return f"worker {one.worker} ({plain(one.why, 200)})" if one.why else f"worker {one.worker}"


def due(missing: Sequence[Stretch]) -> str:
    """` due between 12.0 and 20.0 s`; empty if unknown."""
    if not missing:
        return ""
    longest = sorted(missing, key=lambda s: -s.requests)[:MOST_STRETCHES]
    shown = [_between(one) for one in sorted(longest, key=lambda s: s.from_s)]
    more = len(missing) - len(shown)
    rest = [f"in {'another interval' if more == 1 else f'{more:,} more intervals'}"] if more else []
    return f" due {listed([*shown, *rest])}"


def _between(one: Stretch) -> str:
    if one.to_s is None:
        return f"from {one.from_s:,.1f} s on"
    same = f"{one.from_s:,.1f}" == f"{one.to_s:,.1f}"
    return f"at {one.from_s:,.1f} s" if same else f"between {one.from_s:,.1f} and {one.to_s:,.1f} s"


def advice(workers: Sequence[Loss], *, closed: bool) -> str:
    """What to do about it."""
    bad = [one for one in workers if one.is_bad(closed=closed) and (one.left or one.is_absent)]
    away = [one for one in bad if not one.found and not one.recorded_state and one.state != "failed"]
    if not away:
        return SEE_LOG
    whose = f"worker {away[0].worker} still has its" if len(away) == 1 else "these workers still have their"
    return f"If the machine of {whose} run folder, add it: tailgauge report RUN_DIR WORKER_DIR. Otherwise see the worker's log and run again."


def explanations(workers: Sequence[Loss]) -> Iterator[str]:
    """What is no loss: late workers, silence that ended, rows that were found."""
    for one in workers:
        who = f"worker {one.worker}"
        if one.late_s is not None:
            yield f"{who} joined at {clock(one.late_s)} and got a share of the load from then on"
        silent = [s for s in one.silent if s.to_s is not None]
        if silent and not one.left:
            lasted = sum((s.to_s or 0.0) - s.from_s for s in silent)
            yield f"{who} was silent {spans(silent)} ({lasted:,.1f} s); none of its requests is missing"
        if one.state == "lost" and one.has_ended and not one.left:
            yield f"{who} lost the master and ended by itself; all its rows are here"


def kept(one: Loss) -> list[str]:
    """Notes on the state of a worker, for tables."""
    joined = [] if one.late_s is None else [f"joined at {clock(one.late_s)}"]
    return [*joined, *(f"silent {spans([s])}" for s in one.silent)]


def spans(some: Sequence[Stretch]) -> str:
    """`from 00:04 to 00:14 and from 00:20`."""
    ends = [(clock(one.from_s), "" if one.to_s is None else f" to {clock(one.to_s)}") for one in some]
    return listed((f"from {since}{until}" for since, until in ends), MOST_STRETCHES)
