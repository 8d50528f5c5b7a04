"""Continuous batching on one replica: sequences join and leave between steps.

The replica plans up to the next moment at which anything can change (a call ends, memory runs out, a prompt is in
work) and its plan is final unless a call enters or leaves: then it is cut at the end of the step in progress. The length of
a step depends only on its calls and their context, so a plan may be cut, or read step by step, and no time moves. Calls are
admitted in the order of arrival; the first one that does not fit blocks those behind it.

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
_STEPS = 4096  # length of a ledger's arrays at first
_FEW = 6  # steps below which Python is faster than numpy


class Batch:
    """One replica under a `StepTime`. `due_ns` is the end of its plan, None while it has nothing to do."""

    def __init__(
        self, index: int, config: EngineConfig, hooks: Hooks, on_end: Callable[[Call], None]
    ) -> None:
        """Make an idle replica. `index`: its number; `on_end` is called with each call that finishes or is cancelled
        here.

        A plan is one step with prompts, or a run of decode steps; `_settle` moves `_step`, `_context` and the memory over
        steps that are done.
        """
        self.index = index
        self._config = config
        self._timing = config.timing
        self._hooks = hooks
        self._on_end = on_end
        self.due_ns: int | None = None
        self.waiting: deque[Call] = deque()
        self.running: dict[int, Call] = {}  # in the order of admission
        self.memory = Memory(config)
        self._slots = config.slots if config.slots is not None else 1 << 62  # None: no limit
        self._ledger = Ledger(config.block_tokens if self.memory.total is not None else 0)
        self._prefilling: list[Call] = []  # oldest first
        self._decoding: dict[int, Call] = {}
        self._ends: list[tuple[int, int]] = []  # heap: last step of each decoding call, its number
        self._context = 0  # tokens held by the decoding calls before `_step`
        self._step = 0  # number of the first decode step of the plan
        self._run = 0  # decode steps in the plan
        self._emitted = 0  # first decode step whose tokens were not emitted
        self._chunks: list[tuple[Call, int]] = []  # prompt tokens of the plan's only step
        self._stopping: list[Call] = []  # cancelled, but still in the step in progress

    def enter(self, call: Call, now_ns: int, out: list[Emission]) -> None:
        """Queue a call that arrives; it waits at least until the step in progress ends."""
        self.waiting.append(call)
        if self.due_ns is None:
            self._begin(now_ns, out)
        elif len(self.waiting) == 1 and len(self.running) < self._slots:
            self._cut(now_ns)

    def complete_plan(self, out: list[Emission]) -> None:
        """Complete the plan, which is over at `due_ns`: end prefills, finished and cancelled calls; begin the next plan.

        Events are appended to `out`.
        """
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
            self._on_end(call)
            if blocked and self.due_ns is not None:
                self._cut(now_ns)
            return
        self._cut(now_ns)
        if at_once:
            self._end(call, now_ns, events.CANCELLED, out)
        else:
            self._stopping.append(call)

    def next_token_ns(self) -> int | None:
        """Return when the next step ends, for a driver that wants each token."""
        if not self._run:
            return self.due_ns
        return int(self._ledger.ends[self._emitted - self._ledger.base])

    def emit_tokens(self, until_ns: int, out: list[Emission]) -> None:
        """Emit the tokens of the plan's steps that ended by `until_ns`."""
        while self._emitted < self._step + self._run:
            end_ns = int(self._ledger.ends[self._emitted - self._ledger.base])
            if end_ns > until_ns:
                return
            for call in self._decoding.values():
                tokens = call.tokens_at(self._emitted)
                if tokens:
                    out.append(Emission(events.TOKENS, call, end_ns, tokens))
            self._emitted += 1

    @property
    def kv_used_share(self) -> float:
        """Return the share of the memory blocks in use after the steps emitted so far."""
        if self.memory.total is None:
            return 0.0
        emitted_steps = max(0, self._emitted - self._step)
        growth = self._ledger.blocks[self._plan_slice(emitted_steps)]
        return self.memory.share(int(growth.sum()))

    def _plan_slice(self, steps: int) -> slice:
        """Return where the ledger has the first steps of the plan."""
        start = self._step - self._ledger.base
        return slice(start, start + steps)

    def _begin(self, now_ns: int, out: list[Emission]) -> None:
        """Begin the next plan: preempt or admit calls, then plan their steps."""
        if not self._preempt():
            self._admit(now_ns, out)
        self._chunks = []
        if self._prefilling:
            self._chunks = self._choose_chunks(now_ns, out)
            self._plan_step(now_ns)
        elif self._decoding:
            self._plan_run(now_ns)
        else:
            self.due_ns = None
            self._run = 0

    def _growth_next(self) -> int:
        """Return the blocks that the next decode step adds."""
        if self.memory.total is None or not self._decoding:
            return 0
        return int(self._ledger.blocks[self._step - self._ledger.base])

    def _preempt(self) -> bool:
        """Send the newest calls back to the head of the queue until the next step fits; return whether any was."""
        preempted = False
        while not self.memory.fits(self._growth_next()):
            call = next(reversed(self.running.values()))
            self._withdraw(call)
            call.skip_pauses()
            self.waiting.appendleft(call)
            preempted = True
        return preempted

    def _admit(self, now_ns: int, out: list[Emission]) -> None:
        """Admit waiting calls in their order, while there are slots and memory for the head of the queue.

        A call reserves memory for its prompt, its tokens so far and its next token. The hooks are asked for its slowdown
        at the first try, and for the tokens that the cache reads at each admission. An admission is appended to `out`.
        """
        growth = self._growth_next()
        while self.waiting and len(self.running) < self._slots:
            call = self.waiting[0]
            # The first try: now the tokens of each of its steps are planned.
            if not len(call.counts):
                call.slowdown = self._hooks.slowdown(call.job, self.index, now_ns)
                plan_steps(call, self._config)
            # After a preemption, the tokens of the answer so far are computed again.
            prefill_tokens = call.job.prompt_tokens + call.tokens_before(call.next_index)
            context = prefill_tokens + int(call.counts[call.next_index])
            blocks = self.memory.blocks(context)
            if not self.memory.fits(blocks + growth):
                return
            self.waiting.popleft()
            self.memory.used += blocks
            cached = self._hooks.cached_tokens(call.job, self.index, now_ns)
            if call.admitted_ns is None:
                call.admitted_ns = now_ns
                call.cached_tokens = min(cached, call.job.prompt_tokens)
            # The last token is always computed: its output is the first token.
            call.prefill_left = ceil(max(1, prefill_tokens - cached) * call.slowdown)
            call.context = context
            call.blocks = blocks
            call.running = True
            self.running[call.number] = call
            self._prefilling.append(call)
            out.append(Emission(events.ADMITTED, call, now_ns))

    def _choose_chunks(self, now_ns: int, out: list[Emission]) -> list[tuple[Call, int]]:
        """Return the prompt tokens for one step, of the oldest call first; decoding calls take one token each."""
        budget_left = self._config.token_budget - len(self._decoding)
        chunks: list[tuple[Call, int]] = []
        for call in self._prefilling:
            tokens = min(call.prefill_left, budget_left)
            if tokens <= 0:
                break
            budget_left -= tokens
            chunks.append((call, tokens))
            if call.prefill_started_ns is None:
                call.prefill_started_ns = now_ns
                out.append(Emission(events.PREFILL_STARTED, call, now_ns))
        return chunks

    def _plan_step(self, now_ns: int) -> None:
        """Plan one step with prompts, in which the decodes take part."""
        decoding = len(self._decoding)
        prompt = sum(tokens for _, tokens in self._chunks)
        fixed, slope = self._step_ns(decoding, prompt)
        self.due_ns = now_ns + round(fixed + slope * self._context)
        self._run = 0
        if decoding:
            self._run = 1
            self._ledger.ends[self._step - self._ledger.base] = self.due_ns

    def _plan_run(self, now_ns: int) -> None:
        """Plan steps of decodes alone from `now_ns` on, until a call ends or memory is full.

        Writes when each step ends into the ledger, and sets `due_ns` and `_run`. A step takes a fixed time and more for
        each token of context, which the tokens of the steps before it add to.
        """
        ledger = self._ledger
        steps = min(self._soonest_end() - self._step + 1, _LONGEST_PLAN)
        if self.memory.total is not None:
            free = self.memory.total - self.memory.used
            # Blocks that the steps up to each one add.
            used = np.cumsum(ledger.blocks[self._plan_slice(steps)])
            steps = min(steps, int(np.searchsorted(used, free, "right")))
        fixed, slope = self._step_ns(len(self._decoding), 0)
        plan = self._plan_slice(steps)
        growth = ledger.growth[plan]
        # Both ways compute the same; few steps are faster without numpy.
        if steps < _FEW:
            end_ns = now_ns
            context = self._context
            for i, step_growth in enumerate(growth.tolist(), plan.start):
                end_ns += round(fixed + slope * context)
                context += step_growth
                ledger.ends[i] = end_ns
        else:
            contexts = self._context + np.cumsum(growth) - growth
            lengths = np.rint(fixed + slope * contexts).astype(np.int64)
            np.cumsum(lengths, out=ledger.ends[plan])
            ledger.ends[plan] += now_ns
            end_ns = int(ledger.ends[plan.stop - 1])
        self.due_ns = end_ns
        self._run = steps

    def _step_ns(self, decoding: int, prompt: int) -> tuple[float, float]:
        """Return the length of a step: a fixed part, and the part that each token of context adds."""
        timing = self._timing
        fixed_ms = timing.step_ms + timing.sequence_ms * decoding + timing.prefill.ms(prompt)
        return fixed_ms * 1e6, timing.context_ms * 1e3

    def _soonest_end(self) -> int:
        """Return the last step of the call that ends first."""
        # Entries of calls that left or began anew are stale.
        while True:
            step, number = self._ends[0]
            call = self._decoding.get(number)
            if call is not None and call.last_step == step:
                return step
            heappop(self._ends)

    def _cut(self, now_ns: int) -> None:
        """Let the plan end with the step in progress."""
        if self._run <= 1:
            return
        ends = self._ledger.ends[self._plan_slice(self._run)]
        self._settle(int(np.searchsorted(ends, now_ns, "right")))
        self._run = 1
        self.due_ns = int(self._ledger.ends[self._step - self._ledger.base])

    def _settle(self, steps: int) -> None:
        """Take the plan's first steps as done."""
        if not steps:
            return
        plan = self._plan_slice(steps)
        self._context += int(self._ledger.growth[plan].sum())
        if self.memory.total is not None:
            self.memory.used += int(self._ledger.blocks[plan].sum())
        self._step += steps

    def _end_prefills(self, now_ns: int, out: list[Emission]) -> None:
        """Let the calls decode whose prompts are complete after this step, and emit their first tokens.

        `_chunks` are the prompt tokens that the step computed, by call. After a preemption the first token of the new
        stint is no first token of the answer. A call with one token ends here.
        """
        for call, tokens in self._chunks:
            call.prefill_left -= tokens
            if call.prefill_left:
                continue
            self._prefilling.remove(call)
            kind = events.TOKENS
            if call.first_ns is None:
                kind = events.FIRST_TOKEN
                call.first_ns = now_ns
                self._hooks.first_token(call.job, self.index, now_ns)
            count = int(call.counts[call.next_index])
            call.stint_ns = now_ns
            call.next_index += 1
            out.append(Emission(kind, call, now_ns, count))
            self._decode(call)
            if call.last_step < self._step:
                self._end(call, now_ns, events.FINISHED, out)

    def _decode(self, call: Call) -> None:
        """Let a call decode: write its steps into the ledger, from the next one on."""
        steps = len(call.counts) - call.next_index
        call.first_step = self._step
        call.last_step = self._step + steps - 1
        self._decoding[call.number] = call
        self._context += call.context
        if steps:
            if self._ledger.lacks(call.last_step):
                oldest = min(c.first_step for c in self._decoding.values())
                self._ledger.move(oldest, call.last_step)
            self._ledger.add(call, self._step, call.next_index, call.context, 1)
            heappush(self._ends, (call.last_step, call.number))

    def _withdraw(self, call: Call) -> None:
        """Take a running call from the batch: free its slot and memory, and store the chunks that it has emitted.

        Used when it ends and when it is preempted; then it may be admitted again.
        """
        del self.running[call.number]
        call.running = False
        # It was still in its prefill: the stint has no chunks.
        if self._decoding.pop(call.number, None) is None:
            self._prefilling.remove(call)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not call]
            self.memory.used -= call.blocks
            call.keep(NO_INTS)
            return
        steps_done = self._step - call.first_step
        emitted = steps_done
        if not call.plain:
            emitted = int(call.counts[call.next_index : call.next_index + steps_done].sum())
        context = call.context + emitted
        self._context -= context
        self.memory.used -= self.memory.blocks(context)
        start = call.first_step - self._ledger.base
        call.keep(self._ledger.ends[start : start + steps_done])
        # Take its remaining steps back from the ledger.
        if call.next_index < len(call.counts):
            self._ledger.add(call, self._step, call.next_index, context, -1)

    def _end(self, call: Call, now_ns: int, kind: str, out: list[Emission]) -> None:
        self._withdraw(call)
        call.ended_ns = now_ns
        out.append(Emission(kind, call, now_ns, call.tokens))
        self._on_end(call)


