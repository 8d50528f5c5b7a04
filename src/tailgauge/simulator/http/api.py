"""The routes beside the calls themselves: counting tokens, models, batches, meters.

The limits of the calls do not apply to them. Long work on batches pauses for the streams, which share the event loop.

Also here: message batches, requests that are answered together, later: submitted, polled, fetched.

Wall time is passed in, and what a batch has become is computed from it, so that nothing runs in between. What the API refuses
about a batch as a whole is refused here; what it finds wrong with one request is kept as that request's result.

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
        self._core = core
        self._options = options
        self._numbers = numbers
        self._log = log
        self._batches = BatchStore(core.table.jobs, core.seed)
        self._epoch_s = time.time() - time.monotonic()

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        of = self._answering
        add_get = app.router.add_get
        add_post = app.router.add_post
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
        listed = {
            "data": [_MODEL],
            "has_more": False,
            "first_id": _MODEL["id"],
            "last_id": _MODEL["id"],
        }
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
        body = await self._body(request)
        version = _version(request)
        taken: list[Entry] = []
        for entry in entries(body, lambda params: anthropic.parse(params, version)):
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
        response = web.StreamResponse(
            headers=request["id_header"] | {"content-type": "application/x-jsonl"}
        )
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
        return _json(request, described(batch, self._now_s(), url))

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
    return json.dumps(
        {"custom_id": entry.custom_id, "result": result}, separators=(",", ":")
    ).encode()


def _json(request: web.Request, value: dict[str, Any]) -> web.Response:
    return web.json_response(value, headers=request["id_header"])


def _version(request: web.Request) -> str:
    return version_of(anthropic, request.headers)


# --- message batches ----------------------------------------------------------------------------------------------

Parse = Callable[[dict[str, Any]], CallRequest]

MAX_REQUESTS = 100_000  # of one batch
KEPT_REQUESTS = (
    300_000  # of all batches: the provider's longest queue; the oldest ended ones go first
)
EXPIRES_S = 86_400.0
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One request, or why it cannot be answered: the text, not the exception, whose traceback would keep the whole body."""

    custom_id: str
    request: CallRequest | None
    status: int = 200
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch."""

    id: str
    created_s: float  # seconds since 1970
    ended_s: float
    entries: tuple[Entry, ...]

    def has_ended(self, now_s: float) -> bool:
        """Whether its results are there."""
        return now_s >= self.ended_s

    def results(self) -> list[Entry]:
        """The entries in a shuffled order, the same each time."""
        return Random(self.id).sample(self.entries, len(self.entries))


def described(batch: Batch, now_s: float, url: str) -> dict[str, Any]:
    """The batch as the API shows it; `url` is its own address."""
    ended = batch.has_ended(now_s)
    count = len(batch.entries)
    errored = sum(entry.request is None for entry in batch.entries) if ended else 0
    return {
        "id": batch.id, "type": "message_batch", "processing_status": "ended" if ended else "in_progress",
        "request_counts": {
            "processing": 0 if ended else count, "succeeded": count - errored if ended else 0, "errored": errored,
            "canceled": 0, "expired": 0,
        },
        "created_at": _instant(batch.created_s), "expires_at": _instant(batch.created_s + EXPIRES_S),
        "ended_at": _instant(batch.ended_s) if ended else None, "cancel_initiated_at": None, "archived_at": None,
        "results_url": f"{url}/results" if ended else None,
    }  # fmt: skip


def _instant(at_s: float) -> str:
    return (
        datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


class BatchStore:
    """The batches that the endpoint holds by their ids, in memory and bounded."""

    def __init__(self, table: JobsTable, seed: int) -> None:
        self._table = table
        self._seed = seed
        self._number = 0
        self._batches: dict[str, Batch] = {}  # in the order of their creation

    def add(self, entries: Sequence[Entry], now_s: float) -> Batch:
        """A new batch; ended ones are dropped for it, from the oldest on."""
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
        """A batch, or not found."""
        if batch_id not in self._batches:
            raise Refused(404, f"No such message batch: {batch_id[:64]}")
        return self._batches[batch_id]

    def ended(self, batch_id: str, now_s: float) -> Batch:
        """A batch whose results are there."""
        batch = self.get(batch_id)
        if not batch.has_ended(now_s):
            raise Refused(400, f"{batch_id}: the batch has not ended, there are no results yet")
        return batch


def entries(body: dict[str, Any], parse: Parse) -> Iterator[Entry]:
    """The requests of a body one by one, so that a caller with other work may pause; `parse` checks their params."""
    requests = body.get("requests")
    if not isinstance(requests, list) or not requests:
        raise invalid("requests", "a list of at least one request is required")
    if len(requests) > MAX_REQUESTS:
        raise invalid("requests", f"at most {MAX_REQUESTS} requests are allowed in a batch")
    seen: set[str] = set()
    for i, request in enumerate(requests):
        yield _entry(request, f"requests.{i}", seen, parse)


def _entry(request: object, param: str, seen: set[str], parse: Parse) -> Entry:
    if not isinstance(request, dict):
        raise invalid(param, "must be an object")
    custom_id = request.get("custom_id")
    params = request.get("params")
    if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
        raise invalid(
            f"{param}.custom_id", "1 to 64 letters, digits, hyphens and underscores are required"
        )
    if custom_id in seen:
        raise invalid(f"{param}.custom_id", f"must be unique, {custom_id} is there already")
    seen.add(custom_id)
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
