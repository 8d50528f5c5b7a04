"""The steps of the model choice: the same traffic to each model, in blocks in random order, round after round.

A round is one block per model, each a run, in random order: drift affects all models alike. All models of a round
have the same arrivals and sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import RUN_S, SEED_STEP, Base, Course, SpentError, Step, StepResult
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.schedule.settings import CLOSED, TRACE

if TYPE_CHECKING:
    from tailgauge.experiments.models.judge import ModelBlock
    from tailgauge.experiments.reading import RunReading

FEWEST = 2  # models
TOGETHER = 2  # rounds that one child runs
STARTS_S = 8.0  # of a child beside that of its runs
SHORTEST_S, LONGEST_S = 4.0, 120.0  # of a block
WARMUP_SHARE = 0.2  # of a block, before it


class ModelsPlanner:
    """The course, and its results."""

    def __init__(self, base: Base) -> None:
        _check(base)
        self._seed, self._table = base.scenario.seed, base.table.models
        self._names = list(self._table.among)
        rounds = self._table.rounds
        self._block_s = self._table.block_s or _block_s(base.table.minutes, len(self._names) * rounds, rounds)
        tree = base.tree()
        self._traffic: dict[str, dict[str, Any]] = tree.get("traffic", {"main": {}})
        self._slo = tree["slo"]
        self._rounds: list[dict[str, ModelBlock]] = [{} for _ in range(rounds)]

    def course(self) -> Course:
        """Every round, then the answer."""
        remarks: list[str] = []
        try:
            for first in range(0, self._table.rounds, TOGETHER):
                numbers = range(first, min(first + TOGETHER, self._table.rounds))
                self._keep((yield [step for number in numbers for step in self._round(number)]))
        except SpentError as spent:
            remarks.append(f"{spent}: the answer is based on the runs until then")
        return self._answer(remarks)

    def measure(self, step: Step, reading: RunReading) -> ModelBlock:
        """The block of a run."""
        from tailgauge.experiments.models.measure import block

        _, name = _round_and_model(step)
        return block(name, self._table.among[name].price, reading)

    def _round(self, number: int) -> list[Step]:
        """A block of every model, in random order."""
        seed = self._seed + SEED_STEP * number
        names = list(self._names)
        Random(seed).shuffle(names)
        warmup_s = WARMUP_SHARE * self._block_s
        return [
            Step(f"round {number + 1}: {name}", self._overrides(name, warmup_s), warmup_s + self._block_s, seed)
            for name in names
        ]  # fmt: skip

    def _overrides(self, name: str, warmup_s: float) -> tuple[tuple[str, Any], ...]:
        one = self._table.among[name]
        model = {} if one.model is None else {"model": one.model}
        traffic = {table: {**of, **model} for table, of in self._traffic.items()}
        profile = () if one.profile is None else (("simulated.profile", one.profile),)
        return (
            ("traffic", traffic), ("arrival.shape", None), ("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0), *profile,
        )  # fmt: skip

    def _keep(self, results: Sequence[StepResult]) -> None:
        for one in results:
            if one.valid:
                number, name = _round_and_model(one.step)
                self._rounds[number][name] = one.measured

    def _answer(self, remarks: Sequence[str]) -> Answer:
        from tailgauge.experiments.models import report
        from tailgauge.experiments.models.judge import choice

        return report.answer(choice(self._names, self._rounds, self._slo), remarks)


def _check(base: Base) -> None:
    """Raises UsageError if there is nothing to choose from, or nothing to choose by."""
    among = base.table.models.among
    if len(among) < FEWEST:
        raise UsageError(
            f"{base.path}: experiment.models.among: expected two models or more, as [experiment.models.among.small] with model = '...'"
        )
    if not base.scenario.slo or any(slo.max_ms is None for slo in base.scenario.slo.values()):
        raise UsageError(
            f"{base.path}: slo: models are chosen by their objectives: expected at least one table [slo.NAME], each with max_ms"
        )
    if base.scenario.arrival.process in {CLOSED, TRACE}:
        raise UsageError(
            f"{base.path}: arrival.process: blocks of the same traffic need a rate: expected an open process, as poisson"
        )
    simulated = base.scenario.target.url == SIMULATED
    if simulated and any(one.profile is None for one in among.values()):
        raise UsageError(
            f"{base.path}: experiment.models.among: the simulated endpoint answers alike for every model: expected a `profile` for each"
        )


def _round_and_model(step: Step) -> tuple[int, str]:
    number, _, name = step.name.removeprefix("round ").partition(": ")
    return int(number) - 1, name


def _block_s(minutes: float, runs: int, rounds: int) -> float:
    children = -(-rounds // TOGETHER)
    fits = (minutes * 60 - children * STARTS_S) / runs - RUN_S
    return min(LONGEST_S, max(SHORTEST_S, fits / (1 + WARMUP_SHARE)))
