"""How far the clocks of a run may be apart, and what that does to figures that mix them.

A latency lies within one worker's clock; no offset touches it. Times of two workers compare within the sum of both
offsets' errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import listed, ms
from tailgauge_analysis.text.json_values import Json

LEAST_CALLS = 0.1  # attempts in flight: less is not reported


@dataclass(frozen=True, slots=True)
class Clocks:
    """Errors in ns, by worker; `unknown`: workers with rows whose offset was never measured."""

    errors_ns: dict[int, int]
    unknown: tuple[int, ...]

    @property
    def between_ns(self) -> int:
        """Between two workers: the sum of the two largest errors."""
        if len(self.errors_ns) < 2:
            return 0
        return sum(sorted(self.errors_ns.values())[-2:])


def clocks(frames: Frames) -> Clocks:
    """Clock offsets of the workers with rows."""
    errors_ns = {}
    unmeasured = []
    wrote = {worker for (_, worker), n in frames.rows.items() if n}
    for entry in frames.run["workers"]:
        worker = entry["worker"]
        if frames.run["dry_run"] or worker not in wrote:
            continue
        if entry["offset_ns"] is None:
            unmeasured.append(worker)
        else:
            errors_ns[worker] = max(0, entry["error_ns"] or 0)
    return Clocks(errors_ns, tuple(unmeasured))


def calls_between(frames: Frames, offsets: Clocks) -> float:
    """Attempts that begin or end on average while two clocks may differ: the error of counts in flight."""
    sent = frames.attempts["sent_at_ns"].dropna().to_numpy(np.float64)
    if len(sent) < 2 or not offsets.between_ns:
        return 0.0
    return len(sent) * offsets.between_ns / max(float(sent.max() - sent.min()), 1.0)


def clocks_json(offsets: Clocks, calls: float) -> Json:
    """Return the key `clocks` of report.json."""
    return {
        "between_ms": offsets.between_ns / 1e6,
        "calls_in_flight": round(calls, 3),
        "unknown": list(offsets.unknown),
        "sentence": clocks_sentence(offsets, calls),
    }


def clocks_sentence(offsets: Clocks, calls: float) -> str:
    """Return the clock error in a sentence of the report; empty if no figure mixes clocks."""
    sentences = []
    if offsets.unknown:
        workers = f"{'worker' if len(offsets.unknown) == 1 else 'workers'} {listed(map(str, offsets.unknown))}"
        consequence = "comparisons of its times with other workers' are not usable"
        sentences.append(f"The clock offset of {workers} is unknown: {consequence}.")
    if offsets.between_ns:
        flight = ""
        if calls >= LEAST_CALLS:
            flight = f", and numbers of attempts in flight over all workers within ± {calls:,.2g}"
        sentences.append(
            "Each latency is measured by one worker's clock. "
            f"Times of two workers can be compared within ± {ms(offsets.between_ns / 1e6)} ms{flight}. "
            "The order of closer calls (who filled a cache first, who met a rate limit first) is not known."
        )
    return " ".join(sentences)
