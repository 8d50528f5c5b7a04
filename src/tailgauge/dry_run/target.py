"""The simulated endpoint in virtual time, without HTTP: limits, faults, cache, stragglers, engine or law, and its bill.

Rule: it decides by the endpoint's own files, in the endpoint's order: body, limits, faults before the answer, then the
engine or the law. Whether the engine tells of every token depends on whether anything listens: told is slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailgauge.call import Call
from tailgauge.dry_run.body import asked_of, body_of, plain_tokens
from tailgauge.dry_run.engine_service import EngineService
from tailgauge.dry_run.event_queue import Agenda
from tailgauge.dry_run.law_service import LawService
from tailgauge.dry_run.service import Client, Service
from tailgauge.rows.schema import ServerLogRow
from tailgauge.simulator import anthropic, openai
from tailgauge.simulator.ask import Ask, Refused
from tailgauge.simulator.behaviours import Behaviours
from tailgauge.simulator.content import ContentSettings
from tailgauge.simulator.engine.config import Drafting
from tailgauge.simulator.engine.emission import ENDINGS
from tailgauge.simulator.engine.engine import Engine
from tailgauge.simulator.engine.job import Job
from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.meters import Meters
from tailgauge.simulator.settings import Settings
from tailgauge.simulator.wire import Wire

_VERSION = "2023-06-01"  # of the API, as the SDK names it
RUN = "virtual"
_Key = tuple[int, int, int]  # request, leg, attempt


class VirtualTarget:
    """One endpoint. `work_ms` gives a call's work by its key, for an engine of queueing theory; `watched`: chunks are."""

    def __init__(
        self,
        settings: Settings,
        agenda: Agenda,
        *,
        watched: bool = False,
        work_ms: Callable[[str], float] | None = None,
    ) -> None:
        self.settings, self._agenda, self._work_ms = settings, agenda, work_ms
        self.behaviours = Behaviours(settings, Meters(), agenda.now_ns(), agenda.now_ns)
        self._every_token = watched or _listens(settings)
        self._engine = engine = (
            None
            if settings.engine is None
            else Engine(
                settings.engine, settings.latency.seed, self.behaviours.plugs, tokens=self._every_token
            )
        )
        self._services: dict[int | str, EngineService] = {}
        self._touched = False
        self._number = 0
        self.next_due_ns: Callable[[], int | None] = _never if engine is None else engine.next_due_ns

    def exchange(self, key: _Key, protocol: str) -> Exchange:
        """A call has come: its account, and its row in the truth."""
        name = "/".join((RUN, *map(str, key)))
        wire: Wire = openai if protocol == "openai" else anthropic
        now_ns = self._agenda.now_ns()
        row = ServerLogRow(name, *key, wire.NAME, 200, now_ns, None, None, [], None, None, 0, 0)
        self._number += 1
        return Exchange(self.behaviours, row, wire, self._number)

    def serve(self, exchange: Exchange, call: Call, model: str, client: Client) -> Service:
        """Take a call, or raise `Refused`."""
        now_ns = self._agenda.now_ns()
        try:
            self._read(exchange, call, model)
            exchange.admit(now_ns)
            if self._engine is None:
                return LawService(exchange, client, self._agenda, call.watch_chunks)
            return self._submit(exchange, client, call.watch_chunks)
        except Refused as refused:
            row = exchange.row
            row.status = refused.status
            row.headers_at_ns = row.ended_at_ns = now_ns
            raise

    def settle(self, now_ns: int) -> None:
        """Let everything happen that is due in the engine, and what follows from it."""
        engine = self._engine
        if engine is None:
            return
        due_ns = engine.next_due_ns()
        if not self._touched and (due_ns is None or due_ns > now_ns):
            return
        while True:
            self._touched = False
            for emission in engine.advance(now_ns):
                self._tell(emission)
            if not self._touched:
                return

    def _tell(self, emission: Any) -> None:
        key = emission.call.job.key
        service = self._services.get(key)
        if service is None:  # refused at the door
            return
        if emission.kind in ENDINGS:
            del self._services[key]
            del self.behaviours.plugs.customers[key]
        service.hear(emission)

    def _read(self, exchange: Exchange, call: Call, model: str) -> None:
        count = plain_tokens(call) if self.settings.cache.mode == "off" else None
        if count is None:
            body = body_of(call, model)
            exchange.take(anthropic.parse(body, _VERSION), body)
        else:
            exchange.take(Ask(model, call.max_tokens, count, call.stream), asked_of(call))

    def _submit(self, exchange: Exchange, client: Client, watch: int) -> Service:
        ask, engine = exchange.ask, self._engine
        assert engine is not None
        work_ms = None if self._work_ms is None else self._work_ms(exchange.key)
        tokens = max(1, ask.input_tokens), max(1, ask.max_tokens)
        job = Job(exchange.key, *tokens, work_ms, exchange.prefix_key)
        customers = self.behaviours.plugs.customers
        customers[job.key] = exchange
        self._touched = True
        if not engine.submit(job, self._agenda.now_ns()):
            del customers[job.key]
            exchange.refuse(exchange.wire.OVERLOADED_STATUS, self._agenda.now_ns())
        service = EngineService(
            exchange, client, self._agenda, watch, job, self._cancel, every_token=self._every_token
        )
        self._services[job.key] = service
        return service

    def _cancel(self, job: Job) -> None:
        assert self._engine is not None
        self._engine.cancel(job, self._agenda.now_ns())
        self._touched = True


def _never() -> int | None:
    return None


def _listens(settings: Settings) -> bool:
    """Whether anything at the endpoint depends on single tokens."""
    drafts = settings.engine is not None and settings.engine.drafting != Drafting()
    counts = any(one.output_tokens and one.output_mode == "actual" for one in settings.limits.classes)
    cut = bool(settings.faults.faults)
    return (
        drafts
        or counts
        or cut
        or settings.content != ContentSettings()
        or settings.latency.tokens_per_chunk > 1
    )
