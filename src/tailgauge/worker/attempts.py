"""HTTP calls from dispatch to row.

A call whose request is prepared, and for which a connection rests, is sent at once and has no greenlet: its events and its
end are posted from the hub's callbacks, so the pattern receives them without a switch. Where something has to be waited
for, a greenlet does it. Rows and counters of ended calls follow a little later; see `Later`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import gevent
from gevent import get_hub, getcurrent

from tailgauge import quantile_sketch
from tailgauge.call import JOB_SUBMIT, MESSAGE, Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.patterns.events import Chunks, Ended, Event, FirstContent, Send
from tailgauge.plan.input_bound import InputBound
from tailgauge.plan.spend_limit import Guard
from tailgauge.plugins.plugin import fault
from tailgauge.protocols import usage
from tailgauge.protocols.additions import CACHES_BY_ITSELF, ENGINE_OF, OF_MODEL
from tailgauge.protocols.decoder import MAX_NAME, Stamp, StreamDecoder
from tailgauge.protocols.errors import MAX_ERROR_TEXT
from tailgauge.protocols.protocol import Adaptation, Opened
from tailgauge.protocols.target import Endpoint
from tailgauge.redaction import shown
from tailgauge.rows.recorder import Recorder
from tailgauge.rows.schema import (
    CANCELLED,
    CENSORED,
    CLIENT_ERROR,
    COMPLETE,
    INTERNAL_ERROR,
    PLUGIN_ERROR,
    PREFLIGHT,
    SERVED,
    STEADY,
    AttemptRow,
)
from tailgauge.transport.capture import Capture, OpenBytes
from tailgauge.transport.connection import OF_THIS_MACHINE
from tailgauge.transport.exchange import STALE, Exchange, HeldBytes
from tailgauge.transport.http_transport import watched_by
from tailgauge.transport.reader import READER, Departure
from tailgauge.worker.attempt_row import RequestRef, begun, fill
from tailgauge.worker.cache_diagnostics import CacheDiagnostics
from tailgauge.worker.cache_tracker import CacheBook, CacheNote
from tailgauge.worker.counters import Counters, pace_ms
from tailgauge.worker.kept_answers import KeptAnswers
from tailgauge.worker.outcome import RETRY_HEADERS, Outcome, outcome, retry_after, should_retry
from tailgauge.worker.timers import SLICE_NS, Later, yield_to_hub

log = logging.getLogger("tailgauge")
Key = tuple[int, int, int]  # request, leg, attempt
T = TypeVar("T")


@dataclass(slots=True)
class OpenCall:
    """A call in flight."""

    origin: RequestRef
    send: Send
    attempt: int
    endpoint: Endpoint
    exchange: Exchange
    decoder: StreamDecoder
    post: Callable[[Event], None]
    begun_at_ns: int
    key: Key
    chunks: int = 0  # counted so far
    intervals: int = 0
    note: CacheNote | None = None


class Attempts:
    """All calls of one worker; `open`: those in flight. `endpoints` by target: main, second."""

    def __init__(
        self,
        run_id: str,
        endpoints: Mapping[str, Endpoint],
        recorder: Recorder,
        counters: Counters,
        deadline_s: float,
        *,
        cache: CacheBook | None = None,
    ) -> None:
        """Prepare to make calls; nothing is sent. `endpoints`: by target, main or second.

        `deadline_s`: after which a call is closed as timed out. `cache`: the model of the targets' prompt
        caches; None: nothing is cached. The callbacks and the guard are set by the run.
        """
        self.guard: Guard | None = None  # from the start of the run on
        self.on_exhausted: Callable[[str], None] = _ignore  # no descriptor was left for a call
        self.on_bug: Callable[[Exception], None] = _ignore  # our own code could not prepare a call
        self.input_bound = InputBound()  # until the preflight has learnt what the target counts
        self._run_id = run_id
        self._endpoints = endpoints
        self._deadline_s = deadline_s
        self._recorder = recorder
        self._counters = counters
        self._cache = cache
        # Memory bounds over all open calls: of answers in progress, and of raw answers for tasks.
        self._held = HeldBytes()
        self._given_bytes = OpenBytes()  # of answers that their tasks read
        self.later = Later()  # rows of ended calls, which can wait a moment
        self.diagnostics: CacheDiagnostics | None = None  # asks the target why its cache missed
        self.answers: KeptAnswers | None = None  # where raw answers are to be kept
        self.preflight_rows: dict[int, AttemptRow] = {}  # the last of each request before the run
        # In the order of their begin; until their rows are made.
        self.open: dict[Key, OpenCall] = {}
        self._deadline: Any = None  # one timer: the deadlines are in the order of the begins

    def warm_up(self) -> None:
        """Build one request with each SDK without sending it, so that its first use is not in the run."""
        call = Call(Prompt.of("warm up"), 1)
        for endpoint in self._endpoints.values():
            exchange = Exchange()
            exchange.abort("cancelled")
            with (
                suppress(Exception),
                watched_by(exchange),
                endpoint.send(call, f"{self._run_id}/warm-up"),
            ):
                raise AssertionError("an aborted exchange was sent")

    def start(
        self, origin: RequestRef, send: Send, attempt: int, post: Callable[[Event], None]
    ) -> Exchange:
        """Start a call of a request and return its exchange; `post` receives its awaited content and its end.

        `attempt`: number of the try, 0 for the first. If the call has left already as a prepared request
        (`origin.departure`), nothing is sent: its exchange only listens for the answer. A call that the
        limits refuse is not sent; it ends as cancelled, and has a row.
        """
        if self.diagnostics is not None:
            # The call names the last answer over the same prefix: the target then says why its cache
            # missed.
            send = replace(send, call=self.diagnostics.with_diagnostics(send.call, origin.traffic))
        call = send.call
        departure = origin.departure
        origin.departure = None  # the other calls of the request are not prepared
        open_call = self._open_call(origin, send, attempt, post, departure)
        exchange = open_call.exchange
        self.open[open_call.key] = open_call
        if self._deadline is None:
            self._await_deadline(self._deadline_s)
        # A prepared call has passed the guard already. A call that the guard refuses is recorded, and never sent.
        if departure is None and self.guard is not None:
            model = open_call.endpoint.model
            if not self.guard.take(open_call.key, call, model):
                exchange.abort(CANCELLED)
        # What the model of the target's cache expects of this call, for its row.
        if self._cache is not None:
            begun_at_ns = open_call.begun_at_ns
            open_call.note = self._cache.sent(call, open_call.key, begun_at_ns, origin.traffic)
        if departure is None:
            self._send(open_call)
        else:
            exchange.on_over = partial(self._end, open_call)
            open_call.endpoint.attach(exchange, departure)
        return exchange

    def _open_call(
        self,
        origin: RequestRef,
        send: Send,
        attempt: int,
        post: Callable[[Event], None],
        departure: Departure | None,
    ) -> OpenCall:
        """Make the exchange of a call and what decodes its answer; nothing is sent.

        `departure`: how the call has left, where it was prepared; None: it is sent after this.
        """
        call = send.call
        endpoint = self._endpoints[call.target]
        decoder = endpoint.decoder(call)
        # The bound on an answer is smaller while the worker keeps much text of conversations.
        decoder.share_memory(self._counters.conversations)
        exchange = Exchange(decoder, call.bytes_per_s, self._held)
        if self.answers is not None:
            exchange.capture = self.answers.capture()
        # A task that gave the whole body reads the raw answer.
        if call.prompt.given is not None and exchange.capture is None:
            exchange.capture = Capture(self._given_bytes)
        begun_at_ns = monotonic_ns()
        if departure is not None:
            begun_at_ns = departure.at_ns
        open_call = OpenCall(
            origin=origin,
            send=send,
            attempt=attempt,
            endpoint=endpoint,
            exchange=exchange,
            decoder=decoder,
            post=post,
            begun_at_ns=begun_at_ns,
            key=(origin.request_id, send.leg, attempt),
        )
        is_bounded = self.guard is not None and not self.guard.is_of_calls_only
        # Whether its reads may be passed on some milliseconds later, because nobody acts on them.
        exchange.may_wait = not (origin.acts or is_bounded or self._cache is not None)
        exchange.on_content = partial(self._on_content, open_call)
        if call.watch_chunks:
            exchange.on_watched = partial(self._on_watched, open_call)
        return open_call

    @property
    def ahead_ns(self) -> int:
        """Return how long before it is due a call may be prepared, in ns."""
        return min(endpoint.ahead_ns for endpoint in self._endpoints.values())

    def prepare(
        self,
        request_id: int,
        traffic: str,
        send: Send,
        *,
        due_ns: int,
        on_due: Callable[[Departure], object],
        calls_needed: int,
    ) -> Callable[[], bool] | None:
        """Let the reader send the first call of a request at its due time; return a function that withdraws it.

        None: the call cannot be prepared, and is to be sent when it is due. The function returns whether
        the call had not left, and then it never leaves. Otherwise `on_due` is called once: the call has
        left, or came back unsent (`is_back`). After it has left, the caller passes that departure to
        `start` in its `RequestRef`. The call is taken from the limits of the run now, and given back if it
        does not leave. `calls_needed`: so many calls must the limits still allow; otherwise the call is
        judged when it is due.
        """
        call = send.call
        if not self._may_prepare(call, calls_needed):
            return None
        request = self._from_template(send, 0, request_id, traffic)
        if request is None:
            return None
        endpoint = self._endpoints[call.target]
        guard = self.guard
        if guard is None:
            return endpoint.send_at(due_ns, request, on_due)
        key = (request_id, send.leg, 0)

        def on_notice(departure: Departure) -> None:
            if departure.is_back:
                guard.give_back(key)
            on_due(departure)

        take_back = endpoint.send_at(due_ns, request, on_notice)
        if take_back is None:
            return None
        guard.take(key, call, endpoint.model)

        def withdraw() -> bool:
            has_not_left = take_back()
            if has_not_left:
                guard.give_back(key)
            return has_not_left

        return withdraw

    def _may_prepare(self, call: Call, calls_needed: int) -> bool:
        """Return whether a call is one that the reader can send, and the limits of the run are far enough."""
        if (
            self.diagnostics is not None
            or call.bytes_per_s is not None
            or call.event_ids is not None
        ):
            return False
        endpoint = self._endpoints[call.target]
        if not endpoint.may_prepare:
            return False
        return self.guard is None or self.guard.allows(call, endpoint.model, calls_needed)

    def _from_template(
        self, send: Send, attempt: int, request_id: int, traffic: str
    ) -> bytes | None:
        """Return a call's request by its template; None where there is none, or where our code fails.

        What it raises is raised again where the call is sent without a template.
        """
        call_id = f"{self._run_id}/{request_id}/{send.leg}/{attempt}"
        endpoint = self._endpoints[send.call.target]
        try:
            return endpoint.prepared(send.call, call_id, request_id, traffic)
        except Exception:  # noqa: BLE001 - the call itself raises it again
            return None

    def in_flight(self) -> int:
        """Return the number of calls that have not ended; one that waits to be recorded has."""
        return sum(not call.exchange.done for call in self.open.values())

    def decode_open(self) -> None:
        """Decode what open calls have received, in slices, so that it never accumulates."""
        READER.catch_up()
        begin_ns = monotonic_ns()
        for call in list(self.open.values()):
            call.exchange.advance()
            self._note_reads(call)
            if monotonic_ns() - begin_ns > SLICE_NS:
                yield_to_hub()
                begin_ns = monotonic_ns()

    def record_open(self) -> None:
        """Pass chunks of open calls to the recorder: a crash then loses only seconds of a long call."""
        self.decode_open()
        for key, call in list(self.open.items()):
            self._recorder.chunks(*key, *call.decoder.take())

    def abort_open(self, reason: str) -> None:
        """Close every open call."""
        for call in list(self.open.values()):
            call.exchange.abort(reason)

    def _note_reads(self, call: OpenCall) -> None:
        """Count what was decoded since the last time."""
        counters = self._counters
        exchange = call.exchange
        decoder = call.decoder
        counters.receive_lag_max_ns = max(
            counters.receive_lag_max_ns, exchange.receive_lag_recent_ns
        )
        exchange.receive_lag_recent_ns = 0
        counters.chunks += decoder.chunks - call.chunks
        counters.chunk_intervals += decoder.intervals - call.intervals
        call.chunks = decoder.chunks
        call.intervals = decoder.intervals

    def _note_first_chunk(self, call: OpenCall, at_ns: int) -> None:
        """Count a first chunk, and how late the call of the steady stage was sent."""
        counters = self._counters
        origin = call.origin
        content = call.decoder.first_content
        counters.first_chunks += 1
        counters.first_intervals += content is not None and content.low is not None
        traffic = counters.traffic[origin.traffic, call.send.call.target]
        quantile_sketch.add(traffic.ttft, (at_ns - origin.scheduled_at_ns) / 1e6)
        if origin.stage == STEADY and call.send.leg == call.attempt == 0:
            late_ns = (call.exchange.left_at_ns or at_ns) - origin.scheduled_at_ns
            if origin.dispatched_at_ns is not None:  # it waited for a slot as its scenario asks
                late_ns -= call.begun_at_ns - origin.dispatched_at_ns
            quantile_sketch.add(counters.delays, late_ns / 1e6)

    def _on_content(self, call: OpenCall) -> None:
        """Take notice of the first content of a call."""
        at_ns = _time(call.decoder.first_content)
        if self._cache is not None:
            self._cache.begun(call.key, at_ns)
        if call.origin.stage != PREFLIGHT:
            self._note_first_chunk(call, at_ns)
        if call.origin.acts:  # else its end is enough
            sent_at_ns = call.exchange.left_at_ns or at_ns
            call.post(FirstContent(call.send.leg, call.attempt, at_ns, sent_at_ns))

    def _on_watched(self, call: OpenCall) -> None:
        """Take notice of the chunk that a call watches for."""
        at_ns = _time(call.decoder.watched)
        call.post(Chunks(call.send.leg, call.attempt, at_ns))

    def _send(self, call: OpenCall) -> None:
        """Send a call at once, where nothing has to be waited for, else on a greenlet."""
        endpoint = call.endpoint
        exchange = call.exchange
        request = None
        if not exchange.aborted and getcurrent() is not get_hub() and endpoint.rests():
            origin = call.origin
            request = self._from_template(
                call.send, call.attempt, origin.request_id, origin.traffic
            )
            exchange.on_over = partial(self._end, call)
            if request is not None and endpoint.send_at_once(request, exchange):
                return
            exchange.on_over = _nothing
        gevent.spawn(self._run, call, request)

    def _run(self, call: OpenCall, request: bytes | None) -> None:
        """Send a call and wait for its end, on a greenlet of its own."""
        call_id = f"{self._run_id}/{call.origin.request_id}/{call.send.leg}/{call.attempt}"
        send = partial(
            call.endpoint.send,
            call.send.call,
            call_id,
            request,
            request_id=call.origin.request_id,
            traffic=call.origin.traffic,
        )
        bug = self._until_end(call.exchange, send)
        self._end(call, bug)
        if isinstance(bug, MemoryError):
            raise bug  # of this process, not of one call

    def _end(self, call: OpenCall, bug: Exception | None = None) -> None:
        """Post the end of a call to its pattern, and have its row written later.

        `bug`: the error of our own code or of a plugin by which the call could not be prepared; None: it
        was sent.
        """
        exchange = call.exchange
        result = outcome(exchange, call.decoder) if bug is None else self._not_sent(call, bug)
        ended_at_ns = exchange.ended_at_ns or monotonic_ns()
        was_served = result.ended in SERVED
        if self._cache is not None:
            if was_served:
                self._cache.begun(call.key, ended_at_ns)  # an answer without content has begun too
            self._cache.ended(call.key, ended_at_ns)
        if self.diagnostics is not None and was_served:
            message_id = call.decoder.message_id
            # The next call over the same prefix will name this answer.
            self.diagnostics.ended(call.send.call, call.origin.traffic, message_id)
        self.in_order(partial(self._record, call, result))
        # No descriptor or no thread was left on this machine, which ends the run.
        if exchange.failure is not None and exchange.failure[0] in OF_THIS_MACHINE:
            self.on_exhausted(exchange.failure[1])
        call.post(_end_event(call, result, ended_at_ns))

    def _not_sent(self, call: OpenCall, bug: Exception) -> Outcome:
        """Return the outcome of a call that could not be prepared; a fault of ours ends the run."""
        result = _outcome_of_bug(call.endpoint.blamed(bug))
        log.error("request %s was not sent: %s", call.key, result.error_body)
        if result.error_type == INTERNAL_ERROR and call.origin.stage != PREFLIGHT:
            self.on_bug(bug)
        return result

    def in_order(self, job: Callable[[], object]) -> None:
        """Run a job behind the records of the calls that have ended: soon, or now where a limit needs what each has used."""
        if self.guard is None or self.guard.is_of_calls_only:
            self.later.add(job)
        else:
            job()

    def _record(self, call: OpenCall, result: Outcome) -> None:
        """Write the row and the chunks of an ended call, release what it held, and count it.

        Calls of the preflight are written, but not counted: their last rows are kept in `preflight_rows`.
        """
        exchange = call.exchange
        decoder = call.decoder
        endpoint = call.endpoint
        row = begun(
            call.origin,
            call.send,
            call.attempt,
            protocol=endpoint.protocol,
            model=endpoint.model,
            at_ns=call.begun_at_ns,
        )
        if call.note is not None:
            call.note.fill(row)
        # Counts that contradict the request are marked, and then not trusted.
        counts = decoder.usage.counts(self._limits_of(call), has_content=decoder.has_content)
        fill(row, exchange, decoder, result, counts)
        if self.guard is not None:
            # What the call took from the limits becomes what it has used.
            self.guard.ended(call.key, row)
        # The last chunks of the call: the decoder needs no new lists behind them.
        self._recorder.chunks(*call.key, decoder.taken, decoder.fresh)
        self._recorder.attempt(row)
        if row.stage == PREFLIGHT:
            self.preflight_rows[row.request_id] = row
        if self.answers is not None:
            self.answers.ended(row, exchange)
        if exchange.capture is not None:
            exchange.capture.release()
        del self.open[call.key]
        self._counters.reads += exchange.reads
        self._note_reads(call)
        if row.stage != PREFLIGHT:
            self._count(call, result, row, counts.trusted())

    def _count(
        self, call: OpenCall, result: Outcome, row: AttemptRow, tokens: Mapping[str, int]
    ) -> None:
        """Count an ended call of the run, with the tokens that its target has counted."""
        traffic = call.origin.traffic
        request = call.send.call
        pace = None
        if result.ended in COMPLETE:
            pace = pace_ms(call.decoder, tokens, thinks=request.thinking != "off")
        counters = self._counters.traffic[traffic, request.target]
        counters.end_attempt(result.error_class or result.ended, tokens, pace)
        url = ""
        if row.ended not in SERVED:
            url = self.address(request, traffic) or ""
        self._counters.rejections.note(row, url)

    def _limits_of(self, call: OpenCall) -> usage.Request:
        """Return what a call asked for, which the counts of its answer may contradict."""
        request = call.send.call
        if request.kind != MESSAGE:
            return usage.Request()
        counts = call.decoder.usage.largest
        given = request.prompt.given
        is_limited = call.endpoint.obeys_max_tokens and (given is None or given.has_limit)
        return usage.Request(
            prompt_bytes=request.prompt.text_bytes,
            most_input_tokens=self.input_bound.most(request, call.origin.traffic, counts),
            max_tokens=request.max_tokens if is_limited else None,
        )

    def _await_deadline(self, seconds: float) -> None:
        self._deadline = get_hub().loop.timer(seconds, ref=False)
        self._deadline.start(self._on_deadline)

    def _on_deadline(self) -> None:
        """Close the calls that are due, and wait for the deadline of the next."""
        self._deadline.close()
        self._deadline = None
        for call in list(self.open.values()):
            left_s = self._deadline_s - (monotonic_ns() - call.begun_at_ns) / 1e9
            if left_s > 0:
                self._await_deadline(left_s)
                return
            call.exchange.abort("timeout")

    def models(self, target: str) -> list[tuple[str, str]]:
        """Return the models in a target's list, and whose they are; none where it has no list that can be read."""
        return self._listed(self._endpoints[target].list_models, "data", _model)

    def tokens(self, target: str, engine: str, text: str) -> list[int]:
        """Return the tokens of a text by the engine behind a target; none where it does not tell."""
        request = partial(self._endpoints[target].tokenize, engine, text)
        return self._listed(request, "tokens", int)

    def _listed(
        self, request: Callable[[], Opened | None], key: str, parse: Callable[[Any], T]
    ) -> list[T]:
        """Return the entries under `key` of an answer that is no call's; none where it is not such an answer."""
        entries: list[T] = []

        def read(_: StreamDecoder, body: bytes) -> None:
            entries.extend([parse(entry) for entry in json.loads(body)[key]])

        # An idle connection may be closed just then. A call is never sent twice, but this is none.
        while True:
            opened = request()
            if opened is None:
                return entries
            exchange = Exchange(StreamDecoder(_no_event, on_whole=read))
            deadline = gevent.spawn_later(self._deadline_s, exchange.abort, "timeout")
            self._until_end(exchange, lambda opened=opened: opened)  # type: ignore[misc]
            deadline.kill()
            if exchange.failure is None or exchange.failure[0] != STALE:
                return entries

    def engine(self, target: str) -> str | None:
        """Return the engine behind a target, by its list of models; None for one that we do not know."""
        makers = [maker for _, maker in self.models(target)]
        return next((ENGINE_OF[maker] for maker in makers if maker in ENGINE_OF), None)

    def caching_engine(self, target: str) -> str | None:
        """Return the engine behind a target that caches without marks, by its list of models; None for another one."""
        makers = [maker for _, maker in self.models(target)]
        return next((maker for maker in makers if maker in CACHES_BY_ITSELF), None)

    def adaptation(self, target: str, refusal: str) -> Adaptation | None:
        """Return what to send instead of what a target has refused with this text, where that is known."""
        return self._endpoints[target].adaptation(refusal)

    def adapt(self, adaptations: Mapping[str, Adaptation]) -> None:
        """Send from now on what the preflight found that each target takes."""
        for target, adaptation in adaptations.items():
            self._endpoints[target].adapt(adaptation)

    def use_engines(self, engines: Mapping[str, str]) -> None:
        """Send from now on what the engines understand, by target."""
        for target, name in engines.items():
            self._endpoints[target].set_engine(name)

    def address(self, call: Call, traffic: str) -> str | None:
        """Return the full URL of a call."""
        return self._endpoints[call.target].address(call, traffic)

    def _until_end(self, exchange: Exchange, request: Callable[[], Opened]) -> Exception | None:
        """Send a call and wait for its end; returns an error that is not the target's."""
        try:
            with watched_by(exchange), request():
                exchange.wait_end()
        except Exception as error:  # noqa: BLE001 - the exchange reports what the SDK raises; the rest is a bug
            if not exchange.done:
                exchange.fail("not_sent", repr(error))
                return error
        return None


