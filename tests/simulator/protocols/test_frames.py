"""Content chunks on the wire."""

from __future__ import annotations

import json

import pytest

from tailgauge.simulator.behaviours.content import TextPieces
from tailgauge.simulator.behaviours.tokens import text
from tailgauge.simulator.core.encoding import text_frames
from tailgauge.simulator.protocols import openai
from tailgauge.simulator.protocols.request import CallRequest, Reply
from tailgauge.simulator.protocols.wire import WIRES, Wire

REPLY = Reply(CallRequest('odd|"model', 10, 3, stream=True), "1", 1_700_000_000)


def dechunked(raw: bytes) -> bytes:
    out = b""
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        end = int(size, 16)
        assert rest[end : end + 2] == b"\r\n"
        out, raw = out + rest[:end], rest[end + 2 :]
    return out


def texts(wire: Wire, stream: bytes) -> list[str]:
    data = [line[6:] for line in stream.decode().split("\n") if line.startswith("data: ")]
    if wire is openai:
        return [json.loads(d)["choices"][0]["delta"]["content"] for d in data]
    return [json.loads(d)["delta"]["text"] for d in data]


@pytest.mark.parametrize("wire", WIRES, ids=lambda w: w.NAME)
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("per_chunk", [1, 3, 10, 40])
def test_all_frames_carry_the_whole_text(wire, chunked, per_chunk):
    pieces = TextPieces(10, per_chunk)
    frames = text_frames(wire.around_text(REPLY), pieces, chunked=chunked)
    sent = b"".join(map(frames, range(pieces.count)))
    got = texts(wire, dechunked(sent) if chunked else sent)
    assert len(got) == -(-10 // per_chunk)
    assert "".join(got) == text(10).decode()
