"""Rows, bare and full."""

from __future__ import annotations

from array import array
from dataclasses import replace

from tailgauge.rows.recorder import Recorder
from tailgauge.rows.schema import AttemptRow, Chunks, HealthRow, RequestRow

WORKER = 3
REQUEST = RequestRow(
    1, "steady", "chat", "streaming", None, 5, None, None, "client_drop", 0, 0, 200, 50
)
FULL_REQUEST = RequestRow(
    -1, "preflight", "größe", "streaming", 7, -5, 6, 2**62, "ok", 1, 2, 200, 50
)
ATTEMPT = AttemptRow(1, 0, 0, "primary", None, "steady", "chat", "openai", "tiny", 5, 6)
FULL_ATTEMPT = replace(
    ATTEMPT,
    status=200,
    retry_after_s=1.5,
    connection_is_new=False,
    error_body="ü\n🙂",
    thinking_tokens=0,
    model="m",
)
HEALTH = HealthRow(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0.5, 13, 14, 15, -16)


def chunks(count: int, low: int = 0) -> Chunks:
    numbers = array("q", range(1, count + 1))
    return Chunks(bytearray(i % 3 for i in range(count)), numbers, array("q", [low] * count), numbers,
                  array("i", range(count)), array("i", [5] * count))  # fmt: skip


def append(recorder: Recorder) -> None:
    recorder.request(REQUEST)
    recorder.request(FULL_REQUEST)
    recorder.attempt(ATTEMPT)
    recorder.attempt(FULL_ATTEMPT)
    recorder.health(HEALTH)
    recorder.chunks(1, 0, 0, 0, chunks(2))
    recorder.chunks(1, 0, 0, 2, chunks(0))
    recorder.chunks(65536, 2, 1, 7, chunks(1, low=9))


def health(recorder: Recorder, begin: int, count: int = 10) -> None:
    for number in range(begin, begin + count):
        recorder.health(HealthRow(number, *[0] * 15))
