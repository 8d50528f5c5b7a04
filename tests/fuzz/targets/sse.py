"""Server-sent events: the events of the official SDK's decoder, however the bytes are cut."""

from __future__ import annotations

import zlib
from random import Random

from openai._streaming import SSEDecoder
from protocols.test_sse_parser import LINE_ENDS, SAMPLES, STANDARD

from tailgauge.protocols.sse_parser import EventSizeError, Splitter

MOST_CUTS = 400  # a longer input is cut at some places only
# A byte order mark, behind which the SDK loses an event, and a field of llama.cpp's.
UNKNOWN_TO_THE_SDK = (b"\xef\xbb\xbf", b"error")


def corpus() -> list[bytes]:
    streams = [stream for stream, _ in SAMPLES.values()]
    with_other_ends = [
        stream.replace(b"\n", end) for stream in streams for end in LINE_ENDS.values()
    ]
    return [*with_other_ends, *(wire for wire, _ in STANDARD.values())]


def check(data: bytes) -> None:
    whole = events([data])
    for pieces in cuts(data):
        assert events(pieces) == whole, f"other events where the bytes come as {pieces!r}"
    if whole is not None and not any(mark in data for mark in UNKNOWN_TO_THE_SDK):
        theirs = sdk_events(data)
        ours = [event for event in whole if event[1]]
        assert theirs is None or theirs == ours, f"the SDK has {theirs!r}, we have {ours!r}"


def cuts(data: bytes) -> list[list[bytes]]:
    """The input in two pieces, at every place or at some, and byte by byte."""
    rng = Random(zlib.crc32(data))
    places = list(range(1, len(data)))
    if len(places) > MOST_CUTS:
        places = rng.sample(places, 20)
    found = [[data[:place], data[place:]] for place in places]
    if len(data) <= MOST_CUTS:
        found.append([bytes([byte]) for byte in data])
    return found


def events(pieces: list[bytes]) -> list[tuple[bytes, bytes]] | None:
    """Names and data; None where an event is too large."""
    splitter = Splitter()
    try:
        return [event for piece in pieces for event in splitter.feed(piece)]
    except EventSizeError:
        return None


def sdk_events(data: bytes) -> list[tuple[bytes, bytes]] | None:
    """Those of the SDK that have data; None where it raises."""
    try:
        found = list(SSEDecoder().iter_bytes(iter([data])))
    except UnicodeDecodeError:
        return None
    return [((event.event or "").encode(), event.data.encode()) for event in found if event.data]
