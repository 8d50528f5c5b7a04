"""What the endpoint answers, path by path.

Rule: a handler reads the request, hands the call on, and sees to it that the truth keeps it however it ends. A call that cannot be answered is answered by an error in its provider's shape, and has a row in the truth too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import count
from time import monotonic_ns
from typing import Any

from aiohttp import web

from tailgauge.rows.schema import ServerLogRow
from tailgauge.simulator import answers
from tailgauge.simulator.ask import MAX_BODY_BYTES, Refused
from tailgauge.simulator.behaviours import Behaviours
from tailgauge.simulator.call import CallInHand, send_whole
from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.meters import Meters
from tailgauge.simulator.settings import Settings
from tailgauge.simulator.surface import Surface
from tailgauge.simulator.truth import TruthLog, to_parquet
from tailgauge.simulator.wire import WIRES, Wire, wire_of

SETTLED_S = 5.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(settings: Settings) -> web.Application:
    """The routes of one endpoint, with an empty truth log."""
    endpoint = Endpoint(settings)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[endpoint.shape_errors])
    for wire in WIRES:
        app.router.add_post(wire.PATH, endpoint.answering(wire))
    Surface(settings, endpoint.meters, endpoint.numbers).add_to(app)
    app.router.add_get("/healthz", endpoint.health)
    app.router.add_get("/tailgauge/server-log", endpoint.truth)
    return app


class Endpoint:
    """The handlers and what they share."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = TruthLog()
        self._closed = asyncio.Event()  # a row has been closed
        self.numbers = count(1)
        self.meters = Meters()
        self._behaviours = Behaviours(settings, self.meters)

    def answering(self, wire: Wire) -> Handler:
        """The handler of a protocol's calls."""

        async def answer(request: web.Request) -> web.StreamResponse:
            number = next(self.numbers)
            try:
                raw: bytes | Refused = await answers.body(request, self._settings.body_timeout_s)
            except Refused as refused:
                raw = refused
            row = self._log.open(request.headers.get("x-client-request-id", ""), wire.NAME, monotonic_ns())
            call = CallInHand(request, Exchange(self._behaviours, row, wire, number))
            try:
                answers.admit(self._settings.api_key, request)
                if isinstance(raw, Refused):
                    raise raw
                return await call.answer(raw)
            except Refused as refused:
                row.status = refused.status
                response = answers.refused(wire, refused, number)
                response.headers.update(call.limit_headers())
                return await send_whole(request, row, response)
            except (asyncio.CancelledError, ConnectionError):
                row.cancelled_at_ns = monotonic_ns()
                call.leave(row.cancelled_at_ns)
                raise
            finally:
                call.when_over(lambda: self._close(row))

        return answer

    async def health(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        """The server answers."""
        return web.json_response({"status": "ok"})

    async def truth(self, request: web.Request) -> web.StreamResponse:
        """The truth log of a run, or all of it, as Parquet; with `settled`, when its calls are over, if that is soon."""
        run = request.query.get("run", "")
        if "settled" in request.query:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLED_S):
                    await self._settled(run)
        rows = self._log.rows(run)
        headers = {
            "x-tailgauge-server-log-dropped": str(self._log.dropped),
            "x-tailgauge-server-log-open": str(self._log.open_calls(run)),
        }
        body = await asyncio.to_thread(to_parquet, rows)  # streams go on meanwhile
        return web.Response(body=body, content_type="application/vnd.apache.parquet", headers=headers)

    async def _settled(self, run: str) -> None:
        while self._log.open_calls(run):
            self._closed.clear()
            await self._closed.wait()

    def _close(self, row: ServerLogRow) -> None:
        self._log.close(row)
        self._closed.set()

    @property
    def shape_errors(self) -> Any:
        """Middleware: errors of the routing itself, unknown paths and methods, in the provider's shape."""

        @web.middleware
        async def shape(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                refused = Refused(error.status, f"{error.reason}: {request.method} {request.path}")
                response = answers.refused(wire_of(request.path), refused, next(self.numbers))
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
                return response

        return shape
