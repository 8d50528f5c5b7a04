"""Natural ends: answers that end by themselves, before their limit.

A length is lognormal about its median. One that would exceed the limit is cut there, as a model is.
"""

from __future__ import annotations

import math

from tailgauge.scenario.simulated import NaturalTable
from tailgauge.simulator.behaviours.draws import draws


class NaturalEnds:
    """The natural lengths of an endpoint's answers, drawn for each call by its key."""

    def __init__(self, table: NaturalTable, seed: int) -> None:
        self._table = table
        self._seed = seed

    def draw(self, call_key: str) -> int | None:
        """Return the length that an answer would have by itself, in tokens; None: it goes on to its limit."""
        table = self._table
        if not table.share:
            return None
        random = draws(self._seed, "natural", call_key)
        if random.random() >= table.share:
            return None
        factor = math.exp(random.gauss(0.0, table.sigma)) if table.sigma else 1.0
        return max(1, round(table.tokens * factor))
