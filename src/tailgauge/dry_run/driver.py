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
from tailgauge.simulator.core.job_calls import answer_about_job, submit_job
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
        """Return the time, in ns."""
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

    def run(self, endpoint: DryEndpoint) -> None:
        """Call what is planned, until nothing is planned and nothing moves in the endpoint.

        Time jumps to the next event: of the queue, or of the endpoint's engine, which goes first where both are due.
        """
        heap = self._heap
        while True:
            while heap and heap[0][2].call is None:
                heappop(heap)
            due_ns = endpoint.next_due_ns()
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
            endpoint.settle(self._now_ns)


# --- the way of an answer ---------------------------------------------------------------------------------------


class Client(Protocol):
    """The client that waits for the answer; each method is called at its time."""

    def on_headers(self) -> None:
        """The response has begun, with status 200."""

    def on_content(self) -> None:
        """The first content is there."""

    def on_watched(self) -> None:
        """The chunk that the call watches for is there."""

    def on_end(self) -> None:
        """The response is over; the answer's `ending` says how."""

    def on_over(self) -> None:
        """Nothing more happens to the call, at the endpoint neither; it may come before `on_end` and before a `leave`."""


class Delivery:
    """One answer on its way: plans the client's calls at the times that the endpoint knows.

    `watch`: number of the chunk that the client waits for, 0 for none.
    """

    def __init__(self, answer: Answer, client: Client, queue: EventQueue, watch: int) -> None:
        """Plan what is known of the answer, and follow it: `answer` calls back when more is known, and when it is over.

        `watch`: number of the content chunk that the client waits for, 0 for none. While this runs, calls at the present
        time are planned, because the caller has no delivery yet.
        """
        self._is_held = answer.exchange.is_held  # by a gateway, until the answer is whole
        self._held_calls: list[Callable[[], None]] = []  # of the client, until then
        self.answer = answer
        self._client = client
        self._queue = queue
        self._watch = watch
        self._planned = 0  # chunks looked at
        self._contents = 0  # those of content among them
        self._has_planned_begin = False
        self._has_planned_end = False
        self._has_opened = False
        self._has_left = False
        self._has_ended = False
        self._is_starting = True  # the caller is not ready yet: nothing happens at once
        answer.on_change = self._plan
        answer.on_over = client.on_over
        if answer.headers_at_once:
            self._open()
        self._plan()
        self._is_starting = False

    def leave(self) -> None:
        """Send nothing more to the client: it has gone."""
        self._has_left = True
        now_ns = self._queue.now_ns()
        self.answer.leave(now_ns, bisect_right(self.answer.due_ns, now_ns))

    def chunks(self, until_ns: int) -> tuple[list[int], list[int], list[str]]:
        """Return times, tokens and kinds of the content that was there by then."""
        answer = self.answer
        times = answer.due_ns[: bisect_right(answer.due_ns, until_ns)]
        if self._is_held and not self._has_ended:
            times = []
        arrivals: list[int] = []
        sizes: list[int] = []
        kinds: list[str] = []
        for index, kind in enumerate(answer.pieces.kinds(len(times))):
            if kind is not None:
                arrivals.append(until_ns if self._is_held else times[index])
                sizes.append(answer.tokens_in(index + 1) - answer.tokens_in(index))
                kinds.append(kind)
        return arrivals, sizes, kinds

    def pieces(self, until_ns: int) -> list[tuple[int, bytes]]:
        """Return times and bytes of what was there by `until_ns`, in their order.

        For answers that are decoded. Nothing before the answer opens; an answer in one piece, and one that a gateway
        holds, comes as a whole at its end.
        """
        answer = self.answer
        opens_ns = answer.opens_ns
        if opens_ns is None or opens_ns > until_ns:
            return []
        # A held answer, and one that is no stream, comes in one piece at its end.
        is_whole = self._is_held or not answer.streams
        if is_whole and not self._has_ended:
            return []
        if not answer.streams:
            return [(until_ns, whole(answer.exchange))]
        encoding = Encoding(answer, chunked=False)
        pieces = [(opens_ns, encoding.head())]
        for index, at_ns in enumerate(answer.due_ns[: bisect_right(answer.due_ns, until_ns)]):
            pieces.append((at_ns, encoding.chunk(index)))
        if self._has_ended:
            pieces.append((until_ns, encoding.end()))
        if self._is_held:
            pieces = [(until_ns, data) for _, data in pieces]
        return [(at_ns, data) for at_ns, data in pieces if data]

    def log_chunks(self) -> None:
        """Complete the endpoint's row: nothing more happens to the call."""
        cancelled_ns = self.answer.exchange.row.cancelled_at_ns
        due_ns = self.answer.due_ns
        if cancelled_ns is not None:
            due_ns = due_ns[: bisect_right(due_ns, cancelled_ns)]
        self.answer.log_chunks(due_ns)

    def _plan(self) -> None:
        """Plan what has become known of the answer."""
        answer = self.answer
        if self._has_left or self._has_ended or answer.opens_ns is None:
            return
        if not self._has_planned_begin:
            self._has_planned_begin = True
            self._call_at(answer.opens_ns, self._begin)
            if answer.counts_sent:
                for index, at_ns in enumerate(answer.due_ns):
                    self._call_at(at_ns, partial(self._count_sent, index))
        self._plan_contents()
        if answer.complete and not self._has_planned_end:
            self._has_planned_end = True
            last_ns = max([answer.opens_ns, *answer.due_ns[-1:]])
            self._call_at(answer.end_ns(last_ns), self._end)

    def _plan_contents(self) -> None:
        """Plan the first content, and the chunk that the client waits for."""
        answer = self.answer
        for index in range(self._planned, len(answer.due_ns)):
            if self._contents and self._contents >= self._watch:
                break
            if answer.is_content(index):
                self._contents += 1
                if self._contents == 1:
                    self._call_at(answer.due_ns[index], self._content)
                if self._contents == self._watch:
                    self._call_at(answer.due_ns[index], self._watched)
        self._planned = len(answer.due_ns)

    def _call_at(self, at_ns: int, call: Callable[[], None]) -> None:
        """Call at a time, or at once if it has come."""
        if at_ns > self._queue.now_ns() or self._is_starting:
            self._queue.call_at(at_ns, call)
        else:
            call()

    def _begin(self) -> None:
        if not self._has_left:
            self.answer.opened(self._queue.now_ns())
            if self.answer.streams:
                self._open()

    def _open(self) -> None:
        if not self._has_opened:
            self._has_opened = True
            self.answer.send_headers(self._queue.now_ns())
            self._pass_on(self._client.on_headers)

    def _count_sent(self, index: int) -> None:
        if not self._has_left:
            self.answer.sent(index, self._queue.now_ns())

    def _content(self) -> None:
        if not self._has_left and not self._has_ended:
            self._open()
            self._pass_on(self._client.on_content)

    def _watched(self) -> None:
        if not (self._has_left or self._has_ended or self._is_held):
            self._client.on_watched()

    def _pass_on(self, call: Callable[[], None]) -> None:
        """Call the client, at the end if the answer is held until then."""
        if self._is_held:
            self._held_calls.append(call)
        else:
            call()

    def _end(self) -> None:
        if self._has_left or self._has_ended:
            return
        if self.answer.streams or self.answer.ending == END_MARK:
            self._open()
        self._has_ended = True
        self.answer.finish(self._queue.now_ns(), len(self.answer.due_ns))
        for call in self._held_calls:
            call()
        self._client.on_end()


