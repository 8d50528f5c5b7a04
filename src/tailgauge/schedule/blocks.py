"""Two traffic tables that take turns: which of them an arrival belongs to.

Rule: from the start of the steady stage time is cut into blocks; blocks 2i and 2i + 1 are pair i, and a coin of the seed
says which of the two is table b's. Arrivals of either table belong to the one whose block it is; arrivals before the
steady stage to a. Times and sizes are drawn as ever, other tables are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailgauge.schedule.random_streams import Purpose, stream


def take_turns(
    chosen: Any, at_ns: Any, names: Sequence[str], arms: tuple[str, str], block_s: float, from_s: float, seed: int
) -> Any:  # fmt: skip
    """Indices into `names`, one an arrival, after the two `arms` took turns."""
    a, b = (names.index(name) for name in arms)
    block = np.floor((at_ns / 1e9 - from_s) / block_s).astype(np.int64)
    pairs = max(0, int(block.max(initial=-1))) // 2 + 1
    b_first = stream(seed, Purpose.ARMS).random(pairs) < 0.5
    of_b = (block >= 0) & ((block % 2 == 0) == b_first[np.maximum(block, 0) // 2])
    return np.where((chosen == a) | (chosen == b), np.where(of_b, b, a), chosen)
