"""Count every request of a run again, from its rows: none that was scheduled may vanish.

The rows of the whole run count, without preflight. Where the master counted otherwise, the rows are right.

    scheduled  = dispatched + client_drop + not_reached + lost
    dispatched = sum of the ended classes + censored

Scheduled and not reached requests have no row: their counts are the master's or, if it died, the sum of its workers'. `lost`
is what is left over: requests that a worker was given and that left no row (losses.py has them by worker).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import pandas as pd
from pydantic.json_schema import SkipJsonSchema

from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.reading.run_record import PLANNED
from tailgauge_analysis.text.json_values import Json, one_of, table, whole
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.verdict.losses import Loss, losses


@dataclass(frozen=True, slots=True)
class Missing(Stretch):
    """An interval of the run whose arrivals, leased to a worker, left no row: lost or never sent; seconds of the run clock."""

    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """when leased requests without a row were due, as far as the master recorded it"""
    workers: SkipJsonSchema[tuple[Loss, ...]] = field(default=(), metadata=UNPUBLISHED)
    """each worker's share"""


def conservation(frames: Frames) -> Conservation:
    """Return the counts of the run's requests from its rows, without the preflight, and where they contradict the master's."""
    run = frames.run
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT]
    workers = losses(frames, requests)
    counts: dict[str, int] = {}
    for name, n in requests["ended"].value_counts().items():
        counts[str(name)] = int(n)
    client_drop = counts.get(schema.CLIENT_DROP, 0)
    ended = {}
    for class_name in schema.ENDED_CLASSES:
        if class_name in counts:
            ended[class_name] = counts[class_name]
    scheduled, not_reached = _planned(run, requests, workers)
    # Scheduled requests without a row; negative where there are more rows than requests.
    rest = 0
    if scheduled is not None:
        rest = scheduled - len(requests) - not_reached
    lost = max(0, rest)
    # The master counted them as lost, and their rows are here.
    lost_by_master = whole(run["conservation"].get("lost")) or 0
    recovered = max(0, lost_by_master - lost - _not_sent(workers))
    missing: list[Missing] = []
    unwritten = Counter[str]()
    for loss in workers:
        unwritten.update(loss.unwritten)
        for gap in loss.missing:
            missing.append(Missing(gap.from_s, gap.to_s, gap.requests, loss.worker))
    missing_rows, broken = _missing_rows(frames, unwritten["chunks"])
    for unknown in counts.keys() - {*ended, schema.CLIENT_DROP, schema.CENSORED}:
        broken.append(
            f"{counts[unknown]} requests ended as {unknown!r}, which is not a known class"
        )
    if rest < 0:
        broken.append(f"{-rest:,} more requests in the rows than were scheduled ({scheduled:,})")
    broken += _differences(run["conservation"], counts, lost, recovered)
    return Conservation(
        scheduled=scheduled,
        dispatched=len(requests) - client_drop,
        client_drop=client_drop,
        not_reached=not_reached,
        unsent=_unsent(run, not_reached, workers),
        lost=lost,
        ended=ended,
        censored=counts.get(schema.CENSORED, 0),
        duplicates=int(requests["request_id"].duplicated().sum()),
        missing_rows=missing_rows,
        found=recovered,
        unwritten=dict(sorted(unwritten.items())),
        broken=tuple(broken),
        missing=tuple(missing),
        workers=workers,
    )


def _not_sent(workers: Sequence[Loss]) -> int:
    """Return what the master counts as lost, and was never sent."""
    return sum(loss.not_sent for loss in _lost(workers))


def _lost(workers: Sequence[Loss]) -> list[Loss]:
    """Return the workers that the master lost."""
    return [loss for loss in workers if loss.state == "lost"]


def _unsent(run: Json, not_reached: int, workers: Sequence[Loss]) -> int:
    """0 where the run was not to send more."""
    if run["state"] != "complete" or run["rebuilt"]:
        return 0
    return max(0, not_reached - sum(loss.not_due for loss in workers))


def _planned(run: Json, requests: pd.DataFrame, workers: Sequence[Loss]) -> tuple[int | None, int]:
    """Return how many requests were scheduled, None if unknown, and how many of them were not reached before the end.

    Both are the master's counts if it recorded them. Else they follow from the plan, and from what workers were given (leased)
    and report as not reached.
    """
    counted = run["conservation"]
    is_planned = run["arrival"] in PLANNED
    scheduled = whole(counted.get("scheduled"))
    if scheduled is not None:
        if not is_planned:  # no plan: the master never counted what a lost worker did
            for loss in _lost(workers):
                scheduled += max(0, loss.rows - (loss.leased or 0))
        return scheduled, (whole(counted.get("not_reached")) or 0) + _not_sent(workers)
    leased = []
    for loss in workers:
        if loss.leased is not None:
            leased.append(loss.leased)
    not_reached = sum(map(_not_reached, run["workers"]))
    if run["planned"] is not None:
        if len(leased) == len(workers):  # else nobody knows what a worker without a record held
            not_reached += max(0, run["planned"] - sum(leased))
        return run["planned"], not_reached
    if not leased:
        return None, not_reached
    # A request id tells the number of its arrival, so that there were so many at least.
    last_arrival = -1
    if is_planned and len(requests):
        last_arrival = int(requests["request_id"].max()) // schema.TURNS
    return max(sum(leased), last_arrival + 1), not_reached


def _not_reached(worker: Json) -> int:
    return whole(worker["counts"].get("not_reached")) or 0


def _missing_rows(frames: Frames, unwritten_chunks: int) -> tuple[int, list[str]]:
    """Return how many rows workers wrote that are in no part, and a sentence for each count that differs from the rows.

    `unwritten_chunks`: chunks that were recorded and could not be written; attempts count them.
    """
    missing = 0
    broken = []
    for worker in frames.run["workers"]:
        number = worker["worker"]
        for name, wrote in worker["rows"].items():
            read = frames.rows.get((name, number), 0)
            missing += max(0, wrote - read)
            if wrote != read:
                broken.append(
                    f"worker {number} wrote {wrote:,} rows of {name}, its parts have {read:,}"
                )
    counted = int(frames.attempts["chunks"].sum())
    chunks = len(frames.chunks)
    without_row = counted - chunks - unwritten_chunks
    if without_row > 0:
        broken.append(f"the attempts have {counted:,} chunks, the parts {chunks:,}")
    return max(missing, without_row), broken


def _differences(master: Json, rows: Mapping[str, int], lost: int, recovered: int) -> list[str]:
    """Return where the master's counts and the rows differ by more than what is lost, or was found.

    The last requests of a lost worker were counted live and have no row; those that were found were not counted.
    """
    ended = table(master, "ended")
    if not ended:
        return []
    counted = {
        **ended,
        schema.CLIENT_DROP: master.get("client_drop"),
        schema.CENSORED: master.get("censored"),
    }
    differences = []
    for name in sorted({*counted, *rows}):
        excess = (whole(counted.get(name)) or 0) - rows.get(name, 0)
        if not -recovered <= excess <= lost:
            text = f"{name}: the master counted {rows.get(name, 0) + excess:,}, the rows have {rows.get(name, 0):,}"
            differences.append(text)
    return differences
