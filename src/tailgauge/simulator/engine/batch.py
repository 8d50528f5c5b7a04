"""Continuous batching on one replica: sequences join and leave between steps.

The replica plans up to the next moment at which anything can change (a call ends, memory runs out, a prompt is in
work) and its plan is final unless a call enters or leaves: then it is cut at the end of the step in progress. A step's
length depends on who is in it and on their context only, so cutting a plan, or looking at it step by step, never moves
a time. Calls are admitted in the order of arrival and wait at the first that does not fit.

Source: iteration-level scheduling (Orca, OSDI 2022), blocks, growth and preemption by recompute (vLLM, SOSP 2023),
chunked prefill (Sarathi-Serve, OSDI 2024); times of a step in `config`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil

import numpy as np

from tailgauge.simulator.engine import job as events
from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.engine.job import NO_INTS, Call, Emission, Hooks, Ints, Job, plan_steps

_LONGEST_PLAN = 256  # steps; a plan that an arrival cuts was computed in vain
_STEPS = 4096  # that the arrays of a ledger hold at first
_FEW = 6  # steps below which Python is faster than numpy


class Batch:
    """One replica under a `StepTime`. `due_ns` is the end of its plan, None while it has nothing to do."""

    def __init__(
        self, index: int, config: EngineConfig, hooks: Hooks, left: Callable[[Call], None]
    ) -> None:
        self.index = index
        self._config = config
        self._timing = config.timing
        self._hooks = hooks
        self._left = left
        self.due_ns: int | None = None
        self.waiting: deque[Call] = deque()
        self.running: dict[int, Call] = {}  # in the order of admission
        self.memory = Memory(config)
        self._slots = config.slots if config.slots is not None else 1 << 62
        self._ledger = Ledger(config.block_tokens if self.memory.total is not None else 0)
        self._prefilling: list[Call] = []
        self._decoding: dict[int, Call] = {}
        self._ends: list[tuple[int, int]] = []  # heap: last step of each decoding call, its number
        self._context = 0  # tokens held by the decoding calls before `_step`
        self._step = 0  # number of the first decode step of the plan
        self._run = 0  # decode steps in the plan
        self._emitted = 0  # first decode step whose tokens were not emitted
        self._chunks: list[tuple[Call, int]] = []  # prompt tokens of the plan's only step
        self._stopping: list[Call] = []  # cancelled, but still in the step in progress

    def enter(self, call: Call, now_ns: int, out: list[Emission]) -> None:
        """A call arrives and waits at least until the step in progress ends."""
        self.waiting.append(call)
        if self.due_ns is None:
            self._begin(now_ns, out)
        elif len(self.waiting) == 1 and len(self.running) < self._slots:
            self._cut(now_ns)

    def happen(self, out: list[Emission]) -> None:
        """What `due_ns` brings: the plan is over."""
        assert self.due_ns is not None
        now_ns = self.due_ns
        self._settle(self._run)
        self._end_prefills(now_ns, out)
        while self._ends and self._ends[0][0] < self._step:
            _, number = heappop(self._ends)
            call = self._decoding.get(number)
            if call is not None and call.last_step < self._step:
                self._end(call, now_ns, events.FINISHED, out)
        for call in self._stopping:
            if call.running:
                self._end(call, now_ns, events.CANCELLED, out)
        self._stopping.clear()
        self._begin(now_ns, out)

    def stop(self, call: Call, now_ns: int, out: list[Emission], *, at_once: bool) -> None:
        """Cancel a call: now, or, if it runs, at the end of its step, whose token it still emits."""
        if not call.running:
            blocked = self.waiting[0] is call
            self.waiting.remove(call)
            call.ended_ns = now_ns
            out.append(Emission(events.CANCELLED, call, now_ns, call.tokens))
            self._left(call)
            if blocked and self.due_ns is not None:
                self._cut(now_ns)
            return
        self._cut(now_ns)
        if at_once:
            self._end(call, now_ns, events.CANCELLED, out)
        else:
            self._stopping.append(call)

    def next_token_ns(self) -> int | None:
        """When the next step ends, for a driver that wants each token."""
        return (
            int(self._ledger.ends[self._emitted - self._ledger.base]) if self._run else self.due_ns
        )

    def emit_tokens(self, until_ns: int, out: list[Emission]) -> None:
        """Emit the tokens of the plan's steps that ended by `until_ns`."""
        while self._emitted < self._step + self._run:
            end_ns = int(self._ledger.ends[self._emitted - self._ledger.base])
            if end_ns > until_ns:
                return
            steps = ((call, call.tokens_at(self._emitted)) for call in self._decoding.values())
            out.extend(
                Emission(events.TOKENS, call, end_ns, tokens) for call, tokens in steps if tokens
            )
            self._emitted += 1

    @property
    def kv_used_share(self) -> float:
        """Share of the memory blocks in use after the steps emitted so far."""
        passed = max(0, self._emitted - self._step)
        at = self._step - self._ledger.base
        grown = (
            int(self._ledger.blocks[at : at + passed].sum()) if self.memory.total is not None else 0
        )
        return self.memory.share(grown)

    def _begin(self, now_ns: int, out: list[Emission]) -> None:
        """Plan what comes next."""
        if not self._preempt():
            self._admit(now_ns, out)
        self._chunks = self._choose_chunks(now_ns, out) if self._prefilling else []
        if self._prefilling:
            self._plan_step(now_ns)
        elif self._decoding:
            self._plan_run(now_ns)
        else:
            self.due_ns = None
            self._run = 0

    def _growth_next(self) -> int:
        """Blocks that the next decode step adds."""
        if self.memory.total is None or not self._decoding:
            return 0
        return int(self._ledger.blocks[self._step - self._ledger.base])

    def _preempt(self) -> bool:
        """Send the newest calls back to the head of the queue until the next step fits."""
        preempted = False
        while not self.memory.fits(self._growth_next()):
            call = next(reversed(self.running.values()))
            self._withdraw(call)
            call.skip_pauses()
            self.waiting.appendleft(call)
            preempted = True
        return preempted

    def _admit(self, now_ns: int, out: list[Emission]) -> None:
        growth = self._growth_next()
        while self.waiting and len(self.running) < self._slots:
            call = self.waiting[0]
            if not len(call.counts):
                call.slowdown = self._hooks.slowdown(call.job, self.index, now_ns)
                plan_steps(call, self._config)
            held = call.job.prompt_tokens + call.tokens_before(call.next)
            context = held + int(call.counts[call.next])
            blocks = self.memory.blocks(context)
            if not self.memory.fits(blocks + growth):
                return
            self.waiting.popleft()
            self.memory.used += blocks
            cached = self._hooks.cached_tokens(call.job, self.index, now_ns)
            if call.admitted_ns is None:
                call.admitted_ns, call.cached_tokens = now_ns, min(cached, call.job.prompt_tokens)
            # The last token is always computed: its output is the first token.
            call.prefill_left = ceil(max(1, held - cached) * call.slowdown)
            call.context = context
            call.blocks = blocks
            call.running = True
            self.running[call.number] = call
            self._prefilling.append(call)
            out.append(Emission(events.ADMITTED, call, now_ns))

    def _choose_chunks(self, now_ns: int, out: list[Emission]) -> list[tuple[Call, int]]:
        """Prompt tokens for one step, oldest call first."""
        left = self._config.token_budget - len(self._decoding)
        chunks: list[tuple[Call, int]] = []
        for call in self._prefilling:
            tokens = min(call.prefill_left, left)
            if tokens <= 0:
                break
            left -= tokens
            chunks.append((call, tokens))
            if call.prefill_started_ns is None:
                call.prefill_started_ns = now_ns
                out.append(Emission(events.PREFILL_STARTED, call, now_ns))
        return chunks

    def _plan_step(self, now_ns: int) -> None:
        """One step with prompts, in which the decodes take part."""
        decoding = len(self._decoding)
        prompt = sum(tokens for _, tokens in self._chunks)
        fixed, slope = self._step_ns(decoding, prompt)
        self.due_ns = now_ns + round(fixed + slope * self._context)
        self._run = 1 if decoding else 0
        if decoding:
            self._ledger.ends[self._step - self._ledger.base] = self.due_ns

    def _plan_run(self, now_ns: int) -> None:
        """Steps of decodes alone, until one ends or memory does."""
        ledger = self._ledger
        at = self._step - self._ledger.base
        steps = min(self._soonest_end() - self._step + 1, _LONGEST_PLAN)
        if self.memory.total is not None:
            free = self.memory.total - self.memory.used
            steps = min(
                steps,
                int(np.searchsorted(np.cumsum(ledger.blocks[at : at + steps]), free, "right")),
            )
        fixed, slope = self._step_ns(len(self._decoding), 0)
        if steps < _FEW:
            end_ns = now_ns
            context = self._context
            for i, growth in enumerate(ledger.growth[at : at + steps].tolist(), at):
                end_ns += round(fixed + slope * context)
                context += growth
                ledger.ends[i] = end_ns
        else:
            growth = ledger.growth[at : at + steps]
            contexts = self._context + np.cumsum(growth) - growth
            lengths = np.rint(fixed + slope * contexts).astype(np.int64)
            np.cumsum(lengths, out=ledger.ends[at : at + steps])
            ledger.ends[at : at + steps] += now_ns
            end_ns = int(ledger.ends[at + steps - 1])
        self.due_ns = end_ns
        self._run = steps

    def _step_ns(self, decoding: int, prompt: int) -> tuple[float, float]:
        """A step's length: a fixed part, and what each token of context adds."""
        timing = self._timing
        fixed_ms = timing.step_ms + timing.sequence_ms * decoding + timing.prefill.ms(prompt)
        return fixed_ms * 1e6, timing.context_ms * 1e3

    def _soonest_end(self) -> int:
        """The last step of the call that ends first; entries of calls that left or began anew are stale."""
        while True:
            step, number = self._ends[0]
            call = self._decoding.get(number)
            if call is not None and call.last_step == step:
                return step
            heappop(self._ends)

    def _cut(self, now_ns: int) -> None:
        """Let the plan end with the step in progress."""
        if self._run > 1:
            at = self._step - self._ledger.base
            self._settle(
                int(np.searchsorted(self._ledger.ends[at : at + self._run], now_ns, "right"))
            )
            self._run = 1
            self.due_ns = int(self._ledger.ends[self._step - self._ledger.base])

    def _settle(self, steps: int) -> None:
        """Take the plan's first steps as done."""
        if not steps:
            return
        at = self._step - self._ledger.base
        self._context += int(self._ledger.growth[at : at + steps].sum())
        if self.memory.total is not None:
            self.memory.used += int(self._ledger.blocks[at : at + steps].sum())
        self._step += steps

    def _end_prefills(self, now_ns: int, out: list[Emission]) -> None:
        for call, tokens in self._chunks:
            call.prefill_left -= tokens
            if call.prefill_left:
                continue
            self._prefilling.remove(call)
            first = call.first_ns is None
            if first:
                call.first_ns = now_ns
                self._hooks.first_token(call.job, self.index, now_ns)
            count = int(call.counts[call.next])
            call.stint_ns = now_ns
            call.next = call.next + 1
            kind = events.FIRST_TOKEN if first else events.TOKENS
            out.append(Emission(kind, call, now_ns, count))
            self._decode(call)
            if call.last_step < self._step:
                self._end(call, now_ns, events.FINISHED, out)

    def _decode(self, call: Call) -> None:
        """A call's prompt is done: write its steps from the next one on."""
        steps = len(call.counts) - call.next
        call.first_step = self._step
        call.last_step = self._step + steps - 1
        self._decoding[call.number] = call
        self._context += call.context
        if steps:
            if self._ledger.lacks(call.last_step):
                oldest = min(c.first_step for c in self._decoding.values())
                self._ledger.move(oldest, call.last_step)
            self._ledger.add(call, self._step, call.next, call.context, 1)
            heappush(self._ends, (call.last_step, call.number))

    def _withdraw(self, call: Call) -> None:
        """Free a call's slot and memory, and store its chunks so far."""
        del self.running[call.number]
        call.running = False
        if self._decoding.pop(call.number, None) is None:
            self._prefilling.remove(call)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not call]
            self.memory.used -= call.blocks
            call.keep(NO_INTS)
            return
        at = call.first_step - self._ledger.base
        done = self._step - call.first_step
        emitted = done if call.plain else int(call.counts[call.next : call.next + done].sum())
        context = call.context + emitted
        self._context -= context
        self.memory.used -= self.memory.blocks(context)
        call.keep(self._ledger.ends[at : at + done])
        if call.next < len(call.counts):
            self._ledger.add(call, self._step, call.next, context, -1)

    def _end(self, call: Call, now_ns: int, kind: str, out: list[Emission]) -> None:
        self._withdraw(call)
        call.ended_ns = now_ns
        out.append(Emission(kind, call, now_ns, call.tokens))
        self._left(call)


