"""Bytes with something wrong in them, drawn from a corpus: the same for the same seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

TOKEN = re.compile(rb"[A-Za-z_][\w.-]*|-?\d[\d.]*|\"[^\"\n]{0,60}\"|\r?\n|[^\w\s]+")
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
BOUNDARIES = (
    b"0", b"-1", b"1", b"255", b"256", b"65535", b"65536", b"2147483647", b"2147483648", b"-2147483649", b"4294967296",
    b"9007199254740993", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616",
    b"1e308", b"1e309", b"-1e308", b"1e-400", b"0.1", b"-0.0", b"NaN", b"nan", b"inf", b"-Infinity", b"00", b"0x7f", b"9" * 400,
)  # fmt: skip
MOST_TOKENS = 2000
LARGEST = 1 << 17  # bytes of an input: what is larger finds the same and costs more


class Mutator:
    """Draws inputs: an entry of the corpus with one to four changes."""

    def __init__(self, corpus: Sequence[bytes]) -> None:
        self.corpus = list(corpus)
        tokens = sorted({token for entry in self.corpus for token in TOKEN.findall(entry)})
        step = max(1, len(tokens) // MOST_TOKENS)
        self.tokens = tokens[::step] or [b"\0"]

    def draw(self, rng: Random) -> bytes:
        """Return one input."""
        data = rng.choice(self.corpus)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            data = rng.choice(CHANGES)(self, rng, data)
        return data[:LARGEST]

    def flipped(self, rng: Random, data: bytes) -> bytes:
        """Return the bytes with some bits changed."""
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            if changed:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)

    def cut(self, rng: Random, data: bytes) -> bytes:
        """Return a beginning or an end of the bytes."""
        place = rng.randrange(len(data) + 1)
        return data[:place] if rng.random() < 0.7 else data[place:]

    def without_a_piece(self, rng: Random, data: bytes) -> bytes:
        """Return the bytes without some of them."""
        place = rng.randrange(len(data) + 1)
        return data[:place] + data[place + rng.choice((1, 1, 2, 4, 16, 200)) :]

    def spliced(self, rng: Random, data: bytes) -> bytes:
        """Return a beginning of these bytes and an end of another entry, or a piece of it in their middle."""
        other = rng.choice(self.corpus)
        begin = rng.randrange(len(other) + 1)
        place = rng.randrange(len(data) + 1)
        if rng.random() < 0.5:
            return data[:place] + other[begin:]
        return data[:place] + other[begin : begin + rng.choice((1, 8, 64, 1000))] + data[place:]

    def other_number(self, rng: Random, data: bytes) -> bytes:
        """Return the bytes with another number in the place of one."""
        numbers = list(NUMBER.finditer(data))
        if not numbers:
            return self.other_token(rng, data)
        number = rng.choice(numbers)
        return data[: number.start()] + rng.choice(BOUNDARIES) + data[number.end() :]

    def other_line(self, rng: Random, data: bytes) -> bytes:
        """Return the bytes with a line twice, many times, elsewhere or not at all."""
        lines = data.splitlines(keepends=True)
        if not lines:
            return data
        place = rng.randrange(len(lines))
        line = lines.pop(place)
        kind = rng.randrange(4)
        if kind == 0:
            lines.insert(rng.randrange(len(lines) + 1), line)
        elif kind == 1:
            lines[place:place] = [line, line]
        elif kind == 2:
            lines[place:place] = [line] * rng.choice((20, 300))
        return b"".join(lines)

    def other_token(self, rng: Random, data: bytes) -> bytes:
        """Return the bytes with a word of the corpus in them, or in the place of another one."""
        token = rng.choice(self.tokens)
        tokens = list(TOKEN.finditer(data))
        if tokens and rng.random() < 0.6:
            old = rng.choice(tokens)
            return data[: old.start()] + token + data[old.end() :]
        place = rng.randrange(len(data) + 1)
        return data[:place] + token + data[place:]

    def odd_bytes(self, rng: Random, data: bytes) -> bytes:
        """Return the bytes with others between them."""
        place = rng.randrange(len(data) + 1)
        odd = rng.choice(
            (
                b"\0",
                b"\r",
                b"\n",
                b"\r\n\r\n",
                b"\xff",
                b"\xef\xbb\xbf",
                b"\xc0\x80",
                b"\x1b[2J",
                b" ",
                b'"',
                b"{",
                b"[",
            )
        )
        return data[:place] + odd * rng.choice((1, 1, 2, 50, 5000)) + data[place:]  # fmt: skip


CHANGES: tuple[Callable[[Mutator, Random, bytes], bytes], ...] = (
    Mutator.flipped,
    Mutator.cut,
    Mutator.without_a_piece,
    Mutator.spliced,
    Mutator.spliced,
    Mutator.other_number,
    Mutator.other_number,
    Mutator.other_line,
    Mutator.other_token,
    Mutator.other_token,
    Mutator.odd_bytes,
)
