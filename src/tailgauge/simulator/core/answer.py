"""What one call is answered, and when each part of it is due: the state machine of an answer.

An answer keeps no time. Its driver waits for what is due, sends it, and reports what it did:

    opens_ns      when the headers may leave, of an answer in one piece all of it; None: not known yet
    due_ns[i]     when chunk i may leave; grows until `complete`
    end_ns        when the end may leave, given when the last chunk did; `ending` is what it looks like

    send_headers, opened, sent, finish, leave    what the driver did: they settle cache, limits, bill and the row of the server log
    on_change, on_over             whom to call when more is known, and when nothing more can happen to the call

Faults are applied here, but for the way a connection ends: the driver does that. Two sources say when tokens are made: a latency model, and the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import accumulate, compress

from tailgauge.simulator.behaviours.content import PlanPieces, TextPieces
from tailgauge.simulator.behaviours.faults import END_MARK, ERROR_EVENT
from tailgauge.simulator.behaviours.latency import TokenTimes
from tailgauge.simulator.core.exchange import Exchange
from tailgauge.simulator.engine import job as events
from tailgauge.simulator.engine.job import Emission, Job


def nobody() -> None:
    """Nobody to call."""


class Answer(ABC):
    """What both sources have in common. `streams`: in chunks, else in one piece."""

    def __init__(self, exchange: Exchange) -> None:
        request = exchange.request
        table = exchange.endpoint.table
        self.exchange = exchange
        self.fault = exchange.fault
        self.streams = request.stream
        self.ending = self.fault.ending  # what the end looks like; see `faults`
        self.headers_at_once = (
            self.streams and self.fault.headers_at_once
        )  # before anything else is there
        per_chunk = table.tokens_per_chunk if self.streams else max(1, request.max_tokens)
        self.pieces: TextPieces | PlanPieces = TextPieces(request.max_tokens, per_chunk)
        if exchange.reply.plan is not None and self.streams:
            self.pieces = PlanPieces(exchange.reply.plan, signatures=exchange.wire.SIGNATURES)
        self.opens_ns: int | None = None
        self.due_ns: list[int] = []
        self.complete = self.over = False
        self.counts_sent = False  # whether `sent` must be called for each chunk
        self.on_change: Callable[[], None] = nobody
        self.on_over: Callable[[], None] = nobody

    # --- what is due ------------------------------------------------------------------------------------------

    def end_ns(self, last_ns: int) -> int:
        """When the end is due, given when the last chunk left, or the headers where there is none."""
        return last_ns + self.fault.end_delay_ns(len(self.due_ns)) if self.streams else last_ns

    def _delay_ns(self, index: int) -> int:
        """How much later than it was made a chunk leaves."""
        return self.fault.chunk_delay_ns(index) + self.exchange.delay_ns

    def tokens_in(self, chunks: int) -> int:
        """Tokens of the first chunks."""
        return self.pieces.tokens_sent(chunks)

    def is_content(self, index: int) -> bool:
        """Whether a chunk is content."""
        return self.pieces.kinds(index + 1)[index] is not None

    # --- what the driver did ----------------------------------------------------------------------------------

    def send_headers(self, now_ns: int) -> None:
        """The headers leave; only the first time counts."""
        row = self.exchange.row
        if row.headers_at_ns is None:
            row.headers_at_ns = now_ns

    def opened(self, now_ns: int) -> None:
        """`opens_ns` has come."""
        if self.streams:
            self.send_headers(now_ns)

    def sent(self, index: int, now_ns: int) -> None:  # noqa: B027 - most answers count tokens when they are made
        """A chunk has left; called where `counts_sent`."""

    def finish(self, now_ns: int, chunks: int) -> None:
        """The end has left, after so many chunks: the end mark, or what a fault puts in its place."""
        row = self.exchange.row
        request = self.exchange.request
        if self.ending == END_MARK:
            self.exchange.log_end()
        if self.streams:
            if self.ending == END_MARK:
                row.ended_at_ns = now_ns
            elif self.ending == ERROR_EVENT:
                row.error_status = self.exchange.failure(self.fault.status).status
        elif self.ending in {END_MARK, ERROR_EVENT}:
            row.headers_at_ns = row.ended_at_ns = now_ns
            if self.ending == ERROR_EVENT:
                self.exchange.log_refusal(self.exchange.failure(self.fault.status))
            else:
                row.output_tokens = request.max_tokens
                row.chunk_sent_at_ns = [now_ns] if request.max_tokens else []
                row.first_due_at_ns = row.last_due_at_ns = (
                    self.opens_ns if request.max_tokens else None
                )
        self._stop(now_ns, chunks, cancelled=False)

    def leave(self, now_ns: int, chunks: int) -> None:
        """The client has left, after so many chunks."""
        self.exchange.row.cancelled_at_ns = now_ns
        self._stop(now_ns, chunks, cancelled=True)

    def log_chunks(self, sent_at_ns: list[int]) -> None:
        """Write the chunks that left into the row; a chunk without content is not in it."""
        count = len(sent_at_ns)
        row = self.exchange.row
        row.output_tokens = self.tokens_in(count)
        due_ns = self.due_ns[:count]
        if isinstance(self.pieces, PlanPieces):
            content = [kind is not None for kind in self.pieces.kinds(count)]
            sent_at_ns = list(compress(sent_at_ns, content))
            due_ns = list(compress(due_ns, content))
        row.chunk_sent_at_ns = sent_at_ns
        if due_ns:
            row.first_due_at_ns = due_ns[0]
            row.last_due_at_ns = due_ns[-1]

    @abstractmethod
    def _stop(self, now_ns: int, chunks: int, *, cancelled: bool) -> None:
        """Stop generating: the response ended or the client disconnected."""

    def _is_over(self) -> None:
        if not self.over:
            self.over = True
            self.on_over()


class ModelAnswer(Answer):
    """Served by the latency model as if it were alone: all times are known when the call comes."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        endpoint = exchange.endpoint
        row = exchange.row
        request = exchange.request
        fault = self.fault
        factor = endpoint.stragglers.factor(exchange.key, 0, row.received_at_ns)
        stream = exchange.stream
        key = exchange.key
        tokens = request.max_tokens
        begun_ns = row.received_at_ns
        if stream is not None:  # its times are those of the first connection
            key = stream.key
            tokens = stream.tokens
            begun_ns = stream.received_ns
        self._times = times = TokenTimes(
            endpoint.table, endpoint.seed, key, tokens, begun_ns, factor
        )
        row.planned_ttft_ns = times.first_delay_ns
        exchange.look_up(0, row.received_at_ns)
        self.complete = True
        self.counts_sent = self.streams and endpoint.limits.counts_output
        if self.streams:
            self.opens_ns = max(times.made_ns[0], row.received_at_ns) + fault.headers_delay_ns
            due = (
                self._chunks()[exchange.first :][: fault.breaks_after] if request.max_tokens else []
            )
            if stream is not None:
                due = [max(at_ns, row.received_at_ns) for at_ns in due]
            if fault.delay_ns or exchange.delay_ns:
                due = [at_ns + self._delay_ns(i) for i, at_ns in enumerate(due)]
            self.due_ns = due
        else:
            self.opens_ns = times.made_ns[-1] + fault.delay_ns + exchange.delay_ns
            self.due_ns = [self.opens_ns] if request.max_tokens and self.ending == END_MARK else []

    def _chunks(self) -> list[int]:
        """When each chunk is made."""
        times = self._times
        pieces = self.pieces
        if isinstance(pieces, TextPieces):
            return list(times.made_ns)
        due: list[int] = []
        for i, at_ns in enumerate(times.made_ns[:-1], 1):
            due += [at_ns] * (pieces.ready(i * times.per_chunk) - len(due))
        return due + [times.made_ns[-1]] * (pieces.ready(times.tokens) - len(due))

    def opened(self, now_ns: int) -> None:
        """`opens_ns` has come."""
        super().opened(now_ns)
        self.exchange.begin(self._times.made_ns[0])
        if not self.streams:
            self.exchange.produce(self.exchange.request.max_tokens, now_ns)

    def sent(self, index: int, now_ns: int) -> None:
        """A chunk has left, which has just been made."""
        self.exchange.produce(self.tokens_in(index + 1) - self.tokens_in(index), now_ns)

    def _stop(self, now_ns: int, chunks: int, *, cancelled: bool) -> None:
        """The rest is not made; an answer in one piece was under way without anything leaving."""
        made = self.tokens_in(chunks) if self.streams else self._times.by(now_ns)
        self.exchange.end(made, now_ns, cancelled=cancelled)
        if cancelled:
            self.exchange.row.tokens_after_cancel = 0
        self._is_over()