class Ledger:
    """The decode steps of a replica: when each ended, how many tokens and memory blocks it adds.

    A call writes all its future steps when it begins to decode, and takes the remaining ones back when it leaves early. So
    the context of any later step is a running sum, many steps are computed at once, and a call's chunk times are a slice.
    Steps are numbered without end; the arrays hold those from `base` on. `block_tokens` 0: memory does not grow.
    """

    def __init__(self, block_tokens: int) -> None:
        self.base = 0
        self.ends: Ints = np.zeros(_STEPS, np.int64)
        self.growth: Ints = np.zeros(_STEPS, np.int64)
        self.blocks: Ints = np.zeros(_STEPS, np.int64)
        self._block_tokens = block_tokens

    def lacks(self, last_step: int) -> bool:
        """Return whether a step lies behind the arrays."""
        return last_step - self.base >= len(self.ends)

    def move(self, oldest: int, last_step: int) -> None:
        """Forget the steps before `oldest` and extend the arrays to `last_step`."""
        size = max(_STEPS, 2 * (last_step - oldest + 1))
        skip = oldest - self.base
        self.ends = _shifted(self.ends, skip, size)
        self.growth = _shifted(self.growth, skip, size)
        self.blocks = _shifted(self.blocks, skip, size)
        self.base = oldest

    def add(self, call: Call, step: int, index: int, context: int, sign: int) -> None:
        """Add (`sign` 1) or take back (-1) a call's steps from number `step` on.

        The steps emit `counts[index:]` tokens of the call, on top of `context` tokens that it holds before the first of
        them.
        """
        start = step - self.base
        end = start + len(call.counts) - index
        size = self._block_tokens
        # One token a step.
        if call.plain:
            self.growth[start:end] += sign
            if size:
                # A token needs a new block where the tokens before it fill theirs.
                self.blocks[start + -context % size : end : size] += sign
            return
        tokens = call.counts[index:]
        self.growth[start:end] += sign * tokens
        if size:
            contexts = context + np.cumsum(tokens)
            blocks_after = -(-contexts // size)
            blocks_before = -(-(contexts - tokens) // size)
            self.blocks[start:end] += sign * (blocks_after - blocks_before)


def _shifted(array: Ints, skip: int, size: int) -> Ints:
    """Return an array of `size` elements: those of `array` from `skip` on, then zeros."""
    shifted: Ints = np.zeros(size, np.int64)
    remaining = array[skip : skip + size]
    shifted[: len(remaining)] = remaining
    return shifted


class Memory:
    """KV memory of a replica, in blocks; `total` None means that memory is not modelled.

    A call holds ceil(context / block) blocks. Blocks that a prefix cache shares between calls are counted for each of them:
    this memory is never overcommitted.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.total = config.kv_blocks
        self.used = 0
        self._block = config.block_tokens

    def blocks(self, tokens: int) -> int:
        """Return how many blocks hold so many tokens."""
        if self.total is None:
            return 0
        return -(-tokens // self._block)

    def holds(self, job: Job) -> bool:
        """Return whether the call would fit if it were alone; else it could never run."""
        if self.total is None:
            return True
        return self.blocks(job.prompt_tokens + job.output_tokens) <= self.total

    def fits(self, blocks: int) -> bool:
        """Return whether so many more blocks are free."""
        return self.total is None or self.used + blocks <= self.total

    def share(self, growth: int) -> float:
        """Return the share of the blocks in use, with `growth` more."""
        if not self.total:
            return 0.0
        return (self.used + growth) / self.total
