"""When the tokens of one call are made: by a law of time, or by the engine that serves all calls together.

Rule: a pace fills `due_ns`, one due time a chunk, faults included, and knows when the answer begins and ends. What it
learns goes to the call's account at once. Both kinds offer the same, so that nobody behind them asks which one it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tailgauge.simulator import faults, law
from tailgauge.simulator.delivery import Delivery, sleep_until
from tailgauge.simulator.driver import Driver
from tailgauge.simulator.engine import emission as events
from tailgauge.simulator.engine.emission import Emission
from tailgauge.simulator.engine.job import Job
from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.faults import SLOW_HEADERS, STALL
from tailgauge.simulator.pieces import Answer, late_ns


class Pace(Protocol):
    """What both kinds offer."""

    due_ns: list[int]
    growing: bool

    async def begin(self) -> None:
        """Wait for the first token, and slow headers behind it."""

    async def finish(self) -> None:
        """Wait until the whole answer has been made."""

    def attach(self, delivery: Delivery) -> None:
        """Who delivers the chunks."""

    def sent(self, tokens: int, now_ns: int) -> None:
        """Tokens have left."""

    def leave(self, now_ns: int, *, cancelled: bool) -> None:
        """Nobody waits for the rest: the client has left, or the stream broke off."""

    def when_over(self, close: Callable[[], None]) -> None:
        """Call this when nothing more can happen to the call, or now."""


class LawPace:
    """Each call by the law of `latency`, as if it were alone."""

    growing = False

    def __init__(self, exchange: Exchange, answer: Answer | None) -> None:
        self._exchange = exchange
        self._made_ns = law.made_ns(exchange)
        self._per_chunk = exchange.behaviours.settings.latency.tokens_per_chunk
        self._made = 0
        exchange.look_up(0, exchange.row.received_at_ns)
        self.due_ns = [] if answer is None else faults.due_with(exchange.fault, self._chunks(answer))
        self._opens_ns = self._made_ns[0] + late_ns(exchange, SLOW_HEADERS)

    def _chunks(self, answer: Answer) -> list[int]:
        return law.chunks_ns(self._made_ns, self._per_chunk, self._exchange.ask.max_tokens, answer)

    async def begin(self) -> None:
        """Wait for the first chunk's time."""
        await sleep_until(self._opens_ns)
        self._exchange.begin(self._made_ns[0])

    async def finish(self) -> None:
        """Wait for the last chunk's time."""
        await sleep_until(self._made_ns[-1] + late_ns(self._exchange, SLOW_HEADERS, STALL))
        self._exchange.begin(self._made_ns[0])
        self.sent(self._exchange.ask.max_tokens, self._made_ns[-1])

    def attach(self, delivery: Delivery) -> None:
        """It has all due times already."""

    def sent(self, tokens: int, now_ns: int) -> None:
        """What leaves has just been made."""
        self._made += tokens
        self._exchange.produce(tokens, now_ns)

    def leave(self, now_ns: int, *, cancelled: bool) -> None:
        """The rest is not made; a whole answer was under way without anything leaving."""
        done = law.made_until(self._made_ns, self._per_chunk, self._exchange.ask.max_tokens, now_ns)
        made = self._made if self._exchange.ask.stream else done
        self._exchange.end(made, now_ns, cancelled=cancelled)
        if cancelled:
            self._exchange.row.tokens_after_cancel = 0

    def when_over(self, close: Callable[[], None]) -> None:
        """It is over when nobody waits for it."""
        self._exchange.end(self._made, self._made_ns[-1])
        close()


