"""The steps of the model choice: the same traffic to each model, in blocks in random order, round after round.

A round is one block per model, each a run, in random order: drift affects all models alike. All models of a round
have the same arrivals and sizes.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import RUN_S, SEED_STEP, Base, Planner, RunReading, Step, Steps, warm_up
from tailgauge.experiments.models import report
from tailgauge.experiments.models.judge import ModelBlock, block, choice
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.schedule.settings import TRACE

FEWEST = 2  # models
TOGETHER = 2  # rounds that one child runs
STARTS_S = 8.0  # of a child beside that of its runs
SHORTEST_S, LONGEST_S = 4.0, 120.0  # of a block
WARMUP_SHARE = 0.2  # of a block, before it


class ModelsPlanner(Planner):
    """The course, and its results. What a step is given: its round and its model."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        _check(base)
        self._settings = base.table.models
        self._names, rounds = list(self._settings.among), self._settings.rounds
        runs = len(self._names) * rounds
        self._block_s = self._settings.block_s or _block_s(base.table.minutes, runs, rounds)
        tree = base.tree()
        self._traffic: dict[str, dict[str, Any]] = tree.get("traffic", {"main": {}})
        self._slo = tree["slo"]

    def steps(self) -> Steps:
        """Every round."""
        rounds = range(self._settings.rounds)
        for first in rounds[::TOGETHER]:
            steps = [step for number in rounds[first : first + TOGETHER] for step in self._round(number)]
            yield from self.run(steps, again=False)

    def measure(self, step: Step, reading: RunReading) -> ModelBlock:
        """The block of a run."""
        _, name = step.given
        return block(name, self._settings.among[name].price, reading)

    def _round(self, number: int) -> list[Step]:
        """A block of every model, in random order."""
        seed = self._scenario.seed + SEED_STEP * number
        names = list(self._names)
        Random(seed).shuffle(names)
        warmup_s = WARMUP_SHARE * self._block_s
        whole_s = warmup_s + self._block_s
        return [
            Step(f"round {number + 1}: {name}", self._overrides(name, warmup_s), whole_s, seed, given=(number, name))
            for name in names
        ]  # fmt: skip

    def _overrides(self, name: str, warmup_s: float) -> tuple[tuple[str, Any], ...]:
        one = self._settings.among[name]
        model = {} if one.model is None else {"model": one.model}
        traffic = {table: {**of, **model} for table, of in self._traffic.items()}
        profile = () if one.profile is None else (("simulated.profile", one.profile),)
        return ("traffic", traffic), ("arrival.shape", None), *warm_up(warmup_s), *profile

    def answer(self) -> Answer:
        """What was found."""
        rounds: list[dict[str, ModelBlock]] = [{} for _ in range(self._settings.rounds)]
        for one in self._kept:
            number, name = one.step.given
            rounds[number][name] = one.measured
        return report.answer(choice(self._names, rounds, self._slo))


def _check(base: Base) -> None:
    """UsageError if there is nothing to choose from, or nothing to choose by."""
    base.today(TRACE)
    among = base.table.models.among
    key, slo = "experiment.models.among", base.scenario.slo
    if len(among) < FEWEST:
        raise base.refused(key, f"expected two models or more, as [{key}.small] with model = '...'")
    if not slo or any(one.max_ms is None for one in slo.values()):
        expected = "expected at least one table [slo.NAME], each with max_ms"
        raise base.refused("slo", f"models are chosen by their objectives: {expected}")
    if base.scenario.target.url == SIMULATED and any(one.profile is None for one in among.values()):
        text = "the simulated endpoint answers alike for every model: expected a `profile` for each"
        raise base.refused(key, text)


def _block_s(minutes: float, runs: int, rounds: int) -> float:
    children = -(-rounds // TOGETHER)
    fits = (minutes * 60 - children * STARTS_S) / runs - RUN_S
    return min(LONGEST_S, max(SHORTEST_S, fits / (1 + WARMUP_SHARE)))
