"""The calls of a dry run, from their start to their rows.

How a call ended is decided by the rules of a real one. Its rows are written when both sides are through with it: the endpoint
may work on when the client has left.

Also here: the rows of a dry run on their way to Parquet parts.

Memory is bounded: when enough rows wait, a part is written at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from tailgauge import vendors
from tailgauge.call import JOB_FETCH
from tailgauge.dry_run.driver import Delivery, DryEndpoint, EventQueue
from tailgauge.dry_run.received import Received, response_of
from tailgauge.ends import End, class_of_end
from tailgauge.patterns.events import Chunks, Ended, Event, FirstContent, Send
from tailgauge.plan.guard import Spending
from tailgauge.protocols.decoder import KIND_CODE, AnswerSettings, StreamDecoder
from tailgauge.protocols.event_ids import EventIds
from tailgauge.protocols.protocol import WireProtocol
from tailgauge.protocols.table import PROTOCOLS, Target
from tailgauge.rows import schema
from tailgauge.rows.parquet import Segments, chunk_table, compact, row_table, write_part
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON, AttemptRow, RequestRow, ServerLogRow
from tailgauge.rows.schema import Chunks as ChunkColumns
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.content import whole_contents
from tailgauge.simulator.behaviours.faults import CUT, END_MARK, ERROR_EVENT
from tailgauge.simulator.core.exchange import Exchange
from tailgauge.simulator.protocols.request import Refused
from tailgauge.simulator.protocols.wire import WIRES, Wire
from tailgauge.worker.attempt_row import RequestRef, begun
from tailgauge.worker.cache_tracker import CacheBook
from tailgauge.worker.outcome import (
    RETRY_HEADERS,
    Outcome,
    limit_headers,
    outcome,
    rate_limit_headers,
    retry_after,
    should_retry,
)

_NOWHERE = "http://127.0.0.1"
Post = Callable[[Event], None]


class Attempts:
    """All calls of a dry run; `open` holds those whose client waits. `targets` by the names of `call`."""

    def __init__(
        self, targets: Mapping[str, Target], endpoint: DryEndpoint, queue: EventQueue, store: Store, deadline_s: float,
        book: CacheBook | None = None, gateways: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.gateways = gateways  # targets whose calls pass the simulated gateway
        self.targets = targets
        self.endpoint = endpoint
        self.queue = queue
        self.store = store
        self.book = book
        self.wires = {name: PROTOCOLS[one.protocol](one, _NOWHERE) for name, one in targets.items()}
        any_target = next(iter(targets.values()))
        self._protocols = {wire.NAME: PROTOCOLS[wire.NAME](any_target, _NOWHERE) for wire in WIRES}
        self.deadline_ns = round(deadline_s * 1e9)
        self.open: dict[tuple[int, int, int], Attempt] = {}

    def protocol_of(self, target: str, wire: Wire) -> WireProtocol:
        """The client's side of what the endpoint speaks with a target's calls."""
        client_side = self.wires[target]
        return client_side if client_side.name == wire.NAME else self._protocols[wire.NAME]

    def start(self, origin: RequestRef, send: Send, number: int, post: Post) -> Attempt:
        """Start a call; `post` receives its content and its end."""
        attempt = Attempt(self, origin, send, number, post)
        attempt.begin()
        return attempt

    def abort_open(self, reason: str) -> None:
        """Close every open call."""
        for attempt in list(self.open.values()):
            attempt.abort(reason)


class Attempt:
    """One call: what its client knows of it. A `Client` of the dry run's driver, a `Closable` of the worker's."""

    def __init__(
        self, attempts: Attempts, origin: RequestRef, send: Send, number: int, post: Post
    ) -> None:
        self._attempts = attempts
        self._send = send
        self._post = post
        self._leg = send.leg
        self._number = number
        self._key = (origin.request_id, send.leg, number)
        target = attempts.targets[send.call.target]
        now_ns = attempts.queue.now_ns()
        self._exchange: Exchange = attempts.endpoint.exchange(self._key, target.protocol)
        self._delivery: Delivery | None = None
        self._model = send.call.model or target.model
        self._ended = self._written = self._is_over = False
        self.aborted_at_ns: int | None = None
        self._text: str | None = None
        self._received: Received | None = None  # of an answer that was decoded
        self._result = Outcome(schema.CENSORED)
        self._response: Any = None
        self._location: str | None = None
        self._row = row = begun(
            origin, send, number, protocol=target.protocol, model=target.model, at_ns=now_ns
        )
        row.sent_at_ns = now_ns
        row.stamps = STAMPS
        row.streamed = send.call.stream

    def begin(self) -> None:
        """Send it."""
        attempts = self._attempts
        row = self._row
        now_ns = self._attempts.queue.now_ns()
        attempts.open[self._key] = self
        if attempts.book is not None:
            note = attempts.book.sent(self._send.call, self._key, now_ns, row.traffic)
            if note is not None:
                note.fill(row)
        timed_out = partial(self.abort, schema.TIMEOUT)
        self._timer = attempts.queue.call_at(now_ns + attempts.deadline_ns, timed_out)
        delay_ns = (
            attempts.endpoint.through_gateway(self._exchange)
            if row.target in attempts.gateways
            else 0
        )
        if delay_ns:
            attempts.queue.call_at(now_ns + delay_ns, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """The endpoint gets it."""
        attempts = self._attempts
        self._exchange.row.received_at_ns = attempts.queue.now_ns()
        if self._ended:
            self._exchange.row.cancelled_at_ns = self.aborted_at_ns
            self.on_over()
            return
        try:
            protocol = attempts.protocol_of(self._send.call.target, self._exchange.wire)
            served = attempts.endpoint.serve(
                self._exchange, self._send.call, self._model, self, protocol
            )
        except Refused as refused:
            self._is_over = True
            self._refuse(refused)
            return
        if isinstance(served, bytes):
            self._is_over = True
            self._about_job(served)
        else:
            self._delivery = served

    def catch_up(self) -> None:
        """What comes is taken at its time here."""

    def abort(self, reason: str) -> None:
        """Close it; of a call that is over nothing changes."""
        if self._ended:
            return
        self.aborted_at_ns = self._row.cancelled_at_ns = self._attempts.queue.now_ns()
        self._end(Outcome(reason))
        if self._delivery is not None:
            self._delivery.leave()
            self._write()

    # --- what arrives from the endpoint ------------------------------------------------------------------------------

    def on_headers(self) -> None:
        """The response has begun."""
        self._headers(200)

    def on_content(self) -> None:
        """The first content is there."""
        now_ns = self._attempts.queue.now_ns()
        if self._attempts.book is not None:
            self._attempts.book.begun(self._key, now_ns)
        sent_ns = self._row.dispatched_at_ns
        self._post(FirstContent(self._leg, self._number, now_ns, sent_ns))

    def on_watched(self) -> None:
        """The chunk that the call watches for is there."""
        self._post(Chunks(self._leg, self._number, self._attempts.queue.now_ns()))

    def on_end(self) -> None:
        """The response is over."""
        exchange = self._exchange
        fault = self._exchange.fault
        if fault.ending == ERROR_EVENT and not exchange.request.stream:
            self._refuse(exchange.failure(fault.status))
        elif fault.ending in {END_MARK, ERROR_EVENT} and not exchange.is_plain:
            received = self._receive()
            self._end(received.outcome(), finished=fault.ending == END_MARK)
        elif fault.ending == END_MARK:
            self._end(self._outcome_of_end(), finished=True)
        elif exchange.request.stream:
            self._end(Outcome(schema.TRUNCATED, "no_end_mark" if fault.ending == CUT else "reset"))
        else:
            self._end(Outcome(schema.CONNECT_ERROR, "reset", "the connection was lost"))

    def _new_received(self) -> Received:
        exchange = self._exchange
        call = self._send.call
        return Received(exchange, call, self._attempts.protocol_of(call.target, exchange.wire))

    def _receive(self) -> Received:
        """Decode what has arrived by now."""
        assert self._delivery is not None
        received = self._received = self._new_received()
        received.read(self._delivery.pieces(self._attempts.queue.now_ns()))
        return received

    def _outcome_of_end(self) -> Outcome:
        """What an answer whose end mark has come says of its end."""
        exchange = self._exchange
        call = self._send.call
        protocol = self._row.protocol
        end = End(
            protocol=protocol,
            needs_reason=protocol in vendors.TABLE["ends"],
            stop_reason=exchange.reply.reason(exchange.wire.STOP_REASONS),
            has_content=bool(exchange.request.max_tokens),
            output_tokens=exchange.request.max_tokens,
            max_tokens=call.max_tokens,
            ends_naturally=call.ends_naturally,
        )
        ended = class_of_end(end)
        return Outcome(ended.ended, ended.error_type)

    def on_over(self) -> None:
        """The endpoint is through with it."""
        self._is_over = True
        self._write()

    # --- the end ----------------------------------------------------------------------------------------------

    def _headers(self, status: int) -> None:
        row = self._row
        now_ns = self._attempts.queue.now_ns()
        row.status = status
        row.headers_at_ns = now_ns
        row.first_byte_at_ns = now_ns
        response = response_of(status, self._exchange.headers)
        row.rate_limit_headers = rate_limit_headers(limit_headers(response))
        self._response = response

    def _about_job(self, body: bytes) -> None:
        """An answer in one piece, which the protocol reads."""
        exchange = self._exchange
        row = self._row
        call = self._send.call
        now_ns = self._attempts.queue.now_ns()
        status = exchange.row.status
        wire = self._attempts.wires[call.target]
        decoder = StreamDecoder(wire.on_event, AnswerSettings(kind=call.kind), on_whole=wire.on_job)
        decoder.whole(body, now_ns, now_ns, 0)
        self._headers(status)
        row.stop_reason = decoder.stop_reason
        row.streamed = False
        if call.kind == JOB_FETCH:
            row.input_tokens = exchange.row.input_tokens
            row.output_tokens = exchange.row.output_tokens
        self._text = decoder.text
        self._location = exchange.headers.get("location")
        self._end(outcome(response_of(status, exchange.headers, body), decoder))

    def _refuse(self, refused: Refused) -> None:
        exchange = self._exchange
        if refused.in_band:
            self._headers(200)
            received = self._received = self._new_received()
            event = exchange.error_event(refused, has_begun=False)
            received.read([(self._attempts.queue.now_ns(), event)])
            self._end(received.outcome())
            return
        self._headers(refused.status)
        response = response_of(
            refused.status, exchange.headers, exchange.wire.error_body(refused, "")
        )
        self._end(outcome(response, cast("StreamDecoder", None)))

    def _end(self, result: Outcome, *, finished: bool = False) -> None:
        attempts = self._attempts
        row = self._row
        now_ns = self._attempts.queue.now_ns()
        if self._send.call.event_ids is not None and self._delivery is not None:
            result = self._of_pieces(self._send.call.event_ids, self._delivery, result)
        self._ended = True
        self._result = result
        self._timer.cancel()
        del attempts.open[self._key]
        if attempts.book is not None:
            attempts.book.ended(self._key, now_ns)
        row.ended = result.ended
        row.ended_at_ns = None if result.ended == schema.CENSORED else now_ns
        row.error_type = result.error_type
        row.error_body = result.error_body
        row.limit_kind = result.limit_kind
        self._until_ns = now_ns
        self._finished = finished
        row.error_class = result.error_class
        advice: bool | None = None
        if self._response is not None:
            now = datetime.fromtimestamp(attempts.endpoint.wall_ns() / 1e9, UTC)
            row.retry_after_s, row.retry_after_from = retry_after(self._response, row.ended, now)
            advice = should_retry(self._response)
        text = self._text_at_end(finished=finished)
        self._write()
        self._post(
            Ended(
                self._leg, self._number, now_ns, row.ended, row.retry_after_s, advice, text, self._location,
                had_content=row.first_content_at_ns is not None,
                status=row.status, error_class=row.error_class,
                obeys_retry_after=row.retry_after_from in RETRY_HEADERS,
                longest_wait_s=PROTOCOLS[row.protocol].longest_wait_s,
            )
        )  # fmt: skip

    def _text_at_end(self, *, finished: bool) -> str | None:
        """The answer, where it is to be kept."""
        if self._received is not None and self._send.call.keep_text:
            return self._received.decoder.text
        return text_of(self._exchange) if finished and self._send.call.keep_text else self._text

    def _of_pieces(self, ids: EventIds, delivery: Delivery, result: Outcome) -> Outcome:
        """What the ids of the events say, as in a decoder."""
        ids.connect()
        for index in range(len(delivery.chunks(self._attempts.queue.now_ns())[0])):
            ids.receive(self._exchange.event_id(index), has_content=True)
        if ids.problem is not None and result.ended in {schema.OK, schema.EMPTY, schema.TRUNCATED}:
            return Outcome(schema.STREAM_ERROR, *ids.problem)
        return Outcome(schema.OK) if ids.count and result.ended == schema.EMPTY else result

    def _write(self) -> None:
        """Rows, once both sides are through with the call."""
        if self._written or not (self._ended and self._is_over):
            return
        self._written = True
        store = self._attempts.store
        delivery = self._delivery
        exchange = self._exchange
        is_unread = self._received is None and self._row.status == 200 and not exchange.is_plain
        if delivery is not None and is_unread:
            self._received = self._new_received()
            self._received.read(delivery.pieces(self._until_ns))
        if self._received is not None:
            store.chunks(self._key, self._received.fill(self._row, self._result))
        elif delivery is not None:
            chunks = fill(self._row, exchange, delivery, self._until_ns, finished=self._finished)
            store.chunks(self._key, chunks)
        if delivery is not None:
            delivery.log_chunks()
        store.attempt(self._row)
        store.server_log(exchange.row)


# --- the row of a call: what only a socket has is null or 0 ----------------------------------------------------


STAMPS = "dry_run"


def fill(
    row: AttemptRow, exchange: Exchange, delivery: Delivery, until_ns: int, *, finished: bool
) -> ChunkColumns:
    """What had arrived until then; `finished`: with the end mark. Returns the chunks."""
    times, sizes, kinds = delivery.chunks(until_ns)
    row.chunks = len(times)
    if times:
        row.first_content_at_ns = row.first_content_read_at_ns = times[0]
        row.last_content_at_ns = times[-1]
        first = dict(zip(reversed(kinds), reversed(times), strict=True))
        row.first_text_at_ns = first.get(TEXT)
        row.first_thinking_at_ns = first.get(THINKING)
        row.first_tool_json_at_ns = first.get(TOOL_JSON)
        row.last_thinking_at_ns = dict(zip(kinds, times, strict=True)).get(THINKING)
    if row.headers_at_ns is not None and row.status == 200:
        row.model = exchange.request.model
        row.server_request_id = f"req_{exchange.reply.id}"
        row.first_event_at_ns = row.headers_at_ns if exchange.request.stream else None
        _usage(row, exchange, finished=finished)
    if finished:
        _finish(row, exchange, until_ns)
    return chunks_of(times, sizes, kinds)


def chunks_of(times: list[int], sizes: list[int], kinds: list[str]) -> ChunkColumns:
    """Chunk columns as a decoder would have collected them."""
    arrived = array("q", times)
    n = len(times)
    return ChunkColumns(
        bytearray(map(KIND_CODE.__getitem__, kinds)), arrived, array("q", bytes(8 * n)), arrived,
        array("i", range(n)), array("i", [size * tokens.BYTES_PER_TOKEN for size in sizes]),
    )  # fmt: skip


def text_of(exchange: Exchange) -> str:
    """The text of the whole answer, its thinking left out."""
    plan = exchange.reply.plan
    if plan is None:
        return tokens.text(exchange.request.max_tokens).decode()
    contents = whole_contents(plan, exchange.endpoint.table.content.tool_pair_tokens)
    return "".join(
        text for text, block in zip(contents, plan.blocks, strict=True) if block.kind != THINKING
    )


def _usage(row: AttemptRow, exchange: Exchange, *, finished: bool) -> None:
    """Where the prompt's usage is in the first event, the output has a placeholder there."""
    if not finished and not (exchange.wire.PROMPT_USAGE_FIRST and exchange.request.stream):
        return
    prompt = exchange.prompt_tokens
    row.input_tokens = prompt.input_tokens
    if exchange.reply.prompt is not None or exchange.wire.CACHE_LIVES:
        row.cache_read_input_tokens = prompt.read
        row.cache_creation_input_tokens = prompt.creation_5m + prompt.creation_1h
    if exchange.reply.prompt is not None and exchange.wire.CACHE_LIVES:
        row.cache_creation_5m_input_tokens = prompt.creation_5m
        row.cache_creation_1h_input_tokens = prompt.creation_1h
    row.output_tokens = exchange.request.max_tokens if finished else 1


