"""What response headers say of rate limits and of when to come back, by the table of vendors.

limits         kind, role, value and window of each header that is understood
limit_kind     the exhausted limit of a refused call
retry_after    `retry-after-ms`, then `retry-after` (seconds or a date), then both as a gateway passes them on, then
               the reset of the exhausted limit
not_understood headers that look like a limit and are in no family

The limits that a scenario sets on its own run are in `plan.spend_limit`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from functools import cache, lru_cache

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
_PREFIXES: tuple[str, ...] = tuple(_TABLE["prefixes"])
WAITS = tuple(prefix + name for prefix in _PREFIXES for name in (RETRY_AFTER_MS, RETRY_AFTER))
_LONGEST_WAIT_S = 4_294_967.0  # 2^32 ms, as in the SDKs
_LONGEST_NAME = 200  # of a header: what names meant is remembered
_LONGEST_VALUE = 2000
_LARGEST = 1e15  # of a number in a header
_LOOKS_LIKE_A_LIMIT = re.compile(
    r"rate-?limit|tokenlimit|^anthropic-(?:priority|fast)-|(?:^|[-_])(?:limits?|quotas?)(?:[-_]|$)"
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d)")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_POLICY = "ratelimit-policy"
_STRUCTURED_ROLES = {"q": LIMIT, "r": REMAINING, "t": RESET, **{role: role for role in ROLES}}
# The items of a structured field, and the parts of one: a name and parameters. Either may be quoted.
_ITEM = re.compile(r'(?:[^,"]|"[^"]*")+')
_PART = re.compile(r'(?:[^;"]|"[^"]*")+')
_WINDOW = re.compile(r";\s*w=(\d+)")
_EPOCH_S = 1e8  # a number beyond is no number of seconds to wait, but a time since 1970
_EPOCH_MS = 1e11


@dataclass(frozen=True, slots=True)
class Name:
    """What a header's name says. Of two names for the same, that with the lower `rank` counts."""

    kind: str
    role: str
    window_s: float | None
    rank: int
    family: str  # the name without its role: those of one limit share it


@dataclass(frozen=True, slots=True)
class Limit:
    """One value of a limit. A reset is in seconds from now."""

    kind: str
    role: str
    value: float
    window_s: float | None = None
    header: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy of a `ratelimit-policy`; `kind` is None where it limits neither requests nor tokens."""

    kind: str | None
    window_s: float | None


def meaning(header: str) -> Name | None:
    """Return what a header's name says of a limit; None where it is no name of a family."""
    if len(header) > _LONGEST_NAME:
        return None
    return _meaning(header)


@lru_cache(maxsize=4096)
def _meaning(header: str) -> Name | None:
    for rank, (pattern, only_kind) in enumerate(_patterns()):
        match = pattern.fullmatch(header)
        if match is None:
            continue
        parts = match.groupdict()
        kind = _kinds().get(parts.get("kind") or "", only_kind)
        window_s = _TABLE["windows"].get(parts.get("window") or "")
        if window_s is not None:
            window_s = float(window_s)
        return Name(
            kind=kind,
            role=parts["role"],
            window_s=window_s,
            rank=rank,
            family=f"{header[: match.start('role')]}*{header[match.end('role') :]}",
        )
    return None


@cache
def _patterns() -> Sequence[tuple[re.Pattern[str], str]]:
    """Return a pattern for each name with each prefix, with the kind of a name without one."""
    parts = {
        "role": "|".join(ROLES),
        "kind": "|".join(map(re.escape, _kinds())),
        "window": "|".join(_TABLE["windows"]),
        "scope": "[^-]+",
        "model": ".+",
    }
    groups = {name: f"(?P<{name}>{pattern})" for name, pattern in parts.items()}
    templates = {**dict.fromkeys(_TABLE["names"], ""), **_TABLE["names_of_one_kind"]}
    patterns = []
    for template, kind in templates.items():
        for prefix in _PREFIXES:
            pattern = re.escape(prefix) + template.format(**groups)
            patterns.append((re.compile(pattern), kind))
    return patterns


@cache
def _kinds() -> Mapping[str, str]:
    """Return the kinds by their texts, the longest first: input-tokens are no tokens."""
    kinds: dict[str, str] = {}
    for kind, texts in _TABLE["kinds"].items():
        kinds.update(dict.fromkeys(texts, str(kind)))
    return dict(sorted(kinds.items(), key=lambda pair: -len(pair[0])))


