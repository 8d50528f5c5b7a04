"""The steps of the hedging experiment: hedging off and on in alternating blocks at every load, from well below the
sustainable rate to near it.

A load is one run in which two copies of the tested traffic table, one without hedging, alternate in blocks: never both at
the same time, because they would share capacity. First the sustainable rate, if it is not given; then delays at the lowest
load; then that load, whose p99 decides how long the blocks of the others are; then those in random order; then some more near
the crossover, if they fit. The lowest load shares its time with none of these, because nothing fits before its p99 is known.
Every load gets as many requests, as far as its blocks stay long enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import RUN_S, Base, Planner, RunReading, Step, Steps, warm_up
from tailgauge.experiments.headroom import HeadroomPlanner
from tailgauge.experiments.hedging import contrast, report
from tailgauge.experiments.hedging.judge import OFF, ON, LoadResult, TriedDelay, closer, quantile_for, result
from tailgauge.experiments.hedging.measure import load_result
from tailgauge.experiments.loads.search import NextLoad
from tailgauge.patterns.table import pattern_of
from tailgauge.rows.schema import JOIN
from tailgauge.scenario.experiment import ADAPTIVE, Delay
from tailgauge.scenario.experiment import Experiment as Table
from tailgauge.scenario.experiment import Headroom as Search
from tailgauge.schedule.settings import TRACE
from tailgauge_analysis import (
    BLOCK_E2E,
    figures,
)

BUSY_S = 6.0  # that a run may take beside its load more than planned
SHORTEST_S, LONGEST_S = 2.0, 240.0  # of a block
MOST_WARMUP_S = 10.0
PAIRS = 7  # so many show a harm at one load by themselves
AMPLE = 7  # end-to-end p99: blocks so long show more of a difference than more of them would
SEARCH_SHARE = 1 / 5  # of the minutes


class HedgingPlanner(Planner):
    """The course, and its results. What a step is given: its rate and, of a tried delay, that."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._today = base.today(TRACE)
        self._settings, self._tested, tree = base.table.hedging, _tested(base), base.tree()
        self._traffic: dict[str, Any] = tree["traffic"]
        self._hedge: dict[str, Any] = self._traffic[self._tested]["hedge"]
        self._slo = _objectives(tree.get("slo", {}), self._tested)
        searched = self._settings.sustainable_per_s is None
        self._least_s, self._refused = SHORTEST_S, ""  # of a block
        off = {**self._traffic[self._tested], "hedge": {"policy": "off"}}
        without = (("traffic", {**self._traffic, self._tested: off}), ("slo", None))
        self._search = HeadroomPlanner(_searching(base), without) if searched else None
        self._sustainable = self._settings.sustainable_per_s or 0.0
        self._notes: list[str] = []

    def steps(self) -> Steps:
        """Search, try the delays, run the loads."""
        if self._search is not None:
            yield from self._search.steps()
            of = self._search.answer()
            found = of.finding
            self._sustainable = found.sustained_per_s or found.low_per_s or found.high_per_s or 0.0
            self._notes = [f"without hedging {of.result.sentence}"]
        if self._sustainable:
            loads = sorted(self._sustainable * one for one in self._settings.loads)
            near = [math.sqrt(loads[0] * loads[-1])] * self._settings.more_loads
            yield from self._scan(loads[0], [*loads, *near])
            yield from self._at(loads[:1], loads[1:])
            near = self._checked(len(loads) - 1, near) if loads[1:] else []
            if not self._refused:
                yield from self._at(loads[1:], near)
                yield from self._at(self._closer(len(near)), [])

    def measure(self, step: Step, reading: RunReading) -> Any:
        """The result at a load, or of the search for the sustainable rate."""
        if isinstance(step.given, NextLoad):
            assert self._search is not None  # only its steps are given these
            return self._search.measure(step, reading)
        joined = pattern_of(self._scenario.traffic[self._tested]).answer == JOIN
        metric = "join_sched" if joined else "e2e_sched"
        return load_result(step.given[0], reading, metric, step.given[2], self._settings.washout_s)

    def _scan(self, rate: float, after: Sequence[float]) -> Steps:
        """Every delay, and the adaptive one, at the lowest load; that with the lowest quantile is used from here on."""
        delays = list(self._settings.delays_ms)
        Random(self._scenario.seed).shuffle(delays)
        if delays:
            planned = [*[rate] * len(delays), *after]
            yield from self.run([self._step(rate, planned, delay) for delay in delays])
        known = {one.delay_ms: one.change.value for one in self._delays() if one.change is not None}
        if known:
            best = min(known, key=known.__getitem__)
            self._hedge = self._with(best)

    def _with(self, delay: Delay | None) -> dict[str, Any]:
        """The hedge with this delay in the place of its own."""
        if delay is None:
            return self._hedge
        if delay == ADAPTIVE:
            return {**self._hedge, "policy": ADAPTIVE}
        policy = "single_r" if self._hedge["policy"] == "single_r" else "fixed"
        return {**self._hedge, "policy": policy, "delay_ms": delay}

    def _delays(self) -> list[TriedDelay]:
        tried = {one.step.given[1]: one.measured for one in self._kept if one.step.given[1] is not None}
        p = quantile_for(list(tried.values()), self._settings.quantile)
        return [
            TriedDelay(delay, one, contrast.quantiles(one.off, one.on, p) if p is not None else None)
            for delay, one in sorted(tried.items(), key=lambda pair: (pair[0] == ADAPTIVE, pair[0]))
        ]

    def _loads(self) -> list[LoadResult]:
        return [one.measured for one in self._kept if one.step.given[1] is None]

    def _at(self, rates: Sequence[float], after: Sequence[float]) -> Steps:
        """A run at each rate in random order; `after`: the rates of the runs to come."""
        order = list(rates)
        Random(self._scenario.seed + self._number).shuffle(order)
        if order:
            yield from self.run([self._step(rate, [*order, *after]) for rate in order])

    def _closer(self, n: int) -> list[float]:
        found = result(self._loads(), self._settings.quantile)
        rates = [one.rate_per_s for one in found.loads if one.change is not None]
        return closer(rates, found.tail.fit, n)

    def _step(self, rate: float, planned: Sequence[float], delay: Delay | None = None) -> Step:
        pairs, block_s = self._blocks(rate, planned)
        warmup_s = min(MOST_WARMUP_S, block_s)
        whole_s = warmup_s + 2 * pairs * block_s
        washout_s = self._settings.washout_s if self._settings.washout_s is not None else block_s / 3
        hedge = self._with(delay)
        blocks = {"a": OFF, "b": ON, "block_s": block_s, "washout_s": washout_s}
        overrides = (
            ("arrival.rate_per_s", rate), ("arrival.shape", None), ("traffic", self._variants(hedge)), ("slo", self._slo),
            ("alert", None), ("use_case", None), ("crossover", blocks), *warm_up(warmup_s),
        )  # fmt: skip
        name = f"{rate:.4g} requests/s" + (f", {_described(hedge)}" if delay is not None else "")
        return Step(name, overrides, whole_s, self.seed(), given=(rate, delay, block_s))

    def _blocks(self, rate: float, planned: Sequence[float]) -> tuple[int, float]:
        """Pairs at a load, and the seconds of a block, where so many runs are still to come."""
        most = self._settings.pairs
        if self._settings.block_s:
            return most, self._settings.block_s
        free_s, of_pairs_s, weights = self._free_s(len(planned)), 2 * PAIRS * self._least_s, list(planned)
        while fast := [one for one in weights if _part(one, weights) * free_s < of_pairs_s]:
            free_s -= of_pairs_s * len(fast)
            weights = [one for one in weights if one not in fast]
        load_s = _part(rate, weights) * free_s if rate in weights else of_pairs_s
        pairs = int(min(most, max(PAIRS, load_s / (2 * self._least_s))))
        return pairs, min(LONGEST_S, load_s / (2 * pairs))

    def _free_s(self, runs: int) -> float:
        """Seconds of load that so many more runs can have."""
        spent_s = self.spent_s + (self._search.spent_s if self._search else 0.0)
        return self._base.table.minutes * 60 - spent_s - runs * (RUN_S + BUSY_S + MOST_WARMUP_S)

    def _checked(self, runs: int, near: list[float]) -> list[float]:
        """Those of the loads `near` the crossover that fit behind so many more runs, with blocks as long as the waits that were
        seen need; refused if these runs alone do not.
        """
        p99_s = max((one.p99_s for one in self.results), default=0.0)
        shortest_s = max(SHORTEST_S, BLOCK_E2E * p99_s)
        of_each = self._free_s(runs) / runs / (2 * PAIRS)
        self._least_s = max(shortest_s, min(AMPLE * p99_s, of_each))
        key = ""
        if self._settings.block_s:
            key = (
                f"hedging.block_s = {math.ceil(shortest_s)}" if any(one.short for one in self.results) else ""
            )
        elif of_each < shortest_s:
            more = (shortest_s - of_each) * 2 * PAIRS * runs / 60
            more *= 1 / (1 - SEARCH_SHARE) if self._search else 1
            key = f"minutes = {math.ceil(self._base.table.minutes + more)}, or fewer loads"
        else:
            numbers = range(runs + 1, runs + len(near) + 1)
            near = near[: sum(self._free_s(n) >= 2 * PAIRS * self._least_s * n for n in numbers)]
        if key:
            need = f"{BLOCK_E2E} end-to-end p99 of {figures(p99_s)} s"
            self._refused = f"no answer: blocks must last {need}: set experiment.{key}"
        return near

    def _variants(self, hedge: dict[str, Any]) -> dict[str, Any]:
        """The tables of [traffic]; the tested one as two variants with half its weight each, because they alternate."""
        tested = self._traffic[self._tested]
        half = {**tested, "weight": float(tested.get("weight", 1.0)) / 2}
        others = {name: one for name, one in self._traffic.items() if name != self._tested}
        return {OFF: {**half, "hedge": {**hedge, "policy": "off"}}, ON: {**half, "hedge": hedge}, **others}

    def answer(self) -> Answer:
        """What was found."""
        tested = report.TestedHedge(
            _described(self._hedge), self._sustainable or None, self._today, self._settings.quantile,
            self._base.table.minutes, self._refused,
        )  # fmt: skip
        return report.answer(tested, self._loads(), self._delays(), self._notes)


