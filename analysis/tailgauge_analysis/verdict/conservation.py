"""Conservation: no scheduled request may vanish.

Counted from the Parquet rows of the whole run without preflight, and compared with the counts of the master. Rows win: a
request that the master counted as lost is `found` if its row is here.

    scheduled  = dispatched + client_drop + not_reached + lost
    dispatched = sum of the ended classes + censored

`scheduled` and `not_reached` have no rows: they are the master's counts or, if it died, the sum of the workers'; planned
arrivals are at least as many as the last row's number. `lost` is the remainder: arrivals leased to a worker, without a row.

Attempts in flight are counted a second way. At the end of every second a worker counts its open attempts; as many of its
rows must have begun and not ended by then. Little's law: where the means differ, rows are missing or times are wrong.
What began or ended within a tenth of a second may count either way, as may an attempt that was still open at the end
(censored). Both counts are on one worker's clock, so no offset is involved.

Also here: load that was never sent although the run lasted to its end: who held it, when it was due, and why it stayed.

Nothing is lost here: no such request reached the target, and none has a row.

And the losses of each worker's share: requests without a row, when they were due, and what was found after all.

Rows win over counts. A request that the master counted as lost is found if its row is here. What a worker that ended by
itself held, and neither sent nor wrote, was never sent: it is not reached. If the master died, a worker's final record
gives its leased requests, or its last health row if it has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic.json_schema import SkipJsonSchema

from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.reading.run_record import ENDED, PLANNED
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.text.formatting import clock, count, listed, plain, plural
from tailgauge_analysis.text.json_values import Json, one_of, table, whole
from tailgauge_analysis.text.quantile import UNPUBLISHED

IN_FLIGHT_SLACK_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Missing(Stretch):
    """An interval of the run whose leased arrivals left no row, lost or never sent; seconds of the run clock. `worker`: null if
    unknown.
    """

    worker: int | None = None


@dataclass(frozen=True, slots=True)
class Conservation:
    """Request counts recomputed from the rows, preflight excluded: scheduled = dispatched + client_drop + not_reached + lost;
    dispatched = sum of ended + censored.
    """

    scheduled: int | None
    """null if unknown"""
    dispatched: int
    client_drop: int
    not_reached: int
    unsent: int
    """not reached in a completed run, though it was due"""
    lost: int
    ended: dict[Annotated[str, one_of(*schema.ENDED_CLASSES)], int]
    """by class"""
    censored: int
    duplicates: int
    missing_rows: int
    found: int
    """counted as lost by the master, with a row in a given folder"""
    unwritten: dict[str, int]
    """rows by table that were recorded and could not be written"""
    broken: tuple[str, ...]
    """contradictions between counts and rows"""
    missing: tuple[Missing, ...]
    """when leased requests without a row were due, as far as known"""
    workers: SkipJsonSchema[tuple[Loss, ...]] = field(default=(), metadata=UNPUBLISHED)
    """each worker's share"""

    @property
    def unseen(self) -> list[Missing]:
        """Those that the master did not record."""
        return [one for one in self.missing if one.worker is None]


def conservation(frames: Frames) -> Conservation:
    """Count the run again."""
    run, requests = frames.run, frames.requests[frames.requests["stage"] != schema.PREFLIGHT]
    workers = losses(run, requests, frames.health, frames.rows)
    counts = {str(name): int(n) for name, n in requests["ended"].value_counts().items()}
    client_drop = counts.pop(schema.CLIENT_DROP, 0)
    censored = counts.pop(schema.CENSORED, 0)
    dispatched = len(requests) - client_drop
    scheduled, not_reached = _planned(run, requests, workers)
    left = (scheduled or 0) - dispatched - client_drop - not_reached
    lost = 0 if scheduled is None else max(0, left)
    not_sent = _not_sent(workers)
    found = max(0, (whole(run["conservation"].get("lost")) or 0) - lost - not_sent)
    tables = sorted({name for one in workers for name in one.unwritten})
    unwritten = {name: sum(one.unwritten.get(name, 0) for one in workers) for name in tables}
    ended = {name: counts[name] for name in schema.ENDED_CLASSES if name in counts}
    missing, broken = _missing_rows(frames, unwritten.get("chunks", 0))
    strange = {name: n for name, n in counts.items() if name not in ended}
    broken += [f"{n} requests ended as {name!r}, which is not a known class" for name, n in strange.items()]
    if scheduled is not None and left < 0:
        broken.append(f"{-left:,} more requests in the rows than were scheduled ({scheduled:,})")
    seen: Json = {"dispatched": dispatched, "client_drop": client_drop, "censored": censored, "ended": ended}
    broken += _disagreements(run, seen, lost, found, unwritten.get("requests", 0))
    stretches: list[tuple[Stretch, int | None]] = [(one, of.worker) for of in workers for one in of.missing]
    if lost and not stretches and run["arrival"] in PLANNED:
        stretches = [(one, None) for one in unseen(requests, lost)]
    without_row = tuple(Missing(one.from_s, one.to_s, one.requests, worker) for one, worker in stretches)
    return Conservation(
        scheduled, dispatched, client_drop, not_reached, _unsent(run, not_reached, workers), lost, ended, censored,
        int(requests["request_id"].duplicated().sum()), missing, found, unwritten, tuple(broken), without_row, workers,
    )  # fmt: skip


