"""Whether hedging is worth a try, by the waits of single calls.

T is the wait of one call, d the delay. A second call after d leaves P(T > t) P(T > t - d) beyond t, if slow calls are slow by
chance: not by their prompts, by the load, or by what all calls share. A delay below the slow share is tried too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial

import numpy as np

from tailgauge.experiments.checkup.numbers import wait_ms
from tailgauge.experiments.checkup.tested import UserTraffic
from tailgauge.experiments.hedging import AFTER_FIRST
from tailgauge.rows import schema
from tailgauge_analysis import (
    FEW_EPISODES,
    TOO_FEW,
    Floats,
    Quantile,
    Steady,
    diagnosis,
    ms,
    n_min,
    percentile,
    quantiles,
)

# Quantiles of the wait. The first, with the fewest more calls, is left for more than WORTH.
DELAYS = (0.95, 0.9, 0.8, 0.5)
WORTH = 0.25  # of p99


def advice(
    user_traffic: UserTraffic, users: Steady, streams: Collection[str], *, has_tail: bool
) -> str:
    """Return whether a second call for late ones is worth a try; it is not where the tail is within its bounds."""
    if (users.attempts["cause"] == schema.HEDGE).any():
        return f"hedging: this traffic hedges already; measure what it gains: {user_traffic.line_of('hedging')}"
    if has_tail and diagnosis(users).kind == AFTER_FIRST:
        return "hedging cannot help: the slow calls are slow after their first content, which is what a hedge waits for"
    single = users.only(users.requests["answer"].ne(schema.JOIN).to_numpy(np.bool_))
    waits = wait_ms(single, streams)
    waits = np.where(single.requests["ended"].eq(schema.TIMEOUT), np.inf, waits)
    return second_call(
        waits[~np.isnan(waits)], has_tail=has_tail, measured_by=partial(_experiment, user_traffic)
    )


def _experiment(user_traffic: UserTraffic, delay_ms: float) -> str:
    """Return the command that measures hedges after this delay; empty where no table has single answers."""
    if not user_traffic.hedged:
        return ""
    key = f"traffic.{user_traffic.hedged}"
    hedge = (f"{key}.hedge.policy=fixed", f"{key}.hedge.delay_ms={delay_ms:.4g}")
    return user_traffic.line_of("hedging", f"{key}.pattern=hedged", *hedge)


def second_call(
    waits: Floats, *, has_tail: bool = True, measured_by: Callable[[float], str] = lambda _: ""
) -> str:
    """Return whether a second call for late ones is worth a try, by the waits of single calls.

    `waits`: in ms, in order of time; +inf of a call that timed out. `has_tail`: the check of the tail found a problem.
    `measured_by` returns the command of an experiment that measures hedges after so many ms; empty where there is none.
    The p99 with a second call is computed as if calls were slow by chance; the delay with the lowest is named.
    """
    p99 = quantiles(waits, (0.99,))[0]
    delays = _delays(waits)
    if not delays:
        return "hedging: not estimated, half of the calls or more got no content"
    if p99.mark == TOO_FEW or p99.value is None:
        return f"hedging: not estimated, {lacking(p99)}"
    # A shorter delay means more calls, so it must lower the p99 by WORTH.
    p, delay = delays[0]
    best_p99 = _p99_after(waits, delay)
    for candidate_p, candidate_delay in delays[1:]:
        candidate_p99 = _p99_after(waits, candidate_delay)
        if candidate_p99 < (1 - WORTH) * best_p99:
            p = candidate_p
            delay = candidate_delay
            best_p99 = candidate_p99
    text = (
        f"a second call after {ms(delay)} ms, the {percentile(p)}, would bring the p99 of the wait "
        f"from {_wait_text(p99.value)} to {_wait_text(best_p99)} at best"
    )
    if best_p99 == math.inf or best_p99 > (1 - WORTH) * p99.value:
        return f"hedging is not worth a try: {text}"
    if not has_tail:
        return f"hedging is not worth a try: few requests are far above the usual for their size; {text}"
    if p99.mark == FEW_EPISODES:
        return f"hedging: not known: {text}, but the slow calls came in {p99.episodes} episodes, where a second call is slow too"
    line = measured_by(delay)
    command = ""
    if line:
        command = f"; measure it: {line}"
    return f"hedging is worth a try: {text}, if calls are slow by chance and there is room for {1 - p:.0%} more{command}"


def _wait_text(wait_ms: float) -> str:
    return "no answer" if wait_ms == math.inf else f"{ms(wait_ms)} ms"


def _delays(waits: Floats) -> list[tuple[float, float]]:
    """Return the quantiles of the wait that may be a delay, each with its value in ms."""
    delays = []
    if len(waits):
        for p in DELAYS:
            delay = quantiles(waits, (p,))[0].value or 0.0
            if math.isfinite(delay):
                delays.append((p, delay))
    return delays


def lacking(p99: Quantile) -> str:
    """Return how many more waits a p99 needs."""
    fewest = n_min(0.99)
    if p99.n < fewest:
        return f"{fewest} waits are needed, got {p99.n}"
    return f"{fewest} independent waits are needed: the {p99.n:,} here count as {p99.n_eff:,}, because consecutive waits are alike"


def _p99_after(waits: Floats, delay: float) -> float:
    """Return the p99 of the wait with a second call after `delay`, in ms, by the formula of the module; never above that
    without.
    """
    ordered = np.sort(waits)
    times = np.sort(np.concatenate([ordered[ordered >= delay], delay + ordered]))
    single = 1 - np.searchsorted(ordered, times, "right") / len(waits)
    delayed = 1 - np.searchsorted(ordered, times - delay, "right") / len(waits)
    longer = times[single * delayed <= 0.01]
    return min(float(longer[0]), float(quantiles(waits, (0.99,))[0].value or math.inf))
