"""The routes beside the calls themselves: counting tokens, models, batches, meters.

None of it passes the limits of the calls. Long work on batches pauses for the streams, which share the event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.core.endpoint import Endpoint
from tailgauge.simulator.core.metrics import CONTENT_TYPE, render
from tailgauge.simulator.http import batches
from tailgauge.simulator.http.batches import Batch, BatchStore, Entry
from tailgauge.simulator.http.requests import ServerOptions, admit, error_response, id_header, read_body
from tailgauge.simulator.http.server_log import ServerLog
from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.request import Refused, Reply, decode, model
from tailgauge.simulator.protocols.wire import Wire, version_of, wire_of_headers

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BATCHES = f"{anthropic.PATH}/batches"
_PAUSE_EVERY = 100  # requests of a batch: some milliseconds of work
# The only one in the list, with the fields of both providers, so that either SDK reads it; a call may name any other.
_MODEL = {
    "id": "tiny", "object": "model", "type": "model", "display_name": "tiny", "owned_by": "tailgauge", "created": 0,
    "created_at": "1970-01-01T00:00:00Z",  # as the provider writes an unknown date
}  # fmt: skip


class Api:
    """The handlers and what they share."""

    def __init__(
        self, core: Endpoint, options: ServerOptions, numbers: Iterator[int], log: ServerLog
    ) -> None:
        self._core, self._options, self._numbers, self._log = core, options, numbers, log
        self._batches = BatchStore(core.table.jobs, core.seed)
        self._epoch_s = time.time() - time.monotonic()

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        of, add_get, add_post = self._answering, app.router.add_get, app.router.add_post
        add_get("/metrics", self.metrics)
        add_get("/v1/models", of(self.models, None))
        add_get("/v1/models/{id:.+}", of(self.model, None))
        add_post(f"{anthropic.PATH}/count_tokens", of(self.count_tokens, anthropic))
        add_post(_BATCHES, of(self._logged(self.create_batch), anthropic))
        add_get(f"{_BATCHES}/{{id}}", of(self._logged(self.batch), anthropic))
        add_get(f"{_BATCHES}/{{id}}/results", of(self._logged(self.results), anthropic))

    def _answering(self, handler: Handler, protocol: Wire | None) -> Handler:
        """The handler, its refusals in the shape of the path's protocol, or of the caller's where several have the path."""

        async def answer(request: web.Request) -> web.StreamResponse:
            wire, number = protocol or wire_of_headers(request.headers), next(self._numbers)
            request["id_header"] = id_header(wire, number)
            try:
                admit(self._options.api_key, request)
                return await handler(request)
            except Refused as refused:
                return error_response(wire, refused, number)

        return answer

    def _logged(self, handler: Handler) -> Handler:
        """The handler, with a row in the server log."""

        async def answer(request: web.Request) -> web.StreamResponse:
            name = request.headers.get("x-client-request-id", "")
            request["row"] = row = self._log.open(name, anthropic.NAME, time.monotonic_ns())
            try:
                return await handler(request)
            except Refused as refused:
                row.status = refused.status
                raise
            finally:
                row.headers_at_ns = row.ended_at_ns = time.monotonic_ns()
                self._log.close(row)

        return answer

    async def metrics(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        """The meters; open to everyone, as vLLM's are."""
        meters = self._core.meters
        meters.kv_cache_usage = self._core.kv_used_share()
        text = render(meters, str(_MODEL["id"]))
        return web.Response(body=text.encode(), headers={"content-type": CONTENT_TYPE})

    async def models(self, request: web.Request) -> web.StreamResponse:
        """The list of models, in a shape that either provider's client reads."""
        listed = {"data": [_MODEL], "has_more": False, "first_id": _MODEL["id"], "last_id": _MODEL["id"]}
        return _json(request, {"object": "list", **listed})

    async def model(self, request: web.Request) -> web.StreamResponse:
        """One model of the list."""
        name = request.match_info["id"]
        if name != _MODEL["id"]:
            raise Refused(404, f"model: {name}", "model")
        return _json(request, _MODEL)

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        """How many input tokens a call with this body would have."""
        body = await self._body(request)
        model(body)
        return _json(request, {"input_tokens": anthropic.prompt_tokens(body, _version(request))})

    async def create_batch(self, request: web.Request) -> web.StreamResponse:
        """Take in a batch."""
        body, version = await self._body(request), _version(request)
        taken: list[Entry] = []
        for entry in batches.entries(body, lambda params: anthropic.parse(params, version)):
            taken.append(entry)
            if not len(taken) % _PAUSE_EVERY:
                await asyncio.sleep(0)
        batch = self._batches.add(taken, self._now_s())
        request["row"].planned_ttft_ns = round((batch.ended_s - batch.created_s) * 1e9)
        return self._shown(request, batch)

    async def batch(self, request: web.Request) -> web.StreamResponse:
        """How far a batch is."""
        return self._shown(request, self._batches.get(request.match_info["id"]))

    async def results(self, request: web.Request) -> web.StreamResponse:
        """A line for each request of an ended batch."""
        batch = self._batches.ended(request.match_info["id"], self._now_s())
        response = web.StreamResponse(headers=request["id_header"] | {"content-type": "application/x-jsonl"})
        await response.prepare(request)
        for i, entry in enumerate(batch.results()):
            if entry.request is not None:
                request["row"].input_tokens += entry.request.input_tokens
                request["row"].output_tokens += entry.request.max_tokens
            await response.write(_result(entry, f"{batch.id}-{i}", int(batch.ended_s)) + b"\n")
            if not i % _PAUSE_EVERY:
                await asyncio.sleep(0)
        await response.write_eof()
        return response

    def _shown(self, request: web.Request, batch: Batch) -> web.Response:
        url = f"{request.scheme}://{request.host}{_BATCHES}/{batch.id}"
        return _json(request, batches.described(batch, self._now_s(), url))

    async def _body(self, request: web.Request) -> dict[str, Any]:
        return decode(await read_body(request, self._options.body_timeout_s))

    def _now_s(self) -> float:
        """Wall time that never jumps: a batch must not end early because the clock was set."""
        return self._epoch_s + time.monotonic()


def _result(entry: Entry, reply_id: str, created_s: int) -> bytes:
    if entry.request is None:
        refused = Refused(entry.status, entry.reason)
        error = json.loads(anthropic.error_body(refused, f"req_{reply_id}"))
        result: dict[str, Any] = {"type": "errored", "error": error}
    else:
        text = tokens.text(entry.request.max_tokens).decode()
        message = json.loads(anthropic.whole(Reply(entry.request, reply_id, created_s), [text]))
        message["usage"]["service_tier"] = "batch"
        result = {"type": "succeeded", "message": message}
    return json.dumps({"custom_id": entry.custom_id, "result": result}, separators=(",", ":")).encode()


def _json(request: web.Request, value: dict[str, Any]) -> web.Response:
    return web.json_response(value, headers=request["id_header"])


def _version(request: web.Request) -> str:
    return version_of(anthropic, request.headers)
