"""Backlog: whether more and more requests wait for the target, so that it does not sustain the rate of an open loop.

Requests wait for their first content, however long answers take, so a target that fills with long answers has no backlog.
A target that slows down instead of letting requests wait holds more and more answers; that is judged from when it had
time to fill. Either counts only if the waits for the first content rise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.waiting import Waiting
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats import stationarity
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.stats.stationarity import Growth, smoothed
from tailgauge_analysis.text.json_values import table

EVEN = ("constant", "poisson", "gamma", "closed")  # processes whose rate does not change
FEWEST_S = 10.0
FEWEST_AT_LOAD = 200  # requests: with fewer most answers must come while the load runs
FEWEST_FOR_GROWTH = 20  # requests
LEAST_GROWTH = 0.02  # of the offered rate: less is a slower answer rather than a backlog
FILLED = 0.98  # of the requests: the others make less than the least growth


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How the requests that wait grow per second, and the growth that would be found; `grows`: for certain."""

    per_s: float
    detectable_per_s: float
    grows: bool


def is_load_constant(frames: Frames) -> bool:
    """Return whether the offered load and the traffic are to stay the same."""
    arrival = table(frames.run["scenario"], "arrival")
    flat = table(arrival, "shape").get("kind", "flat") == "flat"
    return (
        arrival.get("process") in EVEN and flat and not table(frames.run["scenario"], "crossover")
    )


def backlog(waits: Waiting, from_s: float, to_s: float) -> Backlog | None:
    """Return how fast the number of requests grows that wait too long for their first content; None where too few came.

    From when the target had time to fill, the number of those in flight is judged too. `grows` is set only where later requests
    also wait longer. `from_s` and `to_s` are of the run clock.
    """
    is_inside = (waits.begun_s >= from_s) & (waits.begun_s < to_s)
    arrivals = int(is_inside.sum())
    if arrivals < FEWEST_FOR_GROWTH:
        return None
    sent = waits.only(waits.begun_s < to_s)
    least_per_s = LEAST_GROWTH * arrivals / (to_s - from_s)
    by_first_content = _growth_of_overdue(sent, sent.first_s, from_s, to_s)
    growths = [by_first_content]
    # From then on the target is full: its longest answers had time to end. Less than half of the time would show too little.
    filled_s = max(from_s, sent.begun_s[0] + _fill_s(sent, to_s))
    if filled_s < (from_s + to_s) / 2:
        growths.append(_growth_of_overdue(sent, sent.ended_s, filled_s, to_s))
    if _waits_rise(sent, from_s):
        for growth in growths:
            if growth.rises and growth.per_s > least_per_s:
                return Backlog(
                    per_s=growth.per_s,
                    detectable_per_s=max(least_per_s, growth.detectable_per_s),
                    grows=True,
                )
    detectable_per_s = max(least_per_s, by_first_content.detectable_per_s)
    return Backlog(per_s=by_first_content.per_s, detectable_per_s=detectable_per_s, grows=False)


def _waits_rise(sent: Waiting, from_s: float) -> bool:
    """Return whether later requests wait longer for the others, up to the last that was answered among its neighbours.

    What came after it and is open at the end has waited the shorter the later it came. So all are compared up to the age that
    the last one reached.
    """
    waits_s = sent.first_s - sent.begun_s
    answered = np.flatnonzero(np.isfinite(smoothed(waits_s)))
    if not len(answered):
        return False
    last_answered = int(answered[-1])
    if not np.isfinite(waits_s).all():
        over_s = sent.first_s[np.isfinite(sent.first_s)].max()
        waits_s = np.minimum(waits_s, over_s - sent.begun_s[last_answered])
    excess_s = (waits_s - sent.unqueued_s)[: last_answered + 1]
    steady_s = excess_s[int(np.searchsorted(sent.begun_s, from_s)) :]
    # So few of a deep overload are answered that the first ones count too.
    return stationarity.rises(steady_s if len(steady_s) >= FEWEST_FOR_GROWTH else excess_s)


def _growth_of_overdue(sent: Waiting, over_s: Floats, from_s: float, to_s: float) -> Growth:
    """Return how the number of requests grows that wait longer than one that waits for no other; `over_s`: when each wait ends.

    Each waits as long as the median of its neighbours, so that a share of slow or lost answers is no queue.
    """
    due_s = sent.begun_s + sent.unqueued_s
    order = np.argsort(due_s, kind="stable")
    due_s = due_s[order]
    waits_s = smoothed(over_s[order] - due_s)
    return stationarity.growth(due_s, due_s + np.maximum(waits_s, 0.0), from_s, to_s)


def _fill_s(sent: Waiting, to_s: float) -> float:
    """Return how long a target fills: the time that its longest answers stay, those included that did not end."""
    begun_s = np.minimum(sent.first_s, to_s)
    return float(
        np.quantile(np.minimum(sent.ended_s, to_s) - begun_s, FILLED, method="inverted_cdf")
    )


def answers_after_load(stage: Steady) -> str:
    """`25 of 28 answers came after the load ended`, of a run too short to show what the target sustains; else empty."""
    requests = stage.requests
    complete = requests[requests["ended"].isin(schema.COMPLETE)]
    if len(requests) >= FEWEST_AT_LOAD or len(requests) < 2:
        return ""
    is_after = complete["ended_at_ns"] > requests["scheduled_at_ns"].max()
    if is_after.sum() * 2 <= len(complete):
        return ""
    return f"{int(is_after.sum())} of {len(complete)} answers came after the load ended"
