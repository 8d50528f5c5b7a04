"""How far the clocks of a run may be apart, and what that does to figures that mix them.

A latency lies within one worker's clock; no offset touches it. Times of two workers compare within the sum of both
offsets' errors, those of a worker and of the server log within the worker's error: the endpoint has the master's clock.

    between     largest sum of two workers' errors
    to target   largest error of a worker
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import listed, ms
from tailgauge_analysis.text.json_values import Json

WORTH = 0.1  # attempts in flight: less is not reported


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
    """Clock offsets of the workers with rows."""
    run = frames.run
    if run["dry_run"]:
        return Clocks({}, ())
    wrote = {worker for (_, worker), n in frames.rows.items() if n}
    there = [w for w in run["workers"] if w["worker"] in wrote]
    known = {w["worker"]: max(0, w["error_ns"] or 0) for w in there if w["offset_ns"] is not None}
    return Clocks(known, tuple(w["worker"] for w in there if w["offset_ns"] is None))


def calls_between(frames: Frames, found: Clocks) -> float:
    """Attempts that begin or end on average while two clocks may differ: the error of counts in flight."""
    sent = frames.attempts["sent_at_ns"].dropna().to_numpy(np.float64)
    if len(sent) < 2 or not found.between_ns:
        return 0.0
    return len(sent) * found.between_ns / max(float(sent.max() - sent.min()), 1.0)


def to_json(found: Clocks, calls: float) -> Json:
    """The key `clocks` of report.json."""
    times = {"between_ms": found.between_ns / 1e6, "to_target_ms": found.to_target_ns / 1e6}
    known = {"calls_in_flight": round(calls, 3), "unknown": list(found.unknown)}
    return {**times, **known, "sentence": sentence(found, calls)}


def sentence(found: Clocks, calls: float) -> str:
    """The clock error in a sentence of the report; empty if no figure mixes clocks."""
    unknown = between = ""
    if found.unknown:
        workers = f"{'worker' if len(found.unknown) == 1 else 'workers'} {listed(map(str, found.unknown))}"
        unknown = f"The clock offset of {workers} is unknown: comparisons of its times with other workers' are not usable."
    if found.between_ns:
        flight = f", attempts in flight over all workers within ± {calls:,.2g}" if calls >= WORTH else ""
        between = (
            f"Each latency is measured by one worker's clock. Times of two workers compare within ± {ms(found.between_ns / 1e6)} ms{flight}; "
            "the order of closer calls (who filled a cache first, who met a rate limit first) is not known."
        )
    return f"{unknown} {between}".strip()
