"""Random numbers of the endpoint: the same for the same seed, purpose and key, in whatever order they are drawn."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from random import Random
from typing import TypeVar

T = TypeVar("T")


def draws(*what: object) -> Random:
    """A generator for the seed, the purpose and the key."""
    # Seeded with bytes it does not depend on the process.
    return Random(_bytes(what))


def digest(size: int, *what: object) -> int:
    """A number of so many bytes for the same, for generators that are seeded with numbers."""
    # Python's own hash() is salted per process; this one is the same everywhere.
    return int.from_bytes(blake2b(_bytes(what), digest_size=size).digest(), "little")


def _bytes(what: Iterable[object]) -> bytes:
    # A header may hold bytes that are no text.
    return "/".join(map(str, what)).encode("utf-8", "surrogateescape")


def pick(random: Random, choices: Iterable[tuple[float, T]], otherwise: T) -> T:
    """One of the choices by their shares; `otherwise` has the rest."""
    draw = random.random()
    for share, choice in choices:
        draw -= share
        if draw < 0:
            return choice
    return otherwise
