"""Why a load is inconclusive, and which loads to run next; pure, from the judged loads.

What lacks requests is run longer, beside the largest load that holds and the smallest that fails. Without such a load
higher or lower ones are next, and with both the loads between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailgauge.experiments.loads.judge import BACKLOG, REFUSALS, JudgedLoad
from tailgauge.experiments.loads.run import Exceedance
from tailgauge_analysis import figures, plural, share, times_to_decide

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
    """An inconclusive load. `times`: as many requests decide it, +inf where no likely number does; `text`: its cause."""

    load: float
    times: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """The loads to run next, ascending, `times` as long as before. `why`: what they tell."""

    why: str
    loads: Sequence[float]
    times: float = 1.0


def explain(load: JudgedLoad) -> InconclusiveLoad:
    """Explain an inconclusive load by the share that needs most requests."""
    open_shares = [exceedance for exceedance in load.shares if times_to_decide_of(exceedance) > 1]
    if not open_shares:
        return InconclusiveLoad(
            load=load.load, times=BACKLOG_TIMES, text=f"whether the {BACKLOG} grows is not clear"
        )
    widest = max(open_shares, key=times_to_decide_of)
    return InconclusiveLoad(load=load.load, times=times_to_decide_of(widest), text=_cause(widest))


def times_to_decide_of(exceedance: Exceedance) -> float:
    """Return how many times as many requests decide a share; 1 where these do."""
    return times_to_decide(exceedance.missed, exceedance.allowed)


def _cause(exceedance: Exceedance) -> str:
    """Say `1 of 98 requests misses ttft p95 < 800 ms (5% may); 98 correlated requests count as 10: about 710 are needed`."""
    missed = exceedance.missed
    allowed = f"{share(exceedance.allowed)} may"
    if exceedance.name == REFUSALS:
        text = f"{missed.k:,} of {plural(missed.n, 'call')} refused ({allowed} be)"
    else:
        verb = "misses" if missed.k == 1 else "miss"
        text = f"{missed.k:,} of {plural(missed.n, 'request')} {verb} {exceedance.name} ({allowed})"
    if missed.n_eff < NOTICEABLE * missed.n:
        text += f"; {missed.n:,} correlated requests count as {missed.n_eff:,}"
    times = times_to_decide_of(exceedance)
    if math.isinf(times):
        return f"{text}, {TOO_NEAR}"
    return f"{text}: about {_rounded_up(missed.n * times * SPARE):,} are needed"


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

    `holds`, `fails`: the largest load that holds and the smallest that fails; `unsure`: the inconclusive ones between them;
    `whole`: whether loads are whole numbers.
    """
    longer = [load for load in unsure if math.isfinite(load.times)]
    if longer:
        ends = [load for load in (holds, fails) if load is not None]
        loads = [*ends, *(load.load for load in longer)]
        times = max(load.times for load in longer)
        return FollowUp(why=LONGER, loads=_ascending(loads, whole=whole), times=times * SPARE)
    if holds is None:
        lowest = min(ran)
        lower = [lowest * factor for factor in LOWER if not whole or lowest * factor >= 1]
        if not lower:
            return None
        return FollowUp(why="find a load that holds", loads=_ascending([*lower, lowest], whole=whole))
    if fails is None:
        higher = [max(ran) * factor for factor in HIGHER]
        return FollowUp(why="find the load that fails", loads=_ascending([holds, *higher], whole=whole))
    if unsure or (fails - holds < 2 if whole else fails / holds < NARROW):
        return None
    ratio = fails / holds
    between = [holds * ratio ** (number / (BETWEEN + 1)) for number in range(BETWEEN + 2)]
    if whole:
        between = [holds + (fails - holds) * number / (BETWEEN + 1) for number in range(BETWEEN + 2)]
    why = f"narrow it down between {figures(holds)} and {figures(fails)}"
    return FollowUp(why=why, loads=_ascending(between, whole=whole))


def _ascending(loads: Iterable[float], *, whole: bool) -> list[float]:
    if whole:
        return sorted({float(round(load)) for load in loads})
    return sorted({float(f"{load:.4g}") for load in loads})
