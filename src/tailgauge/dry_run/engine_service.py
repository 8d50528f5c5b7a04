"""A call in the engine that serves all calls together: it hears what becomes of it.

Rule: where the engine tells of no single token, the times of a call's chunks are known at its end only; what the client
waits for before, its first content, the engine does tell.
"""

from __future__ import annotations

from collections.abc import Callable

from tailgauge.dry_run.event_queue import Agenda
from tailgauge.dry_run.service import Client, Service
from tailgauge.simulator import faults
from tailgauge.simulator.engine import emission as events
from tailgauge.simulator.engine.emission import Emission
from tailgauge.simulator.engine.job import Job
from tailgauge.simulator.exchange import Exchange


class EngineService(Service):
    """One job's. `cancel` takes it out of the engine, as its mode says."""

    def __init__(
        self,
        exchange: Exchange,
        client: Client,
        agenda: Agenda,
        watch: int,
        job: Job,
        cancel: Callable[[Job], None],
        *,
        every_token: bool,
    ) -> None:
        super().__init__(exchange, client, agenda, watch, pieces=every_token)
        self.job, self._cancel, self._every_token = job, cancel, every_token
        self._made = 0
        self._first_ns: int | None = None
        fault = exchange.fault
        self._limit = fault.at_chunk if fault is not None and faults.ends_stream(fault) else None
        self._is_cut = False

    def hear(self, emission: Emission) -> None:
        """What the engine tells of the call."""
        kind, call, at_ns, tokens = emission
        row = self.exchange.row
        if kind == events.TOKENS:
            self._make(tokens, at_ns)
        elif kind == events.FIRST_TOKEN:
            row.prefill_ended_at_ns, row.replica = at_ns, call.replica
            self._first_ns = at_ns
            self._first(tokens, at_ns)
        elif kind == events.ADMITTED:
            row.admitted_at_ns, row.replica = call.admitted_ns, call.replica
        elif kind == events.PREFILL_STARTED:
            row.prefill_started_at_ns = call.prefill_started_ns
        elif kind in events.ENDINGS:
            self._last(emission)

    def _first(self, tokens: int, at_ns: int) -> None:
        streams = self.exchange.ask.stream
        if streams:
            self._then(at_ns + self._slow_ns, self._open)
        if self._every_token:
            if self._limit == 0 and streams:
                self._cut(at_ns)
            self._make(tokens, at_ns)
        elif streams and self.exchange.ask.max_tokens:
            self._heard = 1
            self._then(at_ns, self._content)

    def _make(self, tokens: int, at_ns: int) -> None:
        self._made += tokens
        self.exchange.produce(tokens, at_ns)
        if self.answer is None or self._is_cut:
            return
        first = len(self.chunks_ns)
        for index in range(first, self.answer.ready(self._made)):
            self.chunks_ns.append(at_ns + self._late(index))
            if len(self.chunks_ns) == self._limit:
                self._cut(at_ns)
                break
        self._expect(first)
        if self._is_cut:
            self._end_after_last(at_ns)

    def _cut(self, at_ns: int) -> None:
        self._is_cut = True
        if not self.chunks_ns:
            self._end_after_last(at_ns)

    def _last(self, emission: Emission) -> None:
        call, at_ns = emission.call, emission.at_ns
        exchange = self.exchange
        asked = exchange.ask.max_tokens
        if self.left:
            exchange.row.tokens_after_cancel = call.wasted_tokens
        if not self._every_token and exchange.ask.stream and call.times and asked:
            self.chunks_ns, self._sizes = call.chunk_times_ns.tolist(), call.chunk_tokens
        exchange.end(min(call.tokens, asked), at_ns, cancelled=self.left)
        if not self.left and not self.ended and not self._is_cut:
            opened_ns = (self._first_ns if self._first_ns is not None else at_ns) + self._slow_ns
            if not exchange.ask.stream:
                opened_ns = at_ns + self._late_ns
                self.chunks_ns = [opened_ns] if asked and self._limit is None else []
                self._expect(0)
            self._end_after_last(opened_ns)
        self._close()

    def _stop(self, *, cancelled: bool) -> None:  # noqa: ARG002 - the row knows whether the client left
        if not self.over:
            self._cancel(self.job)
