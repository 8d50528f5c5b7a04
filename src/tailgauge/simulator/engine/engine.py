"""The engine: calls in, events out, time as an argument.

`advance`, `submit` and `cancel` first let everything happen that was due by their time, in the order of time: a driver
that is late gets the same times as one that calls at each `next_due_ns()`. With `tokens=False` no single decode step is
emitted: that is cheaper, and the times are the same; a call's own chunk times are filled in at its end.
"""

from __future__ import annotations

from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

from tailgauge.simulator.engine import job as events
from tailgauge.simulator.engine.batch import Batch
from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.engine.job import NO_HOOKS, Call, Emission, Hooks, Job, lognormal, uniform

# Kinds of entry in the queue: a replica's plan ends, a call enters its replica, a call stops.
_REPLICA = 0
_ENTER = 1
_STOP = 2


class Engine:
    """Replicas behind a router. Times never go backwards."""

    def __init__(
        self, config: EngineConfig, seed: int, hooks: Hooks = NO_HOOKS, *, tokens: bool = True
    ) -> None:
        self.config = config
        self._seed = seed
        self._emits_tokens = tokens
        self._hooks = hooks
        replica = config.replica or Batch
        indices = range(config.replicas)
        self.replicas: list[Batch] = [replica(i, config, hooks, self._release) for i in indices]
        self._loads = [0] * config.replicas  # calls not ended, by replica
        self._open: dict[int | str, Call] = {}
        self._submitted = 0  # calls
        self._planned = 0  # entries of the queue
        # Time, order of planning, kind of entry, call or replica. A replica's entry is stale once it planned anew.
        self._queue: list[tuple[int, int, int, Any]] = []
        self._out: list[Emission] = []

    def submit(self, job: Job, now_ns: int) -> bool:
        """Take a call; return False for a refusal, if its replica's queue is full or it can never fit into memory.

        First everything happens that is due by `now_ns`. A refusal is emitted too. A taken call reaches its replica after
        a drawn delay, or at once where the engine has no overhead.
        """
        self._let_happen(now_ns)
        self._check(job)
        index = self._route(job)
        call = Call(job, self._submitted, index)
        self._submitted += 1
        if self._is_full(index) or not self.replicas[index].memory.holds(job):
            call.ended_ns = now_ns
            self._out.append(Emission(events.REFUSED, call, now_ns))
            return False
        self._open[job.key] = call
        self._loads[index] += 1
        median_ms = self.config.overhead_ms
        sigma = self.config.overhead_sigma
        if median_ms:
            delay_ms = lognormal(median_ms, sigma, self._seed, job.key, "overhead")
            self._note(now_ns + round(delay_ms * 1e6), _ENTER, call)
        else:
            self._enter(call, now_ns)
        return True

    def cancel(self, job: Job, now_ns: int) -> None:
        """Treat a call by the configured mode, because its caller is gone. A call that has ended is left alone."""
        self._let_happen(now_ns)
        call = self._open.get(job.key)
        if call is None or call.cancelled_ns is not None:
            return
        call.cancelled_ns = now_ns
        mode = self.config.cancel_mode
        if mode == "after_ms":
            self._note(now_ns + round(self.config.cancel_after_ms * 1e6), _STOP, call)
        elif mode != "never":
            self._stop(call, now_ns)

    def next_due_ns(self) -> int | None:
        """Return when the next event is due; None: nothing happens until a call is submitted."""
        queue = self._queue
        while queue and _is_stale(queue[0]):
            heappop(queue)
        if not queue:
            return None
        due_ns = queue[0][0]
        if self._emits_tokens:
            for replica in self.replicas:
                token_ns = replica.next_token_ns()
                if token_ns is not None and token_ns < due_ns:
                    due_ns = token_ns
        return due_ns

    def advance(self, now_ns: int) -> list[Emission]:
        """Return everything that happened up to now and was not emitted yet, in the order of time."""
        self._let_happen(now_ns)
        out = self._out[:]
        self._out.clear()
        out.sort(key=attrgetter("at_ns"))  # each replica's own are in order, and stay so
        return out

    @property
    def kv_used_share(self) -> float:
        """Return the share of the memory of all replicas in use now."""
        return sum(replica.kv_used_share for replica in self.replicas) / len(self.replicas)

    def _check(self, job: Job) -> None:
        """Raise ValueError for a job that the engine cannot take."""
        if job.key in self._open:
            raise ValueError(f"a call with the key {job.key!r} is still open")
        if job.prompt_tokens < 1 or job.output_tokens < 1:
            raise ValueError("a call has at least one prompt token and one output token")

    def _route(self, job: Job) -> int:
        """Return the replica of a call; with equal loads the first."""
        if self.config.router == "random":
            return int(uniform(self._seed, job.key, "route") * len(self.replicas))
        return self._loads.index(min(self._loads))

    def _is_full(self, index: int) -> bool:
        config = self.config
        if config.queue_cap is None:
            return False
        assert config.slots is not None
        return self._loads[index] >= config.slots + config.queue_cap

    def _let_happen(self, now_ns: int) -> None:
        """Let everything happen that is due by now, in the order of time; what it emits is kept in `_out` for `advance`.

        `_queue` is a heap of ends of a replica's plan, calls that reach their replica, and calls to stop. A stale entry
        has no effect: its replica has planned anew, or its call has ended.
        """
        queue = self._queue
        out = self._out
        while queue and queue[0][0] <= now_ns:
            entry = heappop(queue)
            if _is_stale(entry):
                continue
            due_ns, _, kind, subject = entry
            if kind == _REPLICA:
                if self._emits_tokens:
                    subject.emit_tokens(due_ns, out)
                subject.complete_plan(out)
                self._plan(subject)
            elif kind == _ENTER:
                self._enter(subject, due_ns)
            else:  # _STOP
                self._stop(subject, due_ns)
        # Of the plans in progress: their steps that ended by now.
        if self._emits_tokens:
            for replica in self.replicas:
                replica.emit_tokens(now_ns, out)

    def _enter(self, call: Call, now_ns: int) -> None:
        """Let a call reach its replica."""
        replica = self.replicas[call.replica]
        call.entered_ns = now_ns
        planned_ns = replica.due_ns
        replica.enter(call, now_ns, self._out)
        if replica.due_ns != planned_ns:
            self._plan(replica)

    def _stop(self, call: Call, now_ns: int) -> None:
        """Cancel a call on its replica, or before it has reached that."""
        replica = self.replicas[call.replica]
        if call.entered_ns is None:
            call.ended_ns = now_ns
            self._out.append(Emission(events.CANCELLED, call, now_ns))
            self._release(call)
            return
        if self._emits_tokens:
            replica.emit_tokens(now_ns, self._out)
        replica.stop(call, now_ns, self._out, at_once=self.config.cancel_mode == "immediate")
        self._plan(replica)

    def _release(self, call: Call) -> None:
        """Forget a call that has ended."""
        self._loads[call.replica] -= 1
        del self._open[call.job.key]
        if call.admitted_ns is not None:
            assert call.ended_ns is not None
            self._hooks.ended(call.job, call.replica, call.ended_ns, call.tokens)

    def _plan(self, replica: Batch) -> None:
        if replica.due_ns is not None:
            self._note(replica.due_ns, _REPLICA, replica)

    def _note(self, due_ns: int, kind: int, subject: Call | Batch) -> None:
        self._planned += 1
        heappush(self._queue, (due_ns, self._planned, kind, subject))


def _is_stale(entry: tuple[int, int, int, Any]) -> bool:
    """Return whether an entry of the queue has no effect: its replica planned anew, or its call ended."""
    due_ns, _, kind, subject = entry
    if kind == _REPLICA:
        return bool(subject.due_ns != due_ns)
    return subject.ended_ns is not None
