"""Secrets in the raw bytes of an answer: overwritten in place, in whatever form and however it was split."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from end_to_end import echoes
from end_to_end.echoes import ECHOES, Request

from tailgauge import redaction
from tailgauge.transport.http1 import ChunkedBody
from tailgauge.worker.raw_redaction import redact

KEY = "7Qz9-canary_of4Raw.Answers+8c1Kx0Zt5Lw2"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAW_ANSWER_API_KEY", KEY)
    redaction.forget()
    yield
    redaction.forget()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def left(data: bytes) -> list[str]:
    """Runs of the key in bytes as anyone may read them: as they are, without framing, and the texts of their events joined."""
    text = data.decode("utf-8", "replace")
    payload = ChunkedBody().feed(data.partition(b"\r\n\r\n")[2]) if b"chunked" in data else b""
    texts = [text, payload.decode("utf-8", "replace")]
    deltas = [line[6:] for line in texts[1].splitlines() if line.startswith("data: ")]
    texts.append("".join(map(content, deltas)))
    return [run for each in texts for run in echoes.kept(KEY, each)]


def content(data: str) -> str:
    """The text of one event."""
    try:
        tree = json.loads(data)
    except ValueError:
        return data
    if not isinstance(tree, dict):
        return str(tree)
    return str(tree["choices"][0]["delta"]["content"])


@pytest.mark.parametrize("name", ECHOES)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_no_form_of_a_key_and_no_place_of_it_is_left(name: str, path: str) -> None:
    request = Request(f"POST {path} HTTP/1.1\r\nx-api-key: {KEY}\r\n\r\n")
    data = ECHOES[name](request).encode("latin-1")
    redacted = redact(data)

    assert echoes.kept(KEY, redacted.decode("latin-1")) == []
    assert echoes.kept(KEY, redacted.decode("utf-8", "replace")) == []
    assert len(redacted) == len(data)


def by(size: int) -> list[str]:
    return [KEY[at : at + size] for at in range(0, len(KEY), size)]


def delta(text: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


@pytest.mark.parametrize("size", [1, 3, 5, 7, 20])
def test_a_key_split_over_chunks_deltas_or_data_lines_is_found(size: int) -> None:
    pieces = by(size)
    split = {
        "chunks": [delta(KEY)[at : at + size] for at in range(0, len(delta(KEY)), size)],
        "deltas": [delta(piece) for piece in pieces],
        "escaped deltas": [delta(f"{piece}").replace(b"-", b"\\u002d") for piece in pieces],
        "lines": [b"data: %b\n\n" % piece.encode() for piece in pieces],
        "JSON strings": [b'data: "%b"\n\n' % piece.encode() for piece in pieces],
    }
    for name, events in split.items():
        data = CHUNKED + b"".join(map(chunk, events)) + END
        redacted = redact(data)

        assert left(data) != [], name
        assert left(redacted) == [], name
        assert len(redacted) == len(data), name


def test_framing_and_everything_else_stay() -> None:
    events = [delta("before "), delta(f"é{KEY}€"), delta(" behind")]
    data = CHUNKED + b"".join(map(chunk, events)) + END
    redacted = redact(data)
    mask = "[redacted]".ljust(len(KEY), "*")

    assert redacted == data.replace(KEY.encode(), mask.encode())
    assert json.loads(redacted.split(b"data: ")[2].partition(b"\n")[0])["choices"]


@pytest.mark.parametrize("before", [65_000, 65_530, 65_536, 57_344, 57_340, 122_870])
def test_a_key_anywhere_in_a_long_answer_is_found(before: int) -> None:
    request = Request(f"POST /v1/chat/completions HTTP/1.1\r\nx-api-key: {KEY}\r\n\r\n")
    data = b"x" * before + ECHOES["error as json escapes"](request).encode() + b"y" * 70_000

    assert echoes.kept(KEY, redact(data).decode()) == []


def test_an_answer_without_a_secret_is_the_same_bytes() -> None:
    data = CHUNKED + b"".join([chunk(delta(f"word{number} ")) for number in range(100)]) + END
    broken = bytes(range(256)) * 4

    assert redact(data) is data
    assert redact(broken) is broken


def test_cookies_and_keys_by_their_look_are_masked() -> None:
    head = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nSet-Cookie: session=4; path=/\r\ncontent-length: 29\r\n\r\n"
    redacted = redact(head + b"Use sk-ant-another-0123456789")

    assert b"session" not in redacted
    assert b"link: x" in redacted
    assert b"content-length: 29" in redacted
    assert redacted.endswith(b"Use [redacted]***************")


def test_the_beginning_of_a_key_where_an_answer_was_cut_is_masked() -> None:
    redacted = redact(CHUNKED + b"40\r\ndata: " + KEY[:7].encode())

    assert redacted == CHUNKED + b"40\r\ndata: [redact"


@pytest.mark.slow
def test_the_longest_answer_takes_bounded_time() -> None:
    event = chunk(delta(f'a "word" \\ {"x" * 40}\n'))
    data = CHUNKED + event * ((1 << 20) // len(event))
    began_s = time.process_time()
    redact(data)
    odd = [b'"a":"', b'"', b"\\", b"data: ", b"\r\n1\r\n", b"k%", KEY[:9].encode()]
    for piece in odd:
        redact(CHUNKED + piece * ((1 << 18) // len(piece)))

    assert time.process_time() - began_s < 60