def structured_field(header: str) -> str | None:
    """Return the structured field that a header is, without its prefix; None of any other."""
    for prefix in _PREFIXES:
        field = header.removeprefix(prefix)
        if field in _TABLE["structured"] and header == prefix + field:
            return field
    return None


def is_of_a_limit(header: str) -> bool:
    """Return whether a header belongs to a family, or looks like one that does."""
    return meaning(header) is not None or _looks_like_a_limit(header)


def _looks_like_a_limit(header: str) -> bool:
    return _LOOKS_LIKE_A_LIMIT.search(header[:_LONGEST_NAME]) is not None


def limits(headers: Headers, now: datetime | None = None) -> list[Limit]:
    """Return every value of a limit that is understood, in the order of the headers.

    A reset is in seconds from now; `now`: what a reset given as a date counts from, by default the present.
    """
    now = now or datetime.now(UTC)
    policies: dict[str, Policy] = {}
    # First the policies: the values of a structured field name them.
    for name, value in headers:
        if structured_field(name) == _POLICY:
            policies.update(policies_of(value[:_LONGEST_VALUE]))
    stated: list[Limit] = []
    for name, value in headers:
        if structured_field(name) is not None:
            stated += structured(value[:_LONGEST_VALUE], name, policies)
            continue
        named = meaning(name)
        if named is None:
            continue
        if named.role == RESET:
            number = _reset_s(value, now)
        else:
            number = number_of(value)
        if number is not None:
            window_s = named.window_s or window_of(value)
            stated.append(Limit(named.kind, named.role, number, window_s, name))
    return stated


def structured(
    value: str, header: str = "", policies: Mapping[str, Policy] | None = None
) -> Iterator[Limit]:
    """Yield the values of a field of the IETF drafts.

    `"requests";q=100;w=60`, `"requests";r=9;t=12`, and of the earlier ones `100;w=60` and `limit=9, remaining=5`.
    `policies` by their names, which the values of a `ratelimit` are of.
    """
    for name, parameters in _items(value):
        policy = (policies or {}).get(name) or _policy(name, parameters)
        if policy.kind is None:
            continue
        for key, text in parameters.items():
            role = _STRUCTURED_ROLES.get(key)
            number = number_of(text)
            if role is not None and number is not None:
                yield Limit(policy.kind, role, number, policy.window_s, header)


@lru_cache(maxsize=1024)
def policies_of(value: str) -> Mapping[str, Policy]:
    """Return the policies in a `ratelimit-policy`, by their names."""
    return {name: _policy(name, parameters) for name, parameters in _items(value)}


def _policy(name: str, parameters: Mapping[str, str]) -> Policy:
    return Policy(_kind_of_policy(name, parameters), number_of(parameters.get("w", "")))


