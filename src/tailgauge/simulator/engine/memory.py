"""KV memory of a replica, in blocks.

A call holds ceil(context / block) blocks, or with full reservation those of its longest context from the start.
Blocks that a prefix cache shares between calls are counted for each of them: this memory is never overcommitted.
"""

from __future__ import annotations

from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.engine.job import Job


class Memory:
    """Counts blocks; `total` None means that memory is not modelled."""

    def __init__(self, config: EngineConfig) -> None:
        self.total = config.kv_blocks
        self.used = 0
        self.grows = config.kv_blocks is not None and config.reservation == "growth"
        self._block = config.block_tokens

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return 0 if self.total is None else -(-tokens // self._block)

    def holds(self, job: Job) -> bool:
        """Whether the call would fit if it were alone; else it could never run."""
        return self.total is None or self.blocks(job.prompt_tokens + job.output_tokens) <= self.total

    def at_admission(self, job: Job, context: int) -> int:
        """Blocks that a call needs to begin, with `context` tokens after its first one."""
        return self.blocks(context if self.grows else job.prompt_tokens + job.output_tokens)

    def fits(self, blocks: int) -> bool:
        """Whether so many more blocks are free."""
        return self.total is None or self.used + blocks <= self.total

    def share(self, grown: int = 0) -> float:
        """Of the blocks, those in use, with `grown` ones more."""
        return (self.used + grown) / self.total if self.total else 0.0
