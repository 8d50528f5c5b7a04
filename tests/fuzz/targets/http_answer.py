"""HTTP answers: the head and body of h11, the same with compiled code, however the bytes are cut.

Where h11 refuses an answer, ours may be more lenient; where both take it, it is the same answer.
"""

from __future__ import annotations

import itertools
import zlib
from random import Random
from typing import Any

import h11
from transport.test_http1 import CHUNKED

from tailgauge.transport.answer import COMPILED, CompiledAnswer, PlainAnswer
from tailgauge.transport.http1 import Head, ResponseHead, WireError

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
HEADS = (
    OK + b"transfer-encoding: chunked\r\n\r\n",
    OK + b"Transfer-Encoding: Chunked\r\nConnection: close\r\nKeep-Alive: timeout=5\r\n\r\n",
    OK + b"content-length: 5\r\n\r\n",
    OK + b"content-length: 5\r\ncontent-length: 5\r\nx-a:\r\nx-b: \t c \t\r\n\r\n",
    OK + b"connection: close\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"transfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\n",
)  # fmt: skip
Answer = tuple[ResponseHead, bytes, bool] | str  # head, body, whether it ended; or why it is none


def corpus() -> list[bytes]:
    bodies = [wire for wire, _ in CHUNKED.values()]
    with_bodies = [head + body for head in HEADS[:2] for body in bodies]
    return [*with_bodies, *(head + b"hello" for head in HEADS)]


def check(data: bytes) -> None:
    whole = read([data])
    for pieces in cuts(data):
        assert shown(read(pieces)) == shown(whole), (
            f"another answer where the bytes come as {pieces!r}"
        )
    compare_compiled(data)
    theirs = h11_answer(data)
    if theirs is None or isinstance(whole, str):
        return
    assert whole is not None, "h11 has a head where ours waits for its end"
    status, headers, body, is_over = theirs
    head = whole[0]
    assert head.status == status, f"status {head.status}, h11 has {status}"
    names = {name.lower(): value for name, value in reversed(head.headers)}
    if b"transfer-encoding" in names:
        names[b"transfer-encoding"] = names[b"transfer-encoding"].lower()  # as h11 does
    assert names == headers, f"headers {names!r}, h11 has {headers!r}"
    if is_over:
        assert whole[1:] == (body, True), f"body {whole[1:]!r}, h11 has {body!r}"


def cuts(data: bytes) -> list[list[bytes]]:
    """The input in two pieces, at some places, and byte by byte where it is short."""
    rng = Random(zlib.crc32(data))
    places = sorted(rng.sample(range(len(data) + 1), min(len(data), 12)))
    found = [[data[:place], data[place:]] for place in places]
    if len(data) <= 500:
        found.append([bytes([byte]) for byte in data])
    return found


def read(pieces: list[bytes]) -> Answer | None:
    """The answer; None where its head has no end."""
    head = Head()
    started: ResponseHead | None = None
    payload = []
    try:
        for piece in pieces:
            if started is None:
                found = head.feed(piece)
                if found is None:
                    continue
                started, behind = found
                assert started.framing is not None
                body = started.framing.body()
                payload.append(body.feed(behind))
            else:
                payload.append(body.feed(piece))
    except WireError as error:
        return str(error)
    if started is None:
        return None
    return started, b"".join(payload), body.done


def shown(answer: Answer | None) -> Any:
    """What must not depend on the cuts: of a refusal, that it is one."""
    return "refused" if isinstance(answer, str) else answer


def compare_compiled(data: bytes) -> None:
    """Compiled code finds the payload, the end and the error that ours in Python finds."""
    started = None
    try:
        started = Head().feed(data)
    except WireError:
        return
    if started is None or not COMPILED:
        return
    framing = started[0].framing
    assert framing is not None
    rng = Random(zlib.crc32(data))
    places = [
        0,
        *sorted(rng.sample(range(len(started[1]) + 1), min(3, len(started[1])))),
        len(started[1]),
    ]
    found = []
    for answer in (CompiledAnswer(None, 0, is_user_clock=False), PlainAnswer(is_user_clock=False)):
        answer.begin(framing, 5, 7)
        for number, (begin, end) in enumerate(itertools.pairwise(places), 1):
            answer.read(started[1][begin:end], 10 * number, 10 * number + 1, 0)
        news = answer.take()
        payload = b"".join(piece.payload for piece in news.pieces)
        has_failed = news.facts.error is not None
        end = (False, False) if has_failed else (news.facts.is_done, news.facts.has_excess)
        found.append((payload, end, str(news.facts.error)))
    assert found[0] == found[1], f"compiled: {found[0]!r}, in Python: {found[1]!r}"


def h11_answer(data: bytes) -> tuple[int, dict[bytes, bytes], bytes, bool] | None:
    """Status, first headers, body, and whether it ended, as h11 reads them; None where it refuses the answer."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    head = None
    body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif (
                isinstance(event, h11.EndOfMessage) or event is h11.NEED_DATA or event is h11.PAUSED
            ):
                if head is None:
                    return None
                names = dict(reversed(list(head.headers)))
                return head.status_code, names, body, isinstance(event, h11.EndOfMessage)
            elif not isinstance(event, h11.InformationalResponse):
                return None
    except h11.RemoteProtocolError:
        return None
