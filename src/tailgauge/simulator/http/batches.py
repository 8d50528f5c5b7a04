"""Message batches: requests that are answered together, later.

Wall time is passed in, and what a batch has become is computed from it, so that nothing runs in between. What the API refuses
about a batch as a whole is refused here; what it finds wrong with one request is kept as that request's result.

    finished(i)  created + turnaround * (i + 1) / n       request i of n, in the order given
    stopped      the first of expiry and cancelling; what has not finished by then expired, or was canceled
    ended        the first of created + turnaround, expiry, and `cancel_s` after cancelling

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

from tailgauge.simulator.protocols.request import CallRequest, Refused, invalid

Parse = Callable[[dict[str, Any]], CallRequest]

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")

SUCCEEDED, ERRORED, CANCELED, EXPIRED = OUTCOMES = ("succeeded", "errored", "canceled", "expired")


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How long batches take and how many are kept."""

    turnaround_s: float = 2.0  # median from creation to the end
    turnaround_sigma: float = 0.0  # of its logarithm
    cancel_s: float = 0.05  # from cancelling to the end
    expires_s: float = 86_400.0
    max_requests: int = 100_000  # of one batch
    kept_requests: int = (
        300_000  # of all batches: the provider's longest queue; the oldest ended ones go first
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """One request, or why it cannot be answered."""

    custom_id: str
    request: CallRequest | None
    status: int = 200
    reason: str = ""

    @classmethod
    def errored(cls, custom_id: str, refused: Refused) -> Entry:
        """An entry that keeps the text, not the exception, whose traceback would keep the whole body."""
        return cls(custom_id, None, refused.status, refused.message)


@dataclass(slots=True)
class Batch:
    """One batch; only `cancelled_s` ever changes."""

    id: str
    created_s: float  # seconds since 1970
    turnaround_s: float
    settings: BatchSettings
    entries: tuple[Entry, ...]
    cancelled_s: float | None = None

    @property
    def expires_s(self) -> float:
        """When what has not finished expires."""
        return self.created_s + self.settings.expires_s

    @property
    def ended_s(self) -> float:
        """When it has ended or will end, unless it is cancelled."""
        ended_s = min(self.created_s + self.turnaround_s, self.expires_s)
        return (
            ended_s if self.cancelled_s is None else min(ended_s, self.cancelled_s + self.settings.cancel_s)
        )

    def has_ended(self, now_s: float) -> bool:
        """Whether its results are there."""
        return now_s >= self.ended_s

    def outcomes(self) -> list[str]:
        """What becomes of each request, in the order given."""
        cut_s, rest = self.expires_s, EXPIRED
        if self.cancelled_s is not None and self.cancelled_s < cut_s:
            cut_s, rest = self.cancelled_s, CANCELED
        count, passed_s = len(self.entries), cut_s - self.created_s
        finished = count if passed_s >= self.turnaround_s else int(count * passed_s / self.turnaround_s)
        return [
            rest if i >= finished else SUCCEEDED if entry.request else ERRORED
            for i, entry in enumerate(self.entries)
        ]

    def results(self) -> Iterator[tuple[Entry, str]]:
        """Requests with their outcomes, in a shuffled order, the same each time."""
        pairs = list(zip(self.entries, self.outcomes(), strict=True))
        Random(self.id).shuffle(pairs)
        return iter(pairs)


def turnaround_s(settings: BatchSettings, seed: int, number: int) -> float:
    """How long batch `number` takes, drawn."""
    sigma = settings.turnaround_sigma
    factor = Random(f"{seed}/batch/{number}").lognormvariate(0, sigma) if sigma else 1.0
    return settings.turnaround_s * factor


def described(batch: Batch, now_s: float, url: str) -> dict[str, Any]:
    """The batch as the API shows it; `url` is its own address."""
    ended = batch.has_ended(now_s)
    outcomes = batch.outcomes() if ended else []
    status = "ended" if ended else "in_progress" if batch.cancelled_s is None else "canceling"
    counts = {outcome: outcomes.count(outcome) for outcome in OUTCOMES}
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {"processing": 0 if ended else len(batch.entries), **counts},
        "created_at": _instant(batch.created_s),
        "expires_at": _instant(batch.expires_s),
        "ended_at": _instant(batch.ended_s) if ended else None,
        "cancel_initiated_at": None if batch.cancelled_s is None else _instant(batch.cancelled_s),
        "archived_at": None,
        "results_url": f"{url}/results" if ended else None,
    }


def _instant(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class BatchStore:
    """The batches that the endpoint holds by their ids, in memory and bounded."""

    def __init__(self, settings: BatchSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._number = 0
        self._batches: dict[str, Batch] = {}  # in the order of their creation

    def add(self, entries: Sequence[Entry], now_s: float) -> Batch:
        """A new batch; ended ones are dropped for it, from the oldest on."""
        self._make_space(len(entries), now_s)
        self._number += 1
        wait_s = turnaround_s(self._settings, self._seed, self._number)
        batch = Batch(f"msgbatch_{self._number:024d}", now_s, wait_s, self._settings, tuple(entries))
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

    def _make_space(self, wanted: int, now_s: float) -> None:
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
        raise invalid(f"{param}.custom_id", f"must be unique, {custom_id} is there already")
    seen.add(custom_id)
    if not isinstance(params, dict):
        raise invalid(f"{param}.params", "must be an object")
    try:
        return Entry(custom_id, _answerable(parse(params)))
    except Refused as refused:
        return Entry.errored(custom_id, refused)


def _answerable(request: CallRequest) -> CallRequest:
    if request.stream:
        raise invalid("stream", "not allowed in a batch")
    if not request.max_tokens:
        raise invalid("max_tokens", "0 is not allowed in a batch")
    return request