def _finish(row: AttemptRow, exchange: Exchange, at_ns: int) -> None:
    plan = exchange.reply.plan
    row.stop_reason = exchange.reply.reason(exchange.wire.STOP_REASONS)
    row.stopped_at_ns = at_ns if exchange.request.stream else None
    if plan is not None and plan.thinking_tokens:
        row.thinking_tokens = plan.thinking_tokens
    if row.first_tool_json_at_ns is not None:
        row.tool_ready_at_ns = at_ns


# --- the rows on their way to Parquet parts -----------------------------------------------------------------------

ROWS_AT_ONCE = 300_000
_OF_WORKER = ("requests", "attempts", "chunks", "health")


class Store:
    """Parts of one run folder; `written` are the rows of each table. `spending` counts what the calls use."""

    def __init__(self, folder: RunFolder, spending: Spending | None = None) -> None:
        self._spending = spending
        self._folder = folder
        self._rows: dict[str, list[Any]] = {"requests": [], "attempts": [], "target": []}
        self._segments = Segments()
        self._waiting = 0
        self._numbers = dict.fromkeys((*_OF_WORKER, "target"), 0)
        self.written = dict.fromkeys(_OF_WORKER, 0)

    def request(self, row: RequestRow) -> None:
        """Append a request row."""
        self._append("requests", row)

    def attempt(self, row: AttemptRow) -> None:
        """Append an attempt row."""
        if self._spending is not None:
            self._spending.add(row)
        self._append("attempts", row)

    def server_log(self, row: ServerLogRow) -> None:
        """Append a row of the server log."""
        self._append("target", row)

    def chunks(self, key: tuple[int, int, int], chunks: ChunkColumns) -> None:
        """Append the chunks of a call."""
        if chunks:
            self._segments.add(*key, 0, chunks)
            self._waiting += len(chunks)

    def close(self) -> None:
        """Write what is left, and fold each table's parts into one."""
        self.flush()
        for name, count in self._numbers.items():
            if count > 1:
                parts = [self._folder.part(name, 0, number) for number in range(count)]
                compact(name, parts, self._folder.part(name, 0, "all"))

    def _append(self, name: str, row: Any) -> None:
        self._rows[name].append(row)
        self._waiting += 1
        if self._waiting > ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        for name, rows in self._rows.items():
            if rows:
                self._write(name, row_table(name, rows))
                rows.clear()
        if self._segments:
            self._write("chunks", chunk_table(self._segments))
            self._segments = Segments()
        self._waiting = 0

    def _write(self, name: str, table: Any) -> None:
        write_part(self._folder.part(name, 0, self._numbers[name]), table)
        self._numbers[name] += 1
        if name in self.written:
            self.written[name] += table.num_rows
