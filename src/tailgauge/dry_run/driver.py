"""The driver of the simulator's core in a dry run, and its clock: no HTTP is between the core and its client.

What happens next is in the order of time, and of planning where the times are equal; time jumps to the next event. Two runs
that plan the same events see the same.

What the endpoint sends has arrived. A client that has left receives nothing more; the endpoint may go on. Only what the client
waits for is an event of the queue, not each chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from tailgauge.call import JOB_CANCEL, JOB_SUBMIT, Call
from tailgauge.protocols.protocol import WireProtocol
from tailgauge.rows.schema import ServerLogRow
from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.behaviours import gateway, tokens
from tailgauge.simulator.behaviours.faults import END_MARK
from tailgauge.simulator.core.answer import Answer, answer_to
from tailgauge.simulator.core.encoding import Encoding
from tailgauge.simulator.core.endpoint import Endpoint
from tailgauge.simulator.core.exchange import Exchange, whole
from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.request import CallRequest, Refused
from tailgauge.simulator.protocols.wire import WIRES


class Timer:
    """A planned event."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object] | None) -> None:
        self.call = call

    def cancel(self) -> None:
        """Cancel the timer."""
        self.call = None


class EventQueue:
    """The time, and what is planned; a driver's `Timing`."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._planned = 0
        self._heap: list[tuple[int, int, Timer]] = []

    def now_ns(self) -> int:
        """The time, in ns."""
        return self._now_ns

    def call_at(self, at_ns: int, call: Callable[[], object]) -> Timer:
        """Call at a time; one that has passed is now, after everything that is planned for now."""
        timer = Timer(call)
        self._planned += 1
        heappush(self._heap, (max(at_ns, self._now_ns), self._planned, timer))
        return timer

    def pass_to(self, at_ns: int) -> None:
        """Let time pass in which nothing happens."""
        self._now_ns = at_ns

    def run(self, beside: DryEndpoint) -> None:
        """Until nothing is planned and nothing moves beside it."""
        heap = self._heap
        while True:
            while heap and heap[0][2].call is None:
                heappop(heap)
            due_ns = beside.next_due_ns()
            if heap and (due_ns is None or heap[0][0] < due_ns):
                self._now_ns, _, timer = heappop(heap)
                call = timer.call
                timer.call = None
                assert call is not None
                call()
            elif due_ns is not None:
                self._now_ns = due_ns
            else:
                return
            beside.settle(self._now_ns)


# --- the way of an answer ---------------------------------------------------------------------------------------


class Client(Protocol):
    """Who waits for the answer; each method is called at its time."""

    def on_headers(self) -> None:
        """The response has begun, with status 200."""

    def on_content(self) -> None:
        """The first content is there."""

    def on_watched(self) -> None:
        """The chunk that the call watches for is there."""

    def on_end(self) -> None:
        """The response is over; the answer's `ending` is how."""

    def on_over(self) -> None:
        """Nothing more happens to the call, at the endpoint neither; it may come before `on_end` and before a `leave`."""


