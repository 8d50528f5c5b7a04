"""The state machine of an answer: its parts, and when each is due.

An answer has no clock. Its driver waits for the next part that is due, sends it, and reports that:

    opens_ns      when the headers may leave, or an answer in one piece; None: not known yet
    due_ns[i]     when chunk i may leave; grows until `complete`
    end_ns        when the end may leave, given the time of the last chunk; `ending` is the kind of end

    send_headers, opened, sent, finish, leave    reports of the driver: they settle cache, limits, bill and the log's row
    on_change, on_over    called when more times are known, and when nothing more can happen to the call

Faults are applied here, except for the way a connection ends, which the driver does. The times of tokens come from a latency
model or from the engine.
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


def do_nothing() -> None:
    """Do nothing, as the callback of an answer for which nobody waits."""


class Answer(ABC):
    """An answer of either source. `streams`: it leaves in chunks, else in one piece."""

    def __init__(self, exchange: Exchange) -> None:
        """Take the call that is answered. Its reply decides how the answer is cut into chunks: `pieces`.

        Not streamed: one chunk with all tokens. Streamed without a plan of blocks: one text. Else the chunks of the plan.
        """
        request = exchange.request
        table = exchange.endpoint.table
        self.exchange = exchange
        self.fault = exchange.fault
        self.streams = request.stream
        self.ending = self.fault.ending  # kind of end; see `faults`
        # The headers leave before the first token is there.
        self.headers_at_once = self.streams and self.fault.headers_at_once
        self.pieces: TextPieces | PlanPieces
        if not self.streams:
            self.pieces = TextPieces(request.max_tokens, max(1, request.max_tokens))
        elif exchange.reply.plan is None:
            self.pieces = TextPieces(request.max_tokens, table.tokens_per_chunk)
        else:
            self.pieces = PlanPieces(exchange.reply.plan, signatures=exchange.wire.SIGNATURES)
        self.opens_ns: int | None = None
        self.due_ns: list[int] = []
        self.complete = False  # `due_ns` will not grow any more
        self.over = False  # nothing more can happen to the call
        self.counts_sent = False  # whether `sent` must be called for each chunk
        self.on_change: Callable[[], None] = do_nothing
        self.on_over: Callable[[], None] = do_nothing

    # --- due times --------------------------------------------------------------------------------------------

    def end_ns(self, last_ns: int) -> int:
        """Return when the end is due; `last_ns`: when the last chunk left, or the headers if there is no chunk."""
        if not self.streams:
            return last_ns
        return last_ns + self.fault.end_delay_ns(len(self.due_ns))

    def _delay_ns(self, index: int) -> int:
        """Return how long a chunk waits after its tokens have been made."""
        return self.fault.chunk_delay_ns(index) + self.exchange.delay_ns

    def tokens_in(self, chunks: int) -> int:
        """Return the tokens of the first `chunks` chunks."""
        return self.pieces.tokens_sent(chunks)

    def is_content(self, index: int) -> bool:
        """Return whether a chunk is content."""
        return self.pieces.kinds(index + 1)[index] is not None

    # --- reports of the driver --------------------------------------------------------------------------------

    def send_headers(self, now_ns: int) -> None:
        """Note that the headers leave; only the first time counts."""
        row = self.exchange.row
        if row.headers_at_ns is None:
            row.headers_at_ns = now_ns

    def opened(self, now_ns: int) -> None:
        """Note that `opens_ns` has come."""
        if self.streams:
            self.send_headers(now_ns)

    def sent(self, index: int, now_ns: int) -> None:  # noqa: B027 - most answers count tokens when they are made
        """Note that a chunk has left; called where `counts_sent`."""

    def finish(self, now_ns: int, chunks: int) -> None:
        """Note that the end has left, after so many chunks: the end mark, or that of a fault."""
        if self.ending == END_MARK:
            self.exchange.log_end()
        if self.streams:
            self._log_end_of_stream(now_ns)
        elif self.ending in {END_MARK, ERROR_EVENT}:
            self._log_whole_answer(now_ns)
        self._stop(now_ns, chunks, cancelled=False)

    def _log_end_of_stream(self, now_ns: int) -> None:
        row = self.exchange.row
        if self.ending == END_MARK:
            row.ended_at_ns = now_ns
        elif self.ending == ERROR_EVENT:
            row.error_status = self.exchange.failure(self.fault.status).status

    def _log_whole_answer(self, now_ns: int) -> None:
        """Write an answer in one piece into the row: its only chunk, or its error."""
        row = self.exchange.row
        row.headers_at_ns = now_ns
        row.ended_at_ns = now_ns
        if self.ending == ERROR_EVENT:
            self.exchange.log_refusal(self.exchange.failure(self.fault.status))
            return
        row.output_tokens = self.exchange.request.max_tokens
        if row.output_tokens:
            row.chunk_sent_at_ns = [now_ns]
            row.first_due_at_ns = self.opens_ns
            row.last_due_at_ns = self.opens_ns

    def leave(self, now_ns: int, chunks: int) -> None:
        """Note that the client has left, after so many chunks."""
        self.exchange.row.cancelled_at_ns = now_ns
        self._stop(now_ns, chunks, cancelled=True)

    def log_chunks(self, sent_at_ns: list[int]) -> None:
        """Write the chunks that left into the row, without those that are no content."""
        count = len(sent_at_ns)
        row = self.exchange.row
        row.output_tokens = self.tokens_in(count)
        due_ns = self.due_ns[:count]
        if isinstance(self.pieces, PlanPieces):
            is_content = [kind is not None for kind in self.pieces.kinds(count)]
            sent_at_ns = list(compress(sent_at_ns, is_content))
            due_ns = list(compress(due_ns, is_content))
        row.chunk_sent_at_ns = sent_at_ns
        if due_ns:
            row.first_due_at_ns = due_ns[0]
            row.last_due_at_ns = due_ns[-1]

    @abstractmethod
    def _stop(self, now_ns: int, chunks: int, *, cancelled: bool) -> None:
        """Stop generating: the response ended or the client disconnected."""

    def _set_over(self) -> None:
        if not self.over:
            self.over = True
            self.on_over()


class ModelAnswer(Answer):
    """Served by the latency model as if it were alone: all times are known when the call comes."""

    def __init__(self, exchange: Exchange) -> None:
        """Draw the times of the whole answer, look the prompt up in the cache, and set all due times.

        Writes the planned TTFT into the call's row. `exchange.delay_ns` is the time of a web search before the content.
        """
        super().__init__(exchange)
        endpoint = exchange.endpoint
        row = exchange.row
        request = exchange.request
        stream = exchange.stream
        key = exchange.key
        tokens = request.max_tokens
        start_ns = row.received_at_ns
        # The times of a resumed stream are those of its first connection.
        if stream is not None:
            key = stream.key
            tokens = stream.tokens
            start_ns = stream.received_ns
        self._times = TokenTimes(
            endpoint.table,
            endpoint.seed,
            key,
            tokens,
            start_ns=start_ns,
            factor=endpoint.stragglers.factor(exchange.key, 0, row.received_at_ns),
        )
        row.planned_ttft_ns = self._times.first_delay_ns
        # Without an engine there is one replica, number 0, and the call is admitted when it comes.
        exchange.look_up(0, row.received_at_ns)
        self.complete = True
        self.counts_sent = self.streams and endpoint.limits.counts_output
        made_ns = self._times.made_ns
        if self.streams:
            # A resumed stream made its first token before this call came.
            first_ns = max(made_ns[0], row.received_at_ns)
            self.opens_ns = first_ns + self.fault.headers_delay_ns
            if request.max_tokens:
                self.due_ns = self._stream_due_ns()
        else:
            self.opens_ns = made_ns[-1] + self.fault.delay_ns + exchange.delay_ns
            if request.max_tokens and self.ending == END_MARK:
                self.due_ns = [self.opens_ns]

    def _stream_due_ns(self) -> list[int]:
        """Return when each chunk of a stream is due, up to its fault."""
        exchange = self.exchange
        due_ns = self._chunk_made_ns()[exchange.first_event :][: self.fault.breaks_after]
        if exchange.stream is not None:
            received_ns = exchange.row.received_at_ns
            due_ns = [max(made_ns, received_ns) for made_ns in due_ns]
        if self.fault.delay_ns or exchange.delay_ns:
            due_ns = [made_ns + self._delay_ns(i) for i, made_ns in enumerate(due_ns)]
        return due_ns

    def _chunk_made_ns(self) -> list[int]:
        """Return when each chunk is made."""
        times = self._times
        pieces = self.pieces
        if isinstance(pieces, TextPieces):
            return list(times.made_ns)
        chunk_ns: list[int] = []
        for i, made_ns in enumerate(times.made_ns[:-1], 1):
            chunk_ns += [made_ns] * (pieces.ready(i * times.per_chunk) - len(chunk_ns))
        return chunk_ns + [times.made_ns[-1]] * (pieces.ready(times.tokens) - len(chunk_ns))

    def opened(self, now_ns: int) -> None:
        """Note that `opens_ns` has come."""
        super().opened(now_ns)
        self.exchange.begin(self._times.made_ns[0])
        if not self.streams:
            self.exchange.produce(self.exchange.request.max_tokens, now_ns)

    def sent(self, index: int, now_ns: int) -> None:
        """Note that a chunk has left, whose tokens have just been made."""
        self.exchange.produce(self.tokens_in(index + 1) - self.tokens_in(index), now_ns)

    def _stop(self, now_ns: int, chunks: int, *, cancelled: bool) -> None:
        """Make no more tokens. An answer in one piece has made some although nothing has left."""
        generated = self._times.tokens_made(now_ns)
        if self.streams:
            generated = self.tokens_in(chunks)
        self.exchange.end(generated, now_ns, cancelled=cancelled)
        if cancelled:
            self.exchange.row.tokens_after_cancel = 0
        self._set_over()


class EngineAnswer(Answer):
    """A call in the engine that serves all calls together. Raises `Refused` where the engine is full.

    Where the endpoint emits no single tokens, the first chunk is known at its time and all others at the end.
    """

    def __init__(self, exchange: Exchange) -> None:
        """Submit the call to the endpoint's engine. Raises `Refused`, and settles the call, where the engine does not
        take it.

        Times of tokens come later, by `receive`.
        """
        super().__init__(exchange)
        endpoint = exchange.endpoint
        request = exchange.request
        # A client request id may come again while its first call is open.
        key = exchange.key
        if endpoint.is_open(key):
            key = f"{exchange.key}#{exchange.number}"
        self._job = Job(key, max(1, request.input_tokens), max(1, request.max_tokens))
        self._tokens_made = 0
        self._reports_tokens = endpoint.every_token
        # The engine reports no single tokens: a chunk is what one of its steps makes.
        if self.streams and not self._reports_tokens:
            self.pieces = TextPieces(request.max_tokens, per_chunk=1)
        # Tokens of the first i chunks, known at the end where the engine emits no single tokens.
        self._tokens_by_chunks: list[int] | None = None
        self._counts_output = endpoint.limits.counts_output
        if not endpoint.submit(self._job, self):
            exchange.refuse(exchange.wire.OVERLOADED_STATUS, endpoint.driver.now_ns())

    def look_up(self, replica: int, now_ns: int) -> int:
        """Admit the call; return the prompt tokens that need not be computed."""
        return self.exchange.look_up(replica, now_ns)

    def first_token(self, now_ns: int) -> None:
        """Note that the engine has completed the call's prefill."""
        self.exchange.begin(now_ns)

    def receive(self, emission: Emission) -> None:
        """Take an event of the engine about the call: write its time into the row, and make due what it completes.

        An emission has its kind, the engine's record of the call, its time, and the tokens that it brings. The headers
        are due with the first token.
        """
        kind, call, at_ns, tokens = emission
        row = self.exchange.row
        if kind == events.TOKENS:
            self._make(tokens, at_ns)
        elif kind == events.FIRST_TOKEN:
            row.prefill_ended_at_ns = at_ns
            row.replica = call.replica
            if self.streams:
                self.opens_ns = at_ns + self.fault.headers_delay_ns
                self.complete = self.fault.breaks_at(0)  # a fault before any chunk
            self._make(tokens, at_ns)
        elif kind == events.ADMITTED:
            row.admitted_at_ns = call.admitted_ns
            row.replica = call.replica
            self.exchange.serve()  # counts the call as running
        elif kind == events.PREFILL_STARTED:
            row.prefill_started_at_ns = call.prefill_started_ns
        else:
            self._end(emission)

    def tokens_in(self, chunks: int) -> int:
        """Return the tokens of the first `chunks` chunks."""
        if self._tokens_by_chunks is None:
            return super().tokens_in(chunks)
        return self._tokens_by_chunks[chunks]

    def _make(self, tokens: int, at_ns: int) -> None:
        """Note that the engine has made `tokens` more tokens at `at_ns`: the chunks that they complete become due.

        They count towards the output limit when they are made, not when they leave. `due_ns` ends at the chunk before a
        fault. Wakes the driver.
        """
        self._tokens_made += tokens
        if self._counts_output:
            self.exchange.produce(tokens, at_ns)
        if not self.streams:
            return
        if not self._reports_tokens:
            # Only the first of these tokens counts: a preempted call has several.
            self.due_ns = self.due_ns or [at_ns]
        elif not self.complete:
            due_ns = self.due_ns
            fault = self.fault
            for index in range(len(due_ns), self.pieces.ready(self._tokens_made)):
                due_ns.append(at_ns + self._delay_ns(index))
                if fault.breaks_at(index + 1):
                    self.complete = True
                    break
        self.on_change()

    def _end(self, emission: Emission) -> None:
        """Settle the call: the engine has ended it, by itself or because the client left.

        Sets the due times that are known only now: of an answer in one piece, and of all chunks where the engine emits no
        single tokens. Settles limits, cache and bill, and wakes the driver.
        """
        call = emission.call
        at_ns = emission.at_ns
        exchange = self.exchange
        row = self.exchange.row
        max_tokens = exchange.request.max_tokens
        is_cancelled = row.cancelled_at_ns is not None
        if is_cancelled:
            row.tokens_after_cancel = call.wasted_tokens
        if not self.streams:
            self.opens_ns = at_ns + self.fault.delay_ns + exchange.delay_ns
            if max_tokens and self.ending == END_MARK:
                self.due_ns = [self.opens_ns]
        elif not self._reports_tokens and call.times:
            self.due_ns = call.chunk_times_ns.tolist()
            self._tokens_by_chunks = list(accumulate(call.chunk_tokens.tolist(), initial=0))
        exchange.end(min(call.tokens, max_tokens), at_ns, cancelled=is_cancelled)
        self.complete = True
        self.on_change()
        self._set_over()

    def _stop(self, now_ns: int, chunks: int, *, cancelled: bool) -> None:  # noqa: ARG002 - the row knows who left
        """Cancel the call in the engine, which goes on as its mode says."""
        self.exchange.endpoint.cancel(self._job)


def answer_to(exchange: Exchange) -> ModelAnswer | EngineAnswer:
    """Begin to answer an admitted call; raises `Refused` where the engine is full."""
    if exchange.endpoint.engine is None:
        return ModelAnswer(exchange)
    return EngineAnswer(exchange)
