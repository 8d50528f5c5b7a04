"""Conservation: nothing that was scheduled may vanish.

Rule: counted again from the Parquet rows of the whole run (preflight excepted), then compared with what the run's
master counted while it ran. Rows win: of what the master counted as lost, that is `found` of which a row is here.

    scheduled  = dispatched + client_drop + not_reached + lost
    dispatched = sum of the ended classes + censored

`scheduled` and `not_reached` leave no rows: they are the master's or, if it died, the sum of the workers'; of requests
that arrive by a plan there were at least as many as the last row's number says. `lost` is what is left over: arrivals
given to a worker of which no row came back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.load.run_record import PLANNED
from tailgauge_analysis.text.json_values import Json, table, whole
from tailgauge_analysis.verdict.losses import Loss, Stretch, losses, unseen


@dataclass(frozen=True, slots=True)
class Conservation:
    """The two equations with their numbers, every disagreement in words, and each worker's share. `unseen`: when arrivals
    without a row were due, where the master did not say.
    """

    scheduled: int | None
    dispatched: int
    client_drop: int
    not_reached: int
    lost: int
    ended: dict[str, int]
    censored: int
    duplicates: int
    missing_rows: int
    found: int
    unwritten: dict[str, int]
    broken: tuple[str, ...]
    workers: tuple[Loss, ...]
    unseen: tuple[Stretch, ...]


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
    not_sent = sum(one.not_sent for one in workers)
    found = max(0, (whole(run["conservation"].get("lost")) or 0) - lost - not_sent)
    unwritten = _unwritten(workers)
    ended = {name: counts[name] for name in schema.ENDED_CLASSES if name in counts}
    missing, broken = _missing_rows(frames, unwritten.get("chunks", 0))
    broken += [
        f"{n} requests ended as {name!r}, which is no class"
        for name, n in counts.items()
        if name not in ended
    ]
    if scheduled is not None and left < 0:
        broken.append(f"{-left:,} more requests in the rows than were scheduled ({scheduled:,})")
    seen: Json = {"dispatched": dispatched, "client_drop": client_drop, "censored": censored, "ended": ended}
    broken += _disagreements(run, seen, lost, found, unwritten.get("requests", 0))
    told = any(one.missing for one in workers)
    return Conservation(
        scheduled, dispatched, client_drop, not_reached, lost, ended, censored,
        int(requests["request_id"].duplicated().sum()), missing, found, unwritten, tuple(broken), workers,
        unseen(requests, lost) if lost and not told and run["arrival"] in PLANNED else (),
    )  # fmt: skip


def _unwritten(workers: Sequence[Loss]) -> dict[str, int]:
    """Rows that could not be written, by table."""
    names = sorted({name for one in workers for name in one.unwritten})
    return {name: sum(one.unwritten.get(name, 0) for one in workers) for name in names}


def _planned(run: Json, requests: pd.DataFrame, workers: Sequence[Loss]) -> tuple[int | None, int]:
    """Scheduled and not reached, from the master's count, else from the workers'."""
    counted = run["conservation"]
    if whole(counted.get("scheduled")) is not None:
        more = 0
        if run["arrival"] not in PLANNED:  # nothing was planned: what a lost worker did was never heard of
            more = sum(max(0, one.rows - (one.leased or 0)) for one in workers if one.state == "lost")
        not_sent = sum(one.not_sent for one in workers)
        return counted["scheduled"] + more, (whole(counted.get("not_reached")) or 0) + not_sent
    leased = [one.leased for one in workers if one.leased is not None]
    not_reached = sum(whole(w["counts"].get("not_reached")) or 0 for w in run["workers"])
    if run["planned"] is not None:  # of a worker that said nothing nobody knows what it held
        at_rest = run["planned"] - sum(leased) if len(leased) == len(workers) else 0
        return run["planned"], not_reached + max(0, at_rest)
    if not leased:
        return None, not_reached
    last = int(requests["request_id"].max()) // schema.TURNS if len(requests) else -1
    return max(sum(leased), last + 1 if run["arrival"] in PLANNED else 0), not_reached


def _missing_rows(frames: Frames, unwritten_chunks: int) -> tuple[int, list[str]]:
    """Rows that a worker wrote and no part holds."""
    missing, broken = 0, []
    for worker in frames.run["workers"]:
        for name, wrote in worker["rows"].items():
            read = frames.rows.get((name, worker["worker"]), 0)
            missing += max(0, wrote - read)
            if wrote != read:
                broken.append(
                    f"worker {worker['worker']} wrote {wrote:,} rows of {name}, its parts hold {read:,}"
                )
    told, held = int(frames.attempts["chunks"].sum()), len(frames.chunks) + unwritten_chunks
    if told > held:
        broken.append(f"the attempts tell of {told:,} chunks, the parts hold {len(frames.chunks):,}")
        missing = max(missing, told - held)
    return missing, broken


def _disagreements(run: Json, seen: Json, lost: int, found: int, unwritten: int) -> list[str]:
    """Where the master's count and the rows differ, other than by what is lost, found or could not be written."""
    out = []
    counted = run["conservation"]
    for name in ("dispatched", "client_drop", "censored"):
        out += _differs(name, whole(counted.get(name)), seen[name], lost, found)
    told = table(counted, "ended")
    for name in sorted({*told, *seen["ended"]} if told else set[str]()):
        out += _differs(name, whole(told.get(name)) or 0, seen["ended"].get(name, 0), lost, found)
    master_lost: Any = whole(counted.get("lost"))
    if master_lost is not None and lost > master_lost + unwritten:
        out.append(f"lost: the master counted {master_lost:,}, the rows leave {lost:,}")
    return out


def _differs(name: str, master: int | None, rows: int, lost: int, found: int) -> list[str]:
    """A lost worker's last requests were counted live and have no row: up to `lost` may be missing; `found` were not."""
    if master is None or -found <= master - rows <= lost:
        return []
    return [f"{name}: the master counted {master:,}, the rows say {rows:,}"]


IN_FLIGHT_SLACK_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Presence:
    """Mean number of open attempts over the seconds in which a worker told it; `outside`: mean distance from the rows."""

    seconds: int
    live: float
    from_rows: float
    outside: float


def presence(frames: Frames) -> Presence | None:
    """Count both ways; None where no worker told."""
    live = rows = outside = 0.0
    for worker, health in frames.health.groupby("worker"):
        at = health["at_ns"].to_numpy(np.float64)
        told = health["in_flight"].to_numpy(np.float64)
        mine = frames.attempts[frames.attempts["worker"] == worker]
        begun = np.sort(mine["dispatched_at_ns"].to_numpy(np.float64))
        ended = np.sort(mine["ended_at_ns"].dropna().to_numpy(np.float64))
        slack = IN_FLIGHT_SLACK_NS + (health["receive_lag_max_ns"] + health["loop_lag_max_ns"]).to_numpy(
            np.float64
        )
        closed = np.sort(mine.loc[mine["ended_at_ns"].notna(), "dispatched_at_ns"].to_numpy(np.float64))
        begins = [
            np.searchsorted(b, at + s, "right") for b, s in ((closed, -slack), (begun, 0), (begun, slack))
        ]
        ends = [np.searchsorted(ended, at + shift, "right") for shift in (slack, 0, -slack)]
        low, same, high = (b - e for b, e in zip(begins, ends, strict=True))
        live += float(told.sum())
        rows += float(same.sum())
        outside += float(np.maximum(0, np.maximum(told - high, low - told)).sum())
    n = len(frames.health)
    return Presence(n, live / n, rows / n, outside / n) if n else None