class Delivery:
    """One answer on its way. `watch`: number of the chunk that the client waits for, 0 for none."""

    def __init__(self, answer: Answer, client: Client, queue: EventQueue, watch: int) -> None:
        self._holds = answer.exchange.is_held
        self._held: list[Callable[[], None]] = []  # what the client has not learned yet
        self.answer = answer
        self._client = client
        self._queue = queue
        self._watch = watch
        self._planned = self._contents = 0  # chunks looked at, and those of content among them
        self._begins = self._ends = self._opened = self._left = self._ended = False
        self._starting = True  # the caller is not ready yet: nothing happens at once
        answer.on_change = self._plan
        answer.on_over = client.on_over
        if answer.headers_at_once:
            self._open()
        self._plan()
        self._starting = False

    def leave(self) -> None:
        """The client has gone."""
        self._left = True
        now_ns = self._queue.now_ns()
        self.answer.leave(now_ns, bisect_right(self.answer.due_ns, now_ns))

    def chunks(self, until_ns: int) -> tuple[list[int], list[int], list[str]]:
        """Times, tokens and kinds of the content that was there by then."""
        answer = self.answer
        times = answer.due_ns[: bisect_right(answer.due_ns, until_ns)]
        if self._holds:
            times = [until_ns] * len(times) if self._ended else []
        sizes = [answer.tokens_in(i + 1) - answer.tokens_in(i) for i in range(len(times))]
        every = zip(times, sizes, answer.pieces.kinds(len(times)), strict=True)
        rows = [(at_ns, size, kind) for at_ns, size, kind in every if kind is not None]
        return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]

    def pieces(self, until_ns: int) -> list[tuple[int, bytes]]:
        """Times and bytes of what was there by then, in their order."""
        answer = self.answer
        opens_ns = answer.opens_ns
        is_held = self._holds and not self._ended
        if opens_ns is None or opens_ns > until_ns or is_held:
            return []
        if not answer.streams:
            return [(until_ns, whole(answer.exchange))] if self._ended else []
        encoding = Encoding(answer, chunked=False)
        sent = [(opens_ns, encoding.head())]
        for index, at_ns in enumerate(answer.due_ns[: bisect_right(answer.due_ns, until_ns)]):
            sent.append((at_ns, encoding.chunk(index)))
        if self._ended:
            sent.append((until_ns, encoding.end()))
        if self._holds:
            sent = [(until_ns, data) for _, data in sent]
        return [(at_ns, data) for at_ns, data in sent if data]

    def log_chunks(self) -> None:
        """Complete the endpoint's row: nothing more happens to the call."""
        left_ns = self.answer.exchange.row.cancelled_at_ns
        due_ns = self.answer.due_ns
        self.answer.log_chunks(
            due_ns if left_ns is None else due_ns[: bisect_right(due_ns, left_ns)]
        )

    def _plan(self) -> None:
        """More of the answer is known."""
        answer = self.answer
        if self._left or self._ended or answer.opens_ns is None:
            return
        if not self._begins:
            self._begins = True
            self._then(answer.opens_ns, self._begin)
            if answer.counts_sent:
                for index, at_ns in enumerate(answer.due_ns):
                    self._then(at_ns, partial(self._sent, index))
        self._plan_contents()
        if answer.complete and not self._ends:
            self._ends = True
            last_ns = max([answer.opens_ns, *answer.due_ns[-1:]])
            self._then(answer.end_ns(last_ns), self._end)

    def _plan_contents(self) -> None:
        """The first content, and the chunk that the client waits for."""
        answer = self.answer
        for index in range(self._planned, len(answer.due_ns)):
            if self._contents and self._contents >= self._watch:
                break
            if answer.is_content(index):
                self._contents += 1
                if self._contents == 1:
                    self._then(answer.due_ns[index], self._content)
                if self._contents == self._watch:
                    self._then(answer.due_ns[index], self._watched)
        self._planned = len(answer.due_ns)

    def _then(self, at_ns: int, call: Callable[[], None]) -> None:
        """At a time, or at once where it is now."""
        if at_ns > self._queue.now_ns() or self._starting:
            self._queue.call_at(at_ns, call)
        else:
            call()

    def _begin(self) -> None:
        if not self._left:
            self.answer.opened(self._queue.now_ns())
            if self.answer.streams:
                self._open()

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self.answer.send_headers(self._queue.now_ns())
            self._arrives(self._client.on_headers)

    def _sent(self, index: int) -> None:
        if not self._left:
            self.answer.sent(index, self._queue.now_ns())

    def _content(self) -> None:
        if not self._left and not self._ended:
            self._open()
            self._arrives(self._client.on_content)

    def _watched(self) -> None:
        if not (self._left or self._ended or self._holds):
            self._client.on_watched()

    def _arrives(self, at_client: Callable[[], None]) -> None:
        if self._holds:
            self._held.append(at_client)
        else:
            at_client()

    def _end(self) -> None:
        if self._left or self._ended:
            return
        if self.answer.streams or self.answer.ending == END_MARK:
            self._open()
        self._ended = True
        self.answer.finish(self._queue.now_ns(), len(self.answer.due_ns))
        for arrived in (*self._held, self._client.on_end):
            arrived()


