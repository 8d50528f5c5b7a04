"""Figures of a run as a report has them: percentiles, chunk gaps, shares, goodput and rates, each with its interval, its mark
and the outcome of an objective whose bound is near, held against what is true of the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import processes
from processes import Generator, Process, Run

from tailgauge.rows import schema
from tailgauge.scenario.objective import Objective
from tailgauge_analysis.metrics.throughput import Work
from tailgauge_analysis.objectives.outcome import Measured, decide, decide_figure
from tailgauge_analysis.stats.dependence import Grouping
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Quantile, n_min, quantiles
from tailgauge_analysis.stats.survival import Waits
from tailgauge_analysis.text.formatting import percentile

PERCENTILE, GAP, SHARE, GOODPUT, RATE = KINDS = (
    "percentile",
    "chunk gap",
    "share",
    "goodput",
    "throughput",
)
FOLLOWING = ("session", "user")  # requests of one follow each other by construction
PS = (0.5, 0.9, 0.95, 0.99, 0.999)
RATIOS = (0.3, 0.7, 1.3, 2.0)  # of what is true to what is allowed
FAR = (0.3, 2.0)
ALLOWED = (1e-6, 0.999)  # shares that an objective may allow
MOST_WITH_GAPS = 3000  # requests whose gaps are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a report says of one figure. `ratio`: what is true over what is allowed."""

    label: str
    is_marked: bool
    holds: bool
    ratio: float
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One figure of one run of a process. `is_known`: the run holds enough of everything that is alike."""

    kind: str
    process: int
    run: int
    families: frozenset[str]
    is_known: bool
    judgement: Judgement


def cells_of(process: Process, run_number: int, kinds: Sequence[str] = KINDS) -> Iterator[Cell]:
    """Draw a run and yield its figures."""
    numbers = (process.seed, process.number, run_number)
    run = process.run(np.random.default_rng(numbers))
    judges = {PERCENTILE: _percentiles, GAP: _gaps, SHARE: _shares, GOODPUT: _goodput, RATE: _rates}
    for kind in kinds:
        is_known = process.is_rate_known if kind == RATE else process.is_known
        rng = np.random.default_rng((*numbers, KINDS.index(kind)))
        for judgement in judges[kind](run, rng):
            yield _cell(process, run_number, kind, judgement, is_known=is_known)


def planned_cells(seed: int, number: int) -> Iterator[Cell]:
    """Draw independent traffic of the length that is planned for a percentile, and of twice that; `label` says which."""
    rng = np.random.default_rng([seed, number, 1])
    p = float(rng.choice(PS[:4]))
    requests = Objective(metric="ttft", quantile=p, max_ms=1.0).needs()
    assert requests is not None
    for times in (1, 2):
        process = processes.draw(seed, processes.PLAIN * number, times * requests)
        run = process.run(rng)
        values = run.latency[run.stage]
        estimate = quantiles(values, [p])[0]
        bound = process.bound_of(_allowed(float(rng.choice(FAR)) * (1 - p)))
        outcome, _ = decide(proportion(values > bound, waits_ms=values), estimate, bound)
        judgement = Judgement(
            label=f"{percentile(p)} x{times}",
            is_marked=bool(estimate.mark),
            holds=_holds(estimate, process.quantile(p)),
            ratio=process.beyond(bound) / (1 - p),
            outcome=outcome,
        )
        yield _cell(process, times, PERCENTILE, judgement, is_known=True)


def _cell(process: Process, run: int, kind: str, judgement: Judgement, *, is_known: bool) -> Cell:
    return Cell(
        kind=kind,
        process=process.number,
        run=run,
        families=process.families,
        is_known=is_known,
        judgement=judgement,
    )


def groupings(run: Run, count: int | None = None) -> tuple[Grouping, ...]:
    """Return whose the first requests of the stage are, as the rows of a run know it."""
    stage = slice(run.first, None if count is None else run.first + count)
    return tuple(
        Grouping(name, codes[stage], name in FOLLOWING) for name, codes in run.groups.items()
    )


def _percentiles(run: Run, rng: Generator) -> Iterator[Judgement]:
    process = run.process
    waits = Waits(*run.waits(), groupings(run))
    ps = [p for p in PS if len(waits.ms) >= n_min(p)]
    for p, estimate in zip(ps, waits.quantiles(ps), strict=True):
        bound = process.bound_of(_allowed((1 - p) * rng.choice(RATIOS)))
        outcome, _ = decide(waits.beyond(bound), estimate, bound)
        yield Judgement(
            label=percentile(p),
            is_marked=bool(estimate.mark),
            holds=_holds(estimate, process.offered_quantile(p)),
            ratio=process.beyond(bound) / (1 - p),
            outcome=outcome,
        )


def _gaps(run: Run, rng: Generator) -> Iterator[Judgement]:
    process = run.process
    values, sizes = run.gaps(rng, MOST_WITH_GAPS)
    alike = groupings(run, len(sizes))
    ps = [p for p in PS[:4] if len(values) >= n_min(p)]
    for p, estimate in zip(ps, quantiles(values, ps, sizes, alike), strict=True):
        allowed = _allowed((1 - p) * rng.choice(RATIOS))
        bound = process.between(process.quantile(1 - allowed))
        beyond = proportion(values > bound, sizes, alike, waits_ms=values)
        outcome, _ = decide(beyond, estimate, bound)
        yield Judgement(
            label=percentile(p),
            is_marked=bool(estimate.mark),
            holds=_holds(estimate, process.quantile(p)),
            ratio=(1 - process.below(bound)) / (1 - p),
            outcome=outcome,
        )


def _shares(run: Run, rng: Generator) -> Iterator[Judgement]:
    """Yield the failures, and the requests beyond some bound."""
    process = run.process
    latency = run.latency[run.stage]
    alike = groupings(run)
    if process.failures is not None:
        failed = proportion(run.failed[run.stage], groupings=alike, waits_ms=latency)
        objective = Objective(
            metric="error_rate", max=_allowed(process.failing / rng.choice(RATIOS))
        )
        yield _judged_share(failed, process.failing, objective)
    beyond = math.exp(rng.uniform(math.log(0.002), math.log(0.6)))
    bound = process.between(process.quantile(1 - beyond))
    late = proportion(latency > bound, groupings=alike, waits_ms=latency)
    share = 1 - process.below(bound)
    objective = Objective(metric="error_rate", max=_allowed(share / rng.choice(RATIOS)))
    yield _judged_share(late, share, objective)


def _goodput(run: Run, rng: Generator) -> Iterator[Judgement]:
    process = run.process
    alike = groupings(run)
    for share in (rng.uniform(0.3, 0.9), rng.uniform(0.9, 0.995)):
        bound = process.between(process.quantile(share))
        good = process.stays(bound)
        estimate = proportion(run.good(bound), groupings=alike, waits_ms=run.latency[run.stage])
        objective = Objective(metric="goodput", min=1 - _allowed((1 - good) / rng.choice(RATIOS)))
        yield _judged_share(estimate, good, objective)


def _judged_share(estimate: Proportion, share: float, objective: Objective) -> Judgement:
    assert estimate.low is not None
    assert estimate.high is not None
    measured = Measured(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        n=estimate.n,
        n_eff=estimate.n_eff,
        share=estimate,
    )
    outcome, _ = decide_figure(objective, measured, 100.0)
    bad = share if objective.max is not None else 1 - share
    return Judgement(
        label=objective.metric,
        is_marked=bool(estimate.mark),
        holds=estimate.low <= share <= estimate.high,
        ratio=bad / objective.allowed,
        outcome=outcome,
    )


def _rates(run: Run, rng: Generator) -> Iterator[Judgement]:
    """Yield requests and tokens per second; what depends on who the users are is no rate that goes on."""
    process = run.process
    if not process.has_rate:
        return
    seconds = process.seconds
    tokens, begun, ended = run.work(rng)
    request = (run.arrival() * schema.TURNS + run.turn)[run.whole()]
    is_closed = "user" in run.groups
    is_within = (ended >= 0) & (ended < seconds)
    at = ended[is_within]
    requests = Work(
        seconds=seconds,
        amounts=np.ones(len(at)),
        begun_s=at,
        ended_s=at,
        of=request[is_within],
        is_closed=is_closed,
    )
    yield _judged_rate("requests", requests, process, rng)
    inside = np.clip(ended, 0, seconds) - np.clip(begun, 0, seconds)
    share = np.where(ended > begun, inside / np.maximum(ended - begun, 1e-12), is_within)
    counts = share > 0
    output = Work(
        seconds=seconds,
        amounts=(tokens * share)[counts],
        begun_s=np.clip(begun, 0, seconds)[counts],
        ended_s=np.clip(ended, 0, seconds)[counts],
        of=request[counts],
        is_closed=is_closed,
    )
    yield _judged_rate("tokens", output, process, rng)


def _judged_rate(label: str, work: Work, process: Process, rng: Generator) -> Judgement:
    rate = work.rate()
    expected = process.completed
    objective = Objective(metric="requests_per_s", min=expected * rng.choice(RATIOS))
    measured = Measured(value=rate.value, low=rate.low, high=rate.high, n=rate.n, n_eff=rate.n)
    outcome, _ = decide_figure(objective, measured, process.seconds)
    has_interval = rate.low is not None and rate.high is not None
    return Judgement(
        label=label,
        is_marked=not has_interval,
        holds=(rate.low or 0.0) <= expected <= (rate.high or math.inf),
        ratio=objective.bound / expected,
        outcome=outcome,
    )


def _allowed(share: float) -> float:
    least, largest = ALLOWED
    return min(largest, max(least, float(share)))


def _holds(estimate: Quantile, known: float) -> bool:
    if math.isinf(known):
        return estimate.high is None or math.isinf(estimate.high)
    slack = 1e-9 * known
    low = estimate.low
    if low is not None and estimate.seen_to is not None:
        low = min(low, estimate.seen_to)  # where an end lies beyond, it is not observed
    is_below = low is None or low <= known + slack
    return is_below and (estimate.high is None or known <= estimate.high + slack)
