"""Client stalls: seconds in which a worker was late enough to move a figure.

A second of a worker is bad if its requests left too late, or if its event loop or its reads were that late and timestamps
taken meanwhile are ranges; lag does not affect exact kernel timestamps. By how much a figure may be off because of it says
client_error.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask
from tailgauge_analysis.text.formatting import clock, count, ms, share

_LAGS = ("loop_lag_max_ns", "receive_lag_max_ns", "dispatch_late_max_ns")
_CAUSES = ("event loop late", "reads late", "requests sent late")


@dataclass(frozen=True, slots=True)
class Spell:
    """Consecutive bad seconds of a worker; `worst_ms` is the largest lag, `cause` which lag it was."""

    worker: int
    from_s: float
    to_s: float
    worst_ms: float
    cause: str


@dataclass(frozen=True, slots=True)
class BadSeconds:
    """Seconds of all workers in the steady stage, and those of them that are bad; `spells` with the largest lag first."""

    seconds: float
    bad: float
    spells: tuple[Spell, ...]

    @property
    def share(self) -> float:
        """Share of bad seconds."""
        return self.bad / self.seconds if self.seconds else 0.0


def bad_seconds(frames: Frames, stage: Steady, over_ns: float) -> BadSeconds:
    """Those with a lag above `over_ns` that could move a figure."""
    seconds = bad = 0.0
    spells: list[Spell] = []
    health = frames.health.sort_values("at_ns")
    by_user = {w["worker"] for w in frames.run["workers"] if w["stamps"] == "user"}
    for worker, rows in health.groupby("worker"):
        end_s = rows["at_ns"].to_numpy(np.float64) / 1e9
        begin_s = np.concatenate([end_s[:1] - 1, end_s[:-1]])
        middle = (begin_s + end_s) / 2
        inside = (middle > stage.from_s) & (middle <= stage.to_s)
        lags = rows[list(_LAGS)].to_numpy(np.float64)
        # Reading late does not change exact kernel timestamps. NaN of older rows: perhaps.
        blurred = np.diff(rows["chunk_intervals"].to_numpy(np.float64), prepend=0) != 0
        late = lags > over_ns
        stalled = inside & (late[:, 2] | (late.any(axis=1) & (blurred | (worker in by_user))))
        lasted = end_s - begin_s
        seconds += float(lasted[inside].sum())
        bad += float(lasted[stalled].sum())
        spells += [_spell(worker, begin_s, end_s, lags, some) for some in _stretches(stalled)]
    return BadSeconds(seconds, bad, tuple(sorted(spells, key=lambda spell: -spell.worst_ms)))


def _stretches(mask: Mask) -> list[Ints]:
    """Indices of each unbroken stretch under the mask."""
    at = np.flatnonzero(mask)
    return [part for part in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if len(part)]


def _spell(worker: Any, begin_s: Floats, end_s: Floats, lags: Floats, rows: Ints) -> Spell:
    worst = lags[rows].max(axis=0)
    ends = float(begin_s[rows[0]]), float(end_s[rows[-1]])
    return Spell(int(worker), *ends, float(worst.max()) / 1e6, _CAUSES[int(worst.argmax())])


def sentence(found: BadSeconds) -> str:
    """How much of the stage was bad, and where most."""
    one = found.spells[0]
    worst = f"worker {one.worker} at {clock(one.from_s)}, {one.cause} by {ms(one.worst_ms)} ms"
    of = f"{share(found.share)} of {count(found.seconds)} seconds"
    return f"Workers were stalled for more than 50 ms in {of}. Worst: {worst}."
