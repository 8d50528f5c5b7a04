"""The routes of the endpoint, and a call from its body to its row in the server log.

The steps of a call: body, limits, faults before the answer, the engine or the latency model, then the stream or the answer
in one piece. A call that is refused gets an error in its provider's shape, and has a row in the server log too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from time import monotonic_ns
from typing import Any

from aiohttp import web

from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.behaviours import gateway
from tailgauge.simulator.behaviours.faults import CUT, ERROR_EVENT, RESET
from tailgauge.simulator.behaviours.latency import draw_key
from tailgauge.simulator.core import job_calls
from tailgauge.simulator.core.answer import Answer, answer_to
from tailgauge.simulator.core.endpoint import Endpoint
from tailgauge.simulator.core.exchange import Exchange, whole
from tailgauge.simulator.http import requests
from tailgauge.simulator.http.api import Api
from tailgauge.simulator.http.driver import LoopDriver, sleep_until, wait_open
from tailgauge.simulator.http.requests import ServerOptions
from tailgauge.simulator.http.server_log import ServerLog, to_parquet
from tailgauge.simulator.http.stream import HEADERS, Stream, reset
from tailgauge.simulator.protocols import openai
from tailgauge.simulator.protocols.request import MAX_BODY_BYTES, Refused, decode
from tailgauge.simulator.protocols.wire import WIRES, Wire, version_of, wire_of_path

SETTLED_S = 5.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answering = Callable[["_Call", bytes], Awaitable[web.StreamResponse]]


def application(table: Simulated, seed: int, options: ServerOptions) -> web.Application:
    """Return an application with the routes of one endpoint, and an empty server log."""
    server = Server(table, seed, options)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[server.shape_errors])
    for wire in WIRES:
        app.router.add_post(wire.PATH, server.answering(wire))
        app.router.add_post(gateway.PATH + wire.PATH, server.answering(wire, behind_gateway=True))
    job = f"{job_calls.PATH}/{{id}}"
    app.router.add_get(job, server.answering(openai, _Call.job))
    app.router.add_delete(job, server.answering(openai, _Call.job))
    app.router.add_get(f"{job}/result", server.answering(openai, _Call.job))
    Api(server.core, options, server.numbers, server.log).add_to(app)
    app.router.add_get("/healthz", server.health)
    app.router.add_get("/tailgauge/server-log", server.server_log)
    return app


class Server:
    """The handlers of the calls, with the endpoint and the log that they share."""

    def __init__(self, table: Simulated, seed: int, options: ServerOptions) -> None:
        self._options = options
        self.log = ServerLog()
        self.numbers = count(1)
        self.core: Endpoint = LoopDriver(table, seed).core

    def answering(
        self, wire: Wire, do: Answering | None = None, *, behind_gateway: bool = False
    ) -> Handler:
        """Return the handler of a protocol's calls.

        `do`: the step that answers a call from its body, by default a call for an answer. `behind_gateway`: the call
        reaches the endpoint after the gateway's delay, and the gateway may keep its answer until the end.
        """
        do = do or _Call.answer
        table = self.core.table.gateway

        async def answer(request: web.Request) -> web.StreamResponse:
            """Open a row, answer the call, and close the row when the call is over.

            A gateway's delay ends before the endpoint receives the call, so that its row does not show it. A refusal is
            answered here, in the protocol's shape. Where the client leaves, its call is cancelled.
            """
            number = next(self.numbers)
            # A refused body is refused below, where the call has its row.
            body: bytes | Refused
            try:
                body = await requests.read_body(request, self._options.body_timeout_s)
            except Refused as refused:
                body = refused
            name = request.headers.get("x-client-request-id", "")
            received_ns = requests.arrived_at_ns(request.transport)
            if behind_gateway:
                received_ns += gateway.delay_ns(table, self.core.seed, draw_key(name, number))
                await sleep_until(received_ns)
            row = self.log.open(name, wire.NAME, received_ns)
            exchange = Exchange(self.core, row, wire, number)
            if behind_gateway:
                exchange.is_held = table.holds
            call = _Call(request, exchange, self._options)
            try:
                requests.admit(self._options.api_key, request)
                return await do(call, _body_or_raise(body))
            except Refused as refused:
                exchange.log_refusal(refused)
                return await call.refuse(refused)
            # The client left, which cancels the handler, or the endpoint failed.
            except BaseException:
                call.leave(monotonic_ns())
                raise
            finally:
                call.when_over(partial(self.log.close, row))

        return answer

    async def health(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        """Answer that the server is running."""
        return web.json_response({"status": "ok"})

    async def server_log(self, request: web.Request) -> web.StreamResponse:
        """Return the server log of a run, or all of it, as Parquet; with `settled`, wait a while for its calls to end."""
        run = request.query.get("run", "")
        if "settled" in request.query:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLED_S):
                    await self.log.settled(run)
        rows = self.log.rows(run)
        headers = {
            "x-tailgauge-server-log-dropped": str(self.log.dropped),
            "x-tailgauge-server-log-open": str(self.log.open_calls(run)),
        }
        body = await asyncio.to_thread(to_parquet, rows)  # streams go on meanwhile
        return web.Response(
            body=body, content_type="application/vnd.apache.parquet", headers=headers
        )

    @property
    def shape_errors(self) -> Any:
        """Return middleware that gives errors of the routing, such as unknown paths, the provider's shape."""

        @web.middleware
        async def shape(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                refused = Refused(error.status, f"{error.reason}: {request.method} {request.path}")
                wire = wire_of_path(request.path)
                response = requests.error_response(wire, refused, next(self.numbers))
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
                return response

        return shape


def _body_or_raise(body: bytes | Refused) -> bytes:
    """Return a body, or raise its error."""
    if isinstance(body, Refused):
        raise body
    return body


class _Call:
    """A call being answered."""

    def __init__(self, request: web.Request, exchange: Exchange, options: ServerOptions) -> None:
        self._request = request
        self._exchange = exchange
        self._options = options
        self._answer: Answer | None = None
        self._stream: Stream | None = None

    async def answer(self, raw: bytes) -> web.StreamResponse:
        """Answer a call by its body `raw`, or raise `Refused`: parse it, resume, admit, then answer.

        A call that prefers `respond-async` becomes a job. The answer is kept for `leave` and `when_over`.
        """
        exchange = self._exchange
        wire = exchange.wire
        headers = self._request.headers
        body = decode(raw)
        exchange.accept(wire.parse(body, version_of(wire, headers)), body)
        exchange.resume(headers.get("last-event-id", ""))
        exchange.admit(monotonic_ns())
        if "respond-async" in headers.get("prefer", ""):
            return await self._about_job(job_calls.submit_job(exchange, monotonic_ns()))
        answer = answer_to(exchange)
        self._answer = answer
        if not answer.streams:
            return await self._whole(answer)
        self._stream = Stream(self._request, answer, self._headers())
        return await self._stream.run()

    async def job(self, _: bytes) -> web.StreamResponse:
        """Answer a call about a job, or raise `Refused`."""
        request = self._request
        body = job_calls.answer_about_job(
            self._exchange, request.method, request.path, monotonic_ns()
        )
        return await self._about_job(body)

    async def _about_job(self, body: bytes) -> web.StreamResponse:
        response = self._json(body, self._exchange.row.status)
        await response.prepare(self._request)
        await response.write_eof()
        return response

    async def refuse(self, refused: Refused) -> web.StreamResponse:
        """Send an error before any answer, as a stream where it is `in_band`, and write its times into the row.

        The response has the headers of the limits.
        """
        exchange = self._exchange
        wire = exchange.wire
        row = exchange.row
        limits = exchange.headers or exchange.endpoint.limit_headers(wire, monotonic_ns())
        if refused.in_band:
            headers = HEADERS | requests.id_header(wire, exchange.number) | limits
            body = exchange.error_event(refused, has_begun=False)
            response = web.Response(body=body, headers=headers)
        else:
            response = requests.error_response(wire, refused, exchange.number, limits)
        await response.prepare(self._request)
        now_ns = monotonic_ns()
        row.headers_at_ns = now_ns
        await response.write_eof()
        row.ended_at_ns = now_ns
        return response

    def leave(self, now_ns: int) -> None:
        """Note that the client has left."""
        if self._answer is None:
            self._exchange.row.cancelled_at_ns = now_ns
            return
        chunks = 0 if self._stream is None else self._stream.chunks
        self._answer.leave(now_ns, chunks)

    def when_over(self, close: Callable[[], None]) -> None:
        """Close the row when nothing more can happen to the call: an engine may go on after the client has left."""

        def close_both() -> None:
            self._exchange.close()
            close()

        if self._answer is None or self._answer.over:
            close_both()
        else:
            self._answer.on_over = close_both

    def _headers(self) -> dict[str, str]:
        exchange = self._exchange
        return requests.id_header(exchange.wire, exchange.number) | exchange.headers

    def _json(self, body: bytes, status: int = 200) -> web.Response:
        headers = self._headers()
        return web.Response(
            status=status, body=body, content_type="application/json", headers=headers
        )

    async def _whole(self, answer: Answer) -> web.StreamResponse:
        """Send an answer in one piece. A fault that would cut its stream resets the connection."""
        await wait_open(answer)
        response = self._response(answer)
        if answer.ending in {CUT, RESET}:
            reset(self._request)
            answer.finish(monotonic_ns(), 0)
            return response
        await response.prepare(self._request)
        now_ns = monotonic_ns()  # just before the write, not after the handler's return
        await response.write_eof()
        answer.finish(now_ns, 1)
        return response

    def _response(self, answer: Answer) -> web.Response:
        exchange = self._exchange
        if answer.ending == ERROR_EVENT:
            failure = exchange.failure(answer.fault.status)
            return requests.error_response(
                exchange.wire, failure, exchange.number, exchange.headers
            )
        return self._json(whole(exchange))
