"""What response headers say of rate limits and of when to come back, by the table of vendors.

    limits         kind, role, value and window of each header that is understood
    limit_kind     the exhausted limit of a refused call
    retry_after    `retry-after-ms`, then `retry-after` (seconds or a date), then the reset of the exhausted limit
    not_understood headers that look like a limit and are in no family
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import product

from tailgauge import vendors

LIMIT = "limit"
REMAINING = "remaining"
RESET = "reset"
ROLES = (LIMIT, REMAINING, RESET)
KINDS = ("requests", "input_tokens", "output_tokens", "tokens")
RETRY_AFTER_MS = "retry-after-ms"
RETRY_AFTER = "retry-after"

Headers = Sequence[tuple[str, str]]  # names in lower case

_TABLE = vendors.TABLE["limits"]
_LONGEST_S = 1e9  # of a wait
_LOOKS_LIKE_A_LIMIT = re.compile(r"rate-?limit|^anthropic-(?:priority|fast)-")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_STRUCTURED_ROLES = {"q": LIMIT, "r": REMAINING, "t": RESET}
_MEMBER = re.compile(r'(?:[^,"]|"[^"]*")+')
_EPOCH_S = 1e8  # a number beyond is no number of seconds to wait, but a time since 1970
_EPOCH_MS = 1e11


@dataclass(frozen=True, slots=True)
class Name:
    """What a header's name says."""

    kind: str
    role: str
    window_s: float | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """One value of a limit. A reset is in seconds from now."""

    kind: str
    role: str
    value: float
    window_s: float | None = None
    header: str = ""


def _names() -> dict[str, Name]:
    """Return every name of the families, with its meaning."""
    found: dict[str, Name] = {}
    kinds = [(text, kind) for kind, texts in _TABLE["kinds"].items() for text in texts]
    windows = [(text, float(seconds)) for text, seconds in _TABLE["windows"].items()]
    for prefix, template, role in product(_TABLE["prefixes"], _TABLE["names"], ROLES):
        for text, kind in kinds if "{kind}" in template else [("", "requests")]:
            for window, seconds in windows if "{window}" in template else [("", None)]:
                name = template.format(role=role, kind=text, window=window)
                found.setdefault(prefix + name, Name(kind, role, seconds))
    return found


def _kind_texts() -> list[tuple[str, str]]:
    """Return what a name says of a kind, the longest first: input-tokens are no tokens."""
    texts = [
        (text.replace("_", "-"), str(kind))
        for kind, names in _TABLE["kinds"].items()
        for text in names
    ]
    return sorted(texts, key=lambda pair: -len(pair[0]))


NAMES = _names()
_KIND_TEXTS = _kind_texts()
STRUCTURED = frozenset(
    prefix + name for prefix in _TABLE["prefixes"] for name in _TABLE["structured"]
)


def is_of_a_limit(name: str) -> bool:
    """Whether a header belongs to a family, or looks like one that does."""
    return name in NAMES or _LOOKS_LIKE_A_LIMIT.search(name) is not None


def limits(headers: Headers, now: datetime | None = None) -> list[Limit]:
    """Return every value of a limit that is understood. `now`: of resets that are instants."""
    now = now or datetime.now(UTC)
    found = []
    for name, value in headers:
        if name in NAMES:
            meaning = NAMES[name]
            number = _reset_s(value, now) if meaning.role == RESET else _number(value)
            if number is not None:
                found.append(Limit(meaning.kind, meaning.role, number, meaning.window_s, name))
        elif name in STRUCTURED:
            found += structured(value, name)
    return found


def structured(value: str, header: str = "") -> Iterator[Limit]:
    """Yield the values of a field of the IETF draft: `"requests";q=100;w=60`, `"requests";r=9;t=12`, or `limit=9, remaining=5`."""
    for member in _MEMBER.findall(value):
        name, *parameters = (part.strip() for part in member.split(";"))
        values = dict(part.partition("=")[::2] for part in (name, *parameters) if "=" in part)
        kind = _kind_of(name)
        window_s = _number(values.get("w", ""))
        for key, text in values.items():
            role = _STRUCTURED_ROLES.get(key) or (key if key in ROLES else None)
            number = _number(text)
            if role is not None and number is not None:
                yield Limit(kind, role, number, window_s, header)


