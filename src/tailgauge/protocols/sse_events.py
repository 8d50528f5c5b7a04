"""The events of an application's stream: the tables of `[target.sse]`, and how an event matches one.

An event has a name, and data which may be JSON. A table matches events by the name (`event`), by values inside the JSON
(`where`), or by both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, time
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from tailgauge.protocols.pointers import look_up, steps, value_at
from tailgauge.table import Table

UNNAMED = b"message"  # the name of an event that has none, by the standard
_BAD_ESCAPE = re.compile(r"~(?![01])")


def check_pointer(value: str) -> str:
    """Raise ValueError for a text that is no JSON pointer."""
    if value and not value.startswith("/"):
        raise ValueError("must be a JSON pointer such as /choices/0/text, or empty")
    if _BAD_ESCAPE.search(value):
        raise ValueError("must write ~ as ~0, and / within a key as ~1: it is a JSON pointer")
    return value


def check_where(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise ValueError for a condition that no event could meet, or whose key is no pointer."""
    for pointer, expected in value.items():
        if not pointer.startswith("/") or _BAD_ESCAPE.search(pointer):
            raise ValueError(f"{pointer!r} must be a JSON pointer such as /type")
        alternatives = _alternatives(expected)
        if not alternatives:
            raise ValueError(f"{pointer}: expected at least one value in the list")
        for alternative in alternatives:
            _check_value(pointer, alternative)
    return value


def _check_value(pointer: str, value: Any) -> None:
    """Raise ValueError for an expected value that no JSON value can equal."""
    if isinstance(value, Mapping):
        first_key = next(iter(value), "key")
        longer = f'"{pointer}/{first_key}"'
        message = f"{pointer}: expected a value, got a table: write a longer pointer, {longer}"
        raise ValueError(message)  # noqa: TRY004
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    is_json = value is None or isinstance(value, str | int | float)
    if is_json and not is_infinite:
        return
    text = type(value).__name__
    if isinstance(value, float | date | time):
        text = str(value)
    raise ValueError(
        f"{pointer}: expected text, a number, true or false, or a list of them, got {text}"
    )


def _alternatives(expected: Any) -> tuple[Any, ...]:
    """Return the values of a condition, of which one must be there."""
    if isinstance(expected, list | tuple):
        return tuple(expected)
    return (expected,)


Pointer = Annotated[str, AfterValidator(check_pointer)]
Where = Annotated[Mapping[str, Any], AfterValidator(check_where)]


class EventTable(Table):
    """Events of one meaning."""

    event: str | None = None
    """event name; empty: none"""
    where: Where = Field({})
    """values by pointer, such as `{"/type" = "text"}`; a list: any of them"""

    @property
    def is_set(self) -> bool:
        """Return whether the table can match an event."""
        return self.event is not None or bool(self.where)


class ContentEvents(EventTable):
    """Events with content. Default: events without a name, whose data is the text."""

    text: Pointer = ""
    """pointer to the text"""
    encoding: Literal["text", "json"] = "text"
    """data without a pointer: `text` as it stands, or a `json` string"""

    @model_validator(mode="after")
    def _readable(self) -> ContentEvents:
        if self.where and not self.text:
            raise ValueError("text: expected a pointer such as /text, because `where` needs JSON")
        if self.text and self.encoding != "text":
            raise ValueError("encoding: does not apply with a pointer in text")
        return self


class ErrorEvents(EventTable):
    """Events that report a failure. Common shapes are errors without this table."""

    status: Pointer | None = None
    """pointer to the HTTP status; default `status_code`, `code` or `status`"""
    type: Pointer | None = None
    """pointer to the error's name; default `type`, `code` or `status`"""
    message: Pointer | None = None
    """pointer to its text; default `message`, `detail`, `errorText`, or the whole event"""


class PhaseEvents(EventTable):
    """Events that start a phase, such as retrieval."""

    name: Pointer = ""
    """pointer to the phase's name"""

    @model_validator(mode="after")
    def _readable(self) -> PhaseEvents:
        if self.where and not self.name:
            raise ValueError("name: expected a pointer such as /name, because `where` needs JSON")
        if self.name and not self.is_set:
            raise ValueError("event or where is needed: without them no event starts a phase")
        return self


class CitationEvents(EventTable):
    """Events with a citation; counted."""


class EndEvents(EventTable):
    """Events that end the answer; without one it is truncated."""

    data: str = "[DONE]"
    """data that ends the answer, whatever the event's name"""


class Matcher:
    """Recognizes the events of a table, by name and values.

    `default_name`: of the events, where the table has none; None: events with any name.
    """

    def __init__(self, table: EventTable, default_name: bytes | None = None) -> None:
        self.name = default_name
        if table.event is not None:
            self.name = table.event.encode() or UNNAMED
        self.conditions = tuple(
            (steps(pointer), _alternatives(expected)) for pointer, expected in table.where.items()
        )

    def matches(self, name: bytes, tree: Any) -> bool:
        """Return whether the table has an event of this name, with this JSON or None."""
        if self.name is not None and name != self.name:
            return False
        return all(_is_among(look_up(tree, path), values) for path, values in self.conditions)

    def is_same_as(self, matcher: Matcher) -> bool:
        """Return whether both match the same events, by the same conditions."""
        if self.name != matcher.name:
            return False
        return sorted(map(repr, self.conditions)) == sorted(map(repr, matcher.conditions))


def content_matcher(table: ContentEvents) -> Matcher:
    """Return the matcher of content. Without a name and conditions it matches events without a name."""
    return Matcher(table, default_name=None if table.where else UNNAMED)


def _is_among(value: Any, alternatives: tuple[Any, ...]) -> bool:
    """Return whether a value is one of the alternatives; true is not 1, as in JSON."""
    is_bool = isinstance(value, bool)
    for alternative in alternatives:
        if value == alternative and is_bool == isinstance(alternative, bool):
            return True
    return False


class ErrorReader:
    """Reads an error out of its event, under the keys that the decoder knows."""

    def __init__(self, table: ErrorEvents) -> None:
        pointers = {"status_code": table.status, "type": table.type, "message": table.message}
        self._paths = {
            key: steps(pointer) for key, pointer in pointers.items() if pointer is not None
        }

    def read(self, tree: Any) -> Any:
        """Return the error of an event as one flat object; a value that is no object as it is.

        `tree`: the event's JSON. What the error itself says goes before what stands around it, and the
        scenario's pointers go before both.
        """
        if not isinstance(tree, dict):
            return tree
        fields = {key: value for key, value in tree.items() if key != "error"}
        error = tree.get("error")
        if error:
            fields.pop("type", None)  # of the event, not of the error
        if isinstance(error, dict):
            fields.update(error)
        elif isinstance(error, str):
            fields["message"] = error
        for key, path in self._paths.items():
            value = value_at(tree, path)
            if value is not None:
                fields[key] = value
        # Without a code of its own an error has the status as its code.
        for key in ("status_code", "statusCode", "status"):
            if fields.get("code") is None:
                fields["code"] = fields.get(key)
        return fields
