"""Natural ends: answers that end by themselves, before their limit.

A length is lognormal about its median. One that would exceed the limit is cut there, as a model is.
"""

from __future__ import annotations

import math

from tailgauge.scenario.simulated import NaturalTable
from tailgauge.simulator.behaviours.draws import draws


def natural_length(table: NaturalTable, seed: int, call_key: str) -> int | None:
    """Return the length that an answer would have by itself, in tokens; None: it goes on to its limit."""
    if not table.share:
        return None
    random = draws(seed, "natural", call_key)
    if random.random() >= table.share:
        return None
    factor = 1.0
    if table.sigma:
        factor = math.exp(random.gauss(0.0, table.sigma))
    return max(1, round(table.tokens * factor))