class Ledger:
    """The decode steps of a replica: when each ended, how many tokens and memory blocks it adds.

    A call writes all its future steps when it begins to decode and takes back what is left when it leaves early. So the
    context of any later step is a running sum, many steps are computed at once, and a call's chunk times are a slice.
    Steps are numbered for ever; the arrays hold those from `base` on. `block_tokens` 0: memory does not grow.
    """

    def __init__(self, block_tokens: int) -> None:
        self.base = 0
        self.ends: Ints = np.zeros(_STEPS, np.int64)
        self.growth: Ints = np.zeros(_STEPS, np.int64)
        self.blocks: Ints = np.zeros(_STEPS, np.int64)
        self._block_tokens = block_tokens

    def lacks(self, last_step: int) -> bool:
        """Whether a step lies behind the arrays."""
        return last_step - self.base >= len(self.ends)

    def move(self, oldest: int, last_step: int) -> None:
        """Forget the steps before `oldest` and extend the arrays to `last_step`."""
        size = max(_STEPS, 2 * (last_step - oldest + 1))
        skip = oldest - self.base
        arrays = (self.ends, self.growth, self.blocks)
        self.ends, self.growth, self.blocks = (_shifted(one, skip, size) for one in arrays)
        self.base = oldest

    def add(self, call: Call, step: int, index: int, context: int, sign: int) -> None:
        """Add (1) or take back (-1) a call's steps from `step` on, which emit `counts[index:]` on top of `context`."""
        at = step - self.base
        size = self._block_tokens
        count = len(call.counts) - index
        if call.plain:
            self.growth[at : at + count] += sign
            if size:
                # A token needs a new block where the tokens before it fill theirs.
                self.blocks[at + -context % size : at + count : size] += sign
            return
        tokens = call.counts[index:]
        self.growth[at : at + count] += sign * tokens
        if size:
            after = context + np.cumsum(tokens)
            self.blocks[at : at + count] += sign * (-(-after // size) + -(after - tokens) // size)


def _shifted(array: Ints, skip: int, size: int) -> Ints:
    moved: Ints = np.zeros(size, np.int64)
    kept = array[skip : skip + size]
    moved[: len(kept)] = kept
    return moved


class Memory:
    """KV memory of a replica, in blocks; `total` None means that memory is not modelled.

    A call holds ceil(context / block) blocks. Blocks that a prefix cache shares between calls are counted for each of them: this memory is never overcommitted.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.total = config.kv_blocks
        self.used = 0
        self._block = config.block_tokens

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return 0 if self.total is None else -(-tokens // self._block)

    def holds(self, job: Job) -> bool:
        """Whether the call would fit if it were alone; else it could never run."""
        return (
            self.total is None or self.blocks(job.prompt_tokens + job.output_tokens) <= self.total
        )

    def fits(self, blocks: int) -> bool:
        """Whether so many more blocks are free."""
        return self.total is None or self.used + blocks <= self.total

    def share(self, grown: int) -> float:
        """Share of the blocks in use, counting `grown` more."""
        return (self.used + grown) / self.total if self.total else 0.0
