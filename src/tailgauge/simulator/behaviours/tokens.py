"""Tokens: one token is four UTF-8 bytes of a text block, rounded up.

The endpoint writes four-byte words that JSON need not escape: a number of tokens is exact on the wire, and a streamed
answer is the same text as the whole one.
"""

from __future__ import annotations

from functools import lru_cache

BYTES_PER_TOKEN = 4

_TEXT = (
    b"sea sky sun fog ice dew mud ash oak elm fir ivy bay fen owl elk fox hen bee ant cod eel ram cub jay emu yak koi cup "
    b"jar pan pot mug lid tin urn hat cap bag box net rug red tan old new big wee odd few wet dry hot icy shy sly map pen "
    b"ink key tea jam nut fig "
)
_CYCLE = len(_TEXT) // BYTES_PER_TOKEN


def count(text: str) -> int:
    """Return the number of tokens of one text block."""
    # Half of a surrogate pair is legal in JSON and three bytes long; it is no reason to fail.
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def text(tokens: int, start: int = 0) -> bytes:
    """Return `tokens` tokens of the answer, from token `start` on; the text repeats without end."""
    begin = start % _CYCLE
    end = begin + tokens
    repeats = end // _CYCLE + 1
    return (_TEXT * repeats)[begin * BYTES_PER_TOKEN : end * BYTES_PER_TOKEN]


@lru_cache(maxsize=16)
def chunk_texts(tokens_per_chunk: int) -> tuple[bytes, ...]:
    """Return the texts of consecutive chunks; chunk i carries the text i modulo their number."""
    return tuple(text(tokens_per_chunk, i * tokens_per_chunk) for i in range(_CYCLE))