# --- the endpoint ----------------------------------------------------------------------------------------------


_VERSION = "2023-06-01"  # of the API, as the SDK names it
RUN = "dry_run"
WALL_START_NS = 1_767_225_600 * 10**9  # 1 January 2026
_Key = tuple[int, int, int]  # request, leg, attempt


class DryEndpoint:
    """One endpoint, and the driver of its core. `engine` and `watched`: see `core.Endpoint`."""

    def __init__(
        self, table: Simulated, seed: int, queue: EventQueue, *, watched: bool = False, engine: EngineConfig | None = None
    ) -> None:  # fmt: skip
        self._queue = queue
        self._changed = False
        self._number = 0
        self.now_ns = queue.now_ns
        self._wires = {wire.NAME: wire for wire in WIRES}
        self.core = Endpoint(table, seed, self, watched=watched, engine=engine)

    def wall_ns(self) -> int:
        """The time since 1970, for headers with a date: a dry run begins on the same day each time."""
        return WALL_START_NS + self.now_ns()

    def exchange(self, key: _Key, protocol: str) -> Exchange:
        """A call has come: its account, and its row in the server log."""
        name = "/".join((RUN, *map(str, key)))
        wire = self._wires.get(protocol, anthropic)
        row = ServerLogRow(
            name, *key, wire.NAME, 200, self.now_ns(), None, None, [], None, None, 0, 0
        )
        self._number += 1
        return Exchange(self.core, row, wire, self._number)

    def through_gateway(self, exchange: Exchange) -> int:
        """A call passes the gateway: how long that takes, in ns."""
        table = self.core.table.gateway
        exchange.is_held = table.holds
        return gateway.delay_ns(table, self.core.seed, exchange.key)

    def serve(
        self, exchange: Exchange, call: Call, model: str, client: Client, protocol: WireProtocol
    ) -> Delivery | bytes:
        """Take a call, or raise `Refused`; of a call about a job, the body of the answer.

        `protocol`: of the client, which writes the body.
        """
        now_ns = self.now_ns()
        try:
            if call.job is not None:
                return exchange.job(
                    "DELETE" if call.kind == JOB_CANCEL else "GET", call.job, now_ns
                )
            self._accept(exchange, call, model, protocol)
            exchange.resume("" if call.event_ids is None else call.event_ids.last_id)
            exchange.admit(now_ns)
            if call.kind == JOB_SUBMIT:
                return exchange.submit_job(now_ns)
            return Delivery(answer_to(exchange), client, self._queue, call.watch_chunks)
        except Refused as refused:
            row = exchange.row
            exchange.log_refusal(refused)
            row.headers_at_ns = row.ended_at_ns = now_ns
            raise

    def _accept(self, exchange: Exchange, call: Call, model: str, protocol: WireProtocol) -> None:
        """Read the call."""
        prompt = call.prompt
        if self.core.table.cache.mode == "off" and not (
            prompt.tools or prompt.system or call.schema
        ):
            # Messages of text only: nothing but their size is looked at.
            count = sum(
                tokens.count(part.text) for message in prompt.messages for part in message.parts
            )
            thinks = call.thinking != "off"
            request = CallRequest(
                model, call.max_tokens, count, call.stream, include_usage=True, thinking=thinks
            )
            exchange.accept(request, {})
        else:
            written = protocol.body(call, model)
            assert written is not None
            body = dict(written)
            exchange.accept(replace(exchange.wire.parse(body, _VERSION), include_usage=True), body)

    # --- the driver of the core, and what moves by itself beside the queue ------------------------------------

    def engine_changed(self) -> None:
        """What follows happens after the event that the queue is at."""
        self._changed = True

    def next_due_ns(self) -> int | None:
        """When the engine moves next."""
        return None if self.core.engine is None else self.core.engine.next_due_ns()

    def settle(self, now_ns: int) -> None:
        """Let everything happen that is due in the engine, and what follows from it."""
        engine = self.core.engine
        if engine is None:
            return
        due_ns = engine.next_due_ns()
        self._changed |= due_ns is not None and due_ns <= now_ns
        while self._changed:
            self._changed = False
            self.core.advance(now_ns)
