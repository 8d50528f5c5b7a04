"""The interface of a protocol's file, and the table of protocols.

The rest of the simulator uses a protocol by these names only; a new one is a new file and one more entry of `WIRES`.
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
    VERSION_HEADER: str  # request header with the version of the API; empty: there are no versions
    REQUEST_ID_HEADER: str  # response header with the server's own id of the call
    OVERLOADED_STATUS: int  # status of a call that is refused because there are too many
    SIGNATURES: bool  # thinking ends with a delta of its own, its signature
    PROMPT_USAGE_FIRST: bool  # the first event of a stream has the usage of the prompt
    CACHE_LIVES: bool  # usage splits cache writes by their life
    SERVER_TOOLS: bool  # the server can search before it answers
    REFUSAL_CHUNKS: int  # smallest number of chunks of a refusal
    STOP_REASONS: Mapping[str, str]  # names that differ from those of `Reply.stop_reason`

    def parse(self, body: dict[str, Any], version: str = "", /) -> CallRequest:
        """Check a body under the version of the API that the caller named, if any, or raise `Refused`."""

    def limit_headers(self, readings: Sequence[Reading], wall_ns: int, /) -> dict[str, str]:
        """Return the rate-limit headers of a response."""

    def error_body(self, refused: Refused, request_id: str, /) -> bytes:
        """Return the body of an error."""

    def error_event(self, refused: Refused, /) -> bytes:
        """Return the event of an error within a stream."""

    def ping(self) -> bytes:
        """Return the event that keeps a silent stream alive; empty without such an event."""

    def opening(self, reply: Reply, /) -> bytes:
        """Return the stream up to the first content."""

    def after_search(self, reply: Reply, /) -> bytes:
        """Return the events between a search and the first content; called where SERVER_TOOLS is set."""

    def around_text(self, reply: Reply, /) -> tuple[bytes, bytes]:
        """Return a content chunk's bytes before and behind its text, where the answer is one text."""

    def delta(self, reply: Reply, block: int, kind: str, /) -> tuple[bytes, bytes]:
        """Return a delta's bytes before and behind its content."""

    def between(self, reply: Reply, block: int, /) -> bytes:
        """Return the events between block number `block`, which is not the first, and the block before it."""

    def closing(self, reply: Reply, /) -> bytes:
        """Return the stream behind the last content."""

    def whole(self, reply: Reply, contents: Sequence[str], /) -> bytes:
        """Return the body of an answer that is not streamed, with the content of each of its blocks."""


WIRES: tuple[Wire, ...] = (anthropic, openai)  # errors of other paths have the shape of the first


def wire_of_path(path: str) -> Wire:
    """Return the protocol whose error shape fits a path: the one with the longest common start."""

    def common_parts(wire: Wire) -> int:
        pairs = zip(wire.PATH.split("/"), path.split("/"), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(WIRES, key=common_parts)


def wire_of_headers(headers: Mapping[str, str]) -> Wire:
    """Return the protocol whose version a caller names, else one without versions; for paths that several have."""
    for wire in WIRES:
        if wire.VERSION_HEADER and wire.VERSION_HEADER in headers:
            return wire
    return next(wire for wire in WIRES if not wire.VERSION_HEADER)


def version_of(wire: Wire, headers: Mapping[str, str]) -> str:
    """Return the version of the API that a caller names; empty for none."""
    if not wire.VERSION_HEADER:
        return ""
    return headers.get(wire.VERSION_HEADER, "")
