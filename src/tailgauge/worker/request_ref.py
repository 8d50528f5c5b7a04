"""Which request a call serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """The request that an attempt serves."""

    request_id: int
    stage: str
    traffic: str
    scheduled_at_ns: int
