"""Faults: which one a call meets, and what it does to the call's chunks.

Rule: pure: at most one fault a call, drawn from the seed and the call's key. `at_chunk` is the number of chunks that
leave unharmed; a shorter answer meets its fault behind its last chunk, before the end mark.

    STATUS         an error instead of a stream: `status` 429, 500 or 529 (503, ...), with `retry_after_s` where given
    ERROR_EVENT    HTTP 200, then an `error` event of `status` and no end mark
    CUT            the body ends cleanly without the end mark
    RESET          the connection is reset
    STALL          nothing for `seconds`, then the rest, each chunk as much later
    SLOW_HEADERS   the headers, and all behind them, `seconds` later
    EARLY_HEADERS  the headers at once, however long the first chunk takes

Sources: what SDKs and proxies make of each: docs of the provider on errors within a stream (2026-08), and measured: both
SDKs take a body that ends without its end mark for a success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

STATUS: Literal["status"] = "status"
ERROR_EVENT: Literal["error_event"] = "error_event"
CUT: Literal["cut"] = "cut"
RESET: Literal["reset"] = "reset"
STALL: Literal["stall"] = "stall"
SLOW_HEADERS: Literal["slow_headers"] = "slow_headers"
EARLY_HEADERS: Literal["early_headers"] = "early_headers"

Kind = Literal["status", "error_event", "cut", "reset", "stall", "slow_headers", "early_headers"]
_ENDS_STREAM = (ERROR_EVENT, CUT, RESET)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault, and the share of calls that meet it."""

    kind: Kind
    share: float  # of calls, 0 to 1
    at_chunk: int = 0
    seconds: float = 0.0
    status: int = 529
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """All faults; none by default."""

    faults: tuple[Fault, ...] = ()
    ping_every_s: float = (
        0.0  # Anthropic's `ping` events from the opening on; no fault, so beside any; 0: off
    )
    seed: int = 0

    def __post_init__(self) -> None:
        """A call meets one fault at most, so the shares are parts of one whole."""
        if (
            min((fault.share for fault in self.faults), default=0) < 0
            or sum(f.share for f in self.faults) > 1 + 1e-9
        ):
            raise ValueError("shares of faults must not be negative, nor more than 1 together")


def fault_of(settings: FaultSettings, call_key: str) -> Fault | None:
    """The fault that a call meets."""
    if not settings.faults:
        return None
    left = Random(f"{settings.seed}/fault/{call_key}".encode("utf-8", "surrogateescape")).random()
    for fault in settings.faults:
        left -= fault.share
        if left < 0:
            return fault
    return None


def due_with(fault: Fault | None, due_ns: Sequence[int]) -> list[int]:
    """Due times of the chunks that leave, of an answer planned with `due_ns`."""
    due = list(due_ns)
    if fault is None or fault.kind in {STATUS, EARLY_HEADERS}:
        return [] if fault is not None and fault.kind == STATUS else due
    if fault.kind in _ENDS_STREAM:
        return due[: fault.at_chunk]
    late_ns = round(fault.seconds * 1e9)
    first = 0 if fault.kind == SLOW_HEADERS else fault.at_chunk
    return due[:first] + [at + late_ns for at in due[first:]]


def ends_stream(fault: Fault | None) -> bool:
    """Whether the stream has no end mark."""
    return fault is not None and fault.kind in _ENDS_STREAM


def end_delay_ns(fault: Fault | None, chunks: int) -> int:
    """How much later than its last chunk the end mark comes: a stall behind the last of `chunks` chunks."""
    stalls = fault is not None and fault.kind == STALL and fault.at_chunk >= chunks
    return round(fault.seconds * 1e9) if fault is not None and stalls else 0


def pings_ns(settings: FaultSettings, opened_ns: int, ended_ns: int) -> list[int]:
    """When pings are due in a stream that opens and ends at these times."""
    if not settings.ping_every_s:
        return []
    every_ns = round(settings.ping_every_s * 1e9)
    return list(range(opened_ns + every_ns, ended_ns, every_ns))
