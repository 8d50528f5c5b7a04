"""The engine in virtual time: a whole run in seconds, as the rows that a real one would write.

Rule: no clock and no sleeping; time jumps from one thing that happens to the next. Two runs of the same arguments give
the same rows to the byte. There is no network and no client: scheduled = dispatched = sent, and a chunk arrives when it
leaves the engine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from tailgauge.schedule.schedule import Schedule
from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.engine.engine import Engine
from tailgauge.simulator.engine.hooks import NO_HOOKS, Hooks
from tailgauge.simulator.engine.job import Ints, Job
from tailgauge.simulator.engine.profiles import PROFILES
from tailgauge.simulator.virtual_fates import Fates
from tailgauge.simulator.virtual_rows import Rows, rows

_EVER_NS = 2**62
_FOLD_EVERY = 512  # calls between two looks at what happened: events do not pile up


@dataclass(frozen=True, slots=True)
class Demands:
    """What each call asks for; arrays of one length, call i takes entry i."""

    prompt_tokens: Ints
    output_tokens: Ints
    work_ms: Sequence[float] | None = None  # for a fluid law
    prefix_keys: Sequence[Hashable] | None = None
    session_keys: Sequence[Hashable] | None = None
    traffic: Sequence[str] | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> Demands:
        """Those of a run's plan."""
        names = [schedule.names[i] for i in schedule.traffic.tolist()]
        return cls(schedule.prompt_tokens, schedule.output_tokens, traffic=names)

    @classmethod
    def of_work(cls, work_ms: Sequence[float]) -> Demands:
        """One prompt token and one output token each: queueing theory's customers."""
        ones = np.ones(len(work_ms), np.int64)
        return cls(ones, ones, work_ms)

    def jobs(self) -> list[Job]:
        """One job a call; its key is its index."""
        n = len(self.prompt_tokens)
        nothing = [None] * n
        prompts, outputs = self.prompt_tokens.tolist(), self.output_tokens.tolist()
        works = nothing if self.work_ms is None else np.asarray(self.work_ms, float).tolist()
        prefixes, sessions = self.prefix_keys or nothing, self.session_keys or nothing
        columns = (range(n), prompts, outputs, works, prefixes, sessions)
        return [Job(*values) for values in zip(*columns, strict=True)]


def engine_config(profile: str | EngineConfig) -> EngineConfig:
    """A profile's engine by its name; a configuration is taken as it is."""
    return profile if isinstance(profile, EngineConfig) else PROFILES[profile].engine


def run(
    profile: str | EngineConfig,
    at_ns: Ints,
    demands: Demands,
    seed: int,
    *,
    hooks: Hooks = NO_HOOKS,
    chunks: bool = True,
) -> Rows:
    """Open loop: call i arrives at `at_ns[i]` (in order), whatever became of the others; runs until all ended.

    Without `chunks` the single chunk times are forgotten: for long runs of which only the attempts matter.
    """
    engine = Engine(engine_config(profile), seed, hooks, tokens=False)
    fates = Fates(len(at_ns), keep_chunks=chunks)
    for i, (job, now_ns) in enumerate(zip(demands.jobs(), at_ns.tolist(), strict=True)):
        fates.sent(i, now_ns)
        engine.submit(job, now_ns)
        if not i % _FOLD_EVERY:
            fates.fold(engine.advance(now_ns))
    fates.fold(engine.advance(_EVER_NS))
    return rows(fates, demands.prompt_tokens, demands.output_tokens, demands.traffic, _name(profile))


def run_closed(
    profile: str | EngineConfig,
    think_ns: Ints,
    users: int,
    until_ns: int,
    demands: Demands,
    seed: int,
    *,
    hooks: Hooks = NO_HOOKS,
    chunks: bool = True,
) -> Rows:
    """Closed loop: each user thinks, calls, waits for the end, and again.

    The run's i-th call follows the think time `think_ns[i]`, counted from the end of that user's call before (from 0
    for the first ones). No call is sent from `until_ns` on, nor when the demands are used up; what is in flight then is
    censored.
    """
    engine = Engine(engine_config(profile), seed, hooks, tokens=False)
    jobs = demands.jobs()
    if len(think_ns) < len(jobs) + users:
        raise ValueError("a closed loop needs a think time for each call and one more for each user")
    fates = Fates(len(jobs), keep_chunks=chunks)
    thinks = iter(think_ns.tolist())
    ready = sorted(next(thinks) for _ in range(users))  # a heap
    count = 0
    while True:
        due_ns = engine.next_due_ns()
        sends = bool(ready) and (due_ns is None or ready[0] < due_ns)
        now_ns = heappop(ready) if sends else due_ns
        if now_ns is None or now_ns >= until_ns or (sends and count == len(jobs)):
            break
        if sends:
            fates.sent(count, now_ns)
            engine.submit(jobs[count], now_ns)
            count += 1
        for ended_ns in fates.fold(engine.advance(now_ns)):
            heappush(ready, ended_ns + next(thinks))
    fates.cut(count)
    traffic = demands.traffic and demands.traffic[:count]
    return rows(fates, demands.prompt_tokens[:count], demands.output_tokens[:count], traffic, _name(profile))


def _name(profile: str | EngineConfig) -> str:
    return profile if isinstance(profile, str) else "virtual"
