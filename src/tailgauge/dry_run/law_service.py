"""A call that is served as if it were alone: all its times are known when it comes."""

from __future__ import annotations

from functools import partial

from tailgauge.dry_run.event_queue import Agenda
from tailgauge.dry_run.service import Client, Service
from tailgauge.simulator import faults, law
from tailgauge.simulator.exchange import Exchange


class LawService(Service):
    """By the law of `latency`."""

    _is_told = False

    def __init__(self, exchange: Exchange, client: Client, agenda: Agenda, watch: int) -> None:
        super().__init__(exchange, client, agenda, watch, pieces=exchange.reply.plan is not None)
        settings, asked = exchange.behaviours.settings, exchange.ask.max_tokens
        self._made_ns = made = law.made_ns(exchange)
        self._per_chunk = settings.latency.tokens_per_chunk
        exchange.look_up(0, agenda.now_ns())
        opened_ns = made[0] + self._slow_ns
        if exchange.ask.stream:
            due = made if asked else []
            if self.answer is not None:
                due = law.chunks_ns(made, self._per_chunk, asked, self.answer)
            self.chunks_ns = faults.due_with(exchange.fault, due)
        else:
            opened_ns = made[-1] + self._late_ns
            self.chunks_ns = [opened_ns] if asked and not faults.ends_stream(exchange.fault) else []
        agenda.call_at(opened_ns, self._begin)
        if exchange.behaviours.limited:
            for index, at_ns in enumerate(self.chunks_ns):
                agenda.call_at(at_ns, partial(self._produce, index))
        self._expect(0)
        self._end_after_last(opened_ns)

    def _begin(self) -> None:
        if not self.left:
            self.exchange.begin(self._made_ns[0])
            if self.exchange.ask.stream:
                self._open()

    def _produce(self, index: int) -> None:
        if not self.left:
            self.exchange.produce(self._size(index), self._agenda.now_ns())

    def _stop(self, *, cancelled: bool) -> None:
        now_ns, asked = self._agenda.now_ns(), self.exchange.ask.max_tokens
        made = self.tokens(now_ns)
        if not self.exchange.ask.stream:
            made = law.made_until(self._made_ns, self._per_chunk, asked, now_ns)
        self.exchange.end(made, now_ns, cancelled=cancelled)
        if cancelled:
            self.exchange.row.tokens_after_cancel = 0
        self._close()
