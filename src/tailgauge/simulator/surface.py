"""The routes beside the calls themselves: counting tokens, models, batches, meters.

Rule: a handler lets the caller in, asks the pure files and answers; `Refused` becomes the provider's error in one place.
None of it passes the limits of the calls. Long work on batches pauses for the streams, which share the event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web

from tailgauge.simulator import answers, anthropic, batch_shelf, batches, metrics_page, models, pages, tokens
from tailgauge.simulator.ask import Ask, Refused, Reply, decode, model
from tailgauge.simulator.batches import Batch, Entry
from tailgauge.simulator.meters import Meters
from tailgauge.simulator.settings import Settings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BATCHES = f"{anthropic.PATH}/batches"
_PAUSE_EVERY = 100  # requests of a batch: some milliseconds of work


class Surface:
    """The handlers and what they share."""

    def __init__(self, settings: Settings, meters: Meters, numbers: Iterator[int]) -> None:
        self._settings = settings
        self._meters = meters
        self._numbers = numbers
        self._shelf = batch_shelf.Shelf(settings.batches, settings.latency.seed)
        self._epoch_s = time.time() - time.monotonic()

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        of, both = self._answering, answers.caller
        claude = _anthropic
        app.router.add_routes(
            [
                web.get("/metrics", self.metrics),
                web.get("/v1/models", of(self.models, both)),
                web.get("/v1/models/{id:.+}", of(self.model, both)),
                web.post(f"{anthropic.PATH}/count_tokens", of(self.count_tokens, claude)),
                web.post(_BATCHES, of(self.create_batch, claude)),
                web.get(_BATCHES, of(self.list_batches, claude)),
                web.get(f"{_BATCHES}/{{id}}", of(self.batch, claude)),
                web.delete(f"{_BATCHES}/{{id}}", of(self.delete_batch, claude)),
                web.post(f"{_BATCHES}/{{id}}/cancel", of(self.cancel_batch, claude)),
                web.get(f"{_BATCHES}/{{id}}/results", of(self.results, claude)),
            ]
        )

    def _answering(self, handler: Handler, wire_of: Callable[[web.Request], Any]) -> Handler:
        """The handler behind the door, its refusals in the caller's shape."""

        async def answer(request: web.Request) -> web.StreamResponse:
            wire, number = wire_of(request), next(self._numbers)
            request["id_header"] = answers.id_header(wire, number)
            try:
                answers.admit(self._settings.api_key, request)
                return await handler(request)
            except Refused as refused:
                return answers.refused(wire, refused, number)

        return answer

    async def metrics(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        """The meters; open to everyone, as vLLM's are."""
        page = metrics_page.render(self._meters, self._settings.models[0])
        return web.Response(body=page.encode(), headers={"content-type": metrics_page.CONTENT_TYPE})

    async def models(self, request: web.Request) -> web.StreamResponse:
        """The list of models, in a shape that either provider's client reads."""
        items = [models.described(name) for name in self._settings.models]
        limit = pages.DEFAULT_LIMIT if answers.caller(request) is anthropic else len(items)
        return _json(request, {"object": "list", **pages.page(items, request.query, limit)})

    async def model(self, request: web.Request) -> web.StreamResponse:
        """One model of the list."""
        return _json(request, models.listed(self._settings.models, request.match_info["id"]))

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        """How many input tokens a call with this body would have."""
        body = await self._body(request)
        models.check(self._settings.models, model(body))
        return _json(request, {"input_tokens": anthropic.prompt_tokens(body, _version(request))})

    async def create_batch(self, request: web.Request) -> web.StreamResponse:
        """Take in a batch."""
        body, version = await self._body(request), _version(request)

        def parse(params: dict[str, Any]) -> Ask:
            ask = anthropic.parse(params, version)
            models.check(self._settings.models, ask.model)
            return ask

        taken: list[Entry] = []
        for entry in batch_shelf.entries(body, self._settings.batches, parse):
            taken.append(entry)
            if not len(taken) % _PAUSE_EVERY:
                await asyncio.sleep(0)
        return self._shown(request, self._shelf.add(taken, self._now_s()))

    async def list_batches(self, request: web.Request) -> web.StreamResponse:
        """The batches, the latest first."""
        now_s = self._now_s()
        items = [batches.described(b, now_s, _url(request, b)) for b in self._shelf.latest_first()]
        return _json(request, pages.page(items, request.query, pages.DEFAULT_LIMIT))

    async def batch(self, request: web.Request) -> web.StreamResponse:
        """How far a batch is."""
        return self._shown(request, self._shelf.get(request.match_info["id"]))

    async def cancel_batch(self, request: web.Request) -> web.StreamResponse:
        """Stop a batch."""
        return self._shown(request, self._shelf.cancel(request.match_info["id"], self._now_s()))

    async def delete_batch(self, request: web.Request) -> web.StreamResponse:
        """Forget a batch that has ended."""
        self._shelf.delete(request.match_info["id"], self._now_s())
        return _json(request, {"id": request.match_info["id"], "type": "message_batch_deleted"})

    async def results(self, request: web.Request) -> web.StreamResponse:
        """A line for each request of an ended batch."""
        batch = self._shelf.ended(request.match_info["id"], self._now_s())
        response = web.StreamResponse(headers=request["id_header"] | {"content-type": "application/x-jsonl"})
        await response.prepare(request)
        for i, (entry, outcome) in enumerate(batch.results()):
            await response.write(_result(entry, outcome, f"{batch.id}-{i}", int(batch.ended_s)) + b"\n")
            if not i % _PAUSE_EVERY:
                await asyncio.sleep(0)
        await response.write_eof()
        return response

    def _shown(self, request: web.Request, batch: Batch) -> web.Response:
        return _json(request, batches.described(batch, self._now_s(), _url(request, batch)))

    async def _body(self, request: web.Request) -> dict[str, Any]:
        return decode(await answers.body(request, self._settings.body_timeout_s))

    def _now_s(self) -> float:
        """Wall time that never jumps: a batch must not end early because the clock was set."""
        return self._epoch_s + time.monotonic()


def _result(entry: Entry, outcome: str, reply_id: str, created_s: int) -> bytes:
    result: dict[str, Any] = {"type": outcome}
    if outcome == batches.SUCCEEDED:
        assert entry.ask is not None
        text = tokens.text(entry.ask.max_tokens).decode()
        message = json.loads(anthropic.whole(Reply(entry.ask, reply_id, created_s), [text]))
        message["usage"]["service_tier"] = "batch"
        result["message"] = message
    elif outcome == batches.ERRORED:
        refused = Refused(entry.status, entry.reason)
        result["error"] = json.loads(anthropic.refusal(refused, f"req_{reply_id}"))
    return json.dumps({"custom_id": entry.custom_id, "result": result}, separators=(",", ":")).encode()


def _json(request: web.Request, value: dict[str, Any]) -> web.Response:
    return web.json_response(value, headers=request["id_header"])


def _url(request: web.Request, batch: Batch) -> str:
    return f"{request.scheme}://{request.host}{_BATCHES}/{batch.id}"


def _version(request: web.Request) -> str:
    return request.headers.get("anthropic-version", "")


def _anthropic(_: web.Request) -> Any:
    return anthropic
