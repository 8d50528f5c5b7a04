"""What turns a body's payload into content, as the transport sees it; see `endpoints.decoder`.

Rule: it never raises for what the peer sent; it says what it keeps, and when it is not to be fed any further.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """What turns payload into content chunks; see tailgauge.protocols.decoder."""

    has_content: bool
    watching: bool  # someone waits for what comes next
    broken: bool  # it is not followed any further
    streams: bool  # false: `whole` takes the body instead

    @property
    def held(self) -> int:
        """Bytes that it keeps."""

    def feed(
        self, payload: bytes, low: int, arrived: int, read_at: int, read_index: int, *, at_rest: bool
    ) -> None:
        """Payload of one read with its times; `at_rest`: nothing came in the read after this payload."""

    def skim(
        self, reads: Sequence[bytes], arrived: array[int], read_at: array[int], begin: int, read_index: int
    ) -> int:
        """Decode reads from number `begin` on, as they came from the wire, as long as they are plain; how many."""

    def whole(self, body: bytes, arrived: int, read_at: int, read_index: int) -> None:
        """A body that was asked for at once, with the times of the read that completed it."""
