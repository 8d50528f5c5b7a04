"""Content chunks on their way from a decoder to the recorder."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Chunks:
    """Content chunks as columns, in order of arrival; no object a chunk."""

    kind: bytearray = field(default_factory=bytearray)
    arrived: array[int] = field(default_factory=lambda: array("q"))
    low: array[int] = field(default_factory=lambda: array("q"))  # 0 = exact
    read_at: array[int] = field(default_factory=lambda: array("q"))
    read_index: array[int] = field(default_factory=lambda: array("i"))
    chars: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.kind)
