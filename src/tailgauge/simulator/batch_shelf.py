"""The batches that the endpoint holds, in memory and bounded.

Rule: pure: wall time is passed in. What the API refuses about a batch as a whole is refused here; what it finds wrong
with one request is kept as that request's result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tailgauge.simulator import batches
from tailgauge.simulator.ask import Ask, Refused, invalid
from tailgauge.simulator.batches import Batch, BatchSettings, Entry

Parse = Callable[[dict[str, Any]], Ask]

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Shelf:
    """Batches by their ids."""

    def __init__(self, settings: BatchSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._number = 0
        self._batches: dict[str, Batch] = {}  # in the order of their creation

    def add(self, entries: Sequence[Entry], now_s: float) -> Batch:
        """A new batch; ended ones make room for it, from the oldest on."""
        self._make_room(len(entries), now_s)
        self._number += 1
        turnaround_s = batches.turnaround_s(self._settings, self._seed, self._number)
        batch = Batch(f"msgbatch_{self._number:024d}", now_s, turnaround_s, self._settings, tuple(entries))
        self._batches[batch.id] = batch
        return batch

    def get(self, batch_id: str) -> Batch:
        """A batch, or not found."""
        if batch_id not in self._batches:
            raise Refused(404, f"No such message batch: {batch_id[:64]}")
        return self._batches[batch_id]

    def latest_first(self) -> list[Batch]:
        """All of them, the newest first."""
        return list(reversed(self._batches.values()))

    def cancel(self, batch_id: str, now_s: float) -> Batch:
        """Begin to cancel; again is the same as once."""
        batch = self.get(batch_id)
        if batch.has_ended(now_s):
            raise Refused(400, f"{batch_id}: the batch has ended and can no longer be canceled")
        batch.cancelled_s = now_s if batch.cancelled_s is None else batch.cancelled_s
        return batch

    def delete(self, batch_id: str, now_s: float) -> None:
        """Forget an ended batch."""
        if not self.get(batch_id).has_ended(now_s):
            raise Refused(400, f"{batch_id}: a batch in progress cannot be deleted, cancel it first")
        del self._batches[batch_id]

    def ended(self, batch_id: str, now_s: float) -> Batch:
        """A batch whose results are there."""
        batch = self.get(batch_id)
        if not batch.has_ended(now_s):
            raise Refused(400, f"{batch_id}: the batch has not ended, there are no results yet")
        return batch

    def _make_room(self, wanted: int, now_s: float) -> None:
        free = self._settings.kept_requests - sum(len(b.entries) for b in self._batches.values())
        ended = [b for b in self._batches.values() if b.has_ended(now_s)]
        if free + sum(len(b.entries) for b in ended) < wanted:
            raise Refused(429, "too many batch requests are waiting to be processed")
        for batch in ended:
            if free >= wanted:
                return
            free += len(batch.entries)
            del self._batches[batch.id]


def entries(body: dict[str, Any], settings: BatchSettings, parse: Parse) -> Iterator[Entry]:
    """The requests of a body one by one, so that a caller with other work may pause; `parse` checks their params."""
    requests = body.get("requests")
    if not isinstance(requests, list) or not requests:
        raise invalid("requests", "a list of at least one request is required")
    if len(requests) > settings.max_requests:
        raise invalid("requests", f"at most {settings.max_requests} requests are allowed in a batch")
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
        raise invalid(f"{param}.custom_id", f"must be unique, {custom_id} is there twice")
    seen.add(custom_id)
    if not isinstance(params, dict):
        raise invalid(f"{param}.params", "must be an object")
    try:
        return Entry(custom_id, _answerable(parse(params)))
    except Refused as refused:
        return Entry.errored(custom_id, refused)


def _answerable(ask: Ask) -> Ask:
    if ask.stream:
        raise invalid("stream", "not allowed in a batch")
    if not ask.max_tokens:
        raise invalid("max_tokens", "0 is not allowed in a batch")
    return ask
