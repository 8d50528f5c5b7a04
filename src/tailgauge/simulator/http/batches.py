"""Message batches: requests that are answered together, later: submitted, polled, fetched.

Wall time is passed in, and what a batch has become is computed from it, so that nothing runs in between. What the API refuses
about a batch as a whole is refused here; what it finds wrong with one request is kept as that request's result.

The counts stay `processing` until the batch has ended. A request whose params are wrong does not fail the batch: it is
an errored result, since the provider checks params only when it comes to them. So are `stream: true` and `max_tokens: 0`.
Source: Anthropic's pages on batch processing (2026-08) and the SDK's types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

from tailgauge.scenario.simulated import JobsTable
from tailgauge.simulator.behaviours.draws import draws
from tailgauge.simulator.behaviours.jobs import turnaround_s
from tailgauge.simulator.protocols.request import CallRequest, Refused, invalid

Parse = Callable[[dict[str, Any]], CallRequest]

MAX_REQUESTS = 100_000  # of one batch
KEPT_REQUESTS = 300_000  # of all batches: the provider's longest queue; the oldest ended ones go first
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
    ended, count = batch.has_ended(now_s), len(batch.entries)
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
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class BatchStore:
    """The batches that the endpoint holds by their ids, in memory and bounded."""

    def __init__(self, table: JobsTable, seed: int, kept_requests: int = KEPT_REQUESTS) -> None:
        self._table, self._seed, self._kept = table, seed, kept_requests
        self._number = 0
        self._batches: dict[str, Batch] = {}  # in the order of their creation

    def add(self, entries: Sequence[Entry], now_s: float) -> Batch:
        """A new batch; ended ones are dropped for it, from the oldest on."""
        self._make_space(len(entries), now_s)
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

    def _make_space(self, wanted: int, now_s: float) -> None:
        free = self._kept - sum(len(b.entries) for b in self._batches.values())
        ended = [b for b in self._batches.values() if b.has_ended(now_s)]
        if free + sum(len(b.entries) for b in ended) < wanted:
            raise Refused(429, "too many batch requests are waiting to be processed")
        for batch in ended:
            if free >= wanted:
                return
            free += len(batch.entries)
            del self._batches[batch.id]


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
    custom_id, params = request.get("custom_id"), request.get("params")
    if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
        raise invalid(f"{param}.custom_id", "1 to 64 letters, digits, hyphens and underscores are required")
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
