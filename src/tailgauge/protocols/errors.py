"""Errors inside answers, in the shapes of providers, engines, gateways and applications.

`{"error": {...}}`, `{"error": "text"}`, both within another `error` or in a list (Gemini); `{"type": "error"}` and the like;
`{"detail": ...}`; `{"message": ..., "code": 502}`; `{"base_resp": {"status_code": 1002}}` (MiniMax);
`{"x_groq": {"error": "over_capacity"}}`; `{"Response": {"Error": {"Code": ...}}}` (Tencent). `vendors.toml` has the class of
each name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tailgauge import protocol_violations as violations
from tailgauge import vendors
from tailgauge.redaction import shown

MAX_ERROR_TEXT = 2000  # characters
MAX_KIND = 90  # characters of the name of an error
_MAX_WRAPPED = 3  # times that gateways put an error into another
_MAX_JSON_TEXT = 20_000  # characters of a message that may be JSON
# "error" is the type of an event; LiteLLM writes Python's None.
_NO_NAMES = ("", "error", "None", "null")
_ERROR_MARKS = ("type", "object", "event")  # whose value may be "error"
_STATUS_KEYS = (
    "status_code",
    "statusCode",
    "http_status_code",
    "http_status",
    "http_code",
    "status",
    "code",
    "error_code",
)
_NAME_KEYS = ("type", "error_type", "code", "error_code", "status")
_TEXT_KEYS = ("message", "detail", "errorText", "error_msg", "msg")
_MINIMAX = "base_resp"  # its codes are no one else's: "base_resp 1002" in the table


def calls_itself_error(tree: Any) -> bool:
    """Return whether an event says that it is an error."""
    return isinstance(tree, dict) and any(tree.get(key) == "error" for key in _ERROR_MARKS)


def looks_like_error(tree: Any, *, any_code: bool = False) -> bool:
    """Return whether an event or a body is an error.

    `any_code`: a `message` beside an unknown code is one too, because no event of the protocol has these.
    """
    tree = _first_of_list(tree)
    if not isinstance(tree, dict):
        return False
    if calls_itself_error(tree) or tree.get("status") == "error" or _has_error(tree):
        return True
    if tree.get("choices") is not None or "type" in tree:
        return False
    if tree.get("detail"):
        return True
    codes = [tree.get(key) for key in _STATUS_KEYS]
    is_known = vendors.class_of_error(*codes) is not None
    has_code = any(code is not None for code in codes)
    has_text = "message" in tree or "error_msg" in tree
    return has_text and (is_known or (any_code and has_code))


def error_of(tree: Any) -> tuple[str, str]:
    """Return the name and the text of an error."""
    inner = _inner(tree)
    name = violations.quoted(shown(_name(inner, tree), MAX_KIND))
    text = shown(_text(inner, tree), MAX_ERROR_TEXT)
    return name, text


def class_of_error(tree: Any) -> str | None:
    """Return the class that a response of the error's status would have; None where no name or status is known."""
    return vendors.class_of_error(*_names(tree))


def retry_delay_of(tree: Any) -> Any:
    """Return the wait that Google names in the details of an error, such as "34.07s"; None without one."""
    inner = _inner(tree)
    details = inner.get("details") if isinstance(inner, dict) else None
    if not isinstance(details, list):
        return None
    for detail in details:
        if isinstance(detail, dict) and "retryDelay" in detail:
            return detail["retryDelay"]
    return None


def _first_of_list(tree: Any) -> Any:
    """Return the first element of a list, and anything else as it is."""
    if isinstance(tree, list) and tree:
        return tree[0]
    return tree


def _has_error(tree: dict[str, Any]) -> bool:
    error = _error_within(tree)
    if error is None:
        return False
    if error is True:
        return True
    if isinstance(error, dict | str | list):
        return bool(error)
    return vendors.class_of_error(error) is not None


def _error_within(tree: dict[str, Any]) -> Any:
    """Return the value that describes an error, None without one."""
    if tree.get("error"):
        return tree["error"]
    groq = tree.get("x_groq")
    if isinstance(groq, dict) and groq.get("error"):
        return groq["error"]
    tencent = tree.get("Response")
    if isinstance(tencent, dict) and isinstance(tencent.get("Error"), dict):
        return {key.lower(): value for key, value in tencent["Error"].items()}
    minimax = tree.get(_MINIMAX)
    if isinstance(minimax, dict) and minimax.get("status_code"):
        return {
            "code": f"{_MINIMAX} {minimax['status_code']}",
            "message": minimax.get("status_msg"),
        }
    return None


def _inner(tree: Any) -> Any:
    """Return the object or the text that describes an error, out of its wrappings."""
    inner = _first_of_list(tree)
    for _ in range(_MAX_WRAPPED):
        error = None
        if isinstance(inner, dict):
            error = _error_within(inner) or _error_in_text(inner.get("message"))
        if error:
            inner = _first_of_list(error)
    return inner if isinstance(inner, dict | str) else {}


def _error_in_text(message: Any) -> Any:
    """Return the error that a gateway has put as JSON into the message of its own, None without one."""
    if not isinstance(message, str) or len(message) > _MAX_JSON_TEXT:
        return None
    if not message.lstrip().startswith(("{", "[")):
        return None
    try:
        tree = _first_of_list(json.loads(message))
    except (ValueError, RecursionError):
        return None
    return _error_within(tree) if isinstance(tree, dict) else None


def _objects(inner: Any, tree: Any) -> list[dict[str, Any]]:
    return [part for part in (inner, _first_of_list(tree)) if isinstance(part, dict)]


def _name(inner: Any, tree: Any) -> str:
    """Return the name of an error: the first text that is no number, else one of digits, else a number, else "error".

    `inner`: the object or the text that describes the error; `tree`: the whole event or body. A text of one
    word is a name only if the table of vendors has it.
    """
    if isinstance(inner, str) and " " not in inner and vendors.class_of_error(inner) is not None:
        return inner
    text_names: list[str] = []
    digit_names: list[str] = []
    numbers: list[str] = []
    # The error itself first, then what is around it.
    for part in _objects(inner, tree):
        for key in _NAME_KEYS:
            value = part.get(key)
            if isinstance(value, str) and value not in _NO_NAMES:
                names = digit_names if value.isdigit() else text_names
                names.append(value)
            elif isinstance(value, int) and not isinstance(value, bool):
                numbers.append(str(value))
    all_names = [*text_names, *digit_names, *numbers]
    return all_names[0] if all_names else "error"


def _text(inner: Any, tree: Any) -> str:
    if isinstance(inner, str):
        return inner
    for key in _TEXT_KEYS:
        if inner.get(key):
            return str(inner[key])
    return json.dumps(tree)


def _names(tree: Any) -> Iterator[Any]:
    """Yield everything that can name an error: statuses and codes first, then types, within and around it."""
    inner = _inner(tree)
    objects = _objects(inner, tree)
    for key in (*_STATUS_KEYS, *_NAME_KEYS):
        for part in objects:
            yield part.get(key)
    if isinstance(inner, str):
        yield inner
    for part in objects:
        metadata = part.get("metadata")
        if isinstance(metadata, dict):
            yield metadata.get("error_type")
