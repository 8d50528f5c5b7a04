"""Clocks: every interval comes from CLOCK_MONOTONIC of one process; wall time is a label.

The kernel stamps packets in CLOCK_REALTIME. `Wall` keeps the difference of the two clocks, read in a bracket, and is
refreshed once a second so that a step of the wall clock (NTP, suspend) is seen and bounded to that second.
"""

from __future__ import annotations

import _socket
import struct
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

monotonic_ns = time.monotonic_ns
SO_TIMESTAMPNS = 35  # of Linux: the kernel stamps what a socket receives
ANCILLARY = _socket.CMSG_SPACE(16)  # bytes that hold a stamp
timespec = struct.Struct("qq").unpack


def wall_minus_monotonic_ns(samples: int = 16) -> int:
    """Wall minus monotonic clock, from the tightest of `samples` brackets (error below 1 us)."""
    best = (1 << 62, 0)
    for _ in range(samples):
        start = monotonic_ns()
        wall = time.time_ns()
        end = monotonic_ns()
        best = min(best, (end - start, wall - (start + end) // 2))
    return best[1]


class Wall:
    """The current difference of wall and monotonic clock; `offset_ns` is read on every socket read."""

    __slots__ = ("offset_ns",)

    def __init__(self) -> None:
        self.offset_ns = wall_minus_monotonic_ns()

    def refresh(self) -> int:
        """Measure again; returns how far the wall clock moved against the monotonic one, in ns."""
        previous_ns = self.offset_ns
        self.offset_ns = wall_minus_monotonic_ns()
        return self.offset_ns - previous_ns


WALL = Wall()


def kernel_stamp_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the kernel's stamp in what came with a read, on the monotonic clock."""
    seconds, nanoseconds = timespec(ancillary[0][2])
    return int(seconds * 1_000_000_000 + nanoseconds - WALL.offset_ns)


def utc_now() -> str:
    """Wall time as ISO 8601 with milliseconds, for labels only."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_today() -> date:
    """Today in UTC."""
    return datetime.now(UTC).date()


@cache
def boot_id() -> str:
    """Identity of the running kernel: processes that share it share CLOCK_MONOTONIC. Empty where unknown."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


@dataclass(frozen=True, slots=True)
class Offset:
    """master clock = worker clock + offset_ns, within error_ns either way."""

    offset_ns: int
    error_ns: int


def offset_from_ping(t0: int, t1: int, t2: int, t3: int) -> Offset:
    """Offset from four stamps: worker sent t0, master received t1, master answered t2, worker received t3.

    Half the round trip bounds the error, whatever the asymmetry of the path.
    """
    round_trip = max(0, (t3 - t0) - (t2 - t1))
    return Offset(((t1 - t0) + (t2 - t3)) // 2, round_trip // 2 + 1)
