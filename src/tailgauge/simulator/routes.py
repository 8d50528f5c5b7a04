"""What the endpoint answers, path by path.

Rule: a handler reads the request, asks the pure files what to say and when, waits, writes, and keeps the call's truth.
A call that cannot be answered is answered by an error in its provider's shape, and has a row in the truth too.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from itertools import count
from time import monotonic_ns
from typing import Any

from aiohttp import HttpVersion11, web

from tailgauge.records import TruthRow
from tailgauge.simulator import tokens
from tailgauge.simulator.ask import MAX_BODY_BYTES, Refused, Reply, decode
from tailgauge.simulator.delivery import Delivery, sleep_until
from tailgauge.simulator.frames import Frames
from tailgauge.simulator.latency import draw_key
from tailgauge.simulator.settings import Settings
from tailgauge.simulator.truth import TruthLog, to_parquet
from tailgauge.simulator.wire import WIRES, Wire, wire_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


def application(settings: Settings) -> web.Application:
    """The routes of one endpoint, with an empty truth log."""
    endpoint = Endpoint(settings)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[endpoint.shape_errors])
    for wire in WIRES:
        app.router.add_post(wire.PATH, endpoint.answering(wire))
    app.router.add_get("/v1/models", endpoint.models)
    app.router.add_get("/healthz", endpoint.health)
    app.router.add_get("/tailgauge/truth", endpoint.truth)
    return app


class EventStream(web.StreamResponse):
    """A streamed response whose headers leave with its first event, or at once where `early`."""

    def __init__(self, headers: dict[str, str], *, early: bool) -> None:
        super().__init__(headers=headers)
        self._send_headers_immediately = early


class Endpoint:
    """The handlers and what they share."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = TruthLog()
        self._numbers = count(1)

    def answering(self, wire: Wire) -> Handler:
        """The handler of a protocol's calls."""

        async def answer(request: web.Request) -> web.StreamResponse:
            number = next(self._numbers)
            try:
                raw: bytes | Refused = await request.read()
            except web.HTTPRequestEntityTooLarge:
                raw = Refused(413, f"Request exceeds the maximum size of {MAX_BODY_BYTES} bytes")
            row = self._log.open(request.headers.get("x-client-request-id", ""), wire.NAME, monotonic_ns())
            try:
                return await self._answer(request, wire, row, raw, number)
            except (asyncio.CancelledError, ConnectionError):
                row.cancelled_at_ns = monotonic_ns()
                raise
            finally:
                self._log.close(row)

        return answer

    async def _answer(
        self, request: web.Request, wire: Wire, row: TruthRow, raw: bytes | Refused, number: int
    ) -> web.StreamResponse:
        try:
            self._admit(request)
            if isinstance(raw, Refused):
                raise raw
            ask = wire.parse(decode(raw))
        except Refused as refused:
            row.status = refused.status
            return await _send_whole(request, row, _error(wire, refused, number))
        latency = self._settings.latency
        row.input_tokens = ask.input_tokens
        due = latency.delays_ns(draw_key(row.client_request_id, number), latency.chunks(ask.max_tokens))
        row.planned_ttft_ns = due[0]
        due = [row.received_at_ns + delay for delay in due]
        reply = Reply(ask, f"{number:024d}", int(time.time()))
        if ask.stream:
            return await self._stream(request, wire, reply, row, due)
        await sleep_until(due[-1])
        body = wire.whole(reply, tokens.text(ask.max_tokens).decode())
        row.output_tokens = ask.max_tokens
        response = web.Response(body=body, content_type="application/json", headers=_id_header(wire, number))
        return await _send_whole(request, row, response)

    async def _stream(
        self, request: web.Request, wire: Wire, reply: Reply, row: TruthRow, due: list[int]
    ) -> web.StreamResponse:
        settings, asked = self._settings, reply.ask.max_tokens
        per_chunk = settings.latency.tokens_per_chunk
        chunked = request.version >= HttpVersion11
        frames = Frames(
            wire.around_text(reply), asked, per_chunk, embed_clock=settings.embed_clock, chunked=chunked
        )  # fmt: skip
        headers = _STREAM_HEADERS | {wire.REQUEST_ID_HEADER: f"req_{reply.id}"}
        response = EventStream(headers, early=settings.headers_early)
        try:
            if settings.headers_early:
                row.headers_at_ns = monotonic_ns()
            await response.prepare(request)
            await sleep_until(due[0])
            row.headers_at_ns = row.headers_at_ns or monotonic_ns()
            await response.write(wire.opening(reply))
            # The transport is gone where the client left between the last await and here.
            if request.transport is None:
                raise ConnectionResetError("the client left")
            await Delivery(request.transport, frames, due, row.chunk_sent_at_ns).run()
            ended_at_ns = monotonic_ns()
            await response.write_eof(wire.closing(reply))
            row.ended_at_ns = ended_at_ns
        finally:
            row.output_tokens = min(asked, len(row.chunk_sent_at_ns) * per_chunk)
        return response

    def _admit(self, request: web.Request) -> None:
        """Refuse a caller without the key, if there is one; either provider's header will do."""
        key = self._settings.api_key
        if key is None:
            return
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        for given in (request.headers.get("x-api-key", ""), bearer):
            if hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode()):
                return
        raise Refused(401, "invalid API key")

    async def models(self, request: web.Request) -> web.StreamResponse:
        """The list of models, in a shape that either provider's client reads."""
        try:
            self._admit(request)
        except Refused as refused:
            return _error(wire_of(request.path), refused, next(self._numbers))
        names = self._settings.models
        started = {"created": 0, "created_at": "1970-01-01T00:00:00Z", "owned_by": "tailgauge"}
        data = [{"id": n, "object": "model", "type": "model", "display_name": n, **started} for n in names]
        page = {"object": "list", "data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}
        headers = _id_header(wire_of(request.path), next(self._numbers))
        return web.json_response(page, headers=headers)

    async def health(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        """The server answers."""
        return web.json_response({"status": "ok"})

    async def truth(self, request: web.Request) -> web.StreamResponse:
        """The truth log of a run, or all of it, as Parquet."""
        rows = self._log.rows(request.query.get("run", ""))
        headers = {"x-tailgauge-truth-dropped": str(self._log.dropped)}
        body = await asyncio.to_thread(to_parquet, rows)  # streams go on meanwhile
        return web.Response(body=body, content_type="application/vnd.apache.parquet", headers=headers)

    @property
    def shape_errors(self) -> Any:
        """Middleware: errors of the routing itself, unknown paths and methods, in the provider's shape."""

        @web.middleware
        async def shape(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                refused = Refused(error.status, f"{error.reason}: {request.method} {request.path}")
                response = _error(wire_of(request.path), refused, next(self._numbers))
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
                return response

        return shape


async def _send_whole(request: web.Request, row: TruthRow, response: web.Response) -> web.Response:
    """Send it here, not after the handler's return: the truth takes the clock beside the write."""
    await response.prepare(request)
    now_ns = monotonic_ns()
    row.headers_at_ns = now_ns
    if row.output_tokens:
        row.chunk_sent_at_ns.append(now_ns)
    await response.write_eof()
    row.ended_at_ns = now_ns
    return response


def _error(wire: Wire, refused: Refused, number: int) -> web.Response:
    headers = _id_header(wire, number)
    body = wire.refusal(refused, headers[wire.REQUEST_ID_HEADER])
    return web.Response(status=refused.status, body=body, content_type="application/json", headers=headers)


def _id_header(wire: Wire, number: int) -> dict[str, str]:
    return {wire.REQUEST_ID_HEADER: f"req_{number:024d}"}