def _tested(base: Base) -> str:
    """The traffic table that hedges. UsageError if there is none, or no delay to try."""
    table = base.table.hedging
    hedging = [name for name, one in base.scenario.traffic.items() if one.hedge.policy != "off"]
    tested = hedging[0] if table.traffic is None and len(hedging) == 1 else table.traffic
    if tested is None or tested not in hedging:
        there = ", ".join(hedging) or "there is none; set hedge.policy in one"
        text = f"expected one of the tables of [traffic] that hedge: {there}"
        raise base.refused("experiment.hedging.traffic", text)
    return tested


def _objectives(slo: dict[str, Any], tested: str) -> dict[str, Any]:
    """The objectives; one on the tested table becomes one on each of its variants."""
    found: dict[str, Any] = {}
    for name, one in slo.items():
        if one.get("traffic") == tested:
            found |= {f"{name} ({variant})": {**one, "traffic": variant} for variant in (OFF, ON)}
        else:
            found[name] = one
    return found


def _searching(base: Base) -> Base:
    """The scenario as a short search for headroom."""
    search = Search(growth=1.6, precision=0.1, confirm=1)
    table = Table(kind="headroom", minutes=base.table.minutes * SEARCH_SHARE, headroom=search)
    return replace(base, scenario=base.scenario.model_copy(update={"experiment": table}))


def _part(rate: float, rates: Sequence[float]) -> float:
    """Of the time for all, if each rate gets as many requests."""
    return 1 / rate / sum(1 / one for one in rates)


def _described(hedge: dict[str, Any]) -> str:
    policy = hedge["policy"]
    if policy == "immediate":
        return "hedging every call at once"
    if policy == ADAPTIVE:
        return f"hedging after the {100 * float(hedge.get('quantile', 0.9)):g}% quantile of recent waits"
    after = f"hedging after {float(hedge.get('delay_ms', 1000.0)):g} ms"
    chance = f" with probability {float(hedge.get('probability', 0.5)):g}" if policy == "single_r" else ""
    return f"{after}{chance}"
