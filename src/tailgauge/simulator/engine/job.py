"""The values that go into an engine and come out: a job, its call in the engine, draws, emissions, and hooks.

A `Job` is never written by the engine, a `Call` is written by the engine only; drivers read both. A draw depends on the seed,
the call's key and its purpose, never on the order in which calls come: without one call, the others are as they were, and a
copy with another key draws anew.
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
    # The stint: the time from an admission to the end, or to a preemption, after which another one begins.
    next_index: int = 0  # index into counts of the stint's first decode step
    first_step: int = 0  # the replica's number of that step
    last_step: int = 0
    prefill_left: int = 0  # prompt tokens
    context: int = 0  # tokens held after the stint's first token
    blocks: int = 0
    stint_ns: int | None = None  # time of the stint's first token
    times: list[Ints] = field(default_factory=list)  # of the chunks of each stint
    sizes: list[Ints] = field(default_factory=list)  # tokens of the same chunks

    def tokens_before(self, index: int) -> int:
        """Return the tokens of the first `index` steps."""
        return index if self.plain else int(self.counts[:index].sum())

    def tokens_at(self, step: int) -> int:
        """Return the tokens that a step of the replica emits of this call."""
        return int(self.counts[self.next_index + step - self.first_step])

    def keep(self, ends: Ints) -> None:
        """Store the chunks of a stint: its first token, then one of each decode step that ended."""
        if self.stint_ns is None:
            return
        times = np.empty(len(ends) + 1, np.int64)
        times[0] = self.stint_ns
        times[1:] = ends
        sizes = self.counts[self.next_index - 1 : self.next_index + len(ends)]
        if not self.plain:
            times = times[sizes > 0]
            sizes = sizes[sizes > 0]
        self.times.append(times)
        self.sizes.append(sizes)
        self.next_index += len(ends)
        self.stint_ns = None

    def skip_pauses(self) -> None:
        """Move on to the next step that emits a token: a stint begins with one."""
        while not self.counts[self.next_index]:
            self.next_index += 1

    @property
    def chunk_times_ns(self) -> Ints:
        """Return when each of the call's chunks left; complete when the call has ended."""
        return _joined(self.times)

    @property
    def chunk_tokens(self) -> Ints:
        """Return the tokens of each chunk."""
        return _joined(self.sizes)

    @property
    def tokens(self) -> int:
        """Return the tokens generated, waste included; complete when the call has ended."""
        return sum(int(sizes.sum()) for sizes in self.sizes)

    @property
    def wasted_tokens(self) -> int:
        """Return the tokens generated after the cancellation."""
        if self.cancelled_ns is None:
            return 0
        return int(self.chunk_tokens[self.chunk_times_ns > self.cancelled_ns].sum())


def _joined(stints: list[Ints]) -> Ints:
    if len(stints) == 1:
        return stints[0]
    return np.concatenate([NO_INTS, *stints])


# --- events of one replica, in the order of time -----------------------------------------------------------------

ADMITTED = "admitted"
PREFILL_STARTED = "prefill_started"
FIRST_TOKEN = "first_token"  # noqa: S105 - the prefill ended; with the tokens of the first chunk
TOKENS = "tokens"
FINISHED = "finished"
REFUSED = "refused"  # not taken: the queue is full, or the call can never fit
CANCELLED = "cancelled"  # ended by a cancellation
ENDINGS = (FINISHED, CANCELLED, REFUSED)


class Emission(NamedTuple):
    """One event of one call."""

    kind: str
    call: Call
    at_ns: int
    tokens: int = 0  # of the chunk; of an ending, of the whole call

    @property
    def job(self) -> Job:
        """Return the job of the call."""
        return self.call.job


class Hooks:
    """Hooks for cache and stragglers; by default nothing is cached and no call is slow.

    Called in the order of time over all replicas. A hook's answer depends on its arguments and on earlier calls of hooks
    only, or runs do not repeat.
    """

    def cached_tokens(self, job: Job, replica: int, now_ns: int) -> int:  # noqa: ARG002 - the names are the interface
        """Return the prompt tokens that the replica need not compute; called at every admission of a preempted call."""
        return 0

    def slowdown(self, job: Job, replica: int, now_ns: int) -> float:  # noqa: ARG002
        """Return the factor on the call's work on this replica: S, times X, which all attempts of a call share."""
        return 1.0

    def first_token(self, job: Job, replica: int, now_ns: int) -> None:
        """Note that the job's prefill is complete: other jobs may now read its entries."""

    def ended(self, job: Job, replica: int, now_ns: int, tokens: int) -> None:
        """Note that an admitted job finished or was cancelled after `tokens` tokens."""


NO_HOOKS = Hooks()


# --- random numbers of one call --------------------------------------------------------------------------------


_NORMAL = NormalDist()
_unit_counts: Ints = np.ones(4096, np.int64)
_unit_counts.setflags(write=False)


def uniform(seed: int, key: object, purpose: str) -> float:
    """Return a number in (0, 1)."""
    return ((digest(8, seed, purpose, key) >> 12) + 0.5) / 2**52


def lognormal(median: float, sigma: float, seed: int, key: object, purpose: str) -> float:
    """Return a lognormal number; the median itself where sigma is 0."""
    if not sigma:
        return median
    return median * math.exp(sigma * _NORMAL.inv_cdf(uniform(seed, key, purpose)))


def counts(config: EngineConfig, tokens: int, slowdown: float) -> Ints:
    """Return the tokens of each step of a call, the prefill's first; their sum is `tokens`, the last step may be short.

    Under a slowdown S, token group i comes S*i steps after the first: the steps between carry none.
    """
    groups = _one_each(tokens)
    if config.draft_tokens:
        groups = _drafted(tokens, 1 + config.draft_tokens)
    if slowdown == 1.0:
        return groups
    steps = np.ceil(np.arange(len(groups)) * slowdown - 1e-9).astype(np.int64)
    spread = np.zeros(int(steps[-1]) + 1, np.int64)
    np.add.at(spread, steps, groups)
    return spread


def plan_steps(call: Call, config: EngineConfig) -> None:
    """Give a call the steps of its answer."""
    call.counts = counts(config, call.job.output_tokens, call.slowdown)
    call.plain = not config.draft_tokens and call.slowdown == 1.0


def _drafted(tokens: int, tokens_per_step: int) -> Ints:
    """Return the tokens of each step where a step emits several; the last step has the rest."""
    steps: Ints = np.full(-(-tokens // tokens_per_step), tokens_per_step, np.int64)
    steps[-1] -= steps.sum() - tokens
    return steps


def _one_each(tokens: int) -> Ints:
    """Return one token for each step: a view of an array that all calls share, which takes no memory per call."""
    global _unit_counts  # noqa: PLW0603 - a cache that only grows
    if tokens > len(_unit_counts):
        _unit_counts = np.ones(2 * tokens, np.int64)
        _unit_counts.setflags(write=False)
    return _unit_counts[:tokens]
