"""What became of each worker's share: what left no row, when that was due, what was found after all.

Rule: rows win over what was counted. A request that the master counted as lost, and of which a row is here, is found. Of
a worker that the master lost and that ended by itself, with every row that it wrote here, what has no row was never sent:
it is not reached. Where the master died, a worker that ended says what it held; one that did not is taken at its last
second of health, and both only of what is here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.worker_entry import ENDED
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.text.json_values import Json, whole

NEAR_S = 1.0  # missing arrivals that are closer than this are one stretch


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the run in seconds of its clock; `to_s` None: to the end. `requests` were due in it."""

    from_s: float
    to_s: float | None
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """One worker's share. `leased` is None where nobody knows; `left`: requests without a row that it should have had;
    `found`: rows that lie in another folder than the master's; `not_sent`: held when the master lost it, and left alone.
    """

    worker: int
    host: str
    state: str
    own_state: str
    why: str
    leased: int | None
    rows: int
    left: int
    found: int
    not_sent: int
    missing: tuple[Stretch, ...]
    silent: tuple[Stretch, ...]
    late_s: float | None
    unwritten: dict[str, int]

    @property
    def lost_at_s(self) -> float | None:
        """Since when it was silent for good, or else the first second that it left out."""
        last = self.silent[-1] if self.silent else None
        if last is not None and last.to_s is None:
            return last.from_s
        return self.missing[0].from_s if self.missing else None

    @property
    def is_gone(self) -> bool:
        """It was lost and never ended by itself, or it failed."""
        return self.state == "failed" or (self.state == "lost" and not self.has_ended)

    @property
    def has_ended(self) -> bool:
        """Its own record says how it ended."""
        return self.own_state in ENDED

    @property
    def is_accounted(self) -> bool:
        """The master lost it, and what it was given is in its own folder: each request has a row."""
        return self.state == "lost" and bool(self.found) and not self.left

    @property
    def is_unheard(self) -> bool:
        """Nothing of it is here, neither a record nor a row."""
        return not self.own_state and not self.rows


def losses(
    run: Json, requests: pd.DataFrame, health: pd.DataFrame, wrote: dict[tuple[str, int], int]
) -> tuple[Loss, ...]:
    """One entry a worker. `requests` without those of the preflight; `wrote`: rows that were read, by table and worker."""
    once = requests.drop_duplicates("request_id")
    counts = once["worker"].value_counts()
    elsewhere = once[once["folder"] > 0] if run["closed"] else once[:0]
    told = health.groupby("worker")["scheduled"].max() if len(health) else pd.Series(dtype=np.float64)
    found = []
    for worker in run["workers"]:
        number = worker["worker"]
        mine = elsewhere[elsewhere["worker"] == number]
        rows, seen = int(counts.get(number, 0)), wrote.get(("requests", number), 0)
        leased = worker["leased"]
        if leased is None and not run["closed"]:  # its last second of health says what it had been handed
            leased = max(rows, int(told.get(number, 0))) if told.get(number, 0) > 0 else None
        lacks = worker["rows"].get("requests", 0) - seen
        left, not_sent = _left(worker, leased, rows, lacks, closed=run["closed"])
        still = _without(worker["missing"], mine) if left else ()
        found.append(
            Loss(
                number, worker["host"], worker["state"], worker["own_state"], worker["why"], leased, rows, left,
                len(mine), not_sent, still, _stretches(worker["silent"]), worker["late_s"], worker["unwritten"],
            )
        )  # fmt: skip
    return tuple(found)


def _left(worker: Json, leased: int | None, rows: int, lacks: int, *, closed: bool) -> tuple[int, int]:
    """Requests that left no row, and those that were never sent though the master counts them as lost. `lacks`: rows that
    it says it wrote and that are not here.
    """
    held, no_row = max(0, (leased or 0) - rows), max(lacks, worker["unwritten"].get("requests", 0))
    if not closed:
        return max(no_row, held - (whole(worker["counts"].get("not_reached")) or 0)), 0
    if worker["state"] != "lost":
        return max(no_row, sum(one["requests"] for one in worker["missing"])), 0
    if worker["own_state"] in ENDED and lacks <= 0:
        return min(no_row, held), max(0, held - no_row)
    return held, 0


def _without(missing: list[Json], found: pd.DataFrame) -> tuple[Stretch, ...]:
    """The master's stretches less the arrivals that were found."""
    first = found[found["request_id"] % schema.TURNS == 0]
    at_s = first["scheduled_at_ns"].to_numpy(np.float64) / 1e9
    slack_s = NEAR_S / 2
    out = []
    for one in _stretches(missing):
        until_s = one.from_s if one.to_s is None else one.to_s
        here = int(((at_s >= one.from_s - slack_s) & (at_s <= until_s + slack_s)).sum())
        if one.requests > here:
            out.append(Stretch(one.from_s, one.to_s, one.requests - here))
    return tuple(out)


def _stretches(told: list[Json]) -> tuple[Stretch, ...]:
    return tuple(Stretch(one["from_s"], one["to_s"], one["requests"]) for one in told)


def unseen(requests: pd.DataFrame, lost: int) -> tuple[Stretch, ...]:
    """When the arrivals that left no row were due: they come in order, so their neighbours say it; what of `lost` has no
    later neighbour was due after the last row.
    """
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
