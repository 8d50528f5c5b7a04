"""Streams of the grammar over real connections, through whole calls: PROTOCOL, SEED, count."""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

import gevent
from transport.scripted_server import Server, until_read
from wire.grammar import Stream, expected
from wire.oracle import COLUMNS, DRAW, failing_case
from worker.one_call import PLAIN, endpoint, made

from tailgauge.call import Call
from tailgauge.rows.schema import CHUNK_KINDS, THINKING

PAUSE_S = 0.0003
MANY = 60  # reads, which come without pauses


class Player:
    """A server that answers with the stream that is next."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.server = Server(self.play)
        self.server.url = self.server.url.removesuffix("/v1")

    def play(self, sock: Any, _: int) -> None:
        """Answer until a stream leaves the connection unusable."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while self.server.request(sock):
            assert self.stream is not None
            for read in self.stream.reads:
                sock.sendall(read)
                if len(self.stream.reads) < MANY:
                    gevent.sleep(PAUSE_S)
            if self.stream.is_reset:
                until_read(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            if not self.stream.is_whole or b"connection: close" in self.stream.wire:
                return


def problems(stream: Stream, facts: dict[str, Any], *, keeps_text: bool) -> Iterator[str]:
    """Yield what a row over a real connection says otherwise than the grammar."""
    right = expected(stream)
    row = facts["row"]
    pairs = {
        "class": (right.ended, row["ended"]),
        "error_class": (right.error_class, row["error_class"]),
    }
    if right.is_complete or right.ended == "truncated":
        seen = right.text + right.thinking + right.tool_input
        if not {"refusal_delta", "audio"} & stream.notes:
            pairs["characters"] = (len(seen), sum(facts["chars"]))
        pairs["stop reason"] = (right.stop_reason, row["stop_reason"])
        kinds = zip(facts["kinds"], facts["chars"], strict=True)
        thinking = sum(chars for kind, chars in kinds if CHUNK_KINDS[kind] == THINKING)
        pairs["characters of thinking"] = (len(right.thinking), thinking)
        if keeps_text:
            pairs["text"] = (right.text or right.tool_input, facts["received"][-1][1]["text"])
    if right.is_complete and stream.arrived == len(stream.events):
        known = {name: row[name] for name in COLUMNS if row[name] is not None}
        pairs["counts"] = (stream.tokens, known)
    for name, (wanted, got) in pairs.items():
        if wanted != got:
            yield f"{name}: expected {wanted!r}, got {got!r}"


def main(protocol: str, seed: str, count: int) -> dict[str, Any]:
    """Send them one after the other; return those that went wrong."""
    player = Player()
    target = endpoint(player.server.url, protocol)
    mismatches = []
    for number in range(count):
        stream = DRAW[protocol](f"{seed}-{number}")
        player.stream = stream
        keeps_text = number % 2 == 0
        call = Call(
            PLAIN,
            stream.plan.max_tokens,
            ends_naturally=stream.plan.ends_naturally,
            keep_text=keeps_text,
        )
        facts = made(target, call)
        found = list(problems(stream, facts, keeps_text=keeps_text))
        if found:
            mismatches.append(failing_case(stream, found))
    return {
        "mismatches": mismatches[:20],
        "mismatch_count": len(mismatches),
        "streams": count,
    }


print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
