"""Hedging: off and on in turns at every load, from well below what the target sustains to above it.

Rule: what the runs say is decided in tailgauge_analysis.crossing; here are the steps. A load is one run in which two
copies of the tested traffic table take turns in blocks, one of them without hedging: never both at the same time,
because they would share what is scarce. First the sustainable rate, where it is not given; then delays at the lowest
load; then all loads in random order; then some more where it turns.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import Course, Ran, SpentError, Step
from tailgauge.experiments.headroom.plan import Headroom
from tailgauge.experiments.hedging import contrast, report, result
from tailgauge.experiments.hedging.load import Load, Turns, load
from tailgauge.experiments.ledger import RUN_S
from tailgauge.experiments.reading import Reading
from tailgauge.experiments.steps import Base
from tailgauge.patterns.table import pattern_of
from tailgauge.rows.schema import JOIN
from tailgauge.scenario.experiment import Experiment as Asked
from tailgauge.scenario.experiment import Headroom as Search
from tailgauge.scenario.experiment import Hedging as Table
from tailgauge.schedule.settings import CLOSED, TRACE

OFF, ON = "hedging_off", "hedging_on"
BUSY_S = 6.0  # that a run may take beside its load more than planned
SHORTEST_S, LONGEST_S = 2.0, 120.0  # of a block
MOST_WARMUP_S = 10.0
SEARCH_SHARE = 1 / 3  # of the minutes
WITH_DELAY = ("fixed", "single_r")
Runs = Generator[Sequence[Step], Sequence[Ran], None]


def make(base: Base) -> HedgingCrossover:
    """The experiment of a scenario. Raises UsageError where it has nothing that hedges, or no rate to vary."""
    arrival, table = base.scenario.arrival, base.asked.hedging
    if arrival.process in {CLOSED, TRACE}:
        raise UsageError(
            f"{base.path}: arrival.process: hedging is tried at rates of its own, which {arrival.process!r} does not take: "
            "expected an open process, as poisson"
        )
    traffic = _tested(base)
    policy = base.scenario.traffic[traffic].hedge.policy
    if table.delays_ms and policy not in WITH_DELAY:
        raise UsageError(
            f"{base.path}: experiment.hedging.delays_ms: policy = {policy!r} takes no delay: expected {' or '.join(WITH_DELAY)}, "
            "or no delays_ms"
        )
    return HedgingCrossover(base, traffic)


def _tested(base: Base) -> str:
    traffic, named = base.scenario.traffic, base.asked.hedging.traffic
    hedging = [name for name, one in traffic.items() if one.hedge.policy != "off"]
    if named is None and len(hedging) == 1:
        return hedging[0]
    if named is not None and named in hedging:
        return named
    raise UsageError(
        f"{base.path}: experiment.hedging.traffic: expected one of the tables of [traffic] that hedge: "
        + (", ".join(hedging) or "there is none; set hedge.policy in one")
    )


class HedgingCrossover:
    """The course, and what was seen on it."""

    def __init__(self, base: Base, tested: str) -> None:
        self._base, self._scenario, self._tested = base, base.scenario, tested
        self._table: Table = base.asked.hedging
        self._traffic: dict[str, Any] = base.tree()["traffic"]
        self._hedge: dict[str, Any] = self._traffic[tested]["hedge"]
        searched = self._table.sustainable_per_s is None
        runs = len(self._table.loads) + len(self._table.delays_ms) + self._table.more_loads
        minutes = base.asked.minutes * (1 - SEARCH_SHARE if searched else 1)
        self._block_s = self._table.block_s or _block_s(minutes, runs, self._table.pairs)
        self._search = Headroom(_searching(base)) if searched else None
        self._loads: list[Load] = []
        self._tried: dict[float, tuple[Load, contrast.Contrast | None]] = {}
        self._number = 0
        self._sustainable = self._table.sustainable_per_s or 0.0

    def course(self) -> Course:
        """Search, scan, go through the loads, answer."""
        remarks: list[str] = []
        try:
            if self._search is not None:
                remarks += yield from self._sustained(self._search)
            if self._sustainable:
                yield from self._scan()
                yield from self._at([self._sustainable * one for one in self._table.loads])
                yield from self._at(self._closer())
        except SpentError as spent:
            remarks.append(f"{spent}: the answer is what was known by then.")
        return self._answer(remarks)

    def look(self, step: Step, reading: Reading) -> Any:
        """The load of a run, or the level of the search."""
        told = dict(step.overrides)
        if "crossover" not in told:
            assert self._search is not None  # only its steps have none
            return self._search.look(step, reading)
        is_joined = pattern_of(self._scenario.traffic[self._tested]).answer == JOIN
        metric = "join_sched" if is_joined else "e2e_sched"
        turns = Turns(OFF, ON, self._block_s, self._table.washout_s, metric)
        return load(float(told["arrival.rate_per_s"]), reading, turns)

    def _sustained(self, search: Headroom) -> Generator[Sequence[Step], Sequence[Ran], list[str]]:
        """Search the rate that is sustained without hedging; what there is to say of it."""
        course = search.course()
        without = {**self._traffic, self._tested: {**self._traffic[self._tested], "hedge": {"policy": "off"}}}
        steps = next(course)
        while True:
            steps = [replace(one, overrides=(("traffic", without), *one.overrides)) for one in steps]
            ran = yield steps
            try:
                steps = course.send(ran)
            except StopIteration as end:
                found = end.value.facts
                rate = found["sustained_per_s"] or found["low_per_s"] or found["high_per_s"]
                self._sustainable = float(rate or 0.0)
                return [f"The search for the sustainable rate said: {end.value.sentence}"]

    def _scan(self) -> Runs:
        """Every delay at the lowest load; the one with the lowest quantile is used from here on."""
        delays = list(self._table.delays_ms)
        if not delays:
            return
        rate = self._sustainable * min(self._table.loads)
        Random(self._scenario.seed).shuffle(delays)
        steps = [self._step(rate, delay) for delay in delays]
        of = {step.seed: delay for step, delay in zip(steps, delays, strict=True)}
        seen = {of[ran.step.seed]: ran.seen for ran in (yield steps) if ran.counts}
        p = result.quantile_for(list(seen.values()), self._table.quantile)
        for delay, one in seen.items():
            self._tried[delay] = (
                one,
                contrast.quantiles(one.off, one.on, p) if p is not None else None,
            )
        known = {delay: one.value for delay, (_, one) in self._tried.items() if one is not None}
        if known:
            self._hedge = {**self._hedge, "delay_ms": min(known, key=known.__getitem__)}

    def _at(self, rates: Sequence[float]) -> Runs:
        """A run at each rate in random order; one that is INVALID is run once more."""
        if not rates:
            return
        order = list(rates)
        Random(self._scenario.seed + self._number).shuffle(order)
        again = self._keep((yield [self._step(rate) for rate in order]))
        if again:
            self._keep((yield [self._step(rate) for rate in again]))

    def _keep(self, ran: Sequence[Ran]) -> list[float]:
        self._loads += [one.seen for one in ran if one.counts]
        return [dict(one.step.overrides)["arrival.rate_per_s"] for one in ran if not one.counts]

    def _closer(self) -> list[float]:
        if not self._loads or not self._table.more_loads:
            return []
        found = result.result(self._loads, self._table.quantile)
        rates = [one.load.rate_per_s for one in found.compared if one.slow is not None]
        return result.closer(rates, found.slow.fit, self._table.more_loads)

    def _step(self, rate: float, delay_ms: float | None = None) -> Step:
        self._number += 1
        warmup_s = min(MOST_WARMUP_S, self._block_s)
        whole_s = warmup_s + 2 * self._table.pairs * self._block_s
        washout_s = self._table.washout_s if self._table.washout_s is not None else self._block_s / 3
        hedge = self._hedge if delay_ms is None else {**self._hedge, "delay_ms": delay_ms}
        turns = {"a": OFF, "b": ON, "block_s": self._block_s, "washout_s": washout_s}
        told = (
            ("arrival.rate_per_s", rate), ("arrival.shape", None), ("traffic", self._arms(hedge)), ("crossover", turns),
            ("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0),
        )  # fmt: skip
        name = f"{rate:.4g} requests/s" + (f", hedges after {delay_ms:g} ms" if delay_ms is not None else "")
        return Step(name, told, whole_s, self._scenario.seed + 7919 * self._number)

    def _arms(self, hedge: dict[str, Any]) -> dict[str, Any]:
        """The tables of [traffic], the tested one twice: each with half its weight, because they take turns."""
        tested = self._traffic[self._tested]
        half = {**tested, "weight": float(tested.get("weight", 1.0)) / 2}
        others = {name: one for name, one in self._traffic.items() if name != self._tested}
        return {OFF: {**half, "hedge": {**hedge, "policy": "off"}}, ON: {**half, "hedge": hedge}, **others}

    def _answer(self, remarks: Sequence[str]) -> Answer:
        about = report.About(_described(self._hedge), self._sustainable, tuple(remarks), self._table.quantile)
        if not self._sustainable:
            return report.nothing(
                about, "No sustainable rate was found, so there are no loads to try hedging at."
            )
        return report.answer(about, self._loads, self._tried)


def _searching(base: Base) -> Base:
    """The scenario as a short search for headroom."""
    table = Search(growth=1.6, precision=0.1, confirm=1)
    asked = Asked(kind="headroom", minutes=base.asked.minutes * SEARCH_SHARE, headroom=table)
    return replace(base, scenario=base.scenario.model_copy(update={"experiment": asked}))


def _block_s(minutes: float, runs: int, pairs: int) -> float:
    fits = (minutes * 60 / runs - RUN_S - BUSY_S - MOST_WARMUP_S) / (2 * pairs)
    return min(LONGEST_S, max(SHORTEST_S, fits))


def _described(hedge: dict[str, Any]) -> str:
    policy = hedge["policy"]
    if policy == "immediate":
        return "Sending every call twice at once"
    if policy == "adaptive":
        return f"Hedging after the {100 * float(hedge.get('quantile', 0.9)):g}% quantile of recent waits"
    after = f"Hedging after {float(hedge.get('delay_ms', 1000.0)):g} ms"
    return (
        f"{after} with probability {float(hedge.get('probability', 0.5)):g}"
        if policy == "single_r"
        else after
    )
