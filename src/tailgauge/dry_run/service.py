"""One call at the simulated endpoint in virtual time: what becomes of it, and what its client hears when.

Rule: decisions are the endpoint's own (`exchange`, `law`, `faults`, `pieces`); this file only puts them on the agenda.
There is no network: what the endpoint sends is there at once. A client that has left hears nothing more, the endpoint
may go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from tailgauge.dry_run.event_queue import Agenda
from tailgauge.rows.schema import TEXT
from tailgauge.simulator import faults
from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.faults import EARLY_HEADERS, SLOW_HEADERS, STALL
from tailgauge.simulator.pieces import answer_of, late_ns
from tailgauge.simulator.script import Script


class Client(Protocol):
    """Who waits for the answer; all of it is told at its time."""

    def on_headers(self) -> None:
        """The response has begun, with status 200."""

    def on_content(self) -> None:
        """The first content is there."""

    def on_watched(self) -> None:
        """The chunk that was asked for is there."""

    def on_end(self) -> None:
        """The response is over; the exchange's fault says whether it broke off."""

    def on_over(self) -> None:
        """Nothing more happens to the call, at the endpoint neither; it may come before `on_end` and before a `leave`."""


class Service(ABC):
    """What calls of a law and of an engine have in common: chunks and their way to the client."""

    _is_told = True  # an engine tells of what happens when it happens

    def __init__(
        self, exchange: Exchange, client: Client, agenda: Agenda, watch: int, *, pieces: bool
    ) -> None:
        self.exchange = exchange
        self.chunks_ns: list[int] = []  # when each chunk is there
        self._client, self._agenda, self._watch = client, agenda, watch
        self._heard = 0  # content chunks planned
        self._opened = self.left = self.ended = False
        self.over = False
        streams = exchange.ask.stream
        self.answer = answer_of(exchange, chunked=True) if streams and pieces else None
        self._sizes: Any = None  # tokens of each chunk, where the engine says
        fault = exchange.fault
        self._late_from = fault.at_chunk if fault is not None and fault.kind == STALL else 0
        self._late_ns = late_ns(exchange, SLOW_HEADERS, STALL)
        self._slow_ns = late_ns(exchange, SLOW_HEADERS)
        if exchange.behaviours.settings.headers_early or (fault and fault.kind == EARLY_HEADERS):
            self._open()

    # --- what the attempt asks --------------------------------------------------------------------------------

    def leave(self) -> None:
        """The client has gone."""
        self.left = True
        self.exchange.row.cancelled_at_ns = self._agenda.now_ns()
        self._stop(cancelled=True)

    def chunks(self, until_ns: int) -> tuple[list[int], list[int], list[str]]:
        """Times, tokens and kinds of the content that was there by then."""
        times = self.chunks_ns
        if times and times[-1] > until_ns:
            times = [at_ns for at_ns in times if at_ns <= until_ns]
        sizes = [self._size(i) for i in range(len(times))]
        if not isinstance(self.answer, Script):
            return times, sizes, [TEXT] * len(times)
        silent = set(self.answer.silent)
        told = [i for i in range(len(times)) if i not in silent]
        return [times[i] for i in told], [sizes[i] for i in told], [self.answer.kinds[i] for i in told]

    def tokens(self, until_ns: int) -> int:
        """Tokens that had left by then, silent ones included."""
        gone = sum(at_ns <= until_ns for at_ns in self.chunks_ns)
        return sum(self._size(i) for i in range(gone))

    # --- for the two kinds ------------------------------------------------------------------------------------

    @abstractmethod
    def _stop(self, *, cancelled: bool) -> None:
        """End the call where it stands."""

    def _size(self, index: int) -> int:
        if self._sizes is not None:
            return int(self._sizes[index])
        if self.answer is not None:
            return self.answer.tokens_sent(index + 1) - self.answer.tokens_sent(index)
        per_chunk = self.exchange.behaviours.settings.latency.tokens_per_chunk
        asked = self.exchange.ask.max_tokens
        return min(per_chunk, asked - index * per_chunk) if self.exchange.ask.stream else asked

    def _late(self, index: int) -> int:
        """What the call's fault adds to the time of a chunk."""
        return self._late_ns if index >= self._late_from else 0

    def _then(self, at_ns: int, call: Callable[[], None]) -> None:
        """At a time, or at once where it is now and the call is under way."""
        if at_ns > self._agenda.now_ns() or not self._is_told:
            self._agenda.call_at(at_ns, call)
        else:
            call()

    def _open(self) -> None:
        if not self._opened and not self.left:
            self._opened = True
            self.exchange.row.headers_at_ns = self._agenda.now_ns()
            self._client.on_headers()

    def _expect(self, first: int) -> None:
        """Tell the client of the chunks from number `first` on, as far as it waits for them."""
        if self._heard and self._heard >= self._watch:
            return
        silent = self.answer.silent if isinstance(self.answer, Script) else ()
        for index in range(first, len(self.chunks_ns)):
            if index in silent:
                continue
            self._heard += 1
            if self._heard == 1:
                self._then(self.chunks_ns[index], self._content)
            if self._heard == self._watch:
                self._then(self.chunks_ns[index], self._watched)
            if self._heard >= self._watch:
                return

    def _content(self) -> None:
        if not self.left and not self.ended:
            self._open()
            self._client.on_content()

    def _watched(self) -> None:
        if not self.left and not self.ended:
            self._client.on_watched()

    def _end_after_last(self, opened_ns: int) -> None:
        """Plan the end of the response: its end mark, or its break."""
        fault = self.exchange.fault
        last_ns = max(self.chunks_ns[-1], opened_ns) if self.chunks_ns else opened_ns
        self._then(last_ns + faults.end_delay_ns(fault, len(self.chunks_ns)), self._end)

    def _end(self) -> None:
        if self.left or self.ended:
            return
        broken = faults.ends_stream(self.exchange.fault)
        if not broken or self.exchange.ask.stream:
            self._open()
        self.ended = True
        if not broken:
            self.exchange.row.ended_at_ns = self._agenda.now_ns()
        self._stop(cancelled=False)
        self._client.on_end()

    def _close(self) -> None:
        """Nothing more can happen here."""
        if not self.over:
            self.over = True
            self._client.on_over()