def _kind_of(name: str) -> str:
    """Return the kind that the name of a policy tells; requests where it tells none."""
    plain = name.strip('"').lower().replace("_", "-")
    for text, kind in _KIND_TEXTS:
        if text in plain:
            return kind
    return "requests"


def limit_kind(headers: Headers) -> str:
    """Return the exhausted limit of a refused call, `unknown` where the headers do not tell."""
    empty = {one.kind for one in limits(headers) if one.role == REMAINING and one.value == 0}
    return next((kind for kind in KINDS if kind in empty), "unknown")


def retry_after(headers: Headers, now: datetime | None = None) -> tuple[float, str] | None:
    """Return how many seconds to wait and the header that says so; None where none does."""
    now = now or datetime.now(UTC)
    by_name = dict(reversed(list(headers)))
    milliseconds = _number(by_name.get(RETRY_AFTER_MS, ""))
    if milliseconds is not None and milliseconds < _LONGEST_S * 1000:
        return milliseconds / 1000, RETRY_AFTER_MS
    seconds = _seconds_or_date(by_name.get(RETRY_AFTER, ""), now)
    if seconds is not None:
        return seconds, RETRY_AFTER
    known = limits(headers, now)
    empty = {one.kind for one in known if one.role == REMAINING and one.value == 0}
    resets = [one for one in known if one.role == RESET and one.kind in empty]
    if not resets:
        # Azure names the reset of the limit that refused, and no other.
        resets = [one for one in known if one.role == RESET] if not empty else []
    if not resets:
        return None
    last = max(resets, key=lambda one: one.value)
    return last.value, last.header


def not_understood(headers: Headers) -> list[str]:
    """Return the headers that look like a limit and are in no family."""
    return [
        name
        for name, _ in headers
        if _LOOKS_LIKE_A_LIMIT.search(name) and not _is_known(name.removeprefix("llm_provider-"))
    ]


def _is_known(name: str) -> bool:
    is_cost = any(name.endswith(mark) for mark in _TABLE["cost_marks"])
    return is_cost or name in NAMES or name in STRUCTURED or name in _TABLE["without_a_limit"]


def _number(text: str) -> float | None:
    """Return a number that is not below zero; the first of a list such as `100, 100;w=60`."""
    try:
        value = float(text.split(",")[0].split(";")[0])
    except ValueError:
        return None
    return value if 0 <= value < _LONGEST_S * 1e6 else None


def _seconds_or_date(text: str, now: datetime) -> float | None:
    seconds = _number(text) if "," not in text else None
    if seconds is not None:
        return seconds if seconds < _LONGEST_S else None
    return _until(parse_date(text), now)


def parse_date(text: str) -> datetime | None:
    """Return an HTTP date; None of anything else."""
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None


def _reset_s(text: str, now: datetime) -> float | None:
    """Return the seconds to a reset, whatever its unit."""
    seconds = _number(text)
    if seconds is not None:
        if seconds >= _EPOCH_MS:
            return max(0.0, seconds / 1000 - now.timestamp())
        return max(0.0, seconds - now.timestamp()) if seconds >= _EPOCH_S else seconds
    parts = _DURATION.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return float(sum(float(number) * _UNITS_S[unit] for number, unit in parts))
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return _until(parse_date(text), now)
    return max(0.0, _until(instant.replace(tzinfo=instant.tzinfo or UTC), now) or 0.0)


def _until(instant: datetime | None, now: datetime) -> float | None:
    if instant is None:
        return None
    try:
        seconds = (instant - now).total_seconds()
    except TypeError:  # a date without a zone
        return None
    return seconds if 0 <= seconds < _LONGEST_S else None
