"""A call as its caller describes it, and what becomes of it.

Rule: a `Job` is never written by the engine, a `Call` is written by the engine only; drivers read both.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]

NO_INTS: Ints = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class Job:
    """One call. `key` is unique among open calls, and with the seed decides every draw of the call."""

    key: int | str
    prompt_tokens: int = 1
    output_tokens: int = 1
    work_ms: float | None = None  # service requirement, for a fluid law only
    prefix_key: Hashable = None
    session_key: Hashable = None


@dataclass(slots=True, eq=False)
class Call:
    """A job in the engine. Times in ns; None: not yet, or never."""

    job: Job
    number: int  # order of submission
    replica: int
    submitted_ns: int
    entered_ns: int | None = None  # reached its replica
    admitted_ns: int | None = None
    prefill_started_ns: int | None = None
    first_ns: int | None = None
    ended_ns: int | None = None
    cancelled_ns: int | None = None
    cached_tokens: int = 0  # of the prompt, at the first admission
    slowdown: float = 1.0
    preemptions: int = 0
    running: bool = False
    counts: Ints = field(
        default_factory=lambda: NO_INTS
    )  # tokens of each of its steps, from the first token on
    plain: bool = True  # counts are ones
    next: int = 0  # index into counts of the first step of this stint that is a decode
    first_step: int = 0  # the replica's number of that step
    last_step: int = 0
    prefill_left: int = 0
    context: int = 0  # tokens held after this stint's first token
    blocks: int = 0
    stint_ns: int | None = None  # this stint's first token
    times: list[Ints] = field(default_factory=list)
    sizes: list[Ints] = field(default_factory=list)

    def tokens_before(self, index: int) -> int:
        """Tokens of the first `index` steps."""
        return index if self.plain else int(self.counts[:index].sum())

    def tokens_at(self, step: int) -> int:
        """Tokens that a step of the replica emits of this call."""
        return int(self.counts[self.next + step - self.first_step])

    def keep(self, ends: Ints) -> None:
        """Store the chunks of a stint: its first token, then one of each decode step that ended."""
        if self.stint_ns is None:
            return
        times = np.empty(len(ends) + 1, np.int64)
        times[0] = self.stint_ns
        times[1:] = ends
        sizes = self.counts[self.next - 1 : self.next + len(ends)]
        if not self.plain:
            times, sizes = times[sizes > 0], sizes[sizes > 0]
        self.times.append(times)
        self.sizes.append(sizes)
        self.next += len(ends)
        self.stint_ns = None

    def skip_pauses(self) -> None:
        """Move on to the next step that emits something: a stint begins with a token."""
        while not self.counts[self.next]:
            self.next += 1

    @property
    def chunk_times_ns(self) -> Ints:
        """When each of its chunks left; complete when the call has ended."""
        return self.times[0] if len(self.times) == 1 else np.concatenate([NO_INTS, *self.times])

    @property
    def chunk_tokens(self) -> Ints:
        """Tokens of each chunk."""
        return self.sizes[0] if len(self.sizes) == 1 else np.concatenate([NO_INTS, *self.sizes])

    @property
    def tokens(self) -> int:
        """Tokens generated, waste included; complete when the call has ended."""
        return sum(int(sizes.sum()) for sizes in self.sizes)

    @property
    def wasted_tokens(self) -> int:
        """Of these, tokens generated after the cancellation."""
        if self.cancelled_ns is None:
            return 0
        return int(self.chunk_tokens[self.chunk_times_ns > self.cancelled_ns].sum())
