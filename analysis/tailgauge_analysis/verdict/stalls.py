"""Client stalls: seconds in which a worker was late enough to move a figure.

A second of a worker is bad if its requests left too late, or if its event loop or its reads were that late and timestamps
taken meanwhile are ranges; lag does not affect exact kernel timestamps. By how much a figure may be off because of it says
client_error.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge_analysis.metrics.client_delays import workers_without_kernel
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
    """Return those of the stage with a lag above `over_ns` that could move a figure."""
    return bad_seconds_between(frames, stage.from_s, stage.to_s, over_ns)


def bad_seconds_between(frames: Frames, begin_s: float, end_s: float, over_ns: float) -> BadSeconds:
    """Return the seconds between two times of the run in which a worker was late by more than `over_ns`, and could move a figure.

    A late event loop or read counts only where timestamps were ranges meanwhile: without the kernel's timestamps, or when chunks
    were recorded as ranges. Consecutive bad seconds of a worker are one spell, the worst first.
    """
    health = frames.health.sort_values(["worker", "at_ns"], ignore_index=True)
    by_worker = health.groupby("worker")
    to_s = health["at_ns"] / 1e9
    from_s = by_worker["at_ns"].shift().div(1e9).fillna(to_s - 1)
    is_inside = ((from_s + to_s) / 2).between(begin_s, end_s, inclusive="right")
    lags_ns = health[[*CAUSES]]
    is_late = lags_ns > over_ns
    # A running count of chunks whose arrival is a range: it grew in this second.
    intervals = health["chunk_intervals"]
    has_ranges = by_worker["chunk_intervals"].diff().fillna(intervals).ne(0)
    has_ranges |= health["worker"].isin(workers_without_kernel(frames))
    is_bad = is_inside & (is_late["dispatch_late_max_ns"] | (is_late.any(axis=1) & has_ranges))
    spells = []
    # The number of good seconds before it is the same for all seconds of a spell.
    for _, rows in health[is_bad].groupby(["worker", (~is_bad).cumsum()[is_bad]]):
        worst_ns = lags_ns.loc[rows.index].max()
        spell = Spell(
            worker=int(rows["worker"].iloc[0]),
            from_s=float(from_s[rows.index[0]]),
            to_s=float(to_s[rows.index[-1]]),
            worst_ms=float(worst_ns.max()) / 1e6,
            cause=CAUSES[str(worst_ns.idxmax())],
        )
        spells.append(spell)
    seconds = to_s - from_s
    spells.sort(key=lambda spell: -spell.worst_ms)
    return BadSeconds(float(seconds[is_inside].sum()), float(seconds[is_bad].sum()), tuple(spells))
