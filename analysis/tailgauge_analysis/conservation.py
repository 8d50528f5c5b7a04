"""Conservation: nothing that was scheduled may vanish.

Rule: counted again from the Parquet rows of the whole run (preflight excepted), then compared with what the run's
owner counted while it ran.

    scheduled  = dispatched + client_drop + not_reached + lost
    dispatched = sum of the ended classes + censored

`scheduled` and `not_reached` leave no rows: they are the owner's (or, if it died, the sum of the workers'). `lost` is
what is left over: arrivals given to a worker of which no row came back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailgauge import records
from tailgauge_analysis.frames import Frames
from tailgauge_analysis.runfile import Json, table, whole


@dataclass(frozen=True, slots=True)
class Conservation:
    """The two equations with their numbers, and every disagreement in words."""

    scheduled: int | None
    dispatched: int
    client_drop: int
    not_reached: int
    lost: int
    ended: dict[str, int]
    censored: int
    duplicates: int
    missing_rows: int
    broken: tuple[str, ...]


def conservation(frames: Frames) -> Conservation:
    """Count the run again."""
    requests = frames.requests[frames.requests["stage"] != records.PREFLIGHT]
    duplicates = int(requests["request_id"].duplicated().sum())
    counts = {str(name): int(n) for name, n in requests["ended"].value_counts().items()}
    client_drop = counts.pop(records.CLIENT_DROP, 0)
    censored = counts.pop(records.CENSORED, 0)
    dispatched = len(requests) - client_drop
    scheduled, not_reached = _planned(frames.run)
    lost = 0 if scheduled is None else max(0, scheduled - dispatched - client_drop - not_reached)
    ended = {name: counts[name] for name in records.ENDED_CLASSES if name in counts}
    missing, broken = _missing_rows(frames)
    seen: Json = {"dispatched": dispatched, "client_drop": client_drop, "censored": censored, "ended": ended}
    broken += [
        f"{n} requests ended as {name!r}, which is no class"
        for name, n in counts.items()
        if name not in ended
    ]
    broken += _disagreements(frames.run, seen, scheduled, not_reached, lost)
    return Conservation(
        scheduled,
        dispatched,
        client_drop,
        not_reached,
        lost,
        ended,
        censored,
        duplicates,
        missing,
        tuple(broken),
    )


def _planned(run: Json) -> tuple[int | None, int]:
    """Scheduled and not reached, from the owner's count, else from the workers'."""
    counted = run["conservation"]
    if whole(counted.get("scheduled")) is not None:
        return whole(counted.get("scheduled")), whole(counted.get("not_reached")) or 0
    leased = [w["leased"] for w in run["workers"] if w["leased"] is not None]
    not_reached = sum(whole(w["counts"].get("not_reached")) or 0 for w in run["workers"])
    return (sum(leased), not_reached) if leased else (None, not_reached)


def _missing_rows(frames: Frames) -> tuple[int, list[str]]:
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
    told, held = int(frames.attempts["chunks"].sum()), len(frames.chunks)
    if told > held:
        broken.append(f"the attempts tell of {told:,} chunks, the parts hold {held:,}")
        missing = max(missing, told - held)
    return missing, broken


def _disagreements(run: Json, seen: Json, scheduled: int | None, not_reached: int, lost: int) -> list[str]:
    """Where the owner's count and the rows differ, other than by what is lost."""
    out = []
    surplus = seen["dispatched"] + seen["client_drop"] + not_reached - (scheduled or 0)
    if scheduled is not None and surplus > 0:
        out.append(f"{surplus:,} more requests in the rows than were scheduled ({scheduled:,})")
    counted = run["conservation"]
    for name in ("dispatched", "client_drop", "censored"):
        out += _differs(name, whole(counted.get(name)), seen[name], lost)
    told = table(counted, "ended")
    for name in sorted({*told, *seen["ended"]} if told else set[str]()):
        out += _differs(name, whole(told.get(name)) or 0, seen["ended"].get(name, 0), lost)
    owner_lost: Any = whole(counted.get("lost"))
    if owner_lost is not None and owner_lost != lost:
        out.append(f"lost: the owner counted {owner_lost:,}, the rows leave {lost:,}")
    return out


def _differs(name: str, owner: int | None, rows: int, lost: int) -> list[str]:
    """A lost worker's last requests were counted live and have no row: up to `lost` may be missing."""
    if owner is None or 0 <= owner - rows <= lost:
        return []
    return [f"{name}: the owner counted {owner:,}, the rows say {rows:,}"]
