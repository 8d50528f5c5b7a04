"""What a protocol's file offers, and the table of protocols.

Rule: the rest of the simulator knows a protocol by these names only; a new one is a new file and one more entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tailgauge.simulator import anthropic, openai
from tailgauge.simulator.ask import Ask, Refused, Reply


class Wire(Protocol):
    """One wire protocol; implemented by a module."""

    @property
    def NAME(self) -> str:  # noqa: N802 - the module's constant
        """Its name in the records."""

    @property
    def PATH(self) -> str:  # noqa: N802
        """The route that answers."""

    @property
    def REQUEST_ID_HEADER(self) -> str:  # noqa: N802
        """The response header with the server's own id of the call."""

    @property
    def OVERLOADED_STATUS(self) -> int:  # noqa: N802
        """HTTP status of a call that is not taken because there are too many."""

    def parse(self, body: dict[str, Any], version: str = "", /) -> Ask:
        """Check a body under the version of the API that the caller named, if any, or raise `Refused`."""

    def refusal(self, refused: Refused, request_id: str, /) -> bytes:
        """The error body."""

    def broken(self, refused: Refused, /) -> bytes:
        """The event of an error within a stream."""

    def ping(self) -> bytes:
        """The event that keeps a silent stream alive; empty where there is none."""

    def opening(self, reply: Reply, /) -> bytes:
        """The stream up to the first content."""

    def around_text(self, reply: Reply, /) -> tuple[bytes, bytes]:
        """A content chunk's bytes before and behind its text, where the answer is one text."""

    def delta(self, reply: Reply, block: int, kind: str, /) -> tuple[bytes, bytes] | None:
        """A delta's bytes before and behind what it carries; None: this protocol does not send it."""

    def between(self, reply: Reply, block: int, /) -> bytes:
        """The events that open block number `block`, not the first, the end of the one before included."""

    def closing(self, reply: Reply, /) -> bytes:
        """The stream after the last content."""

    def whole(self, reply: Reply, contents: Sequence[str], /) -> bytes:
        """The body of an answer that is not streamed, with what each of its blocks says."""


WIRES: tuple[Wire, ...] = (anthropic, openai)


def wire_of(path: str) -> Wire:
    """The protocol whose error shape fits a path: OpenAI under /v1/chat, else Anthropic."""
    return openai if path.startswith("/v1/chat") else anthropic
