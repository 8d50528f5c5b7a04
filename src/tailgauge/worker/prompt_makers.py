"""The makers of a run's prompts, whose sizes follow from what the preflight learns.

`prompts.maker` makes the prompts themselves.
"""

from __future__ import annotations

from collections.abc import Collection

from tailgauge.plan.preflight import Learnt
from tailgauge.prompts import Maker
from tailgauge.prompts.words import run_salt
from tailgauge.scenario.model import Scenario


class PromptMakers:
    """The prompt makers of a run by traffic table. `salt`: text that makes the prompts of each run different."""

    def __init__(self, scenario: Scenario, run_id: str) -> None:
        self._scenario = scenario
        self.salt = ""
        if not scenario.repeat_prompts:
            self.salt = run_salt(run_id)
        self.by_table: dict[str, Maker] = {}
        self._unmarked: frozenset[str] = frozenset()  # targets whose engines cache without marks
        self.learn(Learnt())

    def learn(self, learnt: Learnt, unmarked: Collection[str] | None = None) -> dict[str, Maker]:
        """Size prompts by the tokens that the target counts; `unmarked`: targets that get no cache marks from now on."""
        if unmarked is not None:
            self._unmarked = frozenset(unmarked)
        scenario = self._scenario
        for name, traffic in scenario.traffic.items():
            self.by_table[name] = Maker(
                scenario.seed,
                traffic,
                name,
                1 / learnt.tokens_per_word,
                learnt.overhead_tokens,
                marks=scenario.marks(traffic, self._unmarked),
                run=self.salt,
                words=learnt.words,
            )
        return self.by_table
