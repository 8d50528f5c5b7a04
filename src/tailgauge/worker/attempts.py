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
from tailgauge.protocols.decoder import MAX_NAME, StreamDecoder
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
from tailgauge.transport.reader import READER, Due
from tailgauge.transport.stopwatch import watched_by
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
class _Open:
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
        self, run_id: str, endpoints: Mapping[str, Endpoint], recorder: Recorder, counters: Counters,
        deadline_s: float, cache: CacheBook | None = None,
    ) -> None:  # fmt: skip
        self.guard: Guard | None = None  # from the start of the run on
        self.on_exhausted: Callable[[str], None] = lambda _: (
            None
        )  # no descriptor was left for a call
        self.on_bug: Callable[[Exception], None] = lambda _: (
            None
        )  # our own code could not prepare a call
        self.input_bound = InputBound()  # until the preflight has learnt what the target counts
        self._run_id = run_id
        self._endpoints = endpoints
        self._deadline_s = deadline_s
        self._recorder = recorder
        self._counters = counters
        self._cache = cache
        self._held = HeldBytes()
        self._given_bytes = OpenBytes()  # of answers that their tasks read
        self.later = Later()
        self.diagnostics: CacheDiagnostics | None = (
            None  # where the target is asked why its cache missed
        )
        self.answers: KeptAnswers | None = None  # where raw answers are to be kept
        self.preflight_rows: dict[int, AttemptRow] = {}  # the last of each request before the run
        self.open: dict[Key, _Open] = {}  # in the order of their begin; until their rows are made
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
        """Start a call; `post` receives its awaited content and its end."""
        if self.diagnostics is not None:
            send = replace(send, call=self.diagnostics.with_diagnostics(send.call, origin.traffic))
        call = send.call
        endpoint = self._endpoints[call.target]
        decoder = endpoint.decoder(call)
        decoder.share_memory(self._counters.conversations)
        exchange = Exchange(decoder, call.bytes_per_s, self._held)
        if self.answers is not None:
            exchange.capture = self.answers.capture()
        if call.prompt.given is not None and exchange.capture is None:
            exchange.capture = Capture(self._given_bytes)
        leg = send.leg
        key = (origin.request_id, send.leg, attempt)
        due = origin.due
        origin.due = None  # the others of the request are not prepared
        begun_at_ns = monotonic_ns() if due is None else due.at_ns
        started = _Open(origin, send, attempt, endpoint, exchange, decoder, post, begun_at_ns, key)
        bounded = self.guard is not None and not self.guard.is_of_calls_only
        exchange.may_wait = not (origin.acts or bounded or self._cache is not None)
        exchange.on_content = partial(self._on_content, started)
        if call.watch_chunks:
            exchange.on_watched = lambda: post(
                Chunks(leg, attempt, decoder.watched.at if decoder.watched else monotonic_ns())
            )
        self.open[key] = started
        if self._deadline is None:
            self._await_deadline(self._deadline_s)
        if (
            due is None
            and self.guard is not None
            and not self.guard.take(key, call, endpoint.model)
        ):
            exchange.abort(CANCELLED)  # recorded like any other call, and never sent
        if self._cache is not None:
            started.note = self._cache.sent(call, key, started.begun_at_ns, origin.traffic)
        if due is None:
            self._send(started)
        else:
            exchange.on_over = partial(self._ended, started)
            endpoint.attach(exchange, due)
        return exchange

    @property
    def ahead_ns(self) -> int:
        """How long before it is due a call may be prepared."""
        return min(endpoint.ahead_ns for endpoint in self._endpoints.values())

    def prepare(
        self,
        request_id: int,
        traffic: str,
        send: Send,
        due_ns: int,
        on_due: Callable[[Due], object],
        *,
        calls_left: int,
    ) -> Callable[[], bool] | None:
        """Let the first call of a request leave at its due time; returns what withdraws it, None where it cannot be.

        Whoever hears from `on_due` that it has left starts the call, with that in its `RequestRef`. `calls_left`: how many calls
        the limits of the run must still allow; closer to them a call is judged when it is due.
        """
        call = send.call
        endpoint = self._endpoints[call.target]
        model = endpoint.model
        is_usual = self.diagnostics is None and call.bytes_per_s is None and call.event_ids is None
        guard = self.guard
        if (
            not is_usual
            or not endpoint.may_prepare
            or (guard is not None and not guard.allows(call, model, calls_left))
        ):
            return None
        try:
            request = endpoint.prepared(
                call, f"{self._run_id}/{request_id}/{send.leg}/0", request_id, traffic
            )
        except Exception:  # noqa: BLE001 - raised again where it is sent without this
            return None
        if request is None:
            return None
        key = (request_id, send.leg, 0)

        def on_notice(due: Due) -> None:
            if due.is_back and guard is not None:
                guard.give_back(key)
            on_due(due)

        taken_out = endpoint.send_at(due_ns, request, on_notice)
        if taken_out is None or guard is None:
            return taken_out
        guard.take(key, call, model)

        def withdraw() -> bool:
            was_there = taken_out()
            if was_there:
                guard.give_back(key)
            return was_there

        return withdraw

    def in_flight(self) -> int:
        """Calls that have not ended; one that waits to be recorded has."""
        return sum(not one.exchange.done for one in self.open.values())

    def decode_open(self) -> None:
        """Decode what open calls have received, in slices, so that it never accumulates."""
        READER.catch_up()
        began_ns = monotonic_ns()
        for one in list(self.open.values()):
            one.exchange.advance()
            self._note_reads(one)
            if monotonic_ns() - began_ns > SLICE_NS:
                yield_to_hub()
                began_ns = monotonic_ns()

    def record_open(self) -> None:
        """Pass chunks of open calls to the recorder: a crash then loses only seconds of a long call."""
        self.decode_open()
        for key, one in list(self.open.items()):
            self._recorder.chunks(*key, *one.decoder.take())

    def abort_open(self, reason: str) -> None:
        """Close every open call."""
        for one in list(self.open.values()):
            one.exchange.abort(reason)

    def _note_reads(self, one: _Open) -> None:
        """Count what was decoded since the last call."""
        counters = self._counters
        exchange = one.exchange
        decoder = one.decoder
        counters.receive_lag_max_ns = max(
            counters.receive_lag_max_ns, exchange.receive_lag_recent_ns
        )
        exchange.receive_lag_recent_ns = 0
        counters.chunks += decoder.chunks - one.chunks
        counters.chunk_intervals += decoder.intervals - one.intervals
        one.chunks = decoder.chunks
        one.intervals = decoder.intervals

    def _note_first(self, one: _Open, at_ns: int) -> None:
        """Count a first chunk."""
        counters = self._counters
        origin = one.origin
        first = one.decoder.first_content
        interval = first is not None and first.low is not None
        counters.first_chunks += 1
        counters.first_intervals += interval
        of = counters.traffic[origin.traffic, one.send.call.target]
        quantile_sketch.add(of.ttft, (at_ns - origin.scheduled_at_ns) / 1e6)
        if origin.stage == STEADY and one.send.leg == one.attempt == 0:
            late_ns = (one.exchange.left_at_ns or at_ns) - origin.scheduled_at_ns
            if origin.dispatched_at_ns is not None:  # it waited for a slot as its scenario asks
                late_ns -= one.begun_at_ns - origin.dispatched_at_ns
            quantile_sketch.add(counters.delays, late_ns / 1e6)

    def _on_content(self, one: _Open) -> None:
        exchange = one.exchange
        decoder = one.decoder
        at_ns = decoder.first_content.at if decoder.first_content else monotonic_ns()
        if self._cache is not None:
            self._cache.begun(one.key, at_ns)
        if one.origin.stage != PREFLIGHT:
            self._note_first(one, at_ns)
        if one.origin.acts:  # else its end is enough
            one.post(FirstContent(one.send.leg, one.attempt, at_ns, exchange.left_at_ns or at_ns))

    def _send(self, one: _Open) -> None:
        """Send it here, where nothing has to be waited for, else on a greenlet."""
        endpoint = one.endpoint
        exchange = one.exchange
        request = None
        if not exchange.aborted and getcurrent() is not get_hub() and endpoint.rests():
            request = self._prepared(one)
            exchange.on_over = partial(self._ended, one)
            if request is not None and endpoint.send_at_once(request, exchange):
                return
            exchange.on_over = _nothing
        gevent.spawn(self._run, one, request)

    def _prepared(self, one: _Open) -> bytes | None:
        """The request by its template; None where there is none, or where our code fails, which `_run` will report."""
        call = one.send.call
        origin = one.origin
        try:
            return one.endpoint.prepared(
                call, self._call_id(one), origin.request_id, origin.traffic
            )
        except Exception:  # noqa: BLE001 - raised again by `_run`
            return None

    def _run(self, one: _Open, request: bytes | None) -> None:
        send = partial(
            one.endpoint.send, one.send.call, self._call_id(one), request,
            request_id=one.origin.request_id, traffic=one.origin.traffic,
        )  # fmt: skip
        bug = self._until_end(one.exchange, send)
        self._ended(one, bug)
        if isinstance(bug, MemoryError):
            raise bug  # of this process, not of one call

    def _ended(self, one: _Open, bug: Exception | None = None) -> None:
        """A call is over; its pattern hears of it now."""
        exchange = one.exchange
        key = one.key
        if bug is None:
            result = outcome(exchange, one.decoder)
        else:
            result = _not_sent(one.endpoint.blamed(bug))
            log.error("request %s was not sent: %s", key, result.error_body)
            if result.error_type == INTERNAL_ERROR and one.origin.stage != PREFLIGHT:
                self.on_bug(bug)
        ended_at_ns = exchange.ended_at_ns or monotonic_ns()
        if self._cache is not None:
            if result.ended in SERVED:
                self._cache.begun(key, ended_at_ns)  # an answer without content has begun too
            self._cache.ended(key, ended_at_ns)
        if self.diagnostics is not None and result.ended in SERVED:
            self.diagnostics.ended(one.send.call, one.origin.traffic, one.decoder.message_id)
        self.in_order(partial(self._record, one, result))
        if exchange.failure is not None and exchange.failure[0] in OF_THIS_MACHINE:
            self.on_exhausted(exchange.failure[1])
        leg = one.send.leg
        attempt = one.attempt
        text = one.decoder.text
        kind = one.send.call.kind
        after_s, after_from = retry_after(exchange, result.ended)
        location = exchange.header(b"location").decode("latin-1") if kind == JOB_SUBMIT else None
        had_content = one.decoder.has_content
        one.post(
            Ended(
                leg, attempt, ended_at_ns, result.ended, after_s, should_retry(exchange), text, location,
                had_content, status=exchange.status, error_class=result.error_class,
                obeys_retry_after=after_from in RETRY_HEADERS,
                longest_wait_s=one.endpoint.longest_wait_s,
            )
        )  # fmt: skip

    def in_order(self, job: Callable[[], object]) -> None:
        """Run a job behind the records of the calls that have ended: soon, or now where a limit needs what each has used."""
        if self.guard is None or self.guard.is_of_calls_only:
            self.later.add(job)
        else:
            job()

    def _record(self, one: _Open, result: Outcome) -> None:
        """The row, chunks and counters of an ended call."""
        exchange = one.exchange
        decoder = one.decoder
        key = one.key
        call = one.send.call
        protocol = one.endpoint.protocol
        model = one.endpoint.model
        row = begun(
            one.origin, one.send, one.attempt, protocol=protocol, model=model, at_ns=one.begun_at_ns
        )
        if one.note is not None:
            one.note.fill(row)
        counts = decoder.usage.counts(self._asked(one), has_content=decoder.has_content)
        fill(row, exchange, decoder, result, counts)
        if self.guard is not None:
            self.guard.ended(key, row)
        self._recorder.chunks(
            *key, decoder.taken, decoder.fresh
        )  # the last: no others are to be made
        self._recorder.attempt(row)
        if row.stage == PREFLIGHT:
            self.preflight_rows[row.request_id] = row
        if self.answers is not None:
            self.answers.ended(row, exchange)
        if exchange.capture is not None:
            exchange.capture.release()
        del self.open[key]
        self._counters.reads += exchange.reads
        self._note_reads(one)
        if one.origin.stage != PREFLIGHT:
            tokens = counts.trusted()
            pace = None
            if result.ended in COMPLETE:
                pace = pace_ms(decoder, tokens, thinks=call.thinking != "off")
            counters = self._counters.traffic[one.origin.traffic, call.target]
            counters.end_attempt(result.error_class or result.ended, tokens, pace)
            url = "" if row.ended in SERVED else self.address(call, one.origin.traffic) or ""
            self._counters.rejections.note(row, url)

    def _asked(self, one: _Open) -> usage.Request:
        """What a call asked for, which its counts may contradict."""
        call = one.send.call
        if call.kind != MESSAGE:
            return usage.Request()
        counts = one.decoder.usage.largest
        most = self.input_bound.most(call, one.origin.traffic, counts)
        given = call.prompt.given
        is_limited = one.endpoint.obeys_max_tokens and (given is None or given.has_limit)
        return usage.Request(
            prompt_bytes=call.prompt.text_bytes,
            most_input_tokens=most,
            max_tokens=call.max_tokens if is_limited else None,
        )

    def _await_deadline(self, seconds: float) -> None:
        self._deadline = get_hub().loop.timer(seconds, ref=False)
        self._deadline.start(self._on_deadline)

    def _on_deadline(self) -> None:
        """Close the calls that are due, and wait for the deadline of the next."""
        self._deadline.close()
        self._deadline = None
        for one in list(self.open.values()):
            left_s = self._deadline_s - (monotonic_ns() - one.begun_at_ns) / 1e9
            if left_s > 0:
                self._await_deadline(left_s)
                return
            one.exchange.abort("timeout")

    def models(self, target: str) -> list[tuple[str, str]]:
        """Models in a target's list, and whose they are; none where it has no list that can be read."""
        request = self._endpoints[target].list_models
        return self._listed(request, "data", lambda one: (shown(str(one["id"]), MAX_NAME), str(one.get(OF_MODEL))))  # fmt: skip

    def tokens(self, target: str, engine: str, text: str) -> list[int]:
        """The tokens of a text by the engine behind a target; none where it does not tell."""
        return self._listed(partial(self._endpoints[target].tokenize, engine, text), "tokens", int)

    def _listed(self, request: Callable[[], Opened | None], key: str, entry: Callable[[Any], T]) -> list[T]:  # fmt: skip
        """The entries under `key` of an answer that is no call's; none where it is not such an answer."""
        found: list[T] = []

        def read(_: StreamDecoder, body: bytes) -> None:
            found.extend([entry(one) for one in json.loads(body)[key]])

        # An idle connection may be closed just then. A call is never sent twice, but this is none.
        while (sending := request()) is not None:
            exchange = Exchange(StreamDecoder(_no_event, on_whole=read))
            deadline = gevent.spawn_later(self._deadline_s, exchange.abort, "timeout")
            self._until_end(exchange, lambda opened=sending: opened)  # type: ignore[misc]
            deadline.kill()
            if exchange.failure is None or exchange.failure[0] != STALE:
                break
        return found

    def engine(self, target: str) -> str | None:
        """The engine behind a target, by its list of models; None of an unknown one."""
        return next(
            (ENGINE_OF[maker] for _, maker in self.models(target) if maker in ENGINE_OF), None
        )

    def caching_engine(self, target: str) -> str | None:
        """The engine behind a target that caches without marks, by its list of models; None of another one."""
        makers = [maker for _, maker in self.models(target)]
        return next((maker for maker in makers if maker in CACHES_BY_ITSELF), None)

    def adaptation(self, target: str, refusal: str) -> Adaptation | None:
        """What to send instead of what a target has refused with this text, where that is known."""
        return self._endpoints[target].adaptation(refusal)

    def adapt(self, adaptations: Mapping[str, Adaptation]) -> None:
        """Send what the preflight found that each target takes."""
        for target, adaptation in adaptations.items():
            self._endpoints[target].adapt(adaptation)

    def use_engines(self, engines: Mapping[str, str]) -> None:
        """Send what the engines understand, by target."""
        for target, name in engines.items():
            self._endpoints[target].engine(name)

    def address(self, call: Call, traffic: str) -> str | None:
        """The full URL of a call."""
        return self._endpoints[call.target].address(call, traffic)

    def _call_id(self, one: _Open) -> str:
        return f"{self._run_id}/{one.origin.request_id}/{one.send.leg}/{one.attempt}"

    def _until_end(self, exchange: Exchange, request: Callable[[], Opened]) -> Exception | None:
        """A call until its end; returns an error that is not the target's."""
        try:
            with watched_by(exchange), request():
                exchange.wait_end()
        except Exception as error:  # noqa: BLE001 - the exchange reports what the SDK raises; the rest is a bug
            if not exchange.done:
                exchange.fail("not_sent", repr(error))
                return error
        return None


def _not_sent(bug: Exception) -> Outcome:
    """The outcome of a call that could not be prepared: no fault of the target's, so no class of the target's."""
    text = fault(bug)
    if text:
        return Outcome(CLIENT_ERROR, PLUGIN_ERROR, shown(text, MAX_ERROR_TEXT))
    return Outcome(CENSORED, INTERNAL_ERROR, shown(repr(bug), MAX_ERROR_TEXT))


def _nothing() -> None:
    """Its greenlet sees the end itself."""


def _no_event(decoder: StreamDecoder, name: bytes, data: bytes) -> None:
    """Neither a list of models nor of tokens is a stream."""
