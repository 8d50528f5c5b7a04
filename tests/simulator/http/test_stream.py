"""Chunks leave in order, late ones at once, and none into a buffer that is full or a connection that is gone."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from types import SimpleNamespace

from tailgauge.simulator.behaviours.content import TextPieces
from tailgauge.simulator.core.encoding import Frames, text_frames
from tailgauge.simulator.http.driver import sleep_until
from tailgauge.simulator.http.stream import ChunkWriter

MS = 1_000_000


class Wire(asyncio.Transport):
    """Keeps what is written; `full` is what it says of its buffer, `closing` of its end."""

    def __init__(self):
        super().__init__()
        self.written: list[bytes] = []
        self.full = 0
        self.closing = False

    def write(self, data):
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.full

    def is_closing(self) -> bool:
        return self.closing


def frames(chunks: int) -> Frames:
    return text_frames((b"<", b">"), TextPieces(chunks, 1), chunked=False)


def writer(wire: Wire, due_ns: list[int], sent_at_ns: list[int]) -> ChunkWriter:
    answer = SimpleNamespace(due_ns=due_ns, complete=True, counts_sent=False)
    return ChunkWriter(wire, frames(len(due_ns)), answer, sent_at_ns)


def test_a_late_stream_lets_others_have_their_turn():
    async def deliver():
        late, other = Wire(), Wire()
        running = [asyncio.create_task(writer(w, [0] * 1000, []).run()) for w in (late, other)]
        await asyncio.sleep(0)
        assert 0 < len(late.written) < 1000
        assert 0 < len(other.written) < 1000
        await asyncio.gather(*running)

    asyncio.run(deliver())


def test_nothing_is_written_while_the_buffer_is_full_and_all_of_it_afterwards():
    async def deliver():
        wire = Wire()
        wire.full = 1_000_000
        running = asyncio.create_task(writer(wire, [0, 0, 0], []).run())
        await asyncio.sleep(0.01)
        assert wire.written == []
        wire.full = 0
        await running
        assert len(wire.written) == 3

    asyncio.run(deliver())


def test_a_sleep_never_ends_before_its_time():
    async def sleep():
        for after_ns in (-MS, 0, MS, 3 * MS):
            due = monotonic_ns() + after_ns
            await sleep_until(due)
            assert monotonic_ns() >= due - 1000

    asyncio.run(sleep())
