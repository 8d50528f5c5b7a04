"""One call from its body to the end of its answer.

Rule: the order in which things happen to a call stands here: body, limits, faults before the answer, the engine or the
law, then the stream or the whole answer. Each step is another file's.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from aiohttp import web

from tailgauge.rows.schema import ServerLogRow
from tailgauge.simulator import tokens
from tailgauge.simulator.ask import decode
from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.faults import CUT, ERROR_EVENT, RESET
from tailgauge.simulator.pace import EnginePace, LawPace, Pace
from tailgauge.simulator.pieces import Answer
from tailgauge.simulator.script import whole_contents
from tailgauge.simulator.stream import Stream, reset


class CallInHand:
    """A call being answered."""

    def __init__(self, request: web.Request, exchange: Exchange) -> None:
        self._request, self._exchange = request, exchange
        self._pace: Pace | None = None

    async def answer(self, raw: bytes) -> web.StreamResponse:
        """Answer it, or raise `Refused`."""
        request, exchange = self._request, self._exchange
        exchange.read(decode(raw), request.headers.get("anthropic-version", ""))
        exchange.admit(monotonic_ns())
        if not exchange.ask.stream:
            return await self._whole(self._start(None))
        stream = Stream(request, exchange, self._headers())
        return await stream.run(self._start(stream.answer))

    def limit_headers(self) -> dict[str, str]:
        """Of a refusal, of a body that could not be read included."""
        exchange = self._exchange
        if not exchange.headers:
            behaviours, protocol = exchange.behaviours, exchange.wire.NAME
            return behaviours.limit_headers(protocol, "", monotonic_ns())
        return exchange.headers

    def leave(self, now_ns: int) -> None:
        """The client has left."""
        if self._pace is not None:
            self._pace.leave(now_ns, cancelled=True)

    def when_over(self, close: Callable[[], None]) -> None:
        """Call this when nothing more can happen to the call, or now."""

        def close_both() -> None:
            self._exchange.close(monotonic_ns())
            close()

        if self._pace is None:
            close_both()
        else:
            self._pace.when_over(close_both)

    def _start(self, answer: Answer | None) -> Pace:
        exchange, driver = self._exchange, self._exchange.behaviours.driver
        if driver is None:
            self._pace = LawPace(exchange, answer)
            return self._pace
        pace = EnginePace(exchange, answer, driver)
        if not pace.submit():
            exchange.refuse(exchange.wire.OVERLOADED_STATUS, monotonic_ns())
        self._pace = pace
        return pace

    def _headers(self) -> dict[str, str]:
        exchange = self._exchange
        return {exchange.wire.REQUEST_ID_HEADER: f"req_{exchange.reply.id}", **exchange.headers}

    async def _whole(self, pace: Pace) -> web.StreamResponse:
        """An answer in one piece: of a fault within a stream it takes what can be seen of it."""
        exchange, row = self._exchange, self._exchange.row
        await pace.finish()
        fault = exchange.fault
        if fault is not None and fault.kind == ERROR_EVENT:
            raise exchange.failure(fault.status)
        reply, asked = exchange.reply, exchange.ask.max_tokens
        said = [tokens.text(asked).decode()]
        if reply.plan is not None:
            said = whole_contents(reply.plan, exchange.content)
        response = web.Response(
            body=exchange.wire.whole(reply, said), content_type="application/json", headers=self._headers()
        )
        if fault is not None and fault.kind in {CUT, RESET}:
            reset(self._request)
            return response
        row.output_tokens = asked
        return await send_whole(self._request, row, response)


async def send_whole(request: web.Request, row: ServerLogRow, response: web.Response) -> web.Response:
    """Send it here, not after the handler's return: the truth takes the clock beside the write."""
    await response.prepare(request)
    now_ns = monotonic_ns()
    row.headers_at_ns = now_ns
    if row.output_tokens:
        row.chunk_sent_at_ns.append(now_ns)
    await response.write_eof()
    row.ended_at_ns = now_ns
    return response
