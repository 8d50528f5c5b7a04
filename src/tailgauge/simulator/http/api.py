"""The routes beside the calls themselves: counting tokens, models, batches, meters.

None of it passes the limits of the calls. Long work on batches pauses for the streams, which share the event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.core.endpoint import Endpoint
from tailgauge.simulator.core.metrics import CONTENT_TYPE, render
from tailgauge.simulator.http import batches
from tailgauge.simulator.http.batches import Batch, BatchStore, Entry
from tailgauge.simulator.http.requests import (
    ANY_MODEL,
    ServerOptions,
    admit,
    error_response,
    id_header,
    read_body,
)
from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.request import (
    MAX_OUTPUT_TOKENS,
    CallRequest,
    Refused,
    Reply,
    decode,
    invalid,
    model,
)
from tailgauge.simulator.protocols.wire import version_of, wire_of_headers

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BATCHES = f"{anthropic.PATH}/batches"
_PAUSE_EVERY = 100  # requests of a batch: some milliseconds of work
DEFAULT_LIMIT = 20  # of a page of a list
MAX_LIMIT = 1000

_YES, _NO = {"supported": True}, {"supported": False}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_CAPABILITIES = {
    "batch": _YES,
    "citations": _NO,
    "code_execution": _NO,
    "context_management": _NO,
    "effort": _YES | dict.fromkeys(_EFFORTS, _YES),
    "image_input": _YES,
    "pdf_input": _YES,
    "server_tools": _NO | {"code_execution": _NO, "web_search": _NO},
    "structured_outputs": _NO,
    "thinking": _YES | {"types": dict.fromkeys(("adaptive", "between_tools", "disabled", "enabled"), _YES)},
}


class Api:
    """The handlers and what they share."""

    def __init__(self, core: Endpoint, options: ServerOptions, numbers: Iterator[int]) -> None:
        self._core, self._options, self._numbers = core, options, numbers
        self._batches = BatchStore(options.batches, core.seed)
        self._epoch_s = time.time() - time.monotonic()

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        of, both = self._answering, _wire_of_caller
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
        """The handler, its refusals in the caller's shape."""

        async def answer(request: web.Request) -> web.StreamResponse:
            wire, number = wire_of(request), next(self._numbers)
            request["id_header"] = id_header(wire, number)
            try:
                admit(self._options.api_key, request)
                return await handler(request)
            except Refused as refused:
                return error_response(wire, refused, number)

        return answer

    async def metrics(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        """The meters; open to everyone, as vLLM's are."""
        meters = self._core.meters
        meters.kv_cache_usage = self._core.kv_used_share()
        text = render(meters, self._options.models[0])
        return web.Response(body=text.encode(), headers={"content-type": CONTENT_TYPE})

    async def models(self, request: web.Request) -> web.StreamResponse:
        """The list of models, in a shape that either provider's client reads."""
        items = [described_model(name) for name in self._options.models]
        limit = DEFAULT_LIMIT if _wire_of_caller(request) is anthropic else len(items)
        return _json(request, {"object": "list", **page(items, request.query, limit)})

    async def model(self, request: web.Request) -> web.StreamResponse:
        """One model of the list."""
        return _json(request, listed_model(self._options.models, request.match_info["id"]))

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        """How many input tokens a call with this body would have."""
        body = await self._body(request)
        check_model(self._options.models, model(body))
        return _json(request, {"input_tokens": anthropic.prompt_tokens(body, _version(request))})

    async def create_batch(self, request: web.Request) -> web.StreamResponse:
        """Take in a batch."""
        body, version = await self._body(request), _version(request)

        def parse(params: dict[str, Any]) -> CallRequest:
            wanted = anthropic.parse(params, version)
            check_model(self._options.models, wanted.model)
            return wanted

        taken: list[Entry] = []
        for entry in batches.entries(body, self._options.batches, parse):
            taken.append(entry)
            if not len(taken) % _PAUSE_EVERY:
                await asyncio.sleep(0)
        return self._shown(request, self._batches.add(taken, self._now_s()))

    async def list_batches(self, request: web.Request) -> web.StreamResponse:
        """The batches, the latest first."""
        now_s = self._now_s()
        items = [batches.described(b, now_s, _url(request, b)) for b in self._batches.latest_first()]
        return _json(request, page(items, request.query, DEFAULT_LIMIT))

    async def batch(self, request: web.Request) -> web.StreamResponse:
        """How far a batch is."""
        return self._shown(request, self._batches.get(request.match_info["id"]))

    async def cancel_batch(self, request: web.Request) -> web.StreamResponse:
        """Stop a batch."""
        return self._shown(request, self._batches.cancel(request.match_info["id"], self._now_s()))

    async def delete_batch(self, request: web.Request) -> web.StreamResponse:
        """Forget a batch that has ended."""
        self._batches.delete(request.match_info["id"], self._now_s())
        return _json(request, {"id": request.match_info["id"], "type": "message_batch_deleted"})

    async def results(self, request: web.Request) -> web.StreamResponse:
        """A line for each request of an ended batch."""
        batch = self._batches.ended(request.match_info["id"], self._now_s())
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
        return decode(await read_body(request, self._options.body_timeout_s))

    def _now_s(self) -> float:
        """Wall time that never jumps: a batch must not end early because the clock was set."""
        return self._epoch_s + time.monotonic()


def _result(entry: Entry, outcome: str, reply_id: str, created_s: int) -> bytes:
    result: dict[str, Any] = {"type": outcome}
    if outcome == batches.SUCCEEDED:
        assert entry.request is not None
        text = tokens.text(entry.request.max_tokens).decode()
        message = json.loads(anthropic.whole(Reply(entry.request, reply_id, created_s), [text]))
        message["usage"]["service_tier"] = "batch"
        result["message"] = message
    elif outcome == batches.ERRORED:
        refused = Refused(entry.status, entry.reason)
        result["error"] = json.loads(anthropic.error_body(refused, f"req_{reply_id}"))
    return json.dumps({"custom_id": entry.custom_id, "result": result}, separators=(",", ":")).encode()


def _json(request: web.Request, value: dict[str, Any]) -> web.Response:
    return web.json_response(value, headers=request["id_header"])


def _url(request: web.Request, batch: Batch) -> str:
    return f"{request.scheme}://{request.host}{_BATCHES}/{batch.id}"


def _version(request: web.Request) -> str:
    return version_of(anthropic, request.headers)


def _wire_of_caller(request: web.Request) -> Any:
    return wire_of_headers(request.headers)


def _anthropic(_: web.Request) -> Any:
    return anthropic


# --- models and pages of lists --------------------------------------------------------------------------------


def described_model(name: str) -> dict[str, Any]:
    """A model with the fields of both providers, so that either SDK reads it."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",  # as the provider writes an unknown date
        "owned_by": "tailgauge",
        "lifecycle": "active",
        "line": None,
        "max_input_tokens": 1_000_000,
        "max_tokens": MAX_OUTPUT_TOKENS,
        "capabilities": _CAPABILITIES,
    }


def listed_model(names: Sequence[str], name: str) -> dict[str, Any]:
    """A model of the list, or not found."""
    if name not in names:
        raise _unknown_model(name)
    return described_model(name)


def check_model(names: Sequence[str], name: str) -> None:
    """Refuse a name that is not on the list; with the default list a call may name any model."""
    if tuple(names) != ANY_MODEL and name not in names:
        raise _unknown_model(name)


def _unknown_model(name: str) -> Refused:
    return Refused(404, f"model: {name}", "model")


def page(items: Sequence[Mapping[str, Any]], query: Mapping[str, str], default_limit: int) -> dict[str, Any]:
    """The items after `after_id`, or those just before `before_id`, `limit` at most."""
    limit = _limit(query.get("limit"), default_limit)
    ids = [item["id"] for item in items]
    if "before_id" in query:
        end = _place(ids, "before_id", query["before_id"])
        start = max(0, end - limit)
        more = start > 0
    else:
        start = _place(ids, "after_id", query["after_id"]) + 1 if "after_id" in query else 0
        end = min(len(ids), start + limit)
        more = end < len(ids)
    shown = list(items[start:end])
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"data": shown, "has_more": more, "first_id": first, "last_id": last}


def _limit(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= MAX_LIMIT:
        raise invalid("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
    return int(text)


def _place(ids: Sequence[str], param: str, wanted: str) -> int:
    if wanted not in ids:
        raise invalid(param, "no such object")
    return ids.index(wanted)
