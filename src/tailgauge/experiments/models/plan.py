"""Model choice: the same traffic to each model, in blocks in random order, round after round.

Rule: what the runs say is decided in tailgauge_analysis.choosing; here are the steps. A round is a block of every model,
each a run of its own, in an order that is drawn anew: what drifts hits all alike. All models of a round have the same
arrivals and sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import Course, Ran, SpentError, Step
from tailgauge.experiments.ledger import RUN_S
from tailgauge.experiments.models import report
from tailgauge.experiments.models.block import Block, block
from tailgauge.experiments.models.judge import choice
from tailgauge.experiments.reading import Reading
from tailgauge.experiments.steps import Base
from tailgauge.protocols.settings import SIMULATED
from tailgauge.scenario.experiment import Models as Table
from tailgauge.schedule.settings import CLOSED, TRACE

FEWEST = 2  # models
TOGETHER = 2  # rounds that one child runs
STARTS_S = 8.0  # of a child beside that of its runs
SHORTEST_S, LONGEST_S = 4.0, 120.0  # of a block
WARMUP_SHARE = 0.2  # of a block, before it


def make(base: Base) -> ModelChoice:
    """The experiment of a scenario. Raises UsageError where there is nothing to choose, or nothing to choose by."""
    table = base.asked.models
    if len(table.among) < FEWEST:
        raise UsageError(
            f"{base.path}: experiment.models.among: expected two models or more, as [experiment.models.among.small] with model = '...'"
        )
    if not base.scenario.slo:
        raise UsageError(
            f"{base.path}: slo: the models are chosen by their objectives: expected a table [slo.NAME] at least"
        )
    if base.scenario.arrival.process in {CLOSED, TRACE}:
        raise UsageError(
            f"{base.path}: arrival.process: blocks of the same traffic need a rate: expected an open process, as poisson"
        )
    simulated = base.scenario.target.url == SIMULATED
    if simulated and any(one.profile is None for one in table.among.values()):
        raise UsageError(
            f"{base.path}: experiment.models.among: at the simulated endpoint all models are alike: expected a `profile` for each"
        )
    return ModelChoice(base)


class ModelChoice:
    """The course, and what was seen on it."""

    def __init__(self, base: Base) -> None:
        self._base, self._scenario = base, base.scenario
        self._table: Table = base.asked.models
        self._names = list(self._table.among)
        runs = len(self._names) * self._table.rounds
        self._block_s = self._table.block_s or _block_s(base.asked.minutes, runs, self._table.rounds)
        tree = base.tree()
        self._traffic: dict[str, dict[str, Any]] = tree.get("traffic", {"main": {}})
        self._slo = tree["slo"]
        self._rounds: list[dict[str, Block]] = [{} for _ in range(self._table.rounds)]

    def course(self) -> Course:
        """Every round, then the answer."""
        remarks: list[str] = []
        try:
            for first in range(0, self._table.rounds, TOGETHER):
                numbers = range(first, min(first + TOGETHER, self._table.rounds))
                steps = [step for number in numbers for step in self._round(number)]
                self._keep((yield steps))
        except SpentError as spent:
            remarks.append(f"{spent}: the answer is what was known by then.")
        return self._answer(remarks)

    def look(self, step: Step, reading: Reading) -> Block:
        """The block of a run."""
        _, name = _of(step)
        return block(name, self._table.among[name].price, reading)

    def _round(self, number: int) -> list[Step]:
        """A block of every model, in random order."""
        seed = self._scenario.seed + 7919 * number
        names = list(self._names)
        Random(seed).shuffle(names)
        warmup_s = WARMUP_SHARE * self._block_s
        return [
            Step(f"round {number + 1}: {name}", self._told(name, warmup_s), warmup_s + self._block_s, seed) for name in names
        ]  # fmt: skip

    def _told(self, name: str, warmup_s: float) -> tuple[tuple[str, Any], ...]:
        one = self._table.among[name]
        asked = {} if one.model is None else {"model": one.model}
        traffic = {table: {**of, **asked} for table, of in self._traffic.items()}
        profile = () if one.profile is None else (("simulated.profile", one.profile),)
        return (
            ("traffic", traffic), ("arrival.shape", None), ("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0), *profile,
        )  # fmt: skip

    def _keep(self, ran: Sequence[Ran]) -> None:
        for one in ran:
            if one.counts:
                number, name = _of(one.step)
                self._rounds[number][name] = one.seen

    def _answer(self, remarks: Sequence[str]) -> Answer:
        return report.answer(choice(self._names, self._rounds, self._slo), remarks)


def _of(step: Step) -> tuple[int, str]:
    """Number of the round and name of the model."""
    number, _, name = step.name.removeprefix("round ").partition(": ")
    return int(number) - 1, name


def _block_s(minutes: float, runs: int, rounds: int) -> float:
    children = -(-rounds // TOGETHER)
    fits = (minutes * 60 - children * STARTS_S) / runs - RUN_S
    return min(LONGEST_S, max(SHORTEST_S, fits / (1 + WARMUP_SHARE)))
