"""Whether hedging is worth a try, by the waits of single calls.

T is the wait of one call, d the delay. A second call after d leaves P(T > t) P(T > t - d) beyond t, if slow calls are slow by
chance: not by their prompts, by the load, or by what all calls share. A delay below the slow share is tried too.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from tailgauge.experiments.checkup.numbers import wait_ms
from tailgauge.rows import schema
from tailgauge_analysis import (
    FEW_EPISODES,
    TOO_FEW,
    Floats,
    Steady,
    diagnosis,
    ms,
    n_min,
    percentile,
    quantiles,
)

DELAYS = (
    0.95,
    0.9,
    0.8,
    0.5,
)  # quantiles of the wait; the first, with the fewest more calls, is left for more than WORTH
WORTH = 0.25  # of p99
AFTER_FIRST = "output"  # kind of a diagnosis


def advice(users: Steady, streams: Collection[str], *, has_tail: bool) -> str:
    """Return whether a second call for late ones is worth a try; it is not where the tail is within its bounds."""
    if (users.attempts["cause"] == schema.HEDGE).any():
        return "hedging: this traffic hedges already; tailgauge run hedging measures what it gains"
    if has_tail and diagnosis(users).kind == AFTER_FIRST:
        return "hedging cannot help: the slow calls are slow after their first content, which is what a hedge waits for"
    single = users.only(users.requests["answer"].ne(schema.JOIN).to_numpy(np.bool_))
    waits = wait_ms(single, streams)
    waits = np.where(single.requests["ended"].eq(schema.TIMEOUT), np.inf, waits)
    return second_call(waits[~np.isnan(waits)], has_tail=has_tail)


def second_call(waits: Floats, *, has_tail: bool = True) -> str:
    """Return the same from the waits of single calls in ms, in order of time; of a call that timed out +inf."""
    p99 = quantiles(waits, (0.99,))[0]
    delays = [(p, quantiles(waits, (p,))[0].value or 0.0) for p in DELAYS] if len(waits) else []
    delays = [(p, delay) for p, delay in delays if math.isfinite(delay)]
    if p99.mark == TOO_FEW or p99.value is None or not delays:
        return (
            f"hedging: not estimated, {n_min(0.99)} waits with a finite median are needed, got {len(waits)}"
        )
    place, delay = delays[0]
    best = _p99_after(waits, delay)
    for other_place, other in delays[1:]:
        lower = _p99_after(waits, other)
        if lower < (1 - WORTH) * best:
            place = other_place
            delay = other
            best = lower
    now = "no answer" if p99.value == math.inf else f"{ms(p99.value)} ms"
    text = f"a second call after {ms(delay)} ms, the {percentile(place)}, would bring the p99 of the wait from {now} to {ms(best)} ms at best"
    if best > (1 - WORTH) * p99.value:
        return f"hedging is not worth a try: {text}"
    if not has_tail:
        return f"hedging is not worth a try: few requests are far above the usual for their size; {text}"
    if p99.mark == FEW_EPISODES:
        return f"hedging: not known: {text}, but the slow calls came in {p99.episodes} episodes, where a second call is slow too"
    return f"hedging is worth a try: {text}, if calls are slow by chance and there is room for {1 - place:.0%} more; tailgauge run hedging measures it"


def _p99_after(waits: Floats, delay: float) -> float:
    ordered = np.sort(waits)
    times = np.sort(np.concatenate([ordered[ordered >= delay], delay + ordered]))
    first = 1 - np.searchsorted(ordered, times, "right") / len(waits)
    second = 1 - np.searchsorted(ordered, times - delay, "right") / len(waits)
    beyond = times[first * second <= 0.01]
    return min(float(beyond[0]), float(quantiles(waits, (0.99,))[0].value or math.inf))
