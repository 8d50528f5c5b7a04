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

Load that was never sent although the run lasted to its end: who held it, when it was due, and why it stayed.

Nothing is lost here: no such request reached the target, and none has a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic.json_schema import SkipJsonSchema

from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.reading.run_record import PLANNED
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import count, listed, plain, plural
from tailgauge_analysis.text.json_values import Json, one_of, table, whole
from tailgauge_analysis.text.quantile import FOR_FIGURES
from tailgauge_analysis.verdict.losses import SEE_LOG, Loss, due, losses, spans, unseen

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
    workers: SkipJsonSchema[tuple[Loss, ...]] = field(default=(), metadata=FOR_FIGURES)
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
