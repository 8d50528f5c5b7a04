"""A recorded trace made to fit a run: thinned, its time scaled, its clock's ticks filled.

Rule: rows read = emitted + dropped, each dropped row under one reason. Scaling time makes bursts steeper, thinning
keeps their shape: they are different options. Where the trace's clock ticks coarsely, a row gets a random place within
its tick, drawn by the seed, and the notes say so; rows keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.schedule.random_streams import Purpose, stream
from tailgauge.schedule.settings import Trace
from tailgauge.schedule.trace_file import Recorded

NO_RESPONSE, NO_PROMPT = "without a response", "without a prompt"
THINNED, BEYOND = "thinned out", "beyond the duration"


@dataclass(frozen=True, slots=True)
class Replay:
    """The rows that are sent: which of the trace, when, and what became of the others."""

    rows: Any
    at_ns: Any
    facts: dict[str, Any]
    notes: tuple[str, ...]


def replay(
    recorded: Recorded, options: Trace, rate_per_s: float | None, duration_s: float, seed: int
) -> Replay:
    """Fit a trace into [0, duration); raises ScenarioError where nothing of it is left."""
    n = len(recorded)
    failed = recorded.output_tokens == 0
    bare = ~failed & (recorded.prompt_tokens == 0)
    usable = ~(failed | bare)
    speed_up = options.speed_up
    if rate_per_s is not None:
        speed_up = rate_per_s / (_rate_per_s(recorded, int(usable.sum())) * options.keep_share)
    thinned = usable & (stream(seed, Purpose.KEPT).random(n) >= options.keep_share)
    at_ns = recorded.at_ns.astype(float)
    if recorded.resolution_ns:
        # Sorted: within a tick the rows keep their order, and no row leaves its tick.
        at_ns = np.sort(at_ns + stream(seed, Purpose.JITTER).random(n) * recorded.resolution_ns)
    at_ns = recorded.at_ns if speed_up == 1 and not recorded.resolution_ns else np.rint(at_ns / speed_up)
    beyond = usable & ~thinned & (at_ns >= duration_s * 1e9)
    kept = np.flatnonzero(usable & ~thinned & ~beyond)
    reasons = {NO_RESPONSE: failed, NO_PROMPT: bare, THINNED: thinned, BEYOND: beyond}
    dropped = {name: int(rows.sum()) for name, rows in reasons.items() if rows.any()}
    if not len(kept):
        raise ScenarioError(f"arrival.trace: none of its {n:,} rows is left to send: {_told(dropped)}")
    facts = {
        "file": options.file,
        "format": recorded.format,
        "rows_read": n,
        "emitted": len(kept),
        "dropped": dropped,
        "resolution_s": recorded.resolution_ns / 1e9,
        "speed_up": speed_up,
        "keep_share": options.keep_share,
    }
    sent_ns = at_ns[kept].astype(np.int64)
    ends_s = None if BEYOND in dropped else float(at_ns[-1]) / 1e9
    return Replay(kept, sent_ns, facts, _notes(facts, ends_s, duration_s))


def _rate_per_s(recorded: Recorded, usable: int) -> float:
    """Mean rate of the rows that can be sent, over the whole trace."""
    span_ns = int(recorded.at_ns[-1]) + recorded.resolution_ns
    gaps = usable if recorded.resolution_ns else usable - 1
    if gaps <= 0 or span_ns <= 0:
        raise ScenarioError("arrival.rate_per_s: the trace is too short to have a mean rate of its own")
    return gaps / span_ns * 1e9


def _told(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())


def _notes(facts: dict[str, Any], ends_s: float | None, duration_s: float) -> tuple[str, ...]:
    said = f"trace {facts['file']} ({facts['format']}): {facts['rows_read']:,} rows read, {facts['emitted']:,} in the plan"
    if facts["dropped"]:
        said += f"; left out: {_told(facts['dropped'])}"
    if facts["speed_up"] != 1:
        said += f"; its times were divided by {facts['speed_up']:.4g}"
    if facts["resolution_s"]:
        said += f"; its clock ticks every {facts['resolution_s']:g} s, so each row got a random place within its tick"
    notes = [said]
    if ends_s is not None and ends_s < 0.95 * duration_s:
        notes.append(
            f"the trace ends {ends_s:.1f} s into the run, which lasts {duration_s:g} s: nothing was sent after it"
        )
    return tuple(notes)
