"""How far the clocks of a run may be apart, and what that does to figures that mix them.

Rule: a latency lies within one worker's clock, and no offset touches it. Times of two workers compare within the errors
of both offsets together, those of a worker and of the target's log within the worker's: the endpoint's clock is the
master's. On the virtual clock, and within one worker, there is nothing between.

    between     largest sum of two workers' errors
    to target   largest error of a worker
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.text.formatting import listed, ms
from tailgauge_analysis.text.json_values import Json

WORTH = 0.1  # calls in flight: less than that is not worth a word


@dataclass(frozen=True, slots=True)
class Clocks:
    """Errors in ns, by worker; `unknown`: workers with rows whose offset was never measured."""

    errors_ns: dict[int, int]
    unknown: tuple[int, ...]

    @property
    def between_ns(self) -> int:
        """Between two workers."""
        return sum(sorted(self.errors_ns.values())[-2:]) if len(self.errors_ns) > 1 else 0

    @property
    def to_target_ns(self) -> int:
        """Between a worker and the target's log."""
        return max(self.errors_ns.values(), default=0)


def clocks(frames: Frames) -> Clocks:
    """Of the workers that left rows."""
    run = frames.run
    if run["dry_run"]:
        return Clocks({}, ())
    wrote = {worker for (_, worker), n in frames.rows.items() if n}
    there = [w for w in run["workers"] if w["worker"] in wrote]
    known = {w["worker"]: max(0, w["error_ns"] or 0) for w in there if w["offset_ns"] is not None}
    return Clocks(known, tuple(w["worker"] for w in there if w["offset_ns"] is None))


def calls_between(frames: Frames, found: Clocks) -> float:
    """Calls that begin or end, in the mean, while two clocks may differ: so many in flight are not known."""
    sent = frames.attempts["sent_at_ns"].dropna().to_numpy(np.float64)
    if len(sent) < 2 or not found.between_ns:
        return 0.0
    return len(sent) * found.between_ns / max(float(sent.max() - sent.min()), 1.0)


def plainly(found: Clocks, calls: float) -> Json:
    """The key `clocks` of the report's contents."""
    return {
        "between_ms": found.between_ns / 1e6,
        "to_target_ms": found.to_target_ns / 1e6,
        "calls_in_flight": round(calls, 3),
        "unknown": list(found.unknown),
        "sentence": sentence(found, calls),
    }


def sentence(found: Clocks, calls: float) -> str:
    """What mixes clocks, and within what it holds; empty where nothing does."""
    said = []
    if found.unknown:
        workers = f"{'worker' if len(found.unknown) == 1 else 'workers'} {listed(map(str, found.unknown))}"
        said.append(
            f"The clock of {workers} was never compared with the master's: what puts its times beside others' cannot be used."
        )
    if found.between_ns:
        flight = (
            f", and calls in flight over all of them are known to ± {calls:,.2g}" if calls >= WORTH else ""
        )
        said.append(
            f"Latencies lie within one worker's clock. Times of two workers compare within ± {ms(found.between_ns / 1e6)} ms{flight}; "
            "where the order of two calls decides (who wrote a cached text first, which call a rate limit saw first) nothing closer "
            "than that is claimed."
        )
    return " ".join(said)
