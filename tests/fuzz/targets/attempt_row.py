"""Answers of a target, from the first byte to the row of the attempt: it ends in a class, and Parquet can hold it."""

from __future__ import annotations

from wire.grammar import Plan, Stream
from wire.oracle import DRAW
from wire.product import plain_events, read

from tailgauge.rows.parquet import row_table

HEADERS = [
    """HTTP/1.1 429 Too Many Requests
retry-after: 1
retry-after-ms: 700
x-ratelimit-remaining-requests: 9
x-ratelimit-reset-tokens: 1m2.5s
anthropic-ratelimit-input-tokens-reset: 2026-11-30T12:00:00Z
content-type: application/json
connection: close

{"error": {"type": "rate_limit_error", "message": "slow down", "code": 429}}""",
    """HTTP/1.1 307 Temporary Redirect
location: https://b.example/x?key=1
content-length: 0

""",
    """HTTP/1.1 200 OK
server-timing: queue;dur=5.1, model;dur="7"
request-id: r
x-request-id: s
content-type: text/event-stream; charset=utf-8
connection: close

data: [DONE]

""",
    """HTTP/1.1 503 Busy
content-type: text/html
connection: close

<html><title>502 Bad Gateway</title></html>""",
    """HTTP/1.1 200 OK
content-encoding: gzip
content-type: text/event-stream
connection: close

\x1f\x8b""",
    "SSH-2.0-OpenSSH_9.6\n",
]
PLAN = Plan(max_tokens=100, ends_naturally=False)
PLAIN = {name: plain_events(name) for name in DRAW}


def corpus() -> list[bytes]:
    drawn = [DRAW[name](f"row-{number}").wire for name in DRAW for number in range(15)]
    return [*(text.replace("\n", "\r\n").encode() for text in HEADERS), *drawn]


def check(data: bytes) -> None:
    for name, plain in PLAIN.items():
        reads = tuple(filter(None, (data[:700], data[700:])))
        stream = Stream(
            protocol=name, seed="", plan=PLAN, events=(), reads=reads, is_reset=len(data) % 2 == 0, is_whole=True,
            arrived=0, notes=frozenset(), tokens={}, marks=frozenset(), tool_inputs=[],
        )  # fmt: skip
        row = read(stream, plain).row
        assert row.ended
        table = row_table("attempts", [row])
        assert table.num_rows == 1
