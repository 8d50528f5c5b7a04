"""The body of an answer: compiled code finds in any bytes the payload, the end and the errors that `http1` finds."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest

from tailgauge.transport.answer import CompiledAnswer, Facts, PlainAnswer
from tailgauge.transport.http1 import MAX_HEAD, MAX_LINES, Framing

pytestmark = pytest.mark.skipif(
    find_spec("tailgauge.transport._core") is None,
    reason="it is not compiled here: that needs Linux, a C compiler and Python's headers",
)
FEW, MANY = 4000, 100_000
CHUNKED = Framing(None, True, True)
END = b"0\r\n\r\n"
SIZES = (b"5", b"05", b"A", b"a", b"1f", b"0" * 15 + b"3", b"0" * 16 + b"3", b"f" * 16, b"f" * 17, b"f" * 40, b"0", b"00", b"", b"x",
         b"-1", b"+1", b"0x5", b"5 5", b"1_0", b" 3", b"3 ", b"\t3", b"3\x0b", b"3\x0c", b"3\x00", b"3\xa0", b"3;", b"3 ;a=b", b"3;a;b",
         b"3 a", b"\xff")  # fmt: skip
LINE_ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b" \r\n", b"\n\n", b"\r\r\n", b"")
TRAILERS = (
    b"\r\n",
    b"a: b\r\n\r\n",
    b"\n",
    b" \r\n",
    b"a: b\r\n" * 300 + b"\r\n",
    b"x" * 70_000 + b"\r\n\r\n",
    b"",
)


def part(rng: Random) -> bytes:
    kind = rng.random()
    data = rng.randbytes(rng.choice((1, 2, 5, 10, 17, 300)))
    if kind < 0.6:
        return b"%x\r\n%b\r\n" % (len(data), data)
    if kind < 0.8:
        size = rng.choice(SIZES)
        return (
            size + rng.choice(LINE_ENDS) + data[: rng.choice((0, 3, 5, 10))] + rng.choice(LINE_ENDS)
        )
    if kind < 0.9:
        return rng.choice((b"0", b"00", b"0;x")) + b"\r\n" + rng.choice(TRAILERS)
    if kind < 0.91:
        return rng.choice((b"1" * 70_000, b"1;" + b"x" * 65_534, b"1;" + b"x" * 65_535)) + b"\r\n"
    return data


def wire(rng: Random) -> bytes:
    """Mostly chunks; some are no chunks, and some bytes are lost or others."""
    data = b"".join(part(rng) for _ in range(rng.randrange(8))) + rng.choice(
        (END, END, b"", END + b"more")
    )
    for _ in range(rng.choice((0, 0, 1, 3))):
        place = rng.randrange(len(data) + 1)
        data = (
            data[:place]
            + rng.choice((b"", b"\r", b"\n", b"0", rng.randbytes(1)))
            + data[place + rng.randrange(2) :]
        )
    return data


def reads(rng: Random, data: bytes) -> list[bytes]:
    count = rng.choice((0, 1, 2, 10, len(data)))
    places = sorted(rng.randrange(len(data) + 1) for _ in range(min(count, 300)))
    edges = [0, *places, len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


def framing(rng: Random, size: int) -> Framing:
    length = rng.choice((0, 1, size // 2, size, size + 1, 10**16 - 1))
    return rng.choice(
        (CHUNKED, CHUNKED, CHUNKED, Framing(length, False, True), Framing(None, False, False))
    )


def taken(answer: Any, framing: Framing, bodies: list[bytes], rng: Random) -> list[Any]:
    """What is taken, at random moments, up to the end or an error."""
    answer.begin(framing, rng.choice((0, 5)), rng.choice((0, 7)))
    found: list[Any] = []
    for number, data in enumerate(bodies):
        at = 10 * number + 10
        answer.read(data, at, at + rng.choice((0, 3)), rng.choice((0, at - 5, at + 5)))
        if rng.random() < 0.3:
            found.append(of_news(answer.take()))
    return [*found, of_news(answer.take())]


def of_news(news: Any) -> Any:
    pieces = [(*piece[:1], *piece[2:]) for piece in news.pieces]
    facts: Facts = news.facts._replace(held=0)
    assert (news.columns, news.events) == (None, 0)
    if facts.error is not None:
        facts = facts._replace(
            error=None, has_excess=False, is_done=False
        )  # nothing is read behind it
    return pieces, facts, str(news.facts.error)


@pytest.mark.slow
def test_random_and_damaged_framing_gives_the_same_payload_end_and_error(fuzz: Any) -> None:
    seed, numbers, _ = fuzz(FEW, MANY)
    ends = set()
    for number in numbers:
        rng = Random(f"{seed}-{number}")
        data = wire(rng)
        frame = framing(rng, len(data))
        bodies = reads(rng, data)
        is_user_clock = rng.random() < 0.2
        draws = rng.random()
        compiled = taken(
            CompiledAnswer(None, 0, is_user_clock=is_user_clock), frame, bodies, Random(draws)
        )
        plain = taken(PlainAnswer(is_user_clock=is_user_clock), frame, bodies, Random(draws))
        assert compiled == plain, (number, frame, [body[:200] for body in bodies])
        ends.add((plain[-1][2].partition(":")[0], plain[-1][1].is_done))

    assert {error for error, _ in ends} == {
        "None", "not a chunk size", "bytes behind a chunk", f"over {MAX_LINES} trailers",
        f"a line of over {MAX_HEAD:,} bytes in chunked framing",
    }  # fmt: skip
    assert ("None", True) in ends
    assert ("None", False) in ends


@pytest.mark.parametrize("size", SIZES)
def test_every_way_to_write_a_size_is_read_alike(size: bytes) -> None:
    data = size + b"\r\nabcdefghijklmnopqrstuvwxyz0123456789"
    for cut in range(len(data)):
        compiled = CompiledAnswer(None, 0, is_user_clock=False)
        plain = PlainAnswer(is_user_clock=False)
        bodies = [data[:cut], data[cut:]]

        assert taken(compiled, CHUNKED, bodies, Random(1)) == taken(
            plain, CHUNKED, bodies, Random(1)
        )


@pytest.mark.parametrize("length", [MAX_HEAD - 1, MAX_HEAD, MAX_HEAD + 1])
@pytest.mark.parametrize("cut", [0, 5, 60_000])
def test_a_line_has_the_same_longest_length(length: int, cut: int) -> None:
    data = b"1;" + b"x" * (length - 2) + b"\na\r\n" + END
    bodies = [data[:cut], data[cut:]]
    answers = (CompiledAnswer(None, 0, is_user_clock=False), PlainAnswer(is_user_clock=False))

    compiled, plain = (taken(answer, CHUNKED, bodies, Random(1)) for answer in answers)

    assert compiled == plain
    assert (plain[-1][2] == "None") == (length <= MAX_HEAD)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_waits_to_be_taken_counts_as_held_and_what_was_taken_does_not(compiled: bool) -> None:
    answer: Any = (
        CompiledAnswer(None, 0, is_user_clock=False)
        if compiled
        else PlainAnswer(is_user_clock=False)
    )
    answer.begin(CHUNKED, 0, 0)
    answer.read(b"186a0\r\n" + b"x" * 100_000 + b"\r\n12", 1, 2, 0)

    assert answer.take().facts.held < 5000
    answer.read(b"3", 2, 3, 0)
    assert 2 < answer.take().facts.held < 5000
