"""How the publishers of traces write them: names of columns, clocks, notations of time.

Rule: a table and pure functions of one cell; a cell that is none raises ValueError, TypeError or OverflowError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_SECOND = 1_000_000_000
_DATE = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Format:
    """How one publisher writes: names of the columns, and how a time is read, in ns."""

    time: str
    prompt: str
    output: str
    read_time: Callable[[Any], int]
    ticks_ns: tuple[int, ...]  # of the coarse clocks that such traces are known to have
    slack_ns: int = 0  # a tick may be printed so much off, by being cut to the unit of print
    session: str = ""
    blocks: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns without which it is not this format."""
        return (self.time, self.prompt, self.output)


def finite(value: Any) -> float:
    """A finite number of a cell; the underscores that Python would take are none."""
    if isinstance(value, bool) or (isinstance(value, str) and ("_" in value or not value.isascii())):
        raise ValueError
    real = float(value)
    if not math.isfinite(real):
        raise ValueError
    return real


def _seconds(value: Any) -> int:
    text = str(value).strip()
    return int(text) * _SECOND if text.isascii() and text.isdecimal() else round(finite(value) * 1e9)


def _milliseconds(value: Any) -> int:
    return value * 1_000_000 if type(value) is int else round(finite(value) * 1e6)


def _date(value: Any) -> int:
    """`2023-11-16 18:15:46.6805900`, with an offset or without: UTC then. datetime itself knows no 100 ns."""
    text = str(value).strip()
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    if (dot and not digits) or len(digits) > 9 or len(whole) < 19:
        raise ValueError
    moment = datetime.fromisoformat(whole + rest[len(digits) :])
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _DATE
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(digits.ljust(9, "0"))


FORMATS = {
    "azure": Format("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date, (_SECOND,)),
    "burstgpt": Format(
        "Timestamp", "Request tokens", "Response tokens", _seconds, (_SECOND,), session="Session ID"
    ),
    "mooncake": Format(
        "timestamp",
        "input_length",
        "output_length",
        _milliseconds,
        (3 * _SECOND, _SECOND),
        slack_ns=1_000_000,
        blocks="hash_ids",
    ),
}
