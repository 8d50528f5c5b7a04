"""The simulated endpoint of a dry run: the core on the event queue's clock, without HTTP.

It has the order of the real one: body, limits, faults before the answer, then the engine or the latency model.
"""

from __future__ import annotations

from collections.abc import Callable

from tailgauge.call import Call
from tailgauge.dry_run.delivery import Client, Delivery
from tailgauge.dry_run.event_queue import EventQueue
from tailgauge.protocols.anthropic import body as messages_body
from tailgauge.rows.schema import ServerLogRow
from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.core.answer import answer_to
from tailgauge.simulator.core.endpoint import Endpoint
from tailgauge.simulator.core.exchange import Exchange
from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.request import CallRequest, Refused
from tailgauge.simulator.protocols.wire import WIRES

_VERSION = "2023-06-01"  # of the API, as the SDK names it
RUN = "dry_run"
_Key = tuple[int, int, int]  # request, leg, attempt


class DryEndpoint:
    """One endpoint, and the driver of its core. `engine`, `work_ms` and `watched`: see `core.Endpoint`."""

    def __init__(
        self,
        table: Simulated,
        seed: int,
        queue: EventQueue,
        *,
        watched: bool = False,
        engine: EngineConfig | None = None,
        work_ms: Callable[[str], float] | None = None,
    ) -> None:
        self._queue = queue
        self._changed = False
        self._number = 0
        self._wires = {wire.NAME: wire for wire in WIRES}
        self.core = Endpoint(table, seed, self, watched=watched, engine=engine, work_ms=work_ms)

    def exchange(self, key: _Key, protocol: str) -> Exchange:
        """A call has come: its account, and its row in the server log."""
        name = "/".join((RUN, *map(str, key)))
        wire = self._wires.get(protocol, anthropic)
        row = ServerLogRow(name, *key, wire.NAME, 200, self.now_ns(), None, None, [], None, None, 0, 0)
        self._number += 1
        return Exchange(self.core, row, wire, self._number)

    def serve(self, exchange: Exchange, call: Call, model: str, client: Client) -> Delivery:
        """Take a call, or raise `Refused`."""
        now_ns = self.now_ns()
        try:
            self._accept(exchange, call, model)
            exchange.admit(now_ns)
            return Delivery(answer_to(exchange), client, self._queue, call.watch_chunks)
        except Refused as refused:
            row = exchange.row
            row.status = refused.status
            row.headers_at_ns = row.ended_at_ns = now_ns
            raise

    def _accept(self, exchange: Exchange, call: Call, model: str) -> None:
        """Read the call. The prefix cache looks at the same blocks in every protocol: a Messages body stands for all."""
        prompt = call.prompt
        if self.core.table.cache.mode == "off" and not (prompt.tools or prompt.system or call.schema):
            # Messages of text only: nothing but their size is looked at.
            count = sum(tokens.count(part.text) for message in prompt.messages for part in message.parts)
            thinks = call.thinking != "off"
            exchange.accept(CallRequest(model, call.max_tokens, count, call.stream, thinking=thinks), {})
        else:
            body = messages_body(call, prompt, model) | {"stream": call.stream}
            exchange.accept(anthropic.parse(body, _VERSION), body)

    # --- the driver of the core, and what moves by itself beside the queue ------------------------------------

    def now_ns(self) -> int:
        """The time of the queue."""
        return self._queue.now_ns()

    def wall_ns(self) -> int:
        """The same: a dry run has no other clock."""
        return self._queue.now_ns()

    def engine_changed(self) -> None:
        """What follows happens after the event that the queue is at."""
        self._changed = True

    def next_due_ns(self) -> int | None:
        """When the engine moves next."""
        return None if self.core.engine is None else self.core.engine.next_due_ns()

    def settle(self, now_ns: int) -> None:
        """Let everything happen that is due in the engine, and what follows from it."""
        engine = self.core.engine
        if engine is None:
            return
        due_ns = engine.next_due_ns()
        if not self._changed and (due_ns is None or due_ns > now_ns):
            return
        while True:
            self._changed = False
            self.core.advance(now_ns)
            if not self._changed:
                return