def _not_sent(workers: Sequence[Loss]) -> int:
    """What the master counts as lost, and was never sent."""
    return sum(one.not_sent for one in workers if one.state == "lost")


def _unsent(run: Json, not_reached: int, workers: Sequence[Loss]) -> int:
    """0 where nothing more was to be sent, and in older runs of sessions, which do not record the turns that were due."""
    is_known = all("not_due" in worker["counts"] for worker in run["workers"] if worker["state"] == "drained")
    if run["state"] != "complete" or run["rebuilt"] or not (is_known or run["arrival"] == "open"):
        return 0
    return max(0, not_reached - sum(one.not_due for one in workers))


def _planned(run: Json, requests: pd.DataFrame, workers: Sequence[Loss]) -> tuple[int | None, int]:
    """Scheduled and not reached, from the master's count, else from the workers'."""
    counted = run["conservation"]
    if whole(counted.get("scheduled")) is not None:
        more = 0
        if run["arrival"] not in PLANNED:  # no plan: the master never counted what a lost worker did
            more = sum(max(0, one.rows - (one.leased or 0)) for one in workers if one.state == "lost")
        not_sent = _not_sent(workers)
        return counted["scheduled"] + more, (whole(counted.get("not_reached")) or 0) + not_sent
    leased = [one.leased for one in workers if one.leased is not None]
    not_reached = sum(whole(w["counts"].get("not_reached")) or 0 for w in run["workers"])
    if run["planned"] is not None:  # unknown what a worker without a record held
        at_rest = run["planned"] - sum(leased) if len(leased) == len(workers) else 0
        return run["planned"], not_reached + max(0, at_rest)
    if not leased:
        return None, not_reached
    last = int(requests["request_id"].max()) // schema.TURNS if len(requests) else -1
    return max(sum(leased), last + 1 if run["arrival"] in PLANNED else 0), not_reached


def _missing_rows(frames: Frames, unwritten_chunks: int) -> tuple[int, list[str]]:
    """Rows that a worker wrote and that are in no part."""
    missing, broken = 0, []
    for worker in frames.run["workers"]:
        for name, wrote in worker["rows"].items():
            read = frames.rows.get((name, worker["worker"]), 0)
            missing += max(0, wrote - read)
            if wrote != read:
                rows = f"{wrote:,} rows of {name}, its parts have {read:,}"
                broken.append(f"worker {worker['worker']} wrote {rows}")
    counted, held = int(frames.attempts["chunks"].sum()), len(frames.chunks) + unwritten_chunks
    if counted > held:
        broken.append(f"the attempts have {counted:,} chunks, the parts {len(frames.chunks):,}")
        missing = max(missing, counted - held)
    return missing, broken


def _disagreements(run: Json, seen: Json, lost: int, found: int, unwritten: int) -> list[str]:
    """Where the master's counts and the rows differ, beyond what is lost, found or unwritten."""
    out = []
    counted = run["conservation"]
    for name in ("dispatched", "client_drop", "censored"):
        out += _differs(name, whole(counted.get(name)), seen[name], lost, found)
    ended = table(counted, "ended")
    for name in sorted({*ended, *seen["ended"]} if ended else set[str]()):
        out += _differs(name, whole(ended.get(name)) or 0, seen["ended"].get(name, 0), lost, found)
    master_lost: Any = whole(counted.get("lost"))
    if master_lost is not None and lost > master_lost + unwritten:
        out.append(f"lost: the master counted {master_lost:,}, the rows give {lost:,}")
    return out


def _differs(name: str, master: int | None, rows: int, lost: int, found: int) -> list[str]:
    """A lost worker's last requests were counted live and have no row: up to `lost` may be missing; `found` were not."""
    if master is None or -found <= master - rows <= lost:
        return []
    return [f"{name}: the master counted {master:,}, the rows have {rows:,}"]


@dataclass(frozen=True, slots=True)
class InFlight:
    """Mean number of open attempts over all health rows; `outside`: mean distance from the attempt rows."""

    seconds: int
    live: float
    from_rows: float
    outside: float


