"""Why a load is inconclusive, and which loads to run next; pure, from the judged loads.

The loads between the largest that holds and the smallest that fails are next, where an inconclusive load counts as what it
leans to: more load makes no answer faster, so a higher load that holds decides it too. Without such an end higher or lower
loads are next; where no other load can be, the inconclusive ones are run longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tailgauge.experiments.loads.judge import BACKLOG, REFUSALS, JudgedLoad
from tailgauge.experiments.loads.run import Exceedance
from tailgauge_analysis import FAIL, counted, figures, plural, share, times_to_decide

NOTICEABLE = 0.9  # part of the requests below which a reader learns that they are correlated
SPARE = 1.2  # times the needed length: the effective number of requests is an estimate
BACKLOG_TIMES = 2.0  # as long, where only the growth of the backlog is not clear
HIGHER = (1.5, 2.0, 3.0, 4.0)  # times the highest load
LOWER = (0.25, 0.5)
BETWEEN = 3  # loads
NARROW = 1.25  # ratio of two rates that are not worth more runs
LONGER = "run the inconclusive loads longer"
TOO_NEAR = "which is too near to tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class InconclusiveLoad:
    """An inconclusive load. `times`: as many requests decide it, +inf where no likely number does; `text`: its cause.

    `times_at_best`: as many where they are independent; `leans`: PASS or FAIL, the likelier outcome.
    """

    load: float
    times: float
    times_at_best: float
    text: str
    leans: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """The loads to run next, ascending, `times` as long as before. `reason`: what they tell."""

    reason: str
    loads: Sequence[float]
    times: float = 1.0


def explain(load: JudgedLoad) -> InconclusiveLoad:
    """Explain an inconclusive load by the share that needs most requests."""
    open_shares = [exceedance for exceedance in load.shares if times_to_decide_of(exceedance) > 1]
    if not open_shares:
        return InconclusiveLoad(
            load=load.load,
            times=BACKLOG_TIMES,
            times_at_best=BACKLOG_TIMES,
            text=f"whether the {BACKLOG} grows is not clear",
            leans=load.leans,
        )
    widest = max(open_shares, key=times_to_decide_of)
    misses = widest.missed
    return InconclusiveLoad(
        load=load.load,
        times=times_to_decide_of(widest),
        times_at_best=times_to_decide(counted(misses.k, misses.n), widest.allowed),
        text=_cause(widest),
        leans=load.leans,
    )


def times_to_decide_of(exceedance: Exceedance) -> float:
    """Return how many times as many requests decide a share; 1 where these do."""
    return times_to_decide(exceedance.missed, exceedance.allowed)


def _cause(exceedance: Exceedance) -> str:
    """Say `1 of 98 requests misses ttft p95 < 800 ms (5% may); 98 correlated requests count as 10: about 710 are needed`."""
    misses = exceedance.missed
    allowed = f"{share(exceedance.allowed)} may"
    if exceedance.name == REFUSALS:
        text = f"{misses.k:,} of {plural(misses.n, 'call')} refused ({allowed} be)"
    else:
        verb = "misses" if misses.k == 1 else "miss"
        text = f"{misses.k:,} of {plural(misses.n, 'request')} {verb} {exceedance.name} ({allowed})"
    if misses.n_eff < NOTICEABLE * misses.n:
        text += f"; {misses.n:,} correlated requests count as {misses.n_eff:,}"
    times = times_to_decide_of(exceedance)
    if math.isinf(times):
        return f"{text}, {TOO_NEAR}"
    return f"{text}: about {_rounded_up(misses.n * times * SPARE):,} are needed"


def _rounded_up(count: float) -> int:
    """Round a number of requests up to two digits."""
    step = 10.0 ** max(0, math.floor(math.log10(max(1.0, count))) - 1)
    return round(math.ceil(count / step) * step)


def follow_up(
    ran: Sequence[float],
    *,
    holds: float | None,
    fails: float | None,
    unsure: Sequence[InconclusiveLoad],
    whole: bool,
) -> FollowUp | None:
    """Return what to run next; None where the loads that `ran` leave nothing open.

    `holds`, `fails`: the largest load that holds and the smallest that fails, None if there is none; `unsure`: the
    inconclusive ones between them; `whole`: whether loads are whole numbers. Loads that were not run come first; the
    inconclusive ones are run longer where there is none, or where the upper end is missing and more requests would
    decide.
    """
    decidable = [load for load in unsure if math.isfinite(load.times)]
    low, high = probable_ends(holds, fails, unsure)
    fresh = _untried(ran, low, high, whole=whole)
    if fresh is not None and not (high is None and decidable):
        # The low end is inconclusive itself: the new runs are as long as it would need.
        at_best = []
        for load in decidable:
            if load.load == low and load.times_at_best > 1:
                at_best.append(load.times_at_best)
        if not at_best:
            return fresh
        return replace(fresh, times=max(at_best) * SPARE)
    if not decidable:
        return None
    loads = _ascending((load.load for load in decidable), whole=whole)
    return FollowUp(reason=LONGER, loads=loads, times=max(load.times for load in decidable) * SPARE)


def _untried(
    ran: Sequence[float], low: float | None, high: float | None, *, whole: bool
) -> FollowUp | None:
    """Return loads that were not run: between two, or on the side without an end; None where there is none."""
    if low is None:
        reason = "find a load that holds"
        loads = [min(ran) * factor for factor in LOWER]
        if whole:
            loads = [load for load in loads if load >= 1]
    elif high is None:
        reason = "find the load that fails"
        loads = [max(ran) * factor for factor in HIGHER]
    else:
        reason = f"narrow it down between {figures(low)} and {figures(high)}"
        loads = _loads_between(low, high, whole=whole)
    if not loads:
        return None
    return FollowUp(reason=reason, loads=_ascending(loads, whole=whole))


def probable_ends(
    holds: float | None, fails: float | None, unsure: Sequence[InconclusiveLoad]
) -> tuple[float | None, float | None]:
    """Return the largest load that probably holds, and the next one, which probably fails."""
    for load in sorted(unsure, key=lambda load: load.load):
        if load.leans == FAIL:
            return holds, load.load
        holds = load.load
    return holds, fails


def _loads_between(low: float, high: float, *, whole: bool) -> list[float]:
    """Return the loads to try between two; empty where they are near each other."""
    numbers = range(1, BETWEEN + 1)
    if whole:
        step = (high - low) / (BETWEEN + 1)
        tried = {round(low + step * number) for number in numbers}
        return [float(load) for load in sorted(tried) if low < load < high]
    if high / low < NARROW:
        return []
    factor = (high / low) ** (1 / (BETWEEN + 1))
    return [low * factor**number for number in numbers]


def _ascending(loads: Iterable[float], *, whole: bool) -> list[float]:
    if whole:
        return sorted({float(round(load)) for load in loads})
    return sorted({float(f"{load:.4g}") for load in loads})
