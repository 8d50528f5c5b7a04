"""`tailgauge` in a process that counts Locust's messages: `COUNTS=FILE [CROWD=N] python bench/counted.py run ...`.

It only counts, and may treat N workers as a crowd (tailgauge.master.workers.pace). FILE holds four integers, updated
while the process runs: messages in, their bytes, messages out, their bytes.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Any

FORMAT = struct.Struct("4q")


def read(file: Path) -> tuple[int, ...]:
    """The counts of another process as they stand."""
    return FORMAT.unpack(file.read_bytes())


def count(file: Path) -> None:
    """Count from now on, into `file`. Loads Locust, which patches the process."""
    import locust  # noqa: F401 - first, for the patching's sake
    from locust.rpc import protocol

    file.write_bytes(bytes(FORMAT.size))
    with file.open("r+b") as opened:
        shown = mmap.mmap(opened.fileno(), FORMAT.size)
    counts = [0, 0, 0, 0]
    kind: Any = protocol.Message
    serialize, unserialize = kind.serialize, kind.unserialize

    def counted_out(message: Any) -> bytes:
        data: bytes = serialize(message)
        counts[2] += 1
        counts[3] += len(data)
        FORMAT.pack_into(shown, 0, *counts)
        return data

    def counted_in(data: bytes) -> Any:
        counts[0] += 1
        counts[1] += len(data)
        FORMAT.pack_into(shown, 0, *counts)
        return unserialize(data)

    kind.serialize, kind.unserialize = counted_out, staticmethod(counted_in)


if __name__ == "__main__":
    count(Path(os.environ.pop("COUNTS")))
    from tailgauge.cli.main import main
    from tailgauge.master import workers

    workers.CROWD = int(os.environ.pop("CROWD", workers.CROWD))
    main()
