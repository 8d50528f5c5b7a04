"""Random streams: one for each purpose, so that no two things are ever drawn from the same numbers.

A purpose keeps its number for ever and a new one takes a new number: adding one changes no earlier plan.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for."""

    TIMES = 0
    TRAFFIC = 1
    PROMPT_SIZES = 2
    OUTPUT_SIZES = 3
    TURNS = 4
    FIRST_GAP = 5
    BURSTS = 6
    JITTER = 7
    KEPT = 8
    VARIANTS = 9
    ROWS = 10


def stream(seed: int, purpose: int) -> np.random.Generator:
    """Return an independent random stream for each purpose of a seed."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, purpose])))
