"""Message batches: requests that are answered together, later.

Rule: pure: wall time is passed in, and what a batch has become is computed from it, so that nothing runs in between.

    finished(i)  created + turnaround * (i + 1) / n       request i of n, in the order given
    stopped      the first of expiry and cancelling; what has not finished by then expired, or was canceled
    ended        the first of created + turnaround, expiry, and `cancel_s` after cancelling

The counts stay `processing` until the batch has ended. A request whose params are wrong does not fail the batch: it is
an errored result, since the provider checks params only when it comes to them. So are `stream: true` and `max_tokens: 0`.
Source: Anthropic's pages on batch processing (2026-08) and the SDK's types.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

from tailgauge.simulator.ask import Ask, Refused

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
    """One request: what it asks for, or why it cannot be answered."""

    custom_id: str
    ask: Ask | None
    status: int = 200
    reason: str = ""

    @classmethod
    def errored(cls, custom_id: str, refused: Refused) -> Entry:
        """An entry that keeps the words, not the exception, whose traceback would keep the whole body."""
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
        """When it has ended or will, as things stand."""
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
            rest if i >= finished else SUCCEEDED if entry.ask else ERRORED
            for i, entry in enumerate(self.entries)
        ]

    def results(self) -> Iterator[tuple[Entry, str]]:
        """Requests with their outcomes, in an order that tells nothing, the same each time."""
        pairs = list(zip(self.entries, self.outcomes(), strict=True))
        Random(self.id).shuffle(pairs)
        return iter(pairs)


def turnaround_s(settings: BatchSettings, seed: int, number: int) -> float:
    """Draw how long batch `number` takes."""
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
