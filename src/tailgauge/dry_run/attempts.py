"""The calls of a dry run, from their start to their rows.

How a call ended is decided by the rules of a real one. Its rows are written when both sides are through with it: the endpoint
may work on when the client has left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from tailgauge import vendors
from tailgauge.call import JOB_FETCH
from tailgauge.dry_run.attempt_rows import STAMPS, fill_from_delivery, text_of
from tailgauge.dry_run.driver import Delivery, DryEndpoint, EventQueue
from tailgauge.dry_run.received import Received, response_of
from tailgauge.dry_run.store import Store
from tailgauge.ends import End, class_of_end
from tailgauge.patterns.events import Chunks, Ended, Event, FirstContent, Send
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.event_ids import EventIds
from tailgauge.protocols.protocol import WireProtocol
from tailgauge.protocols.table import PROTOCOLS, Target
from tailgauge.rows import schema
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
        self,
        targets: Mapping[str, Target],
        endpoint: DryEndpoint,
        queue: EventQueue,
        store: Store,
        *,
        deadline_s: float,
        book: CacheBook | None = None,
        gateways: Collection[str] = (),
    ) -> None:
        self.gateways = gateways  # targets whose calls pass the simulated gateway
        self.targets = targets
        self.endpoint = endpoint
        self.queue = queue
        self.store = store
        self.book = book
        self.wires = {
            name: PROTOCOLS[target.protocol](target, _NOWHERE) for name, target in targets.items()
        }
        any_target = next(iter(targets.values()))
        self._protocols = {wire.NAME: PROTOCOLS[wire.NAME](any_target, _NOWHERE) for wire in WIRES}
        self.deadline_ns = round(deadline_s * 1e9)
        self.open: dict[tuple[int, int, int], Attempt] = {}

    def protocol_of(self, target: str, wire: Wire) -> WireProtocol:
        """Return the client's side of what the endpoint speaks with a target's calls."""
        protocol = self.wires[target]
        if protocol.name == wire.NAME:
            return protocol
        return self._protocols[wire.NAME]

    def start(self, origin: RequestRef, send: Send, number: int, post: Post) -> Attempt:
        """Start a call; `post` receives its content and its end."""
        attempt = Attempt(self, origin, send, number, post)
        attempt.begin()
        return attempt

    def abort_open(self, reason: str) -> None:
        """Close every open call."""
        for attempt in list(self.open.values()):
            attempt.abort(reason)


@dataclass(slots=True)
class _Ending:
    """How a call ended for its client, and when; `has_end_mark`: its answer is whole."""

    outcome: Outcome
    at_ns: int
    has_end_mark: bool


class Attempt:
    """One call: what its client knows of it. A `Client` of the dry run's driver, a `Closable` of the worker's."""

    def __init__(
        self, attempts: Attempts, origin: RequestRef, send: Send, number: int, post: Post
    ) -> None:
        """Make a call and begin its row; `begin` sends it. `post` receives its content and its end; `number`: of the
        attempt.

        The exchange is the endpoint's account of the call, with its row of the server log.
        """
        self._attempts = attempts
        self._send = send
        self._post = post
        self._key = (origin.request_id, send.leg, number)
        target = attempts.targets[send.call.target]
        now_ns = attempts.queue.now_ns()
        self._exchange: Exchange = attempts.endpoint.exchange(self._key, target.protocol)
        self._delivery: Delivery | None = None
        self._received: Received | None = None  # of an answer that was decoded
        self._response: Any = None
        self._ending: _Ending | None = None
        self._is_over = False  # for the endpoint
        self._is_written = False
        self.aborted_at_ns: int | None = None
        # Of the answer to a call about a job.
        self._job_text: str | None = None
        self._location: str | None = None
        self._row = begun(
            origin, send, number, protocol=target.protocol, model=target.model, at_ns=now_ns
        )
        self._row.sent_at_ns = now_ns
        self._row.stamps = STAMPS
        self._row.streamed = send.call.stream

    def begin(self) -> None:
        """Send the call: it arrives now, or after the delay of a gateway, which may also hold its answer back.

        Notes it as open, sets the timer of its deadline, and fills in what the cache book expects of its prompt.
        """
        attempts = self._attempts
        row = self._row
        now_ns = attempts.queue.now_ns()
        attempts.open[self._key] = self
        if attempts.book is not None:
            note = attempts.book.sent(self._send.call, self._key, now_ns, row.traffic)
            if note is not None:
                note.fill(row)
        timed_out = partial(self.abort, schema.TIMEOUT)
        self._timer = attempts.queue.call_at(now_ns + attempts.deadline_ns, timed_out)
        delay_ns = 0
        if row.target in attempts.gateways:
            delay_ns = attempts.endpoint.enter_gateway(self._exchange)
        if delay_ns:
            attempts.queue.call_at(now_ns + delay_ns, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """Let the endpoint serve the call, unless its client has left on the way; then the endpoint only logs that.

        An answer in bytes is that about a job and is read at once; any other is delivered at its times. A refusal ends
        the call.
        """
        attempts = self._attempts
        exchange = self._exchange
        call = self._send.call
        exchange.row.received_at_ns = attempts.queue.now_ns()
        if self._ending is not None:
            exchange.row.cancelled_at_ns = self.aborted_at_ns
            self.on_over()
            return
        model = call.model or attempts.targets[call.target].model
        protocol = attempts.protocol_of(call.target, exchange.wire)
        try:
            answer = attempts.endpoint.serve(exchange, call, model, self, protocol)
        except Refused as refused:
            self._is_over = True
            self._refuse(refused)
            return
        if isinstance(answer, bytes):
            self._is_over = True
            self._read_job(answer)
        else:
            self._delivery = answer

    def catch_up(self) -> None:
        """Do nothing: an answer is read at its time here."""

    def abort(self, reason: str) -> None:
        """Close it, unless it is over."""
        if self._ending is not None:
            return
        self.aborted_at_ns = self._attempts.queue.now_ns()
        self._row.cancelled_at_ns = self.aborted_at_ns
        self._end(Outcome(reason))
        if self._delivery is not None:
            self._delivery.leave()
            self._write()

    # --- what arrives from the endpoint ------------------------------------------------------------------------------

    def on_headers(self) -> None:
        """Note that the response has begun."""
        self._note_headers(200)

    def on_content(self) -> None:
        """Pass the first content to the pattern."""
        now_ns = self._attempts.queue.now_ns()
        if self._attempts.book is not None:
            self._attempts.book.begun(self._key, now_ns)
        sent_ns = self._row.dispatched_at_ns
        _, leg, number = self._key
        self._post(FirstContent(leg, number, now_ns, sent_ns))

    def on_watched(self) -> None:
        """Pass the chunk that the call watches for to the pattern."""
        _, leg, number = self._key
        self._post(Chunks(leg, number, self._attempts.queue.now_ns()))

    def on_end(self) -> None:
        """End the call with its response: decode it if it is unusual, else its outcome is known."""
        exchange = self._exchange
        fault = exchange.fault
        if fault.ending == ERROR_EVENT and not exchange.request.stream:
            self._refuse(exchange.failure(fault.status))
        elif fault.ending in {END_MARK, ERROR_EVENT} and not exchange.is_plain:
            received = self._receive()
            self._end(received.outcome(), has_end_mark=fault.ending == END_MARK)
        elif fault.ending == END_MARK:
            self._end(self._outcome_of_end(), has_end_mark=True)
        elif exchange.request.stream:
            error_type = "no_end_mark" if fault.ending == CUT else "reset"
            self._end(Outcome(schema.TRUNCATED, error_type))
        else:
            self._end(Outcome(schema.CONNECT_ERROR, "reset", "the connection was lost"))

    def _new_received(self) -> Received:
        exchange = self._exchange
        call = self._send.call
        return Received(exchange, call, self._attempts.protocol_of(call.target, exchange.wire))

    def _receive(self) -> Received:
        """Decode what has arrived by now."""
        assert self._delivery is not None
        received = self._new_received()
        received.read(self._delivery.pieces(self._attempts.queue.now_ns()))
        self._received = received
        return received

    def _outcome_of_end(self) -> Outcome:
        """Return the outcome of an answer whose end mark has come."""
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
        """Note that the endpoint is through with the call, and write its rows if the client is too."""
        self._is_over = True
        self._write()

    # --- the end ----------------------------------------------------------------------------------------------

    def _note_headers(self, status: int) -> None:
        """Note the status and the headers, whose limits go into the row."""
        row = self._row
        now_ns = self._attempts.queue.now_ns()
        row.status = status
        row.headers_at_ns = now_ns
        row.first_byte_at_ns = now_ns
        response = response_of(status, self._exchange.headers)
        row.rate_limit_headers = rate_limit_headers(limit_headers(response))
        self._response = response

    def _read_job(self, body: bytes) -> None:
        """Let the protocol read the answer about a job, which comes in one piece, and end the call.

        `exchange.row` is the endpoint's row of the server log; the result's tokens are those that it counted.
        """
        exchange = self._exchange
        row = self._row
        call = self._send.call
        now_ns = self._attempts.queue.now_ns()
        status = exchange.row.status
        wire = self._attempts.wires[call.target]
        decoder = StreamDecoder(wire.on_event, AnswerSettings(kind=call.kind), on_whole=wire.on_job)
        decoder.whole(body, now_ns, now_ns, 0)  # arrived and read now, by the first read
        self._note_headers(status)
        row.stop_reason = decoder.stop_reason
        row.streamed = False
        if call.kind == JOB_FETCH:
            row.input_tokens = exchange.row.input_tokens
            row.output_tokens = exchange.row.output_tokens
        self._job_text = decoder.text
        self._location = exchange.headers.get("location")
        self._end(outcome(response_of(status, exchange.headers, body), decoder))

    def _refuse(self, refused: Refused) -> None:
        """End the call with an error of the endpoint, as an event in a 200 or with a status of its own."""
        exchange = self._exchange
        if refused.in_band:
            self._note_headers(200)
            received = self._new_received()
            event = exchange.error_event(refused, has_begun=False)
            received.read([(self._attempts.queue.now_ns(), event)])
            self._received = received
            self._end(received.outcome())
            return
        self._note_headers(refused.status)
        body = exchange.wire.error_body(refused, "")
        response = response_of(refused.status, exchange.headers, body)
        self._end(outcome(response, cast("StreamDecoder", None)))

    def _end(self, result: Outcome, *, has_end_mark: bool = False) -> None:
        """End the call for its client: complete its row, write it if the endpoint is through too, and tell the pattern.

        `result`: how it ended; `has_end_mark`: its answer is whole. A censored call has no time of its end. Closes the
        call in the lists of open calls, timers and the cache book.
        """
        attempts = self._attempts
        row = self._row
        now_ns = attempts.queue.now_ns()
        if self._send.call.event_ids is not None and self._delivery is not None:
            result = self._check_ids(self._send.call.event_ids, self._delivery, result)
        self._ending = _Ending(result, now_ns, has_end_mark)
        self._timer.cancel()
        del attempts.open[self._key]
        if attempts.book is not None:
            attempts.book.ended(self._key, now_ns)
        row.ended = result.ended
        if result.ended != schema.CENSORED:
            row.ended_at_ns = now_ns
        row.error_type = result.error_type
        row.error_body = result.error_body
        row.limit_kind = result.limit_kind
        row.error_class = result.error_class
        advice: bool | None = None
        if self._response is not None:
            wall_time = datetime.fromtimestamp(attempts.endpoint.wall_ns() / 1e9, UTC)
            row.retry_after_s, row.retry_after_from = retry_after(
                self._response, row.ended, wall_time
            )
            advice = should_retry(self._response)
        text = self._text(has_end_mark=has_end_mark)
        self._write()
        _, leg, number = self._key
        end = Ended(
            leg=leg,
            attempt=number,
            at_ns=now_ns,
            ended=row.ended,
            retry_after_s=row.retry_after_s,
            should_retry=advice,
            text=text,
            location=self._location,
            had_content=row.first_content_at_ns is not None,
            status=row.status,
            error_class=row.error_class,
            obeys_retry_after=row.retry_after_from in RETRY_HEADERS,
            longest_wait_s=PROTOCOLS[row.protocol].longest_wait_s,
        )
        self._post(end)

    def _text(self, *, has_end_mark: bool) -> str | None:
        """Return the answer, where the pattern needs it."""
        if not self._send.call.keep_text:
            return self._job_text
        if self._received is not None:
            return self._received.decoder.text
        if has_end_mark:
            return text_of(self._exchange)
        return self._job_text

    def _check_ids(self, ids: EventIds, delivery: Delivery, result: Outcome) -> Outcome:
        """Return the outcome with what the ids of the events show, as in a decoder."""
        ids.connect()
        for index in range(len(delivery.chunks(self._attempts.queue.now_ns())[0])):
            ids.receive(self._exchange.event_id(index), has_content=True)
        if ids.problem is not None and result.ended in {schema.OK, schema.EMPTY, schema.TRUNCATED}:
            return Outcome(schema.STREAM_ERROR, *ids.problem)
        if ids.contents and result.ended == schema.EMPTY:
            return Outcome(schema.OK)
        return result

    def _write(self) -> None:
        """Write the rows and chunks of the call, once its client and the simulated endpoint are through with it.

        They are written only once. An answer that is written as usual (`Exchange.is_plain`) is not decoded: its row is
        filled in from the times in its delivery. Any other is decoded from its bytes, at the latest now.
        """
        ending = self._ending
        if self._is_written or ending is None or not self._is_over:
            return
        self._is_written = True
        store = self._attempts.store
        delivery = self._delivery
        exchange = self._exchange
        is_unread = self._received is None and self._row.status == 200 and not exchange.is_plain
        if delivery is not None and is_unread:
            self._received = self._new_received()
            self._received.read(delivery.pieces(ending.at_ns))
        if self._received is not None:
            store.chunks(self._key, self._received.fill(self._row, ending.outcome))
        elif delivery is not None:
            chunks = fill_from_delivery(
                self._row, exchange, delivery, ending.at_ns, has_end_mark=ending.has_end_mark
            )
            store.chunks(self._key, chunks)
        if delivery is not None:
            delivery.log_chunks()
        store.attempt(self._row)
        store.server_log(exchange.row)
