"""A relay that gives a recorded answer to the SDKs in pieces of its choice: whatever the network may do to a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import httpx2


class Pieces(httpx2.SyncByteStream):
    """A body in the given pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


class Relay(httpx2.BaseTransport):
    """Answers every request with the same body, cut at `cuts`."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.cuts: Sequence[int] = ()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        edges = [0, *self.cuts, len(self.body)]
        pieces = [self.body[a:b] for a, b in pairwise(edges)]
        headers = {"content-type": "text/event-stream; charset=utf-8"}
        return httpx2.Response(200, headers=headers, stream=Pieces(pieces), request=request)
