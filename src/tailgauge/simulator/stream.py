"""One streamed answer, from its headers to its end mark, or to the fault that ends it before.

Rule: this file writes; what and when come from the answer and its pace. The truth's row takes the clock beside each
write.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from time import monotonic_ns

from aiohttp import HttpVersion11, web

from tailgauge.simulator import faults
from tailgauge.simulator.delivery import Delivery, Outlet, sleep_until
from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.faults import EARLY_HEADERS, ERROR_EVENT, RESET
from tailgauge.simulator.frames import framed
from tailgauge.simulator.outlet import Held
from tailgauge.simulator.pace import Pace
from tailgauge.simulator.pieces import Answer, answer_of
from tailgauge.simulator.script import Script

_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_NO_LINGER = struct.pack("ii", 1, 0)  # on, 0 seconds: what is unsent is thrown away and the peer gets a reset


class EventStream(web.StreamResponse):
    """A streamed response whose headers leave with its first event, or at once where `early`."""

    def __init__(self, headers: dict[str, str], *, early: bool) -> None:
        super().__init__(headers=headers)
        self._send_headers_immediately = early

    def send_headers(self) -> None:
        """Let the headers leave now, if they have not."""
        assert self._payload_writer is not None
        self._payload_writer.send_headers()


class Stream:
    """The parts of one streamed answer."""

    def __init__(self, request: web.Request, exchange: Exchange, headers: dict[str, str]) -> None:
        self._request, self._exchange = request, exchange
        settings, fault = exchange.behaviours.settings, exchange.fault
        self._settings = settings
        self._early = settings.headers_early or (fault is not None and fault.kind == EARLY_HEADERS)
        self._response = EventStream(_HEADERS | headers, early=self._early)
        self._chunked = request.version >= HttpVersion11
        self.answer: Answer = answer_of(exchange, chunked=self._chunked)
        self._pinger: asyncio.TimerHandle | None = None
        self._held: Held | None = None

    async def run(self, pace: Pace) -> web.StreamResponse:
        """Write it all; raises `ConnectionResetError` where the client has left."""
        row, fault = self._exchange.row, self._exchange.fault
        if self._early:
            row.headers_at_ns = monotonic_ns()
        await self._response.prepare(self._request)
        await pace.begin()
        row.headers_at_ns = row.headers_at_ns or monotonic_ns()
        outlet = await self._open()
        try:
            delivery = self._delivery(outlet, pace)
            pace.attach(delivery)
            await delivery.run()
            if faults.ends_stream(fault):
                pace.leave(monotonic_ns(), cancelled=False)
                await self._break_off(outlet)
                return self._response
            delay_ns = faults.end_delay_ns(fault, len(row.chunk_sent_at_ns))
            if delay_ns:
                await sleep_until(row.chunk_sent_at_ns[-1] + delay_ns)
            ended_at_ns = monotonic_ns()
            await self._end(outlet, self._exchange.wire.closing(self._exchange.reply))
            row.ended_at_ns = ended_at_ns
        finally:
            self._stop()
        return self._response

    def _delivery(self, outlet: Outlet, pace: Pace) -> Delivery:
        row, answer = self._exchange.row, self.answer
        on_sent: Callable[[int, int], None] | None = None
        if not pace.growing:

            def on_sent(index: int, now_ns: int) -> None:
                pace.sent(answer.tokens_sent(index + 1) - answer.tokens_sent(index), now_ns)

        return Delivery(
            outlet, answer, pace.due_ns, row.chunk_sent_at_ns, growing=pace.growing, on_sent=on_sent
        )  # fmt: skip

    async def _open(self) -> Outlet:
        """The events before the content, and where all others go."""
        transport = self._request.transport
        # The transport is gone where the client left between the last await and here.
        if transport is None:
            raise ConnectionResetError("the client left")
        opening = self._exchange.wire.opening(self._exchange.reply)
        outlet: Outlet = transport
        if self._settings.proxy.passes:
            await self._response.write(opening)
        else:
            outlet = self._held = Held(transport, self._settings.proxy, self._response.send_headers)
            outlet.write(framed(opening, self._chunked))
        every_s = self._settings.faults.ping_every_s
        if every_s and self._exchange.wire.ping():
            self._ping_later(outlet, asyncio.get_running_loop().time() + every_s)
        return outlet

    def _ping_later(self, outlet: Outlet, due_s: float) -> None:
        def ping() -> None:
            outlet.write(framed(self._exchange.wire.ping(), self._chunked))
            self._ping_later(outlet, due_s + self._settings.faults.ping_every_s)

        if not outlet.is_closing():
            self._pinger = asyncio.get_running_loop().call_at(due_s, ping)

    async def _end(self, outlet: Outlet, last: bytes) -> None:
        """The last events and the end of the body."""
        self._stop_pings()
        if self._held is None:
            await self._response.write_eof(last)
            return
        if last:
            outlet.write(framed(last, self._chunked))
        self._held.end()
        await self._response.write_eof()

    async def _break_off(self, outlet: Outlet) -> None:
        """What a fault leaves of the end."""
        fault = self._exchange.fault
        assert fault is not None
        if fault.kind == RESET:
            reset(self._request)
        elif fault.kind == ERROR_EVENT:
            await self._end(outlet, self._exchange.wire.broken(self._exchange.failure(fault.status)))
        else:
            await self._end(outlet, b"")

    def _stop_pings(self) -> None:
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None

    def _stop(self) -> None:
        self._stop_pings()
        if self._held is not None:
            self._held.drop()
        row = self._exchange.row
        row.output_tokens = self.answer.tokens_sent(len(row.chunk_sent_at_ns))
        silent = self.answer.silent if isinstance(self.answer, Script) else ()
        for index in reversed(silent):
            del row.chunk_sent_at_ns[index : index + 1]


def reset(request: web.Request) -> None:
    """Throw the connection away, so that the client gets a reset."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()
