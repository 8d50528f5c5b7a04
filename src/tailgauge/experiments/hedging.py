"""Hedging: does it help at today's load, up to which load, and at which cost?

Each load is one run in which two copies of the tested traffic table, one of them without hedging, alternate in blocks: never at
the same time, because they would share capacity. Today's load runs first, then higher ones until hedging hurts or the target is full,
lower ones if today's is too much, then those between.

A load is judged by its own run. Hedging helps where the tail, or the share of requests that failed or missed an objective,
improves by what is worth a change, its whole interval on that side, and neither gets worse. Nothing is compared where the
requests in flight grow: both variants wait for one backlog, whose size depends on the length of the run. The same load is then
run without hedging; if it is sustained there, hedging hurts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import Any

import numpy as np

from tailgauge.experiments.answer import NONE, Answer, answered, tone_of
from tailgauge.experiments.course import Base, Planner, RunReading, Step, Steps, warm_up
from tailgauge.experiments.loads.planner import MOST_IN_FLIGHT, planned_traffic, rate_unit
from tailgauge.experiments.loads.search import Search, TriedLoad
from tailgauge.patterns.table import pattern_of
from tailgauge.rows import schema
from tailgauge.scenario.experiment import ADAPTIVE, RUN_S, Delay
from tailgauge.schedule.settings import TRACE
from tailgauge_analysis import (
    BLOCK_E2E,
    BY_NAME,
    FAIL,
    FOR_FIGURES,
    INCONCLUSIVE,
    PASS,
    STABLE,
    Card,
    Cell,
    Column,
    Contrast,
    Floats,
    Growing,
    Mark,
    MeanEstimate,
    Panel,
    Picture,
    PlotCurve,
    Result,
    Steady,
    Table,
    Value,
    block_growth,
    block_pairs,
    block_work,
    diagnosis,
    ended_as,
    estimate_curve,
    figures,
    good_requests,
    hedging_variants,
    mean_contrast,
    ms_or_failed,
    n_min,
    offered_ms,
    on_latency,
    percentile,
    proportion,
    quantile_contrast,
    share,
    tail_curve,
    tail_picture,
    unequal_work,
    waiting,
)

# Traffic tables of the variants.
OFF = "hedging_off"
ON = "hedging_on"
FALLBACK_QUANTILE = 0.95  # where too few requests are there for a p99
QUANTILES = (0.99, FALLBACK_QUANTILE)
# The search, in ratios of loads: from step to step, at its end, and the farthest from today's.
GROWTH = 1.5
NARROW = 1.1
FARTHEST = 16.0
# Length of a block in seconds.
SHORTEST_S = 2.0
LONGEST_S = 240.0
FEWEST_PAIRS = 7  # of blocks: one may have no request
LONGEST_WARMUP_S = 10.0
BESIDE_S = RUN_S + LONGEST_WARMUP_S + 6.0  # that a run takes beside its blocks, about
WORTH_LOG = math.log1p(0.05)  # smallest change of the tail that is worth one
WORTH_SHARE = 0.01  # and of the share of missed requests

# Labels of a load.
HELPS = "helps"
HURTS = "hurts"
NO_EFFECT = "no clear effect"
UNSTABLE_ON = "unstable with hedging"
UNSTABLE = "unstable without hedging too"
BACKLOG = "unstable, with hedging or without"  # until a run without hedging shows which
NO_HEDGES = "no hedges were sent"
SHORT_BLOCKS = "blocks too short"
TOO_FEW = "too few requests"
NO_RUN = "no run was valid, or there was no time for one"
HARM = (HURTS, UNSTABLE_ON)
TOO_HIGH = (*HARM, UNSTABLE, BACKLOG, SHORT_BLOCKS)  # lower loads are tried
EFFECTS = {HELPS: HELPS, HURTS: HURTS, UNSTABLE_ON: HURTS, NO_EFFECT: "has no clear effect"}
OUTCOMES = {HELPS: PASS, HURTS: FAIL, UNSTABLE_ON: FAIL}
ADVICE = {
    HELPS: "switch hedging on at today's load",
    HURTS: "leave hedging off at today's load",
    UNSTABLE_ON: "leave hedging off at today's load",
    NO_EFFECT: "leave hedging off at today's load, or measure again: four times the minutes show half the effect",
}

SHORT_REMARK = f"blocks are shorter than {BLOCK_E2E} times the end-to-end p99, which hides part of the difference: make them {{}} s or longer"
FALLBACK_REMARK = "too few requests for a p99 of each variant: the p95 is used"
LOADS_NOTE = (
    "Each row is one load, with hedging off and on in alternating blocks. Times are end to end since scheduled; failures count as slowest. "
    "Intervals are a bootstrap over pairs of blocks. “Missed” counts requests that failed or missed an objective."
)
COSTS_NOTE = "“Refused” is a share of the attempts. The cost is that of the losing attempts, from least to most"
DELAYS_NOTE = (
    "The delays were tried at today's load; the one with the lowest quantile was used at all loads."
)
TAILS_NOTE = "The load is {} requests/s. Where a line ends flat above the bottom, this share of requests failed."
CHANGES_NOTE = "Bars are 95% intervals; below 0 hedging helps."
LARGEST_DRAWN = 1.5  # of a logarithm: +348%; larger changes are drawn there

AFTER_FIRST = "output"  # kind of a diagnosis
SAVED = 0.5  # of the remaining generation: less is no effective cancel
MORE_REFUSED = 0.005  # share of the attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a step tries; `delay`: None for the tested hedge as it is; `hedged`: False of a load that neither variant hedges."""

    rate_per_s: float
    block_s: float
    delay: Delay | None = None
    hedged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedges:
    """The hedges at one load; None if unknown. `cost`: of the losers, per request with hedging, least and most, in `unit`;
    `cancelled`: share of the remaining generation that closing saved; `refused`: share of the attempts, off and on.
    """

    hedged: float | None = None
    won: float | None = None
    cost: tuple[float, float] | None = None
    unit: str = ""
    no_cost: str = ""
    cancelled: float | None = None
    refused: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class Blocks:
    """One variant by pair of blocks: latency in ms, +inf of failures, and 1.0 of requests that failed or missed an objective."""

    ms: tuple[Floats, ...]
    missed: tuple[Floats, ...]

    @property
    def requests(self) -> int:
        """Count the requests."""
        return sum(map(len, self.ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgedRun:
    """A run at one load. `p99_s`: without hedging; `growth_per_s`: of the backlog, in the blocks off and on, where it
    is shown; `backlog_per_s`: from pair to pair, shown or not; `slow_after_first`: whether the slow calls without hedging are slow
    after their first content; `unequal`: why the variants did not do the same work.
    """

    attempt: Attempt
    off: Blocks = field(metadata=FOR_FIGURES)
    on: Blocks = field(metadata=FOR_FIGURES)
    hedges: Hedges
    p99_s: float
    growth_per_s: Growing = STABLE
    backlog_per_s: MeanEstimate | None = None
    backlog_grows: bool = False
    slow_after_first: bool = False
    unequal: tuple[str, ...] = ()

    @property
    def is_unstable(self) -> bool:
        """Return whether the requests in flight grow with both variants."""
        return self.backlog_grows or None not in self.growth_per_s

    @property
    def is_short(self) -> bool:
        """Return whether blocks are too short to show the whole difference."""
        return self.attempt.block_s < BLOCK_E2E * self.p99_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLoad:
    """A load with what hedging changes; `tail`, `missed`: None where nothing is compared."""

    load: float
    label: str
    tail: Contrast | None
    missed: Contrast | None
    run: HedgedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedging:
    """What was found. `label`: of today's load; `quantile`: None if there are too few requests for any; `helps_up_to_per_s`,
    `hurts_from_per_s`: the largest tested load that helps and the smallest that hurts; `crossover`: both, in this order.
    """

    hedge: str
    unit: str
    today_per_s: float
    quantile: float | None
    label: str
    helps_up_to_per_s: float | None
    hurts_from_per_s: float | None
    crossover: tuple[float, float] | None
    loads: tuple[ComparedLoad, ...]
    delays: tuple[ComparedLoad, ...]

    @property
    def today(self) -> ComparedLoad | None:
        """Return today's load; None without a valid run."""
        return next((load for load in self.loads if load.load == self.today_per_s), None)

    @property
    def tail(self) -> str:
        """Name the compared quantile."""
        if self.quantile is None:
            return "tail"
        return percentile(self.quantile)


class HedgingPlanner(Planner):
    """Try the delays at today's load, run it, and search where hedging turns from help to harm."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._settings = base.table.hedging
        self._today = base.today(TRACE)
        self._tested = _tested(base)
        self._unit = rate_unit(planned_traffic(base))
        tree = base.tree()
        self._traffic: dict[str, Any] = tree["traffic"]
        self._hedge: dict[str, Any] = self._traffic[self._tested]["hedge"]
        self._slo = _objectives(tree.get("slo", {}), self._tested)

    def steps(self) -> Steps:
        """Try the delays at today's load, then run loads until hedging turns from help to harm, or no runs are left.

        The delay with the lowest tail is used from then on. A load with a backlog in both variants is run again without
        hedging before the search goes on, because only that shows whether hedging is the cause.
        """
        loads = self._settings.loads
        delays = list(self._settings.delays_ms)
        if delays:
            Random(self._scenario.seed).shuffle(delays)
            runs_left = len(delays) + loads
            yield from self.run([self._step(self._today, runs_left, delay) for delay in delays])
            changes: list[tuple[float, Delay | None]] = []
            for load in self._compared():
                if load.tail:
                    changes.append((load.tail.value, load.run.attempt.delay))
            _, best = min(changes, key=lambda change: change[0], default=(0.0, None))
            self._hedge = self._hedge_with(best)
        search = Search(
            start=self._today,
            least=self._today / FARTHEST,
            most=self._today * FARTHEST,
            growth=GROWTH,
            narrow=NARROW,
        )
        for runs_left in range(loads, 0, -1):
            compared = [load for load in self._compared() if load.run.attempt.delay is None]
            controls = self._controls()
            unjudged = []
            for load in compared:
                if load.label == BACKLOG and load.load not in controls:
                    unjudged.append(load.load)
            if unjudged:
                yield from self.run([self._step(unjudged[0], runs_left, hedged=False)])
                continue
            next_loads = search.next_loads(list(map(_tried, compared)))
            if not next_loads:
                return
            yield from self.run([self._step(next_loads[0].load, runs_left)])

    def measure(self, step: Step, reading: RunReading) -> HedgedRun:
        """Return the run at a load."""
        is_joined = pattern_of(self._scenario.traffic[self._tested]).answer == schema.JOIN
        metric = "join_sched" if is_joined else "e2e_sched"
        return hedged_run(step.given, reading, metric)

    def answer(self) -> Answer:
        """Return the answer from the runs that were kept: loads with their labels, and delays apart from them.

        Between the largest load that helps and the smallest that hurts lies the crossover, if they are in this order.
        """
        loads = []
        delays = []
        labels = {}
        helping = []
        harming = []
        for load in self._compared():
            if load.run.attempt.delay is not None:
                delays.append(load)
                continue
            loads.append(load)
            labels[load.load] = load.label
            if load.label == HELPS:
                helping.append(load.load)
            elif load.label in HARM:
                harming.append(load.load)
        low = max(helping, default=None)
        high = min(harming, default=None)
        crossover = None
        if low and high and low < high:
            crossover = (low, high)
        finding = Hedging(
            hedge=_described(self._hedge),
            unit=self._unit.name,
            today_per_s=self._today,
            quantile=quantile_for(self.results, self._settings.quantile),
            label=labels.get(self._today, NO_RUN),
            helps_up_to_per_s=low,
            hurts_from_per_s=high,
            crossover=crossover,
            loads=tuple(sorted(loads, key=lambda load: load.load)),
            delays=tuple(delays),
        )
        return answer(finding, self._unit.text(self._today))

    def _compared(self) -> list[ComparedLoad]:
        p = quantile_for(self.results, self._settings.quantile)
        controls = self._controls()
        compared = []
        for run in self.results:
            if run.attempt.hedged:
                compared.append(compare(run, p, controls.get(run.attempt.rate_per_s)))
        return compared

    def _controls(self) -> dict[float, HedgedRun]:
        """Return the runs without hedging, by rate."""
        controls = {}
        for run in self.results:
            if not run.attempt.hedged:
                controls[run.attempt.rate_per_s] = run
        return controls

    def _hedge_with(self, delay: Delay | None) -> dict[str, Any]:
        """Return the hedge with this delay in the place of its own."""
        if delay is None:
            return self._hedge
        if delay == ADAPTIVE:
            return {**self._hedge, "policy": ADAPTIVE}
        policy = "single_r" if self._hedge["policy"] == "single_r" else "fixed"
        return {**self._hedge, "policy": policy, "delay_ms": delay}

    def _step(
        self, rate: float, runs: int, delay: Delay | None = None, *, hedged: bool = True
    ) -> Step:
        """Return the run at a rate in which both variants alternate in blocks.

        `runs`: how many runs share the time that is left, this one included. `delay`: of the hedge, None for the tested
        one as it is. `hedged` False: neither variant hedges.
        """
        pairs, block_s = self._blocks(runs)
        warmup_s = min(LONGEST_WARMUP_S, block_s)
        hedge: dict[str, Any] = {"policy": "off"}
        if hedged:
            hedge = self._hedge_with(delay)
        overrides = [
            ("arrival.rate_per_s", rate),
            ("arrival.shape", None),
            ("traffic", self._variants(hedge)),
            ("slo", self._slo),
            ("crossover", {"a": OFF, "b": ON, "block_s": block_s, "washout_s": block_s / 3}),
            *warm_up(warmup_s),
        ]
        # A backlog is a finding: only a limit that the scenario sets cuts it off early.
        if "in_flight_per_worker" not in self._scenario.limits.model_fields_set:
            overrides.append(("limits.in_flight_per_worker", MOST_IN_FLIGHT))
        name = f"{rate:.4g} {self._unit.name}"
        if delay is not None:
            name += f", {_described(hedge)}"
        if not hedged:
            name += ", without hedging"
        attempt = Attempt(rate_per_s=rate, block_s=block_s, delay=delay, hedged=hedged)
        return Step(
            name, tuple(overrides), warmup_s + 2 * pairs * block_s, self.seed(), given=attempt
        )

    def _blocks(self, runs: int) -> tuple[int, float]:
        """Pairs of blocks, and the seconds of a block, where so many runs share what is left of the minutes."""
        if self._settings.block_s:
            return self._settings.pairs, self._settings.block_s
        load_s = (self._base.table.minutes * 60 - self.spent_s) / runs - BESIDE_S
        p99_s = max((run.p99_s for run in self.results), default=0.0)
        least_s = max(SHORTEST_S, BLOCK_E2E * p99_s)
        possible_pairs = int(load_s / (2 * least_s))
        pairs = min(self._settings.pairs, max(FEWEST_PAIRS, possible_pairs))
        block_s = max(SHORTEST_S, load_s / (2 * pairs))
        return pairs, min(LONGEST_S, block_s)

    def _variants(self, hedge: dict[str, Any]) -> dict[str, Any]:
        """Return the tables of [traffic]; the tested one as two variants with half its weight each, because they alternate."""
        other_tables = dict(self._traffic)
        tested = other_tables.pop(self._tested)
        half = {**tested, "weight": float(tested.get("weight", 1.0)) / 2}
        return {
            OFF: {**half, "hedge": {**hedge, "policy": "off"}},
            ON: {**half, "hedge": hedge},
            **other_tables,
        }


# --- plan ---------------------------------------------------------------------------------------------------------


def _tested(base: Base) -> str:
    """Return the traffic table that hedges. UsageError if there is none."""
    hedging = []
    for name, traffic in base.scenario.traffic.items():
        if traffic.hedge.policy != "off":
            hedging.append(name)
    wanted = base.table.hedging.traffic
    tested = hedging
    if wanted is not None:
        tested = [name for name in hedging if name == wanted]
    if len(tested) != 1:
        names = ", ".join(hedging) or "there is none; set hedge.policy in one"
        text = f"expected one of the tables of [traffic] that hedge: {names}"
        raise base.refused("experiment.hedging.traffic", text)
    return tested[0]


def _tried(load: ComparedLoad) -> TriedLoad:
    """Tell the search where lower loads are to be tried."""
    outcome = FAIL if load.label in TOO_HIGH else PASS
    return TriedLoad(
        load=load.load, arrived=load.load, runs=(load.run,), outcome=outcome, leans=outcome
    )


def _objectives(slo: dict[str, Any], tested: str) -> dict[str, Any]:
    """Return the objectives; one on the tested table becomes one on each of its variants."""
    objectives: dict[str, Any] = {}
    for name, objective in slo.items():
        if objective.get("traffic") == tested:
            for variant in (OFF, ON):
                objectives[f"{name} ({variant})"] = {**objective, "traffic": variant}
        else:
            objectives[name] = objective
    return objectives


def _described(hedge: dict[str, Any]) -> str:
    policy = hedge["policy"]
    if policy == "immediate":
        return "hedging every call at once"
    if policy == ADAPTIVE:
        return f"hedging after the p{100 * float(hedge.get('quantile', 0.95)):g} of recent waits"
    text = f"hedging after {float(hedge.get('delay_ms', 1000.0)):g} ms"
    if policy == "single_r":
        text += f" with probability {float(hedge.get('probability', 0.5)):g}"
    return text


# --- one run ------------------------------------------------------------------------------------------------------


def hedged_run(attempt: Attempt, reading: RunReading, metric: str) -> HedgedRun:
    """Return what a run shows of both variants, by pair of blocks. `metric`: the latency, since scheduled.

    A block counts after its wash-out: an end-to-end p99 of the run, at most a third of the block. Cancelled requests and
    those without a latency are left out; failures have +inf.
    """
    stage = reading.steady
    ms = offered_ms(BY_NAME[metric], stage)
    counts = ~np.isnan(ms) & (stage.requests["ended"] != schema.CANCELLED).to_numpy(np.bool_)
    stage = stage.only(counts)
    ms = ms[counts]
    block_s = attempt.block_s
    washout_s = min(_p99_s(ms, block_s), block_s / 3)
    pairs = block_pairs(stage, (OFF, ON), block_s, washout_s)
    objectives = on_latency(reading.frames.run["scenario"])
    # 1.0 of a request that failed or missed an objective.
    misses = (~good_requests(objectives, stage)).astype(np.float64)
    is_off = (stage.requests["traffic"] == OFF).to_numpy(np.bool_)
    p99_s = _p99_s(ms[is_off], block_s)
    works = []
    for off, on in pairs:
        works.append((_work(stage, off.requests), _work(stage, on.requests)))
    growth = block_growth(waiting(reading.frames, stage.to_s), pairs)
    variants = []
    for side in (0, 1):  # without hedging, with hedging
        blocks_ms = []
        blocks_misses = []
        for pair in pairs:
            is_in_block = pair[side].requests
            blocks_ms.append(ms[is_in_block])
            blocks_misses.append(misses[is_in_block])
        variants.append(Blocks(tuple(blocks_ms), tuple(blocks_misses)))
    return HedgedRun(
        attempt=attempt,
        off=variants[0],
        on=variants[1],
        hedges=_hedges(reading),
        p99_s=p99_s,
        growth_per_s=growth.of_variants,
        backlog_per_s=growth.from_pair_to_pair,
        backlog_grows=growth.grows_throughout,
        slow_after_first=diagnosis(stage.only(is_off)).kind == AFTER_FIRST,
        unequal=tuple(f"not the same work: with hedging {text}" for text in unequal_work(works)),
    )


def _p99_s(ms: Floats, block_s: float) -> float:
    finite = ms[np.isfinite(ms)]
    if not len(finite):
        return block_s
    return float(np.quantile(finite, 0.99, method="inverted_cdf")) / 1e3


def _work(stage: Steady, requests: Any) -> Any:
    return block_work(stage.only(requests, gaps=False))


def _hedges(reading: RunReading) -> Hedges:
    """Return what the hedges did in the whole steady stage, as in the report of any run with hedging."""
    refused = (_refused(reading.steady, OFF), _refused(reading.steady, ON))
    variants = reading.run.result(hedging_variants)
    variant = next((variant for variant in variants if variant.traffic == ON), None)
    if variant is None or variant.waste is None or variant.cost is None:
        return Hedges(refused=refused)
    cost = None
    if variant.cost.low is not None and variant.cost.high is not None:
        cost = (variant.cost.low / variant.requests, variant.cost.high / variant.requests)
    log = variant.waste.server_log
    return Hedges(
        hedged=variant.hedged.value,
        won=variant.won.value,
        cost=cost,
        unit=variant.cost.unit,
        no_cost=variant.cost.why,
        cancelled=log.cancel_effectiveness if log else None,
        refused=refused,
    )


def _refused(stage: Steady, traffic: str) -> float | None:
    """Share of the attempts that got a 429, a 529 or a 503."""
    attempts = stage.attempts[stage.attempts["traffic"] == traffic]
    return proportion(ended_as(attempts, schema.RATE_LIMITED, schema.OVERLOADED)).value


# --- one load -----------------------------------------------------------------------------------------------------


def quantile_for(runs: Sequence[HedgedRun], quantile: float | None = None) -> float | None:
    """`quantile`, or the highest of QUANTILES, if the variants of all loads have enough requests for it."""
    fewest = min((min(run.off.requests, run.on.requests) for run in runs), default=0)
    candidates: Sequence[float] = QUANTILES
    if quantile:
        candidates = (quantile,)
    return next((p for p in candidates if fewest >= n_min(p)), None)


def compare(run: HedgedRun, p: float | None, control: HedgedRun | None = None) -> ComparedLoad:
    """Compare the variants at quantile `p` and by missed requests, and label the load; `control`: the same without hedging."""
    tail = None
    if p is not None:
        tail = quantile_contrast(run.off.ms, run.on.ms, p)
    misses = mean_contrast(run.off.missed, run.on.missed)
    label = _not_compared(run, control)
    if label:
        tail = None
        misses = None
    else:
        label = _effect(tail, misses)
    return ComparedLoad(load=run.attempt.rate_per_s, label=label, tail=tail, missed=misses, run=run)


def _not_compared(run: HedgedRun, control: HedgedRun | None) -> str:
    """Return why the variants are not compared; empty if they are."""
    if run.hedges.hedged == 0:
        return NO_HEDGES
    if run.is_unstable:
        if control is None:
            return BACKLOG
        if control.is_unstable:
            return UNSTABLE
        return UNSTABLE_ON if _grows_faster(run, control) else BACKLOG
    _, growth_on = run.growth_per_s
    if growth_on is not None:
        return UNSTABLE_ON
    return SHORT_BLOCKS if run.p99_s > run.attempt.block_s else ""


def _grows_faster(run: HedgedRun, control: HedgedRun) -> bool:
    """Return whether the backlog of a run grows faster than that of another, beyond chance."""
    fast = run.backlog_per_s
    slow = control.backlog_per_s
    if fast is None or slow is None or fast.value is None or slow.value is None:
        return False
    half = math.hypot(fast.value - fast.low, slow.high - slow.value)
    return fast.value - slow.value > half


def _effect(tail: Contrast | None, misses: Contrast | None) -> str:
    """Label a load by the intervals of both measures."""
    signs = {_sign(tail, WORTH_LOG), _sign(misses, WORTH_SHARE)}
    if 1 in signs:
        return HURTS
    if -1 in signs:
        return HELPS
    return TOO_FEW if tail is None else NO_EFFECT


def _sign(contrast: Contrast | None, least_effect: float) -> int:
    """1 if more is shown, -1 if less, 0 if neither is."""
    if contrast is None:
        return 0
    if contrast.low > 0 and contrast.value >= least_effect:
        return 1
    return -1 if contrast.high < 0 and contrast.value <= -least_effect else 0


def causes(finding: Hedging) -> Iterator[str]:
    """Yield why hedging hurts at the smallest load where it does, or why it gains nothing; the likeliest cause first.

    Nothing where hedging helps at some load and hurts at none, except that today's slow calls are slow after their first
    content.
    """
    harmed = [load for load in finding.loads if load.label in HARM]
    today = finding.today
    if today is not None and today.run.slow_after_first and today.label != HELPS:
        yield "the slow calls are slow after their first content, for which a hedge waits: hedging cannot help them"
    if not finding.loads or (not harmed and finding.helps_up_to_per_s is not None):
        return
    lowest = finding.loads[0]
    few = lowest.run.hedges.hedged or 0.0
    if finding.quantile is not None and 0 < few <= 2 * (1 - finding.quantile):
        place = f"at {_rate_text(lowest)} {finding.unit}"
        yield f"the delay lies among the slow calls: only {share(few)} got a hedge {place}"
    if not harmed:
        return
    place = f"at {_rate_text(harmed[0])} {finding.unit}"
    hedges = harmed[0].run.hedges
    if hedges.cancelled is not None and hedges.cancelled < SAVED:
        yield f"the target keeps generating for closed attempts: closing saves {share(hedges.cancelled)} of the remaining tokens"
    refused_off, refused_on = hedges.refused
    if refused_off is None or refused_on is None:
        return
    if refused_on - refused_off >= MORE_REFUSED:
        yield f"hedges use up a limit {place}: {share(refused_on)} of calls are refused with hedging, {share(refused_off)} without"


# --- answer -------------------------------------------------------------------------------------------------------


def answer(finding: Hedging, today: str) -> Answer:
    """Return the answer for today's load; `today`: its text with its unit.

    The first cause is a detail, the others are notes of the section. Without a load that ran: INCONCLUSIVE, without
    tables.
    """
    reasons = list(causes(finding))
    unequal = dict.fromkeys(chain.from_iterable(load.run.unequal for load in finding.loads))
    details = [*unequal, *_details(finding), *reasons[:1]]
    outcome = OUTCOMES.get(finding.label, INCONCLUSIVE)
    result = Result(outcome, _sentence(finding, today), details=tuple(details))
    if not finding.loads:
        return Answer("hedging", result, finding)
    tables = [_loads(finding), _costs(finding.loads)]
    if finding.delays:
        tables.append(_delays(finding.delays))
    remarks = reasons[1:]
    if finding.quantile == FALLBACK_QUANTILE:
        remarks.append(FALLBACK_REMARK)
    needed = [BLOCK_E2E * load.run.p99_s for load in finding.loads if load.run.is_short]
    if needed:
        remarks.append(SHORT_REMARK.format(math.ceil(max(needed))))
    smallest = ""
    if finding.today is not None and finding.today.tail is not None:
        size = share(math.expm1(finding.today.tail.smallest))
        smallest = f"a {finding.tail} that differs by {size} at today's load"
    pictures = list(_pictures(finding))
    return answered(
        "hedging",
        "Hedging by load",
        result,
        finding,
        tables,
        notes=remarks,
        smallest=smallest,
        pictures=pictures,
        card=_card(finding, today),
    )


def _card(finding: Hedging, today: str) -> Card | None:
    """Return what hedging changes at today's load, and at which cost; None where nothing was compared."""
    load = finding.today
    if load is None or load.tail is None:
        return None
    hedges = load.run.hedges
    tail = load.tail
    lines = [
        f"missed requests {_sides(load.missed, share)}",
        f"{share(hedges.hedged)} of the calls hedged",
    ]
    if hedges.unit:
        lines.append(f"cost {_span(hedges.cost, 1000)} {hedges.unit} per 1,000 requests")
    if finding.crossover is not None:
        low, high = finding.crossover
        lines.append(
            f"hedging turns from help to harm between {low:.3g} and {high:.3g} {finding.unit}"
        )
    return Card(
        label="hedging",
        value=Value(_relative(tail.value), f"{_relative(tail.low)} – {_relative(tail.high)}"),
        detail=f"{finding.tail} with hedging at today's {today}",
        lines=tuple(lines),
        tone=tone_of(OUTCOMES.get(finding.label, "")),
    )


def _sentence(finding: Hedging, today: str) -> str:
    """`hedging after 200 ms helps at today's 4.2 requests/s, hurts at 9`."""
    text = f"{finding.hedge} {EFFECTS.get(finding.label, 'was not compared')} at today's {today}"
    if finding.label not in {HELPS, HURTS, NO_EFFECT}:
        text += f" ({finding.label})"
    if finding.helps_up_to_per_s is not None and finding.label != HELPS:
        text += f", helps at {finding.helps_up_to_per_s:.3g}"
    if finding.hurts_from_per_s is not None and finding.label not in HARM:
        text += f", hurts at {finding.hurts_from_per_s:.3g}"
    return text


def _details(finding: Hedging) -> Iterator[str]:
    """Yield what to do, what hedging changes at today's load, and where it turns."""
    if finding.label in ADVICE:
        yield ADVICE[finding.label]
    load = finding.today
    if load is not None and load.tail is not None:
        hedges = load.run.hedges
        tail = f"{finding.tail} changes by {_relative(load.tail.value)}, missed requests {_sides(load.missed, share)}"
        cost = "extra cost unknown"
        if hedges.unit:
            cost = f"extra cost {_span(hedges.cost, 1000)} {hedges.unit} per 1,000 requests"
        yield f"at today's load {tail}; {share(hedges.hedged)} of the calls are hedged, {cost}"
    if finding.crossover is not None:
        low, high = finding.crossover
        yield f"hedging turns from help to harm between {low:.3g} and {high:.3g} {finding.unit}"


# --- tables and figures -------------------------------------------------------------------------------------------


def _rate_text(load: ComparedLoad) -> str:
    return f"{load.load:.3g}"


def _points(value: float) -> str:
    """Return a difference of shares: −1.2%, +30%."""
    text = share(abs(value))
    if value == 0:
        return text
    if value > 0:
        return f"+{text}"
    return f"−{text}"


def _relative(value: float) -> str:
    """Return a difference of logarithms as a relative change: −32%, +150%."""
    return _points(math.expm1(value))


def _span(ends: tuple[float, float] | None, times: float = 1.0) -> str:
    """Least to most; one number if both read the same."""
    if ends is None:
        return NONE
    return " – ".join(dict.fromkeys(figures(times * end) for end in ends))


def _sides(contrast: Contrast | None, text_of: Callable[[float], str]) -> str:
    """Return the figure without hedging and with it."""
    if contrast is None:
        return NONE
    return f"{text_of(contrast.a)} → {text_of(contrast.b)}"


def _change(contrast: Contrast | None, text_of: Callable[[float], str]) -> Cell:
    if contrast is None:
        return NONE
    return Value(text_of(contrast.value), f"{text_of(contrast.low)} – {text_of(contrast.high)}")


TAIL_CHANGE: Column[ComparedLoad] = ("change", lambda load: _change(load.tail, _relative))
HEDGED: Column[ComparedLoad] = ("calls hedged", lambda load: share(load.run.hedges.hedged))
WON: Column[ComparedLoad] = ("hedges won", lambda load: share(load.run.hedges.won))


def _loads(finding: Hedging) -> Table:
    columns: tuple[Column[ComparedLoad], ...] = (
        (finding.unit, _rate_text),
        ("hedging", lambda load: Value(load.label, outcome=OUTCOMES.get(load.label, INCONCLUSIVE))),
        (f"{finding.tail} off → on, ms", lambda load: _sides(load.tail, ms_or_failed)),
        TAIL_CHANGE,
        ("missed off → on", lambda load: _sides(load.missed, share)),
        ("change", lambda load: _change(load.missed, _points)),
    )
    return Table.of("Loads", finding.loads, columns, LOADS_NOTE)


def _costs(loads: Sequence[ComparedLoad]) -> Table:
    hedges = loads[0].run.hedges
    columns: tuple[Column[ComparedLoad], ...] = (
        ("load", _rate_text),
        ("requests off, on", lambda load: f"{load.run.off.requests:,}, {load.run.on.requests:,}"),
        HEDGED,
        WON,
        ("refused off → on", lambda load: " → ".join(map(share, load.run.hedges.refused))),
        ("extra cost per 1,000", lambda load: _span(load.run.hedges.cost, 1000)),
    )
    priced = f"unknown: {hedges.no_cost}"
    if hedges.unit:
        priced = f"in {hedges.unit}"
    return Table.of("Hedges and their cost", loads, columns, f"{COSTS_NOTE}, {priced}.")


def _delays(delays: Sequence[ComparedLoad]) -> Table:
    delay: Column[ComparedLoad] = ("delay, ms", lambda load: str(load.run.attempt.delay))
    return Table.of("Delays", delays, (delay, TAIL_CHANGE, HEDGED, WON), DELAYS_NOTE)


def _pictures(finding: Hedging) -> Iterator[Picture]:
    """Yield the tail with hedging and without at today's load, then the change and the hedged calls by load."""
    yield from _tails(finding)
    rows = []
    for load in finding.loads:
        if load.tail:
            rows.append((load.load, load.tail.value, load.tail.low, load.tail.high))
    if len(rows) > 1:
        ends = (rows[0][0], rows[-1][0])
        curves = (
            replace(estimate_curve("each load", rows, _drawn), style="points"),
            PlotCurve(ends, (0.0, 0.0), "no change", dash="dash"),
        )
        yield Picture(
            name="hedging",
            title=f"{finding.tail} with hedging, relative to without",
            caption=CHANGES_NOTE,
            panels=(Panel(f"change of the {finding.tail}, %", curves), _hedged(finding)),
            x=finding.unit,
            marks=() if finding.crossover is None else (Mark(*finding.crossover, "crossover"),),
        )


def _hedged(finding: Hedging) -> Panel:
    """Return the share of calls hedged at each load, which is what a hedge costs."""
    loads = []
    shares = []
    for load in finding.loads:
        hedged = load.run.hedges.hedged
        if hedged is not None:
            loads.append(load.load)
            shares.append(100 * hedged)
    curve = PlotCurve(loads, shares, "calls hedged", style="line and points", hover="%{y:.3~g}%")
    return Panel("calls hedged, %", (curve,), height=0.6)


def _tails(finding: Hedging) -> Iterator[Picture]:
    if finding.today is not None and finding.today.run.off.ms:
        run = finding.today.run
        tails = (_tail_curve("without hedging", run.off), _tail_curve("with hedging", run.on))
        yield tail_picture(
            tails,
            name="tails",
            title="Latency tail at today's load",
            caption=TAILS_NOTE.format(_rate_text(finding.today)),
        )


def _drawn(value: float) -> float:
    return 100 * math.expm1(min(value, LARGEST_DRAWN))


def _tail_curve(name: str, blocks: Blocks) -> PlotCurve:
    ms = np.sort(np.concatenate(blocks.ms))
    finite = ms[np.isfinite(ms)]
    longer = 1 - np.arange(1, len(finite) + 1) / len(ms)
    return tail_curve(finite, longer, name)
