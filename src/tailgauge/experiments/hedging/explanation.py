"""Why hedging stops to help: what the copies did where it helps and where it hurts.

Rule: each reason is a sentence with its number, named only where the rows show it. They are looked for at the first load
that hurts, or the highest, and at the lowest.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailgauge.experiments.hedging.load import Load
from tailgauge.experiments.hedging.result import Compared, Result
from tailgauge_analysis.text.formatting import percentile, share

CANCEL, LIMIT, DELAY, TOGETHER, LOAD = "cancel", "limit", "delay", "correlation", "load"
SPARED = 0.5  # of what was left to generate: less is no effective cancel
MORE_REFUSED = 0.005  # share of the calls
TOGETHER_FROM = 0.2  # correlation
GROWS = 1.5  # times the copies at the lowest load

SHORT = {
    CANCEL: "the target goes on generating for copies that were closed",
    LIMIT: "the copies use up a limit that the calls themselves need",
    TOGETHER: "a copy of a slow call is mostly slow itself",
    DELAY: "the delay lies among the slow calls, so that copies come too late",
    LOAD: "the slower the calls become, the more copies are sent",
}


def reasons(found: Result) -> list[tuple[str, str]]:
    """Name and sentence of each, the most telling first."""
    if not found.compared:
        return []
    lowest, worst = found.compared[0].load, _worst(found.compared).load
    out = [_cancel(worst), _limit(worst), _together(worst), _delay(lowest, found.p), _load(lowest, worst)]
    return [one for one in out if one is not None]


def _worst(compared: Sequence[Compared]) -> Compared:
    harmed = [one for one in compared if one.slow is not None and one.slow.low > 0]
    return (harmed or list(compared[-1:]))[0]


def _cancel(load: Load) -> tuple[str, str] | None:
    spared = load.copied.cancelled
    if spared is None or spared >= SPARED:
        return None
    text = f"{_at(load)} closing the slower copy spared only {share(spared)} of what it had left to generate: {SHORT[CANCEL]}."
    return CANCEL, text


def _limit(load: Load) -> tuple[str, str] | None:
    off, on = load.copied.refused
    if off is None or on is None or on - off < MORE_REFUSED:
        return None
    return (
        LIMIT,
        f"{_at(load)} {share(on)} of the calls were refused with hedging and {share(off)} without: {SHORT[LIMIT]}.",
    )


def _together(load: Load) -> tuple[str, str] | None:
    value, low = load.copied.correlation
    if value is None or low is None or low < TOGETHER_FROM:
        return None
    return (
        TOGETHER,
        f"{_at(load)} slow calls and their copies are slow together (correlation {value:.2f}, at least {low:.2f}): {SHORT[TOGETHER]}.",
    )


def _delay(load: Load, p: float | None) -> tuple[str, str] | None:
    hedged = load.copied.hedged
    if p is None or hedged is None or hedged > 2 * (1 - p):
        return None
    return (
        DELAY,
        f"{_at(load)} only {share(hedged)} of the calls got a copy, so the {percentile(p)} is hardly touched: {SHORT[DELAY]}.",
    )


def _load(lowest: Load, worst: Load) -> tuple[str, str] | None:
    few, many = lowest.copied.hedged, worst.copied.hedged
    if not few or many is None or many < GROWS * few:
        return None
    return (
        LOAD,
        f"{share(few)} of the calls got a copy at {lowest.rate_per_s:.3g} requests/s, {share(many)} at {worst.rate_per_s:.3g}: {SHORT[LOAD]}.",
    )


def _at(load: Load) -> str:
    return f"At {load.rate_per_s:.3g} requests/s"
