"""The decode steps of a replica: when each ended, how many tokens and memory blocks it adds.

Rule: a call writes all its future steps when it begins to decode and takes back what is left when it leaves early. So
the context of any later step is a running sum, many steps are computed at once, and a call's chunk times are a slice.
Steps are numbered for ever; the arrays hold those from `base` on.
"""

from __future__ import annotations

import numpy as np

from tailgauge.simulator.engine.job import Call, Ints

_ROOM = 4096


class Ledger:
    """Three arrays over the steps; `block_tokens` 0: memory does not grow."""

    def __init__(self, block_tokens: int) -> None:
        self.base = 0
        self.ends: Ints = np.zeros(_ROOM, np.int64)
        self.growth: Ints = np.zeros(_ROOM, np.int64)
        self.blocks: Ints = np.zeros(_ROOM, np.int64)
        self._block_tokens = block_tokens

    def lacks(self, last_step: int) -> bool:
        """Whether a step lies behind the arrays."""
        return last_step - self.base >= len(self.ends)

    def move(self, oldest: int, last_step: int) -> None:
        """Forget the steps before `oldest` and make room for `last_step`."""
        room = max(_ROOM, 2 * (last_step - oldest + 1))
        skip = oldest - self.base
        self.ends, self.growth, self.blocks = (
            _shifted(array, skip, room) for array in (self.ends, self.growth, self.blocks)
        )
        self.base = oldest

    def add(self, call: Call, step: int, index: int, context: int, sign: int) -> None:
        """Add (1) or take back (-1) a call's steps from `step` on, which emit `counts[index:]` on top of `context`."""
        at = step - self.base
        count = len(call.counts) - index
        if call.plain:
            self.growth[at : at + count] += sign
            if self._block_tokens:
                # A token needs a new block where the tokens before it fill theirs.
                self.blocks[at + -context % self._block_tokens : at + count : self._block_tokens] += sign
            return
        tokens = call.counts[index:]
        self.growth[at : at + count] += sign * tokens
        if self._block_tokens:
            after = context + np.cumsum(tokens)
            self.blocks[at : at + count] += sign * (
                -(-after // self._block_tokens) + -(after - tokens) // self._block_tokens
            )


def _shifted(array: Ints, skip: int, room: int) -> Ints:
    moved: Ints = np.zeros(room, np.int64)
    kept = array[skip : skip + room]
    moved[: len(kept)] = kept
    return moved
