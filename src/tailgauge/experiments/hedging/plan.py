"""The steps of the hedging experiment: hedging off and on in alternating blocks at every load, from well below the
sustainable rate to above it.

A load is one run in which two copies of the tested traffic table, one without hedging, alternate in blocks: never both at
the same time, because they would share capacity. First the sustainable rate, if it is not given; then delays at the lowest
load; then all loads in random order; then some more near the crossover.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import RUN_S, SEED_STEP, Base, Course, SpentError, Step, StepResult, Steps
from tailgauge.experiments.headroom.plan import HeadroomPlanner
from tailgauge.experiments.hedging import contrast
from tailgauge.experiments.hedging.judge import OFF, ON, LoadResult, TriedDelay, closer, quantile_for, result
from tailgauge.patterns.table import pattern_of
from tailgauge.rows.schema import JOIN
from tailgauge.scenario.experiment import Experiment as Table
from tailgauge.scenario.experiment import Headroom as Search
from tailgauge.schedule.settings import CLOSED, TRACE

if TYPE_CHECKING:
    from tailgauge.experiments.reading import RunReading

BUSY_S = 6.0  # that a run may take beside its load more than planned
SHORTEST_S, LONGEST_S = 2.0, 120.0  # of a block
MOST_WARMUP_S = 10.0
SEARCH_SHARE = 1 / 3  # of the minutes
WITH_DELAY = ("fixed", "single_r")


class HedgingPlanner:
    """The course, and its results."""

    def __init__(self, base: Base) -> None:
        self._scenario, self._settings, self._tested = base.scenario, base.table.hedging, _tested(base)
        self._traffic: dict[str, Any] = base.tree()["traffic"]
        self._hedge: dict[str, Any] = self._traffic[self._tested]["hedge"]
        searched = self._settings.sustainable_per_s is None
        runs = len(self._settings.loads) + len(self._settings.delays_ms) + self._settings.more_loads
        minutes = base.table.minutes * (1 - SEARCH_SHARE if searched else 1)
        self._block_s = self._settings.block_s or _block_s(minutes, runs, self._settings.pairs)
        self._search = HeadroomPlanner(_searching(base)) if searched else None
        self._loads: list[LoadResult] = []
        self._delays: list[TriedDelay] = []
        self._number = 0
        self._sustainable = self._settings.sustainable_per_s or 0.0

    def course(self) -> Course:
        """Search, try the delays, run the loads, answer."""
        remarks: list[str] = []
        try:
            if self._search is not None:
                remarks += yield from self._sustained(self._search)
            if self._sustainable:
                yield from self._scan()
                yield from self._at([self._sustainable * one for one in self._settings.loads])
                yield from self._at(self._closer())
        except SpentError as spent:
            remarks.append(f"{spent}: the answer is based on the runs until then")
        return self._answer(remarks)

    def measure(self, step: Step, reading: RunReading) -> Any:
        """The result at a load, or of the search for the sustainable rate."""
        from tailgauge.experiments.hedging.measure import load_result

        overrides = dict(step.overrides)
        if "crossover" not in overrides:
            assert self._search is not None  # only its steps have none
            return self._search.measure(step, reading)
        joined = pattern_of(self._scenario.traffic[self._tested]).answer == JOIN
        metric = "join_sched" if joined else "e2e_sched"
        rate = float(overrides["arrival.rate_per_s"])
        return load_result(rate, reading, metric, self._block_s, self._settings.washout_s)

    def _sustained(
        self, search: HeadroomPlanner
    ) -> Generator[Sequence[Step], Sequence[StepResult], list[str]]:
        """Search the rate that is sustained without hedging; returns remarks."""
        course = search.course()
        without = {**self._traffic, self._tested: {**self._traffic[self._tested], "hedge": {"policy": "off"}}}
        steps = next(course)
        while True:
            steps = [replace(one, overrides=(("traffic", without), *one.overrides)) for one in steps]
            results = yield steps
            try:
                steps = course.send(results)
            except StopIteration as end:
                found = end.value.finding
                self._sustainable = found.sustained_per_s or found.low_per_s or found.high_per_s or 0.0
                return [f"without hedging {end.value.result.sentence}"]

    def _scan(self) -> Steps:
        """Every delay at the lowest load; the one with the lowest quantile is used from here on."""
        delays = list(self._settings.delays_ms)
        if not delays:
            return
        rate = self._sustainable * min(self._settings.loads)
        Random(self._scenario.seed).shuffle(delays)
        steps = [self._step(rate, delay) for delay in delays]
        of = {step.seed: delay for step, delay in zip(steps, delays, strict=True)}
        results = {of[one.step.seed]: one.measured for one in (yield steps) if one.valid}
        p = quantile_for(list(results.values()), self._settings.quantile)
        self._delays = [
            TriedDelay(delay, one, contrast.quantiles(one.off, one.on, p) if p is not None else None)
            for delay, one in sorted(results.items())
        ]
        known = {one.delay_ms: one.change.value for one in self._delays if one.change is not None}
        if known:
            self._hedge = {**self._hedge, "delay_ms": min(known, key=known.__getitem__)}

    def _at(self, rates: Sequence[float]) -> Steps:
        """A run at each rate in random order; an INVALID run is repeated once."""
        if not rates:
            return
        order = list(rates)
        Random(self._scenario.seed + self._number).shuffle(order)
        again = self._keep((yield [self._step(rate) for rate in order]))
        if again:
            self._keep((yield [self._step(rate) for rate in again]))

    def _keep(self, results: Sequence[StepResult]) -> list[float]:
        self._loads += [one.measured for one in results if one.valid]
        return [dict(one.step.overrides)["arrival.rate_per_s"] for one in results if not one.valid]

    def _closer(self) -> list[float]:
        if not self._loads or not self._settings.more_loads:
            return []
        found = result(self._loads, self._settings.quantile)
        rates = [one.rate_per_s for one in found.loads if one.change is not None]
        return closer(rates, found.tail.fit, self._settings.more_loads)

    def _step(self, rate: float, delay_ms: float | None = None) -> Step:
        self._number += 1
        warmup_s = min(MOST_WARMUP_S, self._block_s)
        whole_s = warmup_s + 2 * self._settings.pairs * self._block_s
        washout_s = self._settings.washout_s if self._settings.washout_s is not None else self._block_s / 3
        hedge = self._hedge if delay_ms is None else {**self._hedge, "delay_ms": delay_ms}
        blocks = {"a": OFF, "b": ON, "block_s": self._block_s, "washout_s": washout_s}
        overrides = (
            ("arrival.rate_per_s", rate), ("arrival.shape", None), ("traffic", self._variants(hedge)), ("crossover", blocks),
            ("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0),
        )  # fmt: skip
        name = f"{rate:.4g} requests/s" + (f", hedges after {delay_ms:g} ms" if delay_ms is not None else "")
        return Step(name, overrides, whole_s, self._scenario.seed + SEED_STEP * self._number)

    def _variants(self, hedge: dict[str, Any]) -> dict[str, Any]:
        """The tables of [traffic]; the tested one as two variants with half its weight each, because they alternate."""
        tested = self._traffic[self._tested]
        half = {**tested, "weight": float(tested.get("weight", 1.0)) / 2}
        others = {name: one for name, one in self._traffic.items() if name != self._tested}
        return {OFF: {**half, "hedge": {**hedge, "policy": "off"}}, ON: {**half, "hedge": hedge}, **others}

    def _answer(self, remarks: Sequence[str]) -> Answer:
        from tailgauge.experiments.hedging import report

        tested = report.TestedHedge(
            _described(self._hedge),
            self._sustainable or None,
            self._scenario.arrival.rate,
            self._settings.quantile,
        )
        return report.answer(tested, self._loads, self._delays, remarks)


def _tested(base: Base) -> str:
    """The traffic table that hedges. Raises UsageError if there is none, no rate to vary, or no delay to try."""
    process, table = base.scenario.arrival.process, base.table.hedging
    if process in {CLOSED, TRACE}:
        raise UsageError(
            f"{base.path}: arrival.process: hedging is tried at several rates, which {process!r} does not take: "
            "expected an open process, as poisson"
        )
    hedging = [name for name, one in base.scenario.traffic.items() if one.hedge.policy != "off"]
    tested = hedging[0] if table.traffic is None and len(hedging) == 1 else table.traffic
    if tested is None or tested not in hedging:
        raise UsageError(
            f"{base.path}: experiment.hedging.traffic: expected one of the tables of [traffic] that hedge: "
            + (", ".join(hedging) or "there is none; set hedge.policy in one")
        )
    policy = base.scenario.traffic[tested].hedge.policy
    if table.delays_ms and policy not in WITH_DELAY:
        raise UsageError(
            f"{base.path}: experiment.hedging.delays_ms: policy = {policy!r} takes no delay: expected {' or '.join(WITH_DELAY)}, "
            "or no delays_ms"
        )
    return tested


def _searching(base: Base) -> Base:
    """The scenario as a short search for headroom."""
    search = Search(growth=1.6, precision=0.1, confirm=1)
    table = Table(kind="headroom", minutes=base.table.minutes * SEARCH_SHARE, headroom=search)
    return replace(base, scenario=base.scenario.model_copy(update={"experiment": table}))


def _block_s(minutes: float, runs: int, pairs: int) -> float:
    fits = (minutes * 60 / runs - RUN_S - BUSY_S - MOST_WARMUP_S) / (2 * pairs)
    return min(LONGEST_S, max(SHORTEST_S, fits))


def _described(hedge: dict[str, Any]) -> str:
    policy = hedge["policy"]
    if policy == "immediate":
        return "hedging every call at once"
    if policy == "adaptive":
        return f"hedging after the {100 * float(hedge.get('quantile', 0.9)):g}% quantile of recent waits"
    after = f"hedging after {float(hedge.get('delay_ms', 1000.0)):g} ms"
    return (
        f"{after} with probability {float(hedge.get('probability', 0.5)):g}"
        if policy == "single_r"
        else after
    )
