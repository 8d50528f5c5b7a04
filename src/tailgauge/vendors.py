"""The table of what vendors call things: `protocols/vendors.toml`, read once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tailgauge.rows import schema

FILE = Path(__file__).parent / "protocols" / "vendors.toml"
LIMIT = "limit"  # an answer that ended by a limit on its length
TABLE: Mapping[str, Any] = tomllib.loads(FILE.read_text(encoding="utf-8"))

_STATUS_CLASSES = {429: schema.RATE_LIMITED, 503: schema.OVERLOADED, 529: schema.OVERLOADED}


_LIMIT_FIELD = r"\bmax_(?:completion_)?tokens\b"
REFUSAL = r"(?:support|recogni|unknown|permitted|unexpected|extra)"
_REFUSED_FIELD = re.compile(
    rf"{_LIMIT_FIELD}.{{0,80}}{REFUSAL}|{REFUSAL}.{{0,80}}{_LIMIT_FIELD}", re.IGNORECASE | re.DOTALL
)


def refused_limit_field(message: str) -> str:
    """Return the field with the maximum of output tokens that an error refuses: the first that it names; "" for others."""
    match = re.search(_LIMIT_FIELD, message, re.IGNORECASE)
    if match is None or not _REFUSED_FIELD.search(message):
        return ""
    return match[0].lower()


def class_of_status(status: int) -> str:
    """Return the class of a response with this status, 300 or more."""
    if status in _STATUS_CLASSES:
        return _STATUS_CLASSES[status]
    if status >= 500:
        return schema.SERVER_ERROR
    return schema.CLIENT_ERROR


def class_of_stop(protocol: str, reason: str) -> str | None:
    """Return what a stop reason means (see the table), or None where nobody knows it."""
    return _stop_reasons(protocol).get(_plain(reason))


def class_of_error(*names: Any) -> str | None:
    """Return the class of an error inside an answer by its status, codes and types, the first that is known."""
    for name in names:
        status = _status_of(name)
        if status is not None:
            return class_of_status(status)
        if isinstance(name, str | int):
            error_class = _class_of_name(str(name))
            if error_class is not None:
                return error_class
    return None


def _class_of_name(name: str) -> str | None:
    """Return the class of a name, or of what stands before or behind its dot: `Throttling.RateQuota`."""
    head, _, tail = name.rpartition(".")
    for part in (name, head.partition(".")[0], tail):
        error_class = _error_names().get(_without_error(part))
        if part and error_class is not None:
            return error_class
    return None


def _status_of(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[45]\d\d", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
        return value
    return None


@cache
def _stop_reasons(protocol: str) -> Mapping[str, str]:
    return {_plain(reason): meaning for reason, meaning in TABLE["ends"].get(protocol, {}).items()}


@cache
def _error_names() -> Mapping[str, str]:
    classes = {}
    for error_class, names in TABLE["errors"].items():
        for name in names:
            classes[_without_error(name)] = error_class
    return classes


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name[:100].lower())


def _without_error(name: str) -> str:
    return _plain(name).removesuffix("exception").removesuffix("error")
