"""What a run folder may cost the one who reads it: memory and time in proportion to the bytes that it takes on disk.

Parquet packs rows of nothing into a few bytes, so neither the size of a part nor what its footer says bounds what it unpacks
to. `Budget` counts what the rows take when they are read. `limited` bounds the whole process, whatever was missed.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pyarrow as pa

from tailgauge.errors import RunDataError
from tailgauge.rows.schema import TABLES
from tailgauge.rows.text_file import FOLDER, refusal

MIB = 1 << 20
ROWS = 1024 * MIB  # bytes of all rows in memory
# More of them for each byte of the parts: 7 bytes of a chunk on disk are 8 in memory, 120 of an attempt 500.
PER_BYTE = 5
MEMORY = 2048 * MIB  # bytes of the process
SECONDS = 60.0  # of its CPU time
SECONDS_PER_MIB = 0.25  # more of them: a million chunks have 7 MiB and take half a second
_BLOCK = 512  # bytes of `st_blocks`
_AGAIN_S = 1.0
_EXPECTED = "expected rows as `tailgauge run` records them"


def stored(folders: Sequence[Path]) -> int:
    """Bytes that the parts of a run take on disk; the holes of a sparse file take none."""
    size = 0
    for folder in folders:
        for table in TABLES if refusal(folder) == FOLDER else ():
            for path in (folder / table).glob("*.parquet"):
                try:
                    stat = path.stat()
                except OSError:
                    continue
                size += min(stat.st_size, stat.st_blocks * _BLOCK)
    return size


class Budget:
    """How many bytes the rows of a run may take in memory."""

    def __init__(self, limit: float) -> None:
        self._most = limit
        self._left = limit

    @classmethod
    def of(cls, folders: Sequence[Path]) -> Budget:
        """Return the budget of a run in these folders."""
        return cls(ROWS + PER_BYTE * stored(folders))

    def spend(self, size: int, path: Path) -> None:
        """Count rows that are kept; RunDataError where they are too much."""
        self._left -= size
        if self._left < 0:
            problem = f"the rows of this run take more than {self._most // MIB:,.0f} MiB of memory"
            raise RunDataError(
                f"{path}: {problem}, {PER_BYTE} times its files and {ROWS // MIB:,} MiB: {_EXPECTED}"
            )


@contextmanager
def limited(folders: Sequence[Path]) -> Iterator[None]:
    """Bound the memory and the CPU time of this process while it reads these folders; RunDataError beyond them.

    Both bounds grow with the bytes on disk. Within the context Arrow uses the system's memory pool, RLIMIT_DATA is lower, and in
    the main thread SIGPROF raises the error; all are as before afterwards.
    """
    size = stored(folders)
    seconds = SECONDS + SECONDS_PER_MIB * size / MIB
    memory = MEMORY + 2 * PER_BYTE * size
    # What is reserved already counts against the limit of the process.
    limit = memory + _reserved()
    named = " ".join(str(folder) for folder in folders)

    def end(_: int, __: FrameType | None) -> None:
        raise RunDataError(
            f"{named}: the report takes more than {seconds:,.0f} s of CPU time: {_EXPECTED}"
        )

    pool = pa.default_memory_pool()
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    is_main = threading.current_thread() is threading.main_thread()
    is_timed = is_main and not any(signal.getitimer(signal.ITIMER_PROF))  # a caller's timer stays
    handler = signal.signal(signal.SIGPROF, end) if is_timed else None
    try:
        # The other pools of Arrow reserve gigabytes that they do not use.
        pa.set_memory_pool(pa.system_memory_pool())
        if is_timed:
            signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN_S)
        resource.setrlimit(resource.RLIMIT_DATA, (_lower(limit, *limits), limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limits)  # first: the error's text needs memory
    except MemoryError as error:
        problem = f"the report takes more than {memory // MIB:,} MiB of memory"
        raise RunDataError(f"{named}: {problem}: {_EXPECTED}") from error
    finally:
        if is_timed:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, handler)
        pa.set_memory_pool(pool)


def _reserved() -> int:
    """Bytes that this process has reserved without using them, which count against its limit."""
    try:
        pages = [int(text) for text in Path("/proc/self/statm").read_text().split()]
    except OSError:
        return 0
    _, resident, shared, _, _, data, _ = pages
    return max(0, data - (resident - shared)) * resource.getpagesize()


def _lower(*limits: int) -> int:
    """Return the lowest of some limits that are limits."""
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)