class EngineAnswer(Answer):
    """A call in the engine that serves all calls together. Raises `Refused` where the engine is full.

    Where the endpoint emits no single tokens, the first chunk is known at its time and all others at the end.
    """

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        endpoint = exchange.endpoint
        request = exchange.request
        # A client request id may come again while its first call is open.
        key = (
            f"{exchange.key}#{exchange.number}" if endpoint.is_open(exchange.key) else exchange.key
        )
        self._job = Job(key, max(1, request.input_tokens), max(1, request.max_tokens))
        self._made = 0
        self._every_token = endpoint.every_token
        if self.streams and not self._every_token:
            self.pieces = TextPieces(request.max_tokens, 1)
        # Tokens of the first i chunks, where the engine says so at the end.
        self._carried: list[int] | None = None
        self._counts_output = endpoint.limits.counts_output
        if not endpoint.submit(self._job, self):
            exchange.refuse(exchange.wire.OVERLOADED_STATUS, endpoint.driver.now_ns())

    def look_up(self, replica: int, now_ns: int) -> int:
        """The engine admits it: prompt tokens that need not be computed."""
        return self.exchange.look_up(replica, now_ns)

    def first_token(self, now_ns: int) -> None:
        """The engine has completed the call's prefill."""
        self.exchange.begin(now_ns)

    def receive(self, emission: Emission) -> None:
        """What the engine did with it."""
        kind, call, at_ns, tokens = emission
        row = self.exchange.row
        if kind == events.TOKENS:
            self._make(tokens, at_ns)
        elif kind == events.FIRST_TOKEN:
            row.prefill_ended_at_ns = at_ns
            row.replica = call.replica
            if self.streams:
                self.opens_ns = at_ns + self.fault.headers_delay_ns
                self.complete = self.fault.breaks_at(0)
            self._make(tokens, at_ns)
        elif kind == events.ADMITTED:
            row.admitted_at_ns = call.admitted_ns
            row.replica = call.replica
            self.exchange.serve()
        elif kind == events.PREFILL_STARTED:
            row.prefill_started_at_ns = call.prefill_started_ns
        else:
            self._end(emission)

    def tokens_in(self, chunks: int) -> int:
        """Tokens of the first chunks."""
        return super().tokens_in(chunks) if self._carried is None else self._carried[chunks]

    def _make(self, tokens: int, at_ns: int) -> None:
        self._made += tokens
        if self._counts_output:
            self.exchange.produce(tokens, at_ns)
        if not self.streams:
            return
        if not self._every_token:
            self.due_ns = self.due_ns or [
                at_ns
            ]  # a call that was preempted has several such tokens
        elif not self.complete:
            due_ns = self.due_ns
            fault = self.fault
            for index in range(len(due_ns), self.pieces.ready(self._made)):
                due_ns.append(at_ns + self._delay_ns(index))
                if fault.breaks_at(index + 1):
                    self.complete = True
                    break
        self.on_change()

    def _end(self, emission: Emission) -> None:
        call = emission.call
        at_ns = emission.at_ns
        exchange = self.exchange
        row = self.exchange.row
        asked = exchange.request.max_tokens
        left = row.cancelled_at_ns is not None
        if left:
            row.tokens_after_cancel = call.wasted_tokens
        if not self.streams:
            self.opens_ns = at_ns + self.fault.delay_ns + exchange.delay_ns
            self.due_ns = [self.opens_ns] if asked and self.ending == END_MARK else []
        elif not self._every_token and call.times:
            self.due_ns = call.chunk_times_ns.tolist()
            self._carried = list(accumulate(call.chunk_tokens.tolist(), initial=0))
        exchange.end(min(call.tokens, asked), at_ns, cancelled=left)
        self.complete = True
        self.on_change()
        self._is_over()

    def _stop(self, now_ns: int, chunks: int, *, cancelled: bool) -> None:  # noqa: ARG002 - the row knows who left
        """The engine goes on as its mode says."""
        self.exchange.endpoint.cancel(self._job)


def answer_to(exchange: Exchange) -> ModelAnswer | EngineAnswer:
    """Begin to answer an admitted call; raises `Refused` where the engine is full."""
    return ModelAnswer(exchange) if exchange.endpoint.engine is None else EngineAnswer(exchange)
