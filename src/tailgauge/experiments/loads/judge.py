"""Judge a load by its rows: it holds (PASS), fails, or is inconclusive.

Runs at one load are one sample. A load fails if the lower end of the share of refused attempts, or of the requests beyond
the bound of an objective, is above the allowed share, or if its backlog clearly grows. It holds if the upper end of each
share is within the allowed one and no backlog grows. More load makes no answer faster and refuses no fewer: a share also
holds together with those at higher loads, and fails together with those at lower ones.

A bucket that is full at first hides a load that is slightly too high. Where a known bucket could have done that, the load
is inconclusive instead of holding; that never undoes a failure. Where no run was refused and no header names a limit,
refusals are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from tailgauge.experiments.loads.run import Exceedance, LoadRun
from tailgauge_analysis import FAIL, INCONCLUSIVE, PASS, Proportion, counted, worst_outcome

REFUSALS, BACKLOG = "refusals", "backlog"
CLEAR = 0.5  # of the growth that is seen in nine of ten runs: more fails a load
FEW = 5  # late requests from which a run shows how they depend on each other
DECISIVE = 0.5  # share of late requests; beyond it a run says little of those near the bound


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLoad:
    """The runs at one load. `shares`: of refused attempts and missed objectives, pooled over its runs.

    `cause`: what failed it, empty otherwise. `met`: outcome of the objectives alone. `unseen_per_s`: growth of the backlog that its runs may have missed.
    """

    load: float
    emptied: bool
    runs: tuple[LoadRun, ...]
    shares: tuple[Exceedance, ...]
    outcome: str
    cause: str
    met: str
    leans: str
    unseen_per_s: float

    @property
    def refused(self) -> Proportion:
        """Return the share of refused attempts."""
        return self.shares[0].missed

    @property
    def objectives(self) -> tuple[Exceedance, ...]:
        """Return the shares of requests that missed an objective."""
        return self.shares[1:]


Runs = Sequence[LoadRun]
Hides = Callable[[LoadRun], bool]


def is_limited(runs: Runs) -> bool:
    """Return whether a header named a limit, or a 429 came."""
    return any(run.buckets or run.kinds for run in runs)


def judge(runs: Runs, refused: float, hides: Hides = lambda _: False) -> list[JudgedLoad]:
    """Judge every load, ascending; `refused`: allowed share, `hides`: whether a full bucket may have hidden a failure."""
    ascending = sorted(runs, key=_key)
    groups = [list(group) for _, group in groupby(ascending, _key)]
    refuses = is_limited(runs) or any(run.refused.k for run in runs)
    shares = [_shares(group, ascending, refused if refuses else 1.0) for group in groups]
    judged = []
    for number, group in enumerate(groups):
        comparable = [place for place, other in enumerate(groups) if other[0].emptied == group[0].emptied]
        above = [shares[place] for place in comparable if place >= number]
        below = [shares[place] for place in reversed(comparable) if place <= number]
        judged.append(_judged(group, shares[number], above, below, hidden=any(map(hides, group))))
    return judged


def _key(run: LoadRun) -> tuple[float, bool]:
    return run.load, run.emptied


def _judged(
    runs: Runs,
    shares: tuple[Exceedance, ...],
    above: Sequence[tuple[Exceedance, ...]],
    below: Sequence[tuple[Exceedance, ...]],
    *,
    hidden: bool,
) -> JudgedLoad:
    unseen_per_s = sum(run.detectable_per_s for run in runs) / len(runs) / math.sqrt(len(runs))
    backlog = _backlog(runs, unseen_per_s)
    outcomes = {BACKLOG: backlog}
    for number, share in enumerate(shares):
        with_higher = [pooled[number] for pooled in above]
        with_lower = [pooled[number] for pooled in below]
        outcomes[share.name] = _share_outcome(with_higher, with_lower)
    outcome = worst_outcome(outcomes.values())
    if outcome == PASS and hidden:
        outcome = INCONCLUSIVE
    exceeded = [name for name, found in outcomes.items() if found == FAIL]
    missed = any((share.missed.value or 0.0) > share.allowed for share in shares)
    grows = sum(run.growing for run in runs) * 2 > len(runs)
    leans = FAIL if outcome == FAIL or (outcome == INCONCLUSIVE and (missed or grows)) else PASS
    return JudgedLoad(
        load=runs[0].load,
        emptied=runs[0].emptied,
        runs=tuple(runs),
        shares=shares,
        outcome=outcome,
        cause=exceeded[0] if exceeded else "",
        met=worst_outcome([PASS, *(outcomes[share.name] for share in shares[1:])]),
        leans=leans,
        unseen_per_s=unseen_per_s,
    )


def _backlog(runs: Runs, unseen_per_s: float) -> str:
    """Return FAIL of a clear growth in most runs, INCONCLUSIVE of a smaller one, or where it could not be judged."""
    growing = [run for run in runs if run.growing]
    if len(growing) * 2 <= len(runs):
        is_judged = any(run.growth_per_s is not None for run in runs)
        return PASS if is_judged else INCONCLUSIVE
    growth = [run.growth_per_s for run in runs if run.growth_per_s is not None]
    is_clear = not growth or sum(growth) / len(growth) > CLEAR * unseen_per_s
    return FAIL if is_clear or any(run.saturated for run in growing) else INCONCLUSIVE


def _share_outcome(with_higher: Sequence[Exceedance], with_lower: Sequence[Exceedance]) -> str:
    allowed = with_higher[0].allowed
    for count in range(1, len(with_lower) + 1):
        if (pooled(with_lower[:count]).low or 0.0) > allowed:
            return FAIL
    for count in range(1, len(with_higher) + 1):
        high = pooled(with_higher[:count]).high
        if (1.0 if high is None else high) <= allowed:
            return PASS
    return INCONCLUSIVE


def _shares(runs: Runs, every: Runs, refused: float) -> tuple[Exceedance, ...]:
    """Pool the refused attempts and the requests beyond each bound over the runs at one load."""
    shares = [Exceedance(REFUSALS, _sum([run.refused for run in runs]), refused)]
    for number, objective in enumerate(runs[0].objectives):
        missed = [_dependent(run, number, every) for run in runs]
        shares.append(Exceedance(objective.name, _sum(missed), objective.allowed))
    return tuple(shares)


def _dependent(run: LoadRun, number: int, every: Runs) -> Proportion:
    """Return the missed requests; a run with few of them takes their dependence from the nearest run that shows it."""
    missed = run.objectives[number].missed
    if _shows_dependence(missed):
        return missed
    others = [other for other in every if _shows_dependence(other.objectives[number].missed)]
    if not others:
        return missed
    nearest = min(others, key=lambda other: abs(math.log(other.load / run.load)))
    shown = nearest.objectives[number].missed
    n_eff = max(1, round(missed.n * shown.n_eff / shown.n))
    return counted(missed.k, missed.n, min(missed.n_eff, n_eff))


def _shows_dependence(missed: Proportion) -> bool:
    return missed.k >= FEW and missed.k <= DECISIVE * missed.n


def pooled(shares: Sequence[Exceedance]) -> Proportion:
    """Return the share over several loads."""
    return _sum([share.missed for share in shares])


def _sum(shares: Sequence[Proportion]) -> Proportion:
    k = sum(share.k for share in shares)
    n = sum(share.n for share in shares)
    return counted(k, n, sum(share.n_eff for share in shares))
