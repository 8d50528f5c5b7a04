"""What a protocol's file offers, and the table of protocols.

The rest of the simulator knows a protocol by these names only; a new one is a new file and one more entry of `WIRES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol

from tailgauge.simulator.behaviours.limits import Reading
from tailgauge.simulator.protocols import anthropic, openai
from tailgauge.simulator.protocols.request import CallRequest, Refused, Reply


class Wire(Protocol):
    """One wire protocol; implemented by a module."""

    NAME: str  # of the protocol in the records
    PATH: str  # the route that answers
    VERSION_HEADER: (
        str  # the request header with the version of the API; empty where there are no versions
    )
    REQUEST_ID_HEADER: str  # the response header with the server's own id of the call
    OVERLOADED_STATUS: int  # of a call that is not taken because there are too many
    SIGNATURES: bool  # whether thinking ends with a delta of its own, its signature
    PROMPT_USAGE_FIRST: bool  # whether the first event of a stream has the usage of the prompt
    CACHE_LIVES: bool  # whether usage splits cache writes by their life
    SERVER_TOOLS: bool  # whether the server can search before it answers
    REFUSAL_CHUNKS: int  # chunks that a refusal has at least
    STOP_REASONS: Mapping[
        str, str
    ]  # where the protocol's names differ from those of `Reply.stop_reason`

    def parse(self, body: dict[str, Any], version: str = "", /) -> CallRequest:
        """Check a body under the version of the API that the caller named, if any, or raise `Refused`."""

    def limit_headers(self, readings: Sequence[Reading], wall_ns: int, /) -> dict[str, str]:
        """The rate-limit headers of a response."""

    def error_body(self, refused: Refused, request_id: str, /) -> bytes:
        """The body of an error."""

    def error_event(self, refused: Refused, /) -> bytes:
        """The event of an error within a stream."""

    def ping(self) -> bytes:
        """The event that keeps a silent stream alive; empty where there is none."""

    def opening(self, reply: Reply, /) -> bytes:
        """The stream up to the first content."""

    def after_search(self, reply: Reply, /) -> bytes:
        """What comes between a search and the first content; asked for where SERVER_TOOLS is set."""

    def around_text(self, reply: Reply, /) -> tuple[bytes, bytes]:
        """A content chunk's bytes before and after its text, where the answer is one text."""

    def delta(self, reply: Reply, block: int, kind: str, /) -> tuple[bytes, bytes]:
        """A delta's bytes before and after what it carries."""

    def between(self, reply: Reply, block: int, /) -> bytes:
        """The events that open block number `block`, not the first, the end of the one before included."""

    def closing(self, reply: Reply, /) -> bytes:
        """The stream after the last content."""

    def whole(self, reply: Reply, contents: Sequence[str], /) -> bytes:
        """The body of an answer that is not streamed, with the content of each of its blocks."""


WIRES: tuple[Wire, ...] = (anthropic, openai)  # errors of other paths have the shape of the first


def wire_of_path(path: str) -> Wire:
    """The protocol whose error shape fits a path: the one that shares the most of it."""

    def shared(wire: Wire) -> int:
        parts = zip(wire.PATH.split("/"), path.split("/"), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], parts))

    return max(WIRES, key=shared)


def wire_of_headers(headers: Mapping[str, str]) -> Wire:
    """The protocol of a caller on a path that several have: the one whose version it names, else one without versions."""
    named = (wire for wire in WIRES if wire.VERSION_HEADER and wire.VERSION_HEADER in headers)
    return next(named, next(wire for wire in WIRES if not wire.VERSION_HEADER))


def version_of(wire: Wire, headers: Mapping[str, str]) -> str:
    """The version of the API that a caller names; empty for none."""
    return headers.get(wire.VERSION_HEADER, "") if wire.VERSION_HEADER else ""
