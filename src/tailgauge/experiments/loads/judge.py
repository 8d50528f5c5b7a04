"""Judge a load by its rows: it holds (PASS), fails, or is inconclusive.

Runs at one load are one sample. A load fails if the lower end of the share of refused attempts, or of the requests beyond
the bound of an objective, is above the allowed share, or if its backlog clearly grows. It holds if the upper end of each
share is within the allowed one and no backlog grows. More load makes no answer faster and refuses no fewer: a share also
holds together with those at higher loads, and fails together with those at lower ones. Where each load is an answer of its
own, as in a curve, one of these neighbours must be decided by itself, and the share's own value be on that side.

A bucket that is full at first hides a load that is slightly too high. Where a known bucket could have done that, the load
is inconclusive instead of holding; that never undoes a failure. Where no run was refused and no header names a limit,
refusals are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from tailgauge.experiments.loads.run import Exceedance, LoadRun
from tailgauge.experiments.loads.search import TriedLoad
from tailgauge_analysis import FAIL, INCONCLUSIVE, PASS, Proportion, counted, worst_outcome

REFUSALS = "refusals"
BACKLOG = "backlog"
FEW = 20  # late requests from which a run shows how they depend on each other
CLOSE = 1.1  # ratio of loads at which late requests depend on each other alike
CLEAR = 0.5  # of the growth that is seen in nine of ten runs: more fails a load


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedLoad(TriedLoad):
    """The runs at one load. `shares`: of refused attempts and missed objectives, pooled over its runs.

    `cause`: what failed it, empty otherwise. `met`: outcome of the objectives alone. `unseen_per_s`: growth of the backlog that its runs may have missed.
    `pooled_with`: the loads without which it would be inconclusive.
    """

    runs: tuple[LoadRun, ...]
    shares: tuple[Exceedance, ...]
    cause: str
    met: str
    unseen_per_s: float
    pooled_with: tuple[float, ...] = ()

    @property
    def least(self) -> float:
        """Return the load that holds for certain if this one does: as planned or as it arrived."""
        return min(self.load, self.arrived)

    @property
    def most(self) -> float:
        """Return the load that fails for certain if this one does."""
        return max(self.load, self.arrived)

    @property
    def refused(self) -> Proportion:
        """Return the share of refused attempts."""
        return self.shares[0].missed

    @property
    def objectives(self) -> Shares:
        """Return the shares of requests that missed an objective."""
        return self.shares[1:]


Runs = Sequence[LoadRun]
Shares = tuple[Exceedance, ...]
Hides = Callable[[LoadRun], bool]


@dataclass(frozen=True, slots=True)
class _Group:
    """The runs at one load, and their shares."""

    runs: Runs
    shares: Shares


@dataclass(frozen=True, slots=True)
class _ShareOutcome:
    """The outcome of a share, and how many neighbours were needed for it."""

    outcome: str
    neighbours: int = 0


def is_limited(runs: Runs) -> bool:
    """Return whether a header named a limit, or a 429 came."""
    return any(run.buckets or run.kinds for run in runs)


def judge(
    runs: Runs, refused: float, hides: Hides = lambda _: False, *, borrows: bool = True
) -> list[JudgedLoad]:
    """Judge every load, ascending, with its neighbours by what arrived.

    `refused`: allowed share; `hides`: whether a full bucket may have hidden a failure; `borrows`: whether neighbours that are
    inconclusive themselves decide a load.
    """
    by_load = []
    for _, runs_at_load in groupby(sorted(runs, key=_planned), _planned):
        by_load.append(list(runs_at_load))
    by_load.sort(key=_arrived)
    if not is_limited(runs) and not any(run.refused.k for run in runs):
        refused = 1.0  # nothing was refused: the share decides nothing
    groups = []
    for at_load in by_load:
        groups.append(_Group(at_load, _shares(at_load, runs, refused)))
    judged = []
    for number, group in enumerate(groups):
        is_hidden = any(map(hides, group.runs))
        judged.append(
            _judged(groups[number:], groups[number::-1], is_hidden=is_hidden, borrows=borrows)
        )
    return sorted(judged, key=_planned)


_planned = attrgetter("load")


def _arrived(runs: Runs) -> float:
    """Return the mean of the loads that arrived."""
    seconds = sum(run.seconds for run in runs)
    if seconds:
        return sum(run.arrived * run.seconds for run in runs) / seconds
    return runs[0].load


def _judged(
    upwards: Sequence[_Group], downwards: Sequence[_Group], *, is_hidden: bool, borrows: bool
) -> JudgedLoad:
    """Judge the first load of both sequences, which go up and down from it.

    `is_hidden`: a full bucket may have hidden a failure, so the load cannot hold. `borrows`: neighbours that are
    inconclusive themselves help to decide a share. The load fails if a share or its backlog does, and holds only if all
    do. `leans`: the likelier outcome of an inconclusive load, by the shares' own values and the backlog of most runs.
    """
    runs = upwards[0].runs
    shares = upwards[0].shares
    # The mean of n runs shows a growth that is smaller by the root of n.
    unseen_per_s = sum(run.detectable_per_s for run in runs) / len(runs) / math.sqrt(len(runs))
    outcomes: dict[str, str] = {}
    pooled_with: set[float] = set()
    judge_share = _share_outcome if borrows else _strict_outcome
    for number, share in enumerate(shares):
        with_higher = [group.shares[number] for group in upwards]
        with_lower = [group.shares[number] for group in downwards]
        judgement = judge_share(with_higher, with_lower)
        outcomes[share.name] = judgement.outcome
        near = downwards if judgement.outcome == FAIL else upwards
        pooled_with.update(group.runs[0].load for group in near[1 : judgement.neighbours + 1])
    outcomes[BACKLOG] = _backlog(runs, unseen_per_s)
    outcome = worst_outcome(outcomes.values())
    if outcome == PASS and is_hidden:
        outcome = INCONCLUSIVE
    if outcome == INCONCLUSIVE:
        pooled_with = set()
    causes = [name for name, named_outcome in outcomes.items() if named_outcome == FAIL]
    exceeds = any((share.missed.value or 0.0) > share.allowed for share in shares)
    grows = sum(run.growing for run in runs) * 2 > len(runs)
    leans = PASS
    if outcome == FAIL or (outcome == INCONCLUSIVE and (exceeds or grows)):
        leans = FAIL
    objective_outcomes = [outcomes[share.name] for share in shares[1:]]
    return JudgedLoad(
        load=runs[0].load,
        arrived=_arrived(runs),
        runs=tuple(runs),
        shares=shares,
        outcome=outcome,
        cause=next(iter(causes), ""),
        met=worst_outcome([PASS, *objective_outcomes]),
        leans=leans,
        unseen_per_s=unseen_per_s,
        pooled_with=tuple(sorted(pooled_with)),
    )


def _backlog(runs: Runs, unseen_per_s: float) -> str:
    """Return FAIL of a clear growth in most runs, INCONCLUSIVE of a smaller one, or where nothing else shows that it holds."""
    growing = [run for run in runs if run.growing]
    growth = [run.growth_per_s for run in runs if run.growth_per_s is not None]
    if len(growing) * 2 <= len(runs):
        is_judged = is_limited(runs) or runs[0].objectives or growth
        return PASS if is_judged else INCONCLUSIVE
    is_clear = not growth or sum(growth) / len(growth) > CLEAR * unseen_per_s
    if is_clear or any(run.saturated for run in growing):
        return FAIL
    return INCONCLUSIVE


def _share_outcome(
    with_higher: Sequence[Exceedance], with_lower: Sequence[Exceedance]
) -> _ShareOutcome:
    """Judge a share with as few neighbours as decide it."""
    allowed = with_higher[0].allowed
    for number in range(len(with_lower)):
        if _decided(pooled(with_lower[: number + 1]), allowed) == FAIL:
            return _ShareOutcome(FAIL, number)
    for number in range(len(with_higher)):
        if _decided(pooled(with_higher[: number + 1]), allowed) == PASS:
            return _ShareOutcome(PASS, number)
    return _ShareOutcome(INCONCLUSIVE)


def _strict_outcome(
    with_higher: Sequence[Exceedance], with_lower: Sequence[Exceedance]
) -> _ShareOutcome:
    """Judge a share by itself, else with as few neighbours as decide it on the side of its own value."""
    share = with_higher[0]
    outcome = _decided(share.missed, share.allowed)
    if outcome != INCONCLUSIVE or share.missed.value is None:
        return _ShareOutcome(outcome)
    side = FAIL if share.missed.value > share.allowed else PASS
    near = with_lower if side == FAIL else with_higher
    is_decided = False  # a neighbour by itself
    for number in range(1, len(near)):
        is_decided = is_decided or _decided(near[number].missed, share.allowed) == side
        if is_decided and _decided(pooled(near[: number + 1]), share.allowed) == side:
            return _ShareOutcome(side, number)
    return _ShareOutcome(INCONCLUSIVE)


def _decided(misses: Proportion, allowed: float) -> str:
    if (misses.low or 0.0) > allowed:
        return FAIL
    high = 1.0 if misses.high is None else misses.high
    return PASS if high <= allowed else INCONCLUSIVE


def _shares(runs: Runs, every: Runs, refused: float) -> Shares:
    """Pool the refused attempts and the requests beyond each bound over the runs at one load."""
    shares = [Exceedance(REFUSALS, _sum([run.refused for run in runs]), refused)]
    for number, objective in enumerate(runs[0].objectives):
        misses = [_dependent(run, number, every) for run in runs]
        shares.append(Exceedance(objective.name, _sum(misses), objective.allowed))
    return tuple(shares)


def _dependent(run: LoadRun, number: int, every: Runs) -> Proportion:
    """Return the missed requests; where they are few they depend on each other as in the nearest run that shows it."""
    misses = run.objectives[number].missed
    if misses.k >= FEW or not misses.n:
        return misses
    showing = []
    for neighbour in every:
        is_near = 1 / CLOSE < neighbour.arrived / run.arrived < CLOSE
        if is_near and _shows_dependence(neighbour, number):
            showing.append(neighbour)
    if not showing:
        return misses
    nearest = min(showing, key=lambda neighbour: abs(neighbour.arrived - run.arrived))
    reference = nearest.objectives[number].missed
    return counted(
        misses.k,
        misses.n,
        min(misses.n_eff, max(1, round(misses.n * reference.n_eff / reference.n))),
    )


def _shows_dependence(run: LoadRun, number: int) -> bool:
    """Return whether enough requests miss the objective, and enough do not."""
    return FEW <= run.objectives[number].missed.k <= run.requests / 2


def pooled(shares: Sequence[Exceedance]) -> Proportion:
    """Return the share over several loads."""
    return _sum([share.missed for share in shares])


def _sum(shares: Sequence[Proportion]) -> Proportion:
    """Return the share of all; a single one keeps its interval, which knows how few its slow periods were."""
    if len(shares) == 1:
        return shares[0]
    k = 0
    n = 0
    n_eff = 0
    for share in shares:
        k += share.k
        n += share.n
        n_eff += share.n_eff
    return counted(k, n, n_eff)
