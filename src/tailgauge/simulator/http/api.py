"""The routes beside the calls themselves: counting tokens, models, batches, meters. Calls and the server log: routes.py.

The limits of the calls do not apply to them. Long work on batches pauses for the streams, which share the event loop.

A message batch holds requests that are answered together, later: it is submitted, polled and fetched. Wall time is passed
in, and the state of a batch is computed from it, so that nothing runs in between. An error of a batch as a whole is refused
here; an error of one request becomes that request's result.

The counts stay `processing` until the batch has ended. A request whose params are wrong does not fail the batch: it is
an errored result, since the provider checks params only when it comes to them. So are `stream: true` and `max_tokens: 0`.
Source: Anthropic's pages on batch processing (2026-08) and the SDK's types.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

from aiohttp import web

from tailgauge.scenario.simulated import JobsTable
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.draws import draws
from tailgauge.simulator.behaviours.jobs import turnaround_s
from tailgauge.simulator.core.endpoint import Endpoint
from tailgauge.simulator.core.metrics import CONTENT_TYPE, render
from tailgauge.simulator.http.requests import (
    ServerOptions,
    admit,
    error_response,
    id_header,
    read_body,
)
from tailgauge.simulator.http.server_log import ServerLog
from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.request import (
    CallRequest,
    Refused,
    Reply,
    decode,
    invalid,
    model,
)
from tailgauge.simulator.protocols.wire import Wire, version_of, wire_of_headers

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_BATCHES = f"{anthropic.PATH}/batches"
_PAUSE_EVERY = 100  # requests of a batch: some milliseconds of work
# The only model in the list, with the fields of both providers, so that either SDK reads it; a call may name any other.
_MODEL = {
    "id": "tiny",
    "object": "model",
    "type": "model",
    "display_name": "tiny",
    "owned_by": "tailgauge",
    "created": 0,
    "created_at": "1970-01-01T00:00:00Z",  # as the provider writes an unknown date
}


class Api:
    """The handlers of these routes, with the endpoint, the log and the batches that they share."""

    def __init__(
        self, core: Endpoint, options: ServerOptions, numbers: Iterator[int], log: ServerLog
    ) -> None:
        self._core = core
        self._options = options
        self._numbers = numbers
        self._log = log
        self._batches = BatchStore(core.table.jobs, core.seed)
        self._epoch_s = time.time() - time.monotonic()

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        add_get = app.router.add_get
        add_post = app.router.add_post
        add_get("/metrics", self.metrics)
        add_get("/v1/models", self._answering(self.models, None))
        add_get("/v1/models/{id:.+}", self._answering(self.model, None))
        add_post(f"{anthropic.PATH}/count_tokens", self._answering(self.count_tokens, anthropic))
        add_post(_BATCHES, self._answering(self._logged(self.create_batch), anthropic))
        add_get(f"{_BATCHES}/{{id}}", self._answering(self._logged(self.batch), anthropic))
        add_get(
            f"{_BATCHES}/{{id}}/results", self._answering(self._logged(self.results), anthropic)
        )

    def _answering(self, handler: Handler, protocol: Wire | None) -> Handler:
        """Return the handler with its refusals in the shape of a protocol; None: that of the caller's headers."""

        async def answer(request: web.Request) -> web.StreamResponse:
            wire = protocol or wire_of_headers(request.headers)
            number = next(self._numbers)
            request["id_header"] = id_header(wire, number)
            try:
                admit(self._options.api_key, request)
                return await handler(request)
            except Refused as refused:
                return error_response(wire, refused, number)

        return answer

    def _logged(self, handler: Handler) -> Handler:
        """Return the handler with a row in the server log, which is in `request["row"]`."""

        async def answer(request: web.Request) -> web.StreamResponse:
            name = request.headers.get("x-client-request-id", "")
            row = self._log.open(name, anthropic.NAME, time.monotonic_ns())
            request["row"] = row
            try:
                return await handler(request)
            except Refused as refused:
                row.status = refused.status
                raise
            finally:
                now_ns = time.monotonic_ns()
                row.headers_at_ns = now_ns
                row.ended_at_ns = now_ns
                self._log.close(row)

        return answer

    async def metrics(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        """Return the page of the meters, which needs no key, as vLLM's."""
        meters = self._core.meters
        meters.kv_cache_usage = self._core.kv_used_share()
        text = render(meters, str(_MODEL["id"]))
        return web.Response(body=text.encode(), headers={"content-type": CONTENT_TYPE})

    async def models(self, request: web.Request) -> web.StreamResponse:
        """Return the list of models, in a shape that either provider's client reads."""
        listing = {
            "object": "list",
            "data": [_MODEL],
            "has_more": False,
            "first_id": _MODEL["id"],
            "last_id": _MODEL["id"],
        }
        return _json(request, listing)

    async def model(self, request: web.Request) -> web.StreamResponse:
        """Return one model of the list."""
        name = request.match_info["id"]
        if name != _MODEL["id"]:
            raise Refused(404, f"model: {name}", "model")
        return _json(request, _MODEL)

    async def count_tokens(self, request: web.Request) -> web.StreamResponse:
        """Return how many input tokens a call with this body would have."""
        body = await self._body(request)
        model(body)
        return _json(request, {"input_tokens": anthropic.prompt_tokens(body, _version(request))})

    async def create_batch(self, request: web.Request) -> web.StreamResponse:
        """Take a batch."""
        body = await self._body(request)
        version = _version(request)
        batch_entries: list[Entry] = []
        for entry in entries(body, lambda params: anthropic.parse(params, version)):
            batch_entries.append(entry)
            if not len(batch_entries) % _PAUSE_EVERY:
                await asyncio.sleep(0)
        batch = self._batches.add(batch_entries, self._now_s())
        request["row"].planned_ttft_ns = round((batch.ended_s - batch.created_s) * 1e9)
        return self._state(request, batch)

    async def batch(self, request: web.Request) -> web.StreamResponse:
        """Return the state of a batch."""
        return self._state(request, self._batches.get(request.match_info["id"]))

    async def results(self, request: web.Request) -> web.StreamResponse:
        """Return a line for each request of an ended batch."""
        batch = self._batches.ended(request.match_info["id"], self._now_s())
        headers = request["id_header"] | {"content-type": "application/x-jsonl"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        row = request["row"]
        for i, entry in enumerate(batch.results()):
            if entry.request is not None:
                row.input_tokens += entry.request.input_tokens
                row.output_tokens += entry.request.max_tokens
            await response.write(_result(entry, f"{batch.id}-{i}", int(batch.ended_s)) + b"\n")
            if not i % _PAUSE_EVERY:
                await asyncio.sleep(0)
        await response.write_eof()
        return response

    def _state(self, request: web.Request, batch: Batch) -> web.Response:
        url = f"{request.scheme}://{request.host}{_BATCHES}/{batch.id}"
        return _json(request, described(batch, self._now_s(), url))

    async def _body(self, request: web.Request) -> dict[str, Any]:
        return decode(await read_body(request, self._options.body_timeout_s))

    def _now_s(self) -> float:
        """Return a wall time that never jumps: a batch must not end early because the clock was set."""
        return self._epoch_s + time.monotonic()


def _result(entry: Entry, reply_id: str, created_s: int) -> bytes:
    """Return the line of one result: an answer as of a call without a stream, or an error."""
    if entry.request is None:
        refused = Refused(entry.status, entry.reason)
        error = json.loads(anthropic.error_body(refused, f"req_{reply_id}"))
        result: dict[str, Any] = {"type": "errored", "error": error}
    else:
        text = tokens.text(entry.request.max_tokens).decode()
        message = json.loads(anthropic.whole(Reply(entry.request, reply_id, created_s), [text]))
        message["usage"]["service_tier"] = "batch"
        result = {"type": "succeeded", "message": message}
    line = {"custom_id": entry.custom_id, "result": result}
    return json.dumps(line, separators=(",", ":")).encode()


def _json(request: web.Request, value: dict[str, Any]) -> web.Response:
    return web.json_response(value, headers=request["id_header"])


def _version(request: web.Request) -> str:
    return version_of(anthropic, request.headers)


# --- message batches ----------------------------------------------------------------------------------------------

Parse = Callable[[dict[str, Any]], CallRequest]

MAX_REQUESTS = 100_000  # of one batch
# Requests of all batches, as the provider's longest queue has; the oldest ended batches are dropped first.
KEPT_REQUESTS = 300_000
EXPIRES_S = 86_400.0
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a batch, or why it cannot be answered."""

    custom_id: str
    request: CallRequest | None
    status: int = 200
    reason: str = ""  # a text, because the traceback of an exception would keep the whole body


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch."""

    id: str
    created_s: float  # seconds since 1970
    ended_s: float
    entries: tuple[Entry, ...]

    def has_ended(self, now_s: float) -> bool:
        """Return whether its results are there."""
        return now_s >= self.ended_s

    def results(self) -> list[Entry]:
        """Return the entries in a shuffled order, the same each time."""
        return Random(self.id).sample(self.entries, len(self.entries))


def described(batch: Batch, now_s: float, url: str) -> dict[str, Any]:
    """Return the batch as the API shows it; `url` is its own address."""
    counts = {
        "processing": len(batch.entries),
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    description: dict[str, Any] = {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "in_progress",
        "request_counts": counts,
        "created_at": _instant(batch.created_s),
        "expires_at": _instant(batch.created_s + EXPIRES_S),
        "ended_at": None,
        "cancel_initiated_at": None,
        "archived_at": None,
        "results_url": None,
    }
    if batch.has_ended(now_s):
        errored = sum(entry.request is None for entry in batch.entries)
        counts["processing"] = 0
        counts["succeeded"] = len(batch.entries) - errored
        counts["errored"] = errored
        description["processing_status"] = "ended"
        description["ended_at"] = _instant(batch.ended_s)
        description["results_url"] = f"{url}/results"
    return description


def _instant(at_s: float) -> str:
    """Return seconds since 1970 as RFC 3339 text, in UTC."""
    text = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


class BatchStore:
    """The batches that the endpoint holds by their ids, in memory and bounded."""

    def __init__(self, table: JobsTable, seed: int) -> None:
        self._table = table
        self._seed = seed
        self._number = 0
        self._batches: dict[str, Batch] = {}  # in the order of their creation

    def add(self, entries: Sequence[Entry], now_s: float) -> Batch:
        """Add a batch; ended ones are dropped for it, from the oldest on."""
        requests = len(entries) + sum(len(batch.entries) for batch in self._batches.values())
        for batch in list(self._batches.values()):
            if requests > KEPT_REQUESTS and batch.has_ended(now_s):
                requests -= len(batch.entries)
                del self._batches[batch.id]
        self._number += 1
        ended_s = now_s + turnaround_s(self._table, draws(self._seed, "batch", self._number))
        batch = Batch(f"msgbatch_{self._number:024d}", now_s, ended_s, tuple(entries))
        self._batches[batch.id] = batch
        return batch

    def get(self, batch_id: str) -> Batch:
        """Return a batch; raise `Refused` if it is not there."""
        if batch_id not in self._batches:
            raise Refused(404, f"No such message batch: {batch_id[:64]}")
        return self._batches[batch_id]

    def ended(self, batch_id: str, now_s: float) -> Batch:
        """Return a batch whose results are there; raise `Refused` for any other."""
        batch = self.get(batch_id)
        if not batch.has_ended(now_s):
            raise Refused(400, f"{batch_id}: the batch has not ended, there are no results yet")
        return batch


def entries(body: dict[str, Any], parse: Parse) -> Iterator[Entry]:
    """Yield the requests of a body one by one, so that a caller may pause between them; `parse` checks their params."""
    requests = body.get("requests")
    if not isinstance(requests, list) or not requests:
        raise invalid("requests", "a list of at least one request is required")
    if len(requests) > MAX_REQUESTS:
        raise invalid("requests", f"at most {MAX_REQUESTS} requests are allowed in a batch")
    used_ids: set[str] = set()
    for i, request in enumerate(requests):
        yield _entry(request, f"requests.{i}", used_ids, parse)


def _entry(request: object, param: str, used_ids: set[str], parse: Parse) -> Entry:
    """Return an entry; raise `Refused` for one without params or without an id of its own. Adds the id to `used_ids`."""
    if not isinstance(request, dict):
        raise invalid(param, "must be an object")
    custom_id = request.get("custom_id")
    params = request.get("params")
    if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
        raise invalid(
            f"{param}.custom_id", "1 to 64 letters, digits, hyphens and underscores are required"
        )
    if custom_id in used_ids:
        raise invalid(f"{param}.custom_id", f"must be unique, {custom_id} is there already")
    used_ids.add(custom_id)
    if not isinstance(params, dict):
        raise invalid(f"{param}.params", "must be an object")
    try:
        return Entry(custom_id, _answerable(parse(params)))
    except Refused as refused:
        return Entry(custom_id, None, refused.status, refused.message)


def _answerable(request: CallRequest) -> CallRequest:
    if request.stream:
        raise invalid("stream", "not allowed in a batch")
    if not request.max_tokens:
        raise invalid("max_tokens", "0 is not allowed in a batch")
    return request
