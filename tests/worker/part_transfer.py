"""Parts for tests of shipping, their pieces, and a channel that loses, doubles and reorders, by a seed.

Rule: simulated clock only, and real parts.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailgauge.master.part_receiver import PartReceiver
from tailgauge.rows.parquet import PIECE, row_table, write_part
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import AttemptRow, HealthRow, RequestRow

S = 1_000_000_000
ROWS = {
    "requests": lambda i: RequestRow(
        65536 * i, "steady", "chat", "streaming", None, i, i, i, "ok", 1, 1, 200, 50
    ),
    "attempts": lambda i: AttemptRow(
        65536 * i, 0, 0, "primary", None, "steady", "chat", "openai", "m", i, i
    ),
    "health": lambda i: HealthRow(i, *[0] * 15),
}


def written(folder: RunFolder, worker: int, table: str, number: int, rows: int = 3) -> Path:
    """A real part of that many rows, each part with rows of its own."""
    path = folder.part(table, worker, number)
    write_part(path, row_table(table, [ROWS[table](1000 * number + i) for i in range(rows)]))
    return path


def pieces(
    data: bytes, name: str = "part-3-0.parquet", table: str = "health", size: int = PIECE
) -> list[Any]:
    """Messages of a part, as an honest worker sends them."""
    return [
        {
            "run": "one", "worker": 3, "table": table, "name": name, "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(), "offset": at, "bytes": data[at : at + size],
        }
        for at in range(0, len(data), size)
    ]  # fmt: skip


def given_to(inbox: PartReceiver, messages: list[Any], worker: int = 3) -> list[dict[str, Any]]:
    """What the inbox answers to each."""
    return [inbox.take(worker, message) for message in messages]


def files(path: Path) -> dict[str, bytes]:
    """All files under a path, with what is in them."""
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


class Clock:
    """Nanoseconds that pass when the test says so."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns

    def tick(self, seconds: float) -> None:
        self.ns += int(seconds * S)


@dataclass
class Channel:
    """Messages under way: `deliver` hands one over, or loses it."""

    seed: int
    loss: float = 0.0
    doubles: float = 0.0
    reorders: float = 0.0
    sent: int = 0
    held: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def send(self, message: Any) -> None:
        self.sent += 1
        if self._random.random() >= self.loss:
            self.held += [message] * (2 if self._random.random() < self.doubles else 1)

    def deliver(self) -> Any:
        """One message, or None if none is under way."""
        if not self.held:
            return None
        late = self._random.random() < self.reorders
        return self.held.pop(self._random.randrange(len(self.held)) if late else 0)