def _time(stamp: Stamp | None) -> int:
    """Return the time of a stamp; the present where there is none."""
    if stamp is None:
        return monotonic_ns()
    return stamp.at


def _end_event(call: OpenCall, result: Outcome, ended_at_ns: int) -> Ended:
    """Return what the pattern learns of the end of a call."""
    exchange = call.exchange
    decoder = call.decoder
    wait_s, wait_source = retry_after(exchange, result.ended)
    location = None
    if call.send.call.kind == JOB_SUBMIT:
        location = exchange.header(b"location").decode("latin-1")
    return Ended(
        leg=call.send.leg,
        attempt=call.attempt,
        at_ns=ended_at_ns,
        ended=result.ended,
        retry_after_s=wait_s,
        should_retry=should_retry(exchange),
        text=decoder.text,
        location=location,
        had_content=decoder.has_content,
        status=exchange.status,
        error_class=result.error_class,
        obeys_retry_after=wait_source in RETRY_HEADERS,
        longest_wait_s=call.endpoint.longest_wait_s,
    )


def _outcome_of_bug(bug: Exception) -> Outcome:
    """Return the outcome of a call that could not be prepared: no fault of the target's, so no class of the target's."""
    text = fault(bug)
    if text:
        return Outcome(CLIENT_ERROR, PLUGIN_ERROR, shown(text, MAX_ERROR_TEXT))
    return Outcome(CENSORED, INTERNAL_ERROR, shown(repr(bug), MAX_ERROR_TEXT))


def _ignore(_: object) -> None:
    """Do nothing: the default callback."""


def _model(entry: Any) -> tuple[str, str]:
    """Return a model of a target's list, and whose it is; raises for what is no such entry."""
    return shown(str(entry["id"]), MAX_NAME), str(entry.get(OF_MODEL))


def _nothing() -> None:
    """Do nothing at the end of a call: its greenlet sees it."""


def _no_event(decoder: StreamDecoder, name: bytes, data: bytes) -> None:
    """Ignore an event: neither a list of models nor of tokens is a stream."""
