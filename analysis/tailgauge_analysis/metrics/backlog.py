"""Backlog: whether the requests in flight grow, so that the target does not sustain the rate of an open loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats import stationarity
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.stats.stationarity import Growth
from tailgauge_analysis.text.json_values import table

EVEN = ("constant", "poisson", "gamma", "closed")  # processes whose rate does not change
FEWEST_S = 10.0
FEWEST_FOR_GROWTH = 50  # requests
FEWEST_PILED = 20
PILES = 0.78  # of the pairs of tenths of their waits, those that rise less those that fall
FILLING = 20  # requests at the start, whose answers show when the target is full
FILLING_SHARE = 0.01
IN_PARTS = 0.05  # of the offered rate, where it is measured in pieces of the run, which begin and end anywhere in a wave


def is_even(frames: Frames) -> bool:
    """Whether the offered load and the traffic are to stay the same."""
    arrival = table(frames.run["scenario"], "arrival")
    flat = table(arrival, "shape").get("kind", "flat") == "flat"
    return arrival.get("process") in EVEN and flat and not table(frames.run["scenario"], "crossover")


def growth(frames: Frames, stage: Steady) -> Growth | None:
    """Of the requests in flight, from when the target had time to fill; None where most of the stage is before that.

    A target whose answers take a minute holds more and more of them for a minute. The first requests of the run show how
    long that is, whatever the rate: they waited behind nobody.
    """
    begun, ended = stays_s(frames)
    if len(begun) < FEWEST_FOR_GROWTH or stage.seconds < FEWEST_S:
        return None
    first = slice(max(FILLING, int(len(begun) * FILLING_SHARE)))
    full_s = begun[0] + float(np.quantile((ended - begun)[first], 0.9, method="inverted_cdf"))
    from_s = max(stage.from_s, full_s)
    if not from_s < (stage.from_s + stage.to_s) / 2:
        return None
    return stationarity.growth(begun, ended, from_s, stage.to_s)


def piled_per_s(frames: Frames, stage: Steady) -> float | None:
    """Growth of the requests in flight where they are too few for `growth`, or wait too long; None but where nobody would
    doubt it: waits rise all the time and double, and half of those who came still wait at the end. Planted queues show it in
    at most 4% of runs at 95% load, and in three quarters or more at three times what they can do.
    """
    requests = stage.requests[stage.requests["ended"] != schema.CLIENT_DROP]
    if len(requests) < FEWEST_PILED or frames.run["arrival"] != "open" or not is_even(frames):
        return None
    over = requests["ended_at_ns"].where(requests["ended"] != schema.CENSORED, np.inf)
    until = requests["first_at_ns"].fillna(requests["joined_at_ns"]).fillna(over)
    waits = (until - requests["scheduled_at_ns"]).to_numpy(np.float64)
    third = len(waits) // 3
    first, last = (float(np.quantile(v, 0.5, method="inverted_cdf")) for v in (waits[:third], waits[-third:]))
    still = float((until > stage.to_s * 1e9).mean())
    if stationarity.rising(waits) < PILES or last < 2 * first or still < 0.5:
        return None
    begun_s, ended_s = stays_s(frames)
    arrived = int(((begun_s > stage.from_s) & (begun_s <= stage.to_s)).sum())
    left = int(((ended_s > stage.from_s) & (ended_s <= stage.to_s)).sum())
    return (arrived - left) / stage.seconds


def stays_s(frames: Frames) -> tuple[Floats, Floats]:
    """When each request of the run was due, in that order, and when it ended; +inf of what never did."""
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates("request_id")
    requests = requests[requests["ended"] != schema.CLIENT_DROP].sort_values("scheduled_at_ns", kind="stable")
    begun = requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9
    return begun, requests["ended_at_ns"].fillna(np.inf).to_numpy(np.float64) / 1e9


def growth_within(begun_s: Floats, ended_s: Floats, spans: Sequence[tuple[float, float]]) -> float | None:
    """By how much the requests in flight grow per second, in these times together; None where they do not."""
    seconds = sum(to_s - from_s for from_s, to_s in spans)
    if seconds < FEWEST_S:
        return None
    begun, ended = (stationarity.joined(at, spans) for at in (begun_s, ended_s))
    if len(begun) < FEWEST_FOR_GROWTH:
        return None
    grows = stationarity.growth(begun, ended, 0.0, seconds)
    return grows.per_s if grows.rises and grows.per_s > IN_PARTS * len(begun) / seconds else None