# --- the endpoint ----------------------------------------------------------------------------------------------


_VERSION = "2023-06-01"  # of the API, as the SDK names it
RUN = "dry_run"
WALL_START_NS = 1_767_225_600 * 10**9  # 1 January 2026
_Key = tuple[int, int, int]  # request, leg, attempt


class DryEndpoint:
    """One endpoint, and the driver of its core. `engine` and `watched`: see `core.Endpoint`."""

    def __init__(
        self,
        table: Simulated,
        seed: int,
        queue: EventQueue,
        *,
        watched: bool = False,
        engine: EngineConfig | None = None,
    ) -> None:
        self._queue = queue
        self._changed = False
        self._number = 0
        self.now_ns = queue.now_ns
        self._wires = {wire.NAME: wire for wire in WIRES}
        self.core = Endpoint(table, seed, self, watched=watched, engine=engine)

    def wall_ns(self) -> int:
        """Return the time since 1970, for headers with a date: a dry run begins on the same day each time."""
        return WALL_START_NS + self.now_ns()

    def exchange(self, key: _Key, protocol: str) -> Exchange:
        """Return the exchange of a new call, with its row in the server log."""
        request_id, leg, attempt = key
        wire = self._wires.get(protocol, anthropic)
        row = ServerLogRow(
            client_request_id=f"{RUN}/{request_id}/{leg}/{attempt}",
            request_id=request_id,
            leg=leg,
            attempt=attempt,
            protocol=wire.NAME,
            status=200,
            received_at_ns=self.now_ns(),
            headers_at_ns=None,
            planned_ttft_ns=None,
            chunk_sent_at_ns=[],
            ended_at_ns=None,
            cancelled_at_ns=None,
            input_tokens=0,
            output_tokens=0,
        )
        self._number += 1
        return Exchange(self.core, row, wire, self._number)

    def enter_gateway(self, exchange: Exchange) -> int:
        """Let a call enter the gateway, which may keep its answer until the end. Return how long it keeps the call, in
        ns.
        """
        table = self.core.table.gateway
        exchange.is_held = table.holds
        return gateway.delay_ns(table, self.core.seed, exchange.key)

    def serve(
        self, exchange: Exchange, call: Call, model: str, client: Client, protocol: WireProtocol
    ) -> Delivery | bytes:
        """Let the endpoint take a call, or raise `Refused`. Return its delivery; of a call about a job the body of the
        answer.

        `exchange`: its account; `model`: that the call asks for; `client`: gets what arrives. `protocol`: of the
        client, which writes the body. A refusal is logged at once.
        """
        now_ns = self.now_ns()
        try:
            if call.job is not None:
                method = "DELETE" if call.kind == JOB_CANCEL else "GET"
                return answer_about_job(exchange, method, call.job, now_ns)
            self._accept(exchange, call, model, protocol)
            last_id = ""
            if call.event_ids is not None:
                last_id = call.event_ids.last_id
            exchange.resume(last_id)
            exchange.admit(now_ns)
            if call.kind == JOB_SUBMIT:
                return submit_job(exchange, now_ns)
            return Delivery(answer_to(exchange), client, self._queue, call.watch_chunks)
        except Refused as refused:
            row = exchange.row
            exchange.log_refusal(refused)
            row.headers_at_ns = row.ended_at_ns = now_ns
            raise

    def _accept(self, exchange: Exchange, call: Call, model: str, protocol: WireProtocol) -> None:
        """Let the endpoint read the call, from its body unless only the size of its text matters."""
        prompt = call.prompt
        is_text_only = not (prompt.tools or prompt.system or call.schema)
        if not is_text_only or self.core.table.cache.mode != "off":
            fields = protocol.body(call, model)
            assert fields is not None
            body = dict(fields)
            request = exchange.wire.parse(body, _VERSION)
            exchange.accept(replace(request, include_usage=True), body)
            return
        count = 0
        for message in prompt.messages:
            count += sum(tokens.count(part.text) for part in message.parts)
        request = CallRequest(
            model,
            call.max_tokens,
            count,
            call.stream,
            include_usage=True,
            thinking=call.thinking != "off",
        )
        exchange.accept(request, {})

    # --- the driver of the core, and what moves by itself beside the queue ------------------------------------

    def engine_changed(self) -> None:
        """Note a change; what follows from it happens after the event that the queue is at."""
        self._changed = True

    def next_due_ns(self) -> int | None:
        """Return when the engine moves next; None without an engine, or if it rests."""
        if self.core.engine is None:
            return None
        return self.core.engine.next_due_ns()

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
