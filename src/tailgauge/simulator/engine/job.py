"""What goes into an engine and what comes out: a job, the call that becomes of it and its draws, emissions, and hooks.

A `Job` is never written by the engine, a `Call` is written by the engine only; drivers read both. A draw depends on the seed,
the call's key and its purpose, never on the order in which calls come: taking one call out leaves the others as they were, and
a copy with another key draws anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from tailgauge.simulator.behaviours.draws import digest
from tailgauge.simulator.engine.config import EngineConfig

Ints = np.ndarray[Any, np.dtype[np.int64]]

NO_INTS: Ints = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class Job:
    """One call. `key` is unique among open calls, and with the seed decides every draw of the call."""

    key: int | str
    prompt_tokens: int = 1
    output_tokens: int = 1


@dataclass(slots=True, eq=False)
class Call:
    """A job in the engine. Times in ns; None: not yet, or never."""

    job: Job
    number: int  # order of submission
    replica: int
    entered_ns: int | None = None  # reached its replica
    admitted_ns: int | None = None
    prefill_started_ns: int | None = None
    first_ns: int | None = None
    ended_ns: int | None = None
    cancelled_ns: int | None = None
    cached_tokens: int = 0  # of the prompt, at the first admission
    slowdown: float = 1.0
    running: bool = False
    # Tokens of each of its steps, from the first token on.
    counts: Ints = field(default_factory=lambda: NO_INTS)
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
            times = times[sizes > 0]
            sizes = sizes[sizes > 0]
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
        """Tokens generated after the cancellation."""
        if self.cancelled_ns is None:
            return 0
        return int(self.chunk_tokens[self.chunk_times_ns > self.cancelled_ns].sum())


# --- what happens, of one replica in the order of time ----------------------------------------------------------

ADMITTED = "admitted"
PREFILL_STARTED = "prefill_started"
FIRST_TOKEN = "first_token"  # noqa: S105 - the prefill ended; with the tokens of the first chunk
TOKENS = "tokens"
FINISHED = "finished"
REFUSED = "refused"  # at the door: the queue is full, or the call can never fit
CANCELLED = "cancelled"  # ended by a cancellation
ENDINGS = (FINISHED, CANCELLED, REFUSED)


class Emission(NamedTuple):
    """One thing that happened to one call."""

    kind: str
    call: Call
    at_ns: int
    tokens: int = 0  # of the chunk; of an ending, of the whole call

    @property
    def job(self) -> Job:
        """The call as its caller described it."""
        return self.call.job


class Hooks:
    """Where other behaviours plug in; by default nothing is cached and nobody slow.

    Called in the order of time over all replicas. A hook's answer depends on its arguments and on earlier calls of hooks
    only, or runs do not repeat.
    """

    def cached_tokens(self, job: Job, replica: int, now_ns: int) -> int:  # noqa: ARG002 - the names are the interface
        """Prompt tokens that the replica need not compute; called again when a preempted call is admitted again."""
        return 0

    def slowdown(self, job: Job, replica: int, now_ns: int) -> float:  # noqa: ARG002
        """Factor on the call's work on this replica (S; times X, its size, which all attempts of a call share)."""
        return 1.0

    def first_token(self, job: Job, replica: int, now_ns: int) -> None:
        """The job's prefill is complete: other jobs may now read what it wrote."""

    def ended(self, job: Job, replica: int, now_ns: int, tokens: int) -> None:
        """An admitted job finished or was cancelled after `tokens` tokens."""


NO_HOOKS = Hooks()


# --- random numbers of one call --------------------------------------------------------------------------------


_NORMAL = NormalDist()
_ones: Ints = np.ones(4096, np.int64)
_ones.setflags(write=False)


def uniform(seed: int, key: object, purpose: str) -> float:
    """A number in (0, 1)."""
    return ((digest(8, seed, purpose, key) >> 12) + 0.5) / 2**52


def lognormal(median: float, sigma: float, seed: int, key: object, purpose: str) -> float:
    """A lognormal number; the median itself where sigma is 0."""
    if not sigma:
        return median
    return median * math.exp(sigma * _NORMAL.inv_cdf(uniform(seed, key, purpose)))


def counts(config: EngineConfig, tokens: int, slowdown: float) -> Ints:
    """Tokens of each step of a call, the prefill's first; their sum is `tokens`, the last step may be short.

    Under a slowdown S token group i comes S*i steps after the first: the steps between carry none.
    """
    drawn = _drafted(tokens, 1 + config.draft_tokens) if config.draft_tokens else _all_ones(tokens)
    if slowdown == 1.0:
        return drawn
    steps = np.ceil(np.arange(len(drawn)) * slowdown - 1e-9).astype(np.int64)
    spread = np.zeros(int(steps[-1]) + 1, np.int64)
    np.add.at(spread, steps, drawn)
    return spread


def plan_steps(call: Call, config: EngineConfig) -> None:
    """Give a call the steps of its answer."""
    call.counts = counts(config, call.job.output_tokens, call.slowdown)
    call.plain = not config.draft_tokens and call.slowdown == 1.0


def _drafted(tokens: int, each: int) -> Ints:
    steps: Ints = np.full(-(-tokens // each), each, np.int64)
    steps[-1] -= steps.sum() - tokens
    return steps


def _all_ones(tokens: int) -> Ints:
    # One array that all calls look into: no memory and no time a call.
    global _ones  # noqa: PLW0603 - a cache that only grows
    if tokens > len(_ones):
        _ones = np.ones(2 * tokens, np.int64)
        _ones.setflags(write=False)
    return _ones[:tokens]