def in_flight(frames: Frames, workers: Sequence[Loss] = ()) -> InFlight | None:
    """Count both ways; None without health rows. Nothing is learnt from workers whose rows are known to be missing."""
    live = rows = outside = 0.0
    lacking = {one.worker for one in workers if one.left or one.is_gone}
    wrote = ((w["worker"], name, n) for w in frames.run["workers"] for name, n in w["rows"].items())
    lacking |= {worker for worker, name, n in wrote if n > frames.rows.get((name, worker), 0)}
    every = frames.health[~frames.health["worker"].isin(lacking)]
    for worker, health in every.groupby("worker"):
        at = health["at_ns"].to_numpy(np.float64)
        counted = health["in_flight"].to_numpy(np.float64)
        mine = frames.attempts[frames.attempts["worker"] == worker]
        begun = np.sort(mine["dispatched_at_ns"].to_numpy(np.float64))
        ended = np.sort(mine["ended_at_ns"].dropna().to_numpy(np.float64))
        waits = health["read_wait_max_ns"].fillna(0)
        lag = (health["receive_lag_max_ns"] + health["loop_lag_max_ns"] + waits).to_numpy(np.float64)
        slack = IN_FLIGHT_SLACK_NS + _known_late(at, lag)
        closed = np.sort(mine.loc[mine["ended_at_ns"].notna(), "dispatched_at_ns"].to_numpy(np.float64))
        low, same, high = (
            np.searchsorted(begin, at - by, "right") - np.searchsorted(ended, at + by, "right")
            for begin, by in ((closed, slack), (begun, 0), (begun, -slack))
        )
        live += float(counted.sum())
        rows += float(same.sum())
        outside += float(np.maximum(0, np.maximum(counted - high, low - counted)).sum())
    n = len(every)
    return InFlight(n, live / n, rows / n, outside / n) if n else None


def _known_late(at: Floats, lag: Floats) -> Floats:
    """By how much the count of each second may be behind: its own lag, or what a later second found to have waited already."""
    behind, found = lag.copy(), 0.0
    for i in range(len(at) - 2, -1, -1):
        found = max(lag[i + 1], found - (at[i + 1] - at[i]))
        behind[i] = max(lag[i], found)
    return behind


# --- load that was never sent -------------------------------------------------------------------------------------

LEFT_OUT = "leave_out"  # of limits.lost_share: the share of a lost worker is not sent
MOST = 3  # in a sentence
SEE_MASTER = "Run the master where nothing suspends it and a core is free for it, then run again."
SEE_NETWORK = "See the network between the master and its workers, then run again."
AGAIN = "Run again for the full load."


@dataclass(frozen=True, slots=True)
class Cause:
    """Why some requests were not sent; `advice` is empty where workers were too slow."""

    requests: int
    text: str
    advice: str


def causes(run: Json, counted: Conservation, *, leaves_out: bool) -> list[Cause]:
    """The largest first."""
    found = [_held(run, one) for one in counted.workers if one.unsent]
    rest = counted.unsent - sum(one.requests for one in found)
    if rest > 0:
        found.append(_not_leased(run, counted.workers, rest, leaves_out=leaves_out))
    return sorted(found, key=lambda one: -one.requests)


def _held(run: Json, one: Loss) -> Cause:
    text = f"worker {one.worker} held {plural(one.unsent, 'request')}{due(one.missing)}"
    if one.why:
        return Cause(one.unsent, f"{text}: {plain(one.why, 200)}", SEE_LOG)
    if one.state == "lost":
        return Cause(one.unsent, f"{text}, when the master lost it", AGAIN)
    if one.came_late:
        text += f", of which {count(one.came_late)} arrived too late"
        if run["master_stalled"] and not one.silent:
            return Cause(one.unsent, f"{text}: {_stalled(run)}", SEE_MASTER)
        away = f" {spans(one.silent)}" if one.silent else ""
        link = f"the link between the master and worker {one.worker} was away{away}"
        return Cause(one.unsent, f"{text}: {link}", SEE_NETWORK)
    if one.silent:
        return Cause(one.unsent, f"{text}: it was silent {spans(one.silent)}", SEE_NETWORK)
    return Cause(one.unsent, f"{text}, and could not send them in time", "")


def _stalled(run: Json) -> str:
    return f"the master was stalled {spans(run['master_stalled'])}"


def _not_leased(run: Json, workers: tuple[Loss, ...], rest: int, *, leaves_out: bool) -> Cause:
    text = f"no worker got {plural(rest, 'request')}{due(run['not_leased'])}"
    if run["master_stalled"]:
        return Cause(rest, f"{text}: {_stalled(run)}", SEE_MASTER)
    away = [one for one in workers if one.silent or one.state == "lost"]
    if leaves_out and away:
        return Cause(rest, f"{text}: the share of a lost worker is left out (limits.lost_share)", AGAIN)
    silent = [f"worker {one.worker} was silent {spans(one.silent)}" for one in away if one.silent][:MOST]
    return Cause(rest, f"{text}: {listed(silent)}" if silent else text, SEE_NETWORK)


# --- losses -------------------------------------------------------------------------------------------------------

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
        loss = Loss(
            worker=number, host=worker["host"], state=worker["state"], recorded_state=worker["recorded_state"],
            why=worker["why"], leased=leased, rows=rows, left=left, found=len(mine), not_sent=not_sent,
            not_due=min(not_sent, not_due), came_late=min(not_sent, came_late), missing=still,
            silent=tuple(worker["silent"]), late_s=worker["late_s"], unwritten=worker["unwritten"],
        )  # fmt: skip
        found.append(loss)
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
