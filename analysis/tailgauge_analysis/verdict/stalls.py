"""Client stalls: seconds in which a worker was late enough to move a figure.

A second of a worker is bad if its requests left too late, or if its event loop or its reads were that late and timestamps
taken meanwhile are ranges; lag does not affect exact kernel timestamps. By how much a figure may be off because of it says
client_error.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import clock, count, ms, share

CAUSES = {
    "loop_lag_max_ns": "event loop late",
    "receive_lag_max_ns": "reads late",
    "dispatch_late_max_ns": "requests sent late",
}


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
    def sentence(self) -> str:
        """How much of the stage was bad, and where most."""
        worst = self.spells[0]
        part = f"{share(self.bad / self.seconds)} of {count(self.seconds)} seconds"
        where = f"worker {worst.worker} at {clock(worst.from_s)}, {worst.cause} by {ms(worst.worst_ms)} ms"
        return f"Workers were stalled for more than 50 ms in {part}. Worst: {where}."


def bad_seconds(frames: Frames, stage: Steady, over_ns: float) -> BadSeconds:
    """Those with a lag above `over_ns` that could move a figure."""
    seconds = 0.0
    bad = 0.0
    spells: list[Spell] = []
    by_user = {entry["worker"] for entry in frames.run["workers"] if entry["stamps"] == "user"}
    for worker, health in frames.health.sort_values("at_ns").groupby("worker"):
        to_s = health["at_ns"].to_numpy(np.float64) / 1e9
        from_s = np.concatenate([to_s[:1] - 1, to_s[:-1]])
        middle_s = (from_s + to_s) / 2
        is_inside = (middle_s > stage.from_s) & (middle_s <= stage.to_s)
        lags_ns = health[[*CAUSES]].to_numpy(np.float64)
        is_late = lags_ns > over_ns
        has_ranges = np.diff(health["chunk_intervals"].to_numpy(np.float64), prepend=0) != 0
        is_moved = is_late[:, 2] | (is_late.any(axis=1) & (has_ranges | (worker in by_user)))
        is_bad = is_inside & is_moved
        seconds += float((to_s - from_s)[is_inside].sum())
        bad += float((to_s - from_s)[is_bad].sum())
        rows = np.flatnonzero(is_bad)
        for spell in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            if not len(spell):
                continue
            worst_ns = lags_ns[spell].max(axis=0)
            cause = [*CAUSES.values()][int(worst_ns.argmax())]
            times_s = (float(from_s[spell[0]]), float(to_s[spell[-1]]))
            spells.append(Spell(int(worker), *times_s, float(worst_ns.max()) / 1e6, cause))
    return BadSeconds(seconds, bad, tuple(sorted(spells, key=lambda spell: -spell.worst_ms)))
