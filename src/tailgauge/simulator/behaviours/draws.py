"""Random numbers of the endpoint: the same for the same seed, purpose and key, in whatever order they are drawn."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from random import Random
from typing import TypeVar

T = TypeVar("T")


def draws(*parts: object) -> Random:
    """Return a generator that is seeded by the seed, the purpose and the key."""
    # Seeded with bytes, it is the same in every process.
    return Random(_bytes(parts))


def digest(size: int, *parts: object) -> int:
    """Return a number of `size` bytes, which seeds generators that take numbers."""
    # Python's own hash() is salted per process; this one is the same everywhere.
    return int.from_bytes(blake2b(_bytes(parts), digest_size=size).digest(), "little")


def _bytes(parts: Iterable[object]) -> bytes:
    # A header may hold bytes that are no text.
    return "/".join(map(str, parts)).encode("utf-8", "surrogateescape")


def pick(random: Random, choices: Iterable[tuple[float, T]], otherwise: T) -> T:
    """Draw one of the choices by their shares; `otherwise` has the rest."""
    draw = random.random()
    for share, choice in choices:
        draw -= share
        if draw < 0:
            return choice
    return otherwise
