"""Client delays: when the client sent late, or was too late to read what had come.

What happens then, and what a burst of late requests does to the target right after, is not blamed on the target
(stability.py). By how much a figure may be off because of the client is in verdict/client_error.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge.thresholds import STALL_NS
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.waiting import Waiting
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import Floats, Mask
from tailgauge_analysis.text.formatting import between, count, figures

LATE_S = STALL_NS / 1e9
JOINED_S = 1.0  # delays closer than that are one
AFTERMATH = 2.0  # times its length, in which the target answers what came at once
WORTH_NAMING = 0.01  # of the stage
LAGS = ["loop_lag_max_ns", "receive_lag_max_ns"]


@dataclass(frozen=True, slots=True)
class Delay:
    """A time in which the client was late, by up to `late_s`."""

    from_s: float
    to_s: float
    late_s: float

    @property
    def over_s(self) -> float:
        """When the target had time to answer what the client sent at once."""
        return self.to_s + max(JOINED_S, AFTERMATH * (self.to_s - self.from_s))


@dataclass(frozen=True, slots=True)
class ClientDelays:
    """The delays of a stage in their order; `late_share`: of the requests and seconds, as much as was late."""

    delays: tuple[Delay, ...]
    late_share: float

    def touch(self, from_s: float, to_s: float) -> bool:
        """Return whether this time has to do with a delay."""
        return any(from_s < delay.over_s and to_s > delay.from_s for delay in self.delays)

    def cover(self, at_s: Floats) -> Mask:
        """Return which of these times lie in a delay or right after one."""
        inside = np.zeros(len(at_s), np.bool_)
        for delay in self.delays:
            inside |= (at_s >= delay.from_s) & (at_s <= delay.over_s)
        return inside

    @property
    def worst(self) -> Delay:
        """The delay in which the client was latest."""
        return max(self.delays, key=lambda delay: delay.late_s)

    @property
    def sentence(self) -> str:
        """`The client was late by up to 0.4 s from 00:17 to 00:21.`; empty where nobody would see it."""
        if self.late_share < WORTH_NAMING:
            return ""
        worst = self.worst
        text = f"The client was late by up to {figures(worst.late_s)} s {between(worst.from_s, worst.to_s)}"
        if len(self.delays) > 1:
            text += f" and in {_stretches(len(self.delays) - 1)}"
        return f"{text}."


def _stretches(number: int) -> str:
    if number == 1:
        return "another stretch"
    return f"{count(number)} other stretches"


def client_delays(frames: Frames, stage: Steady, waits: Waiting) -> ClientDelays:
    """Return when a worker was late by more than 50 ms."""
    is_late = waits.is_steady & (waits.late_s > LATE_S)
    sent_s = waits.begun_s[is_late]
    late_s = waits.late_s[is_late]
    lags = _lags(frames, stage)
    rows = np.concatenate((np.stack((sent_s - late_s, sent_s, late_s), axis=1), lags))
    late_share = float(is_late.sum()) / max(1, int(waits.is_steady.sum()))
    workers = max(1, len(frames.run["workers"]))
    lag_share = float(lags[:, 2].sum()) / max(1.0, stage.seconds) / workers
    return ClientDelays(_merged(rows), max(late_share, lag_share))


def workers_without_kernel(frames: Frames) -> list[int]:
    """Return the workers whose timestamps are all taken in user space."""
    workers = []
    for entry in frames.run["workers"]:
        if entry["stamps"] == "user":
            workers.append(entry["worker"])
    return workers


def _lags(frames: Frames, stage: Steady) -> Floats:
    """Begin, end and lag of seconds in which a worker's event loop or reads were late, and timestamps are ranges."""
    if frames.health.empty:
        return np.zeros((0, 3))
    health = frames.health.sort_values(["worker", "at_ns"], ignore_index=True)
    by_worker = health.groupby("worker")
    to_s = health["at_ns"] / 1e9
    from_s = by_worker["at_ns"].shift().div(1e9).fillna(to_s - 1)
    intervals = health["chunk_intervals"].fillna(0)
    has_ranges = by_worker["chunk_intervals"].diff().fillna(intervals).ne(0)
    has_ranges |= health["worker"].isin(workers_without_kernel(frames))
    late_s = health[LAGS].max(axis=1) / 1e9
    is_inside = (to_s > stage.from_s) & (from_s < stage.to_s)
    is_late = is_inside & (late_s > LATE_S) & has_ranges
    lags: Floats = np.stack((from_s, to_s, late_s), axis=1)[is_late.to_numpy(np.bool_)]
    return lags


def _merged(rows: Floats) -> tuple[Delay, ...]:
    """Return delays that overlap, or nearly follow each other, as one."""
    if not len(rows):
        return ()
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    until_s = np.maximum.accumulate(rows[:, 1])
    begins = np.flatnonzero(rows[1:, 0] > until_s[:-1] + JOINED_S) + 1
    return tuple(map(_spanning, np.split(rows, begins)))


def _spanning(rows: Floats) -> Delay:
    return Delay(float(rows[0, 0]), float(rows[:, 1].max()), float(rows[:, 2].max()))
