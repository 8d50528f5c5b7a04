"""Runs one HTTP call from dispatch to its row.

Rule: a call's greenlet sleeps between its sending and its end. What it reports on the way (headers, first content)
is posted from the hub's callbacks, so the pattern hears of it without a further switch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gevent
from gevent import get_hub

from tailgauge import sketch
from tailgauge.call import Call, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.dispatch.counters import Counters
from tailgauge.dispatch.outcome import Outcome, outcome
from tailgauge.dispatch.rows import fill
from tailgauge.endpoints.keys import redact
from tailgauge.records import CLIENT_ERROR, PREFLIGHT, AttemptRow
from tailgauge.traffic.steps import Ended, Event, FirstContent, Headers, Send
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.stopwatch import watched_by

if TYPE_CHECKING:
    from tailgauge.endpoints.decoder import StreamDecoder
    from tailgauge.endpoints.endpoint import Endpoint
    from tailgauge.recorder import Recorder

log = logging.getLogger("tailgauge")
_SLICE = 512  # reads decoded before other greenlets get their turn


@dataclass(frozen=True, slots=True)
class Origin:
    """The request that an attempt serves."""

    request_id: int
    stage: str
    traffic: str
    scheduled_at_ns: int


class Attempts:
    """All calls of one worker; `open` holds those in flight."""

    def __init__(
        self, run_id: str, endpoint: Endpoint, recorder: Recorder, counters: Counters, deadline_s: float
    ) -> None:
        self._run_id = run_id
        self._endpoint = endpoint
        self._recorder = recorder
        self._counters = counters
        self._deadline_s = deadline_s
        self.last_row: AttemptRow | None = None
        self.open: dict[tuple[int, int, int], tuple[Exchange, StreamDecoder]] = {}

    def warm_up(self) -> None:
        """Build one request through the SDK without sending it: what it loads at first use does not fall into the run."""
        exchange = Exchange()
        exchange.abort("cancelled")
        with (
            suppress(Exception),
            watched_by(exchange),
            self._endpoint.send(Call(Prompt.of("warm up"), 1), f"{self._run_id}/warm-up"),
        ):
            raise AssertionError("an aborted exchange was sent")

    def start(self, origin: Origin, send: Send, attempt: int, post: Callable[[Event], None]) -> Exchange:
        """Start a call on its own greenlet; `post` hears its headers, its first content and its end."""
        decoder = self._endpoint.decoder()
        exchange = Exchange(decoder)
        leg = send.leg
        exchange.on_headers = lambda: post(
            Headers(leg, attempt, exchange.headers_at_ns or 0, exchange.status or 0)
        )
        exchange.on_content = lambda: self._on_content(origin, exchange, decoder, leg, attempt, post)
        self.open[origin.request_id, leg, attempt] = (exchange, decoder)
        gevent.spawn(self._run, origin, send, attempt, exchange, decoder, post)
        return exchange

    def decode_open(self) -> None:
        """Decode what the open calls have received, in slices, so that no later moment has to do it at once."""
        done = 0
        for exchange, _ in list(self.open.values()):
            done += exchange.advance()
            self._note_handover(exchange)
            if done > _SLICE:
                done = 0
                gevent.sleep(0)

    def record_open(self) -> None:
        """Hand the chunks of open calls to the recorder: a crash loses seconds of a long call, not all of it."""
        self.decode_open()
        for key, (_, decoder) in list(self.open.items()):
            self._recorder.chunks(*key, *decoder.take())

    def abort_open(self, reason: str) -> None:
        """Close every open call."""
        for exchange, _ in list(self.open.values()):
            exchange.abort(reason)

    def _note_handover(self, exchange: Exchange) -> None:
        self._counters.handover_max_ns = max(self._counters.handover_max_ns, exchange.handover_recent_ns)
        exchange.handover_recent_ns = 0

    def _on_content(
        self,
        origin: Origin,
        exchange: Exchange,
        decoder: StreamDecoder,
        leg: int,
        attempt: int,
        post: Callable[[Event], None],
    ) -> None:
        at_ns = decoder.first_content.at if decoder.first_content else monotonic_ns()
        if origin.stage != PREFLIGHT:
            sketch.add(self._counters.ttft, (at_ns - origin.scheduled_at_ns) / 1e6)
        post(FirstContent(leg, attempt, at_ns, exchange.sent_at_ns or at_ns))

    def _run(
        self,
        origin: Origin,
        send: Send,
        attempt: int,
        exchange: Exchange,
        decoder: StreamDecoder,
        post: Callable[[Event], None],
    ) -> None:
        self._counters.attempts_open += 1
        row = self._row(origin, send, attempt)
        key = (origin.request_id, send.leg, attempt)
        bug = self._call(send, key, exchange)
        if bug is None:
            result = outcome(exchange, decoder)
        else:
            result = Outcome(CLIENT_ERROR, "not_sent", redact(repr(bug))[:2000])
            log.error("request %s was not sent: %s", key, result.error_body)
        fill(row, exchange, decoder, result)
        self._recorder.chunks(*key, *decoder.take())
        self._recorder.attempt(row)
        self.last_row = row
        del self.open[key]
        self._count(exchange, decoder)
        post(
            Ended(send.leg, attempt, exchange.ended_at_ns or monotonic_ns(), result.ended, row.retry_after_s)
        )

    def _call(self, send: Send, key: tuple[int, int, int], exchange: Exchange) -> Exception | None:
        """The call itself, until its end; returns an error that is none of the target's."""
        deadline = get_hub().loop.timer(self._deadline_s)
        deadline.start(exchange.abort, "timeout")
        call_id = "/".join((self._run_id, *map(str, key)))
        try:
            with watched_by(exchange), self._endpoint.send(send.call, call_id):
                exchange.wait_end()
        except Exception as error:  # noqa: BLE001 - what the SDK raises is told by the exchange; the rest is a bug
            if not exchange.done:
                exchange.fail("not_sent", repr(error))
                return error
        finally:
            deadline.stop()
            deadline.close()
        return None

    def _row(self, origin: Origin, send: Send, attempt: int) -> AttemptRow:
        return AttemptRow(
            request_id=origin.request_id,
            leg=send.leg,
            attempt=attempt,
            cause=send.cause,
            of_attempt=send.of_attempt,
            stage=origin.stage,
            traffic=origin.traffic,
            protocol=self._endpoint.protocol,
            asked_model=self._endpoint.model,
            scheduled_at_ns=origin.scheduled_at_ns,
            dispatched_at_ns=monotonic_ns(),
        )

    def _count(self, exchange: Exchange, decoder: StreamDecoder) -> None:
        counters = self._counters
        counters.attempts_open -= 1
        counters.chunks += decoder.chunks
        counters.reads += exchange.reads
        self._note_handover(exchange)
