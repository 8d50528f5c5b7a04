"""What a protocol's file offers, and the table of protocols.

Rule: the rest of the simulator knows a protocol by these names only; a new one is a new file and one more entry.
"""

from __future__ import annotations

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

    def parse(self, body: dict[str, Any], version: str = "", /) -> Ask:
        """Check a body under the version of the API that the caller named, if any, or raise `Refused`."""

    def refusal(self, refused: Refused, request_id: str, /) -> bytes:
        """The error body."""

    def opening(self, reply: Reply, /) -> bytes:
        """The stream up to the first content."""

    def around_text(self, reply: Reply, /) -> tuple[bytes, bytes]:
        """A content chunk's bytes before and behind its text."""

    def closing(self, reply: Reply, /) -> bytes:
        """The stream after the last content."""

    def whole(self, reply: Reply, text: str, /) -> bytes:
        """The body of an answer that is not streamed."""


WIRES: tuple[Wire, ...] = (anthropic, openai)


def wire_of(path: str) -> Wire:
    """The protocol whose error shape fits a path: OpenAI under /v1/chat, else Anthropic."""
    return openai if path.startswith("/v1/chat") else anthropic