class EnginePace:
    """A call in the engine: it hears what becomes of it."""

    growing = True

    def __init__(self, exchange: Exchange, answer: Answer | None, driver: Driver) -> None:
        self._exchange, self._answer, self._driver = exchange, answer, driver
        ask, prefix = exchange.ask, exchange.prefix_key
        key = f"{exchange.key}#{exchange.number}" if driver.is_open(exchange.key) else exchange.key
        self._job = Job(key, max(1, ask.input_tokens), max(1, ask.max_tokens), prefix_key=prefix)
        self.due_ns: list[int] = []
        self._made = 0
        self._delivery: Delivery | None = None
        self._over = False
        self._close: Callable[[], None] | None = None
        loop = asyncio.get_running_loop()
        self._first: asyncio.Future[int] = loop.create_future()
        self._last: asyncio.Future[int] = loop.create_future()
        fault = exchange.fault
        self._limit = fault.at_chunk if faults.ends_stream(fault) and fault is not None else None
        self._is_cut = self._limit == 0  # nothing more will leave, because of the fault
        self._limited = exchange.behaviours.limited
        self._late_from = fault.at_chunk if fault is not None and fault.kind == STALL else 0
        self._late_ns = late_ns(exchange, SLOW_HEADERS, STALL)

    def submit(self) -> bool:
        """Hand the call over; False: the engine is full."""
        customers = self._exchange.behaviours.plugs.customers
        customers[self._job.key] = self._exchange
        taken = self._driver.submit(self._job, self._hear)
        if not taken:
            del customers[self._job.key]
        return taken

    async def begin(self) -> None:
        """Wait for the first token."""
        first_ns = await self._first
        slow_ns = late_ns(self._exchange, SLOW_HEADERS)
        if slow_ns:
            await sleep_until(first_ns + slow_ns)

    async def finish(self) -> None:
        """Wait for the last token."""
        last_ns = await self._last
        if self._late_ns:
            await sleep_until(last_ns + self._late_ns)

    def attach(self, delivery: Delivery) -> None:
        """From now on it is woken; what was made before stands in `due_ns`."""
        self._delivery = delivery
        if self._over or self._is_cut:
            delivery.complete()

    def sent(self, tokens: int, now_ns: int) -> None:
        """Tokens count when they are made, not when they leave."""

    def leave(self, now_ns: int, *, cancelled: bool) -> None:  # noqa: ARG002 - the row knows whether the client left
        """The engine goes on as its mode says."""
        self._delivery = None
        self._driver.cancel(self._job)

    def when_over(self, close: Callable[[], None]) -> None:
        """The engine may work on when the client has long left."""
        if self._over:
            close()
        else:
            self._close = close

    def _hear(self, emission: Emission) -> None:
        kind, call, at_ns, tokens = emission
        row = self._exchange.row
        if kind == events.TOKENS:
            self._make(tokens, at_ns)
        elif kind == events.FIRST_TOKEN:
            row.prefill_ended_at_ns, row.replica = at_ns, call.replica
            if not self._first.done():
                self._first.set_result(at_ns)
            self._make(tokens, at_ns)
        elif kind == events.ADMITTED:
            row.admitted_at_ns, row.replica = call.admitted_ns, call.replica
            self._exchange.is_served()
        elif kind == events.PREFILL_STARTED:
            row.prefill_started_at_ns = call.prefill_started_ns
        elif kind == events.PREEMPTED:
            self._exchange.behaviours.meters.preemptions += 1
        else:
            self._end(emission)

    def _make(self, tokens: int, at_ns: int) -> None:
        self._made += tokens
        if self._limited:
            self._exchange.produce(tokens, at_ns)
        if self._answer is None or self._is_cut:
            return
        due_ns = self.due_ns
        for index in range(len(due_ns), self._answer.ready(self._made)):
            due_ns.append(at_ns + self._late_ns if index >= self._late_from else at_ns)
            if len(due_ns) == self._limit:
                self._is_cut = True
                break
        if self._delivery is not None:
            if self._is_cut:
                self._delivery.complete()
            else:
                self._delivery.wake()

    def _end(self, emission: Emission) -> None:
        exchange, row = self._exchange, self._exchange.row
        self._over = True
        del exchange.behaviours.plugs.customers[self._job.key]
        left = row.cancelled_at_ns is not None
        if left:
            row.tokens_after_cancel = emission.call.wasted_tokens
        exchange.end(min(emission.call.tokens, exchange.ask.max_tokens), emission.at_ns, cancelled=left)
        if not self._last.done():
            self._last.set_result(emission.at_ns)
        if self._delivery is not None:
            self._delivery.complete()
        if self._close is not None:
            self._close()