def _items(value: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield name and parameters of each item of a structured field."""
    for item in _ITEM.findall(value):
        parts = [part.strip() for part in _PART.findall(item)]
        if not parts:
            continue
        name = parts[0].strip('"').lower()
        parameters = dict(part.partition("=")[::2] for part in parts if "=" in part)
        if number_of(name) is not None:
            parameters["q"] = name
        yield name, parameters


def _kind_of_policy(name: str, parameters: Mapping[str, str]) -> str | None:
    """Return the kind by the unit of a quota, else by its name, which may be any: of requests, then."""
    unit = parameters.get("qu")
    plain = name
    if unit is not None:
        plain = unit.strip('"').lower()
    plain = plain.replace("_", "-")
    if plain.startswith("concurrent"):
        return None
    for text, kind in _kinds().items():
        if text.replace("_", "-") in plain:
            return kind
    return "requests" if unit is None else None


def limit_kind(headers: Headers) -> str:
    """Return the exhausted limit of a refused call, `unknown` where the headers do not tell."""
    exhausted = set()
    for limit in limits(headers):
        if limit.role == REMAINING and limit.value == 0:
            exhausted.add(limit.kind)
    return next((kind for kind in KINDS if kind in exhausted), "unknown")


def retry_after(headers: Headers, now: datetime | None = None) -> tuple[float, str] | None:
    """Return how many seconds to wait and the header that says so; None where none does.

    In this order: the headers of retries, plain and as a gateway passes them on; the last reset of the
    exhausted limits; a reset that stands alone. Waits are cut at a maximum. `now`: what dates count from,
    by default the present.
    """
    now = now or datetime.now(UTC)
    # Of equal names the first counts.
    by_name = dict(reversed(headers))
    for prefix in _PREFIXES:
        wait = _wait(by_name, prefix, now)
        if wait is not None:
            return wait
    latest = _latest_exhausted_reset(limits(headers, now))
    if latest is not None:
        return min(latest.value, _LONGEST_WAIT_S), latest.header
    for prefix, reset in itertools.product(_PREFIXES, _TABLE["resets_alone"]):
        name = prefix + reset
        seconds = _reset_s(by_name.get(name, ""), now)
        if seconds is not None:
            return min(seconds, _LONGEST_WAIT_S), name
    return None


def _latest_exhausted_reset(stated: Sequence[Limit]) -> Limit | None:
    """Return the last reset among those of the limits that are exhausted."""
    remaining = [limit for limit in stated if limit.role == REMAINING]
    resets = [limit for limit in stated if limit.role == RESET]
    exhausted = {(limit.kind, limit.window_s) for limit in remaining if limit.value == 0}
    if exhausted:
        resets = [limit for limit in resets if (limit.kind, limit.window_s) in exhausted]
    else:
        # Azure names the reset of the limit that refused, and what remains of the others.
        kinds_with_rest = {limit.kind for limit in remaining}
        resets = [limit for limit in resets if limit.kind not in kinds_with_rest]
    return max(resets, key=lambda limit: limit.value, default=None)


def _wait(by_name: Mapping[str, str], prefix: str, now: datetime) -> tuple[float, str] | None:
    """Return what `retry-after-ms` or `retry-after` says, as the SDKs read them: the first number decides."""
    for name, unit_s in ((prefix + RETRY_AFTER_MS, 0.001), (prefix + RETRY_AFTER, 1.0)):
        try:
            seconds = float(by_name.get(name, "")) * unit_s
        except ValueError:
            continue
        if not 0 <= seconds < math.inf:
            return None
        return min(seconds, _LONGEST_WAIT_S), name
    name = prefix + RETRY_AFTER
    seconds_to_date = _seconds_until(parse_date(by_name.get(name, "")), now)
    if seconds_to_date is None:
        return None
    return min(seconds_to_date, _LONGEST_WAIT_S), name


def not_understood(headers: Headers) -> list[str]:
    """Return the headers that look like a limit and are in no family, each once."""
    names = dict.fromkeys(name for name, _ in headers)
    return [name for name in names if _looks_like_a_limit(name) and not _is_known(name)]


def _is_known(header: str) -> bool:
    if meaning(header) is not None or structured_field(header) is not None:
        return True
    names = {header.removeprefix(prefix) for prefix in _PREFIXES}
    return any(
        fnmatchcase(name, pattern) for name in names for pattern in _TABLE["without_a_limit"]
    )


def number_of(text: str) -> float | None:
    """Return a number that is not below zero; the first of a list such as `100, 100;w=60`."""
    try:
        value = float(re.split("[,;]", text, maxsplit=1)[0])
    except ValueError:
        return None
    if not 0 <= value < _LARGEST:
        return None
    return value


def window_of(text: str) -> float | None:
    """Return the window in a value such as `100, 100;w=60`, in seconds; None without one."""
    match = _WINDOW.search(text)
    if match is None:
        return None
    return number_of(match[1])


def duration_of(text: str) -> float | None:
    """Return the seconds of a duration such as `6m0s` or `120ms`; None of anything else."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    seconds = 0.0
    for number, unit in parts:
        seconds += float(number) * _UNITS_S[unit]
    return seconds


def parse_date(text: str) -> datetime | None:
    """Return an HTTP date, which is of Greenwich where it names no zone; None of anything else."""
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date.replace(tzinfo=date.tzinfo or UTC)


def _reset_s(text: str, now: datetime) -> float | None:
    """Return the seconds to a reset, whatever its unit."""
    seconds = number_of(text)
    if seconds is not None:
        if seconds >= _EPOCH_MS:
            return max(0.0, seconds / 1000 - now.timestamp())
        if seconds >= _EPOCH_S:
            return max(0.0, seconds - now.timestamp())
        return seconds
    seconds = duration_of(text)
    if seconds is not None:
        return seconds
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return _seconds_until(parse_date(text), now)
    return max(0.0, (instant.replace(tzinfo=instant.tzinfo or UTC) - now).total_seconds())


def _seconds_until(instant: datetime | None, now: datetime) -> float | None:
    """Return the seconds to an instant; None where it is unknown or over."""
    if instant is None:
        return None
    seconds = (instant - now).total_seconds()
    if seconds < 0:
        return None
    return seconds
