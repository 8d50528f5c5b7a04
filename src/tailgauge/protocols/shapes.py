"""The shapes of a protocol's plain events: events that bring content or nothing, and nothing else that `on_event` acts on.

The compiled reader decodes such events (`transport/core/shape.h`); any other goes to `on_event`. So a shape may leave plain
events out, and must not match an event that means more. A key that it does not name may have any value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

try:
    from tailgauge.transport import _core
except ImportError:
    _core = None  # type: ignore[assignment]

# `Rule` of transport/core/shape.h.
_ANYTHING = 0
_NEVER = 1
_NOTHING = 2
_TEXT = 3
_CONTENT = 4
_FIRST_CONTENT = 5
_INSIDE = 6
_ONE_INSIDE = 7
_SAME = 8
_ROLE = 9
_SAME_WITH_ROLE = 10
_COUNT = 11
_COMPARED = frozenset({_SAME, _SAME_WITH_ROLE, _COUNT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What the value of a key must be; the functions below make them."""

    rule: int
    kind: int = 0
    text: str | None = None
    inside: Shape | None = None
    may_be_nothing: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """An object with these fields. `refuses_others`: it has no others."""

    fields: Mapping[str, Field]
    refuses_others: bool = False


ANYTHING = Field(rule=_ANYTHING)
NEVER = Field(rule=_NEVER)  # the key must not be there
NOTHING = Field(rule=_NOTHING)  # null, false, "", [] or {}
SAME = Field(rule=_SAME)  # the value of the event before; where it is another, Python sees it
COUNT = Field(rule=_COUNT)  # a whole number that does not fall; Python sees the last
SAME_WITH_ROLE = Field(rule=_SAME_WITH_ROLE)  # the same, of events with a role


def nothing_or(text: str) -> Field:
    """Allow nothing, or this text."""
    return Field(rule=_NOTHING, text=text)


def role(text: str) -> Field:
    """Allow this text as the role of an event, or nothing."""
    return Field(rule=_ROLE, text=text, may_be_nothing=True)


def text(value: str) -> Field:
    """Require this text."""
    return Field(rule=_TEXT, text=value, is_required=True)


def content(kind: int) -> Field:
    """Take a text as content of this kind."""
    return Field(rule=_CONTENT, kind=kind)


def first_content(kind: int) -> Field:
    """Take a text as content of this kind; of several such fields in an event, only the first."""
    return Field(rule=_FIRST_CONTENT, kind=kind)


def inside(fields: Mapping[str, Field], *, refuses_others: bool = False) -> Field:
    """Take an object."""
    return Field(rule=_INSIDE, inside=Shape(fields, refuses_others))


def one_inside(fields: Mapping[str, Field]) -> Field:
    """Take a list with one object."""
    return Field(rule=_ONE_INSIDE, inside=Shape(fields))


def required(field: Field) -> Field:
    """Return the field as one that must be there."""
    return replace(field, is_required=True)


def or_nothing(field: Field) -> Field:
    """Return the field as one that may have nothing instead; for an object, null."""
    return replace(field, may_be_nothing=True)


def compiled(shapes: Sequence[Shape], other_names: Sequence[str]) -> Any:
    """Return the shapes for the compiled reader, None without one. Events with one of the names are never plain."""
    if _core is None or not shapes:
        return None
    # The reader keeps the last value of each compared field in a slot; slot 0 has whether the event has a role.
    slots: dict[str, int] = {}
    for shape in shapes:
        for path in _compared_paths(shape, ""):
            slots.setdefault(path, len(slots) + 1)
    described = tuple(_described(shape, "", slots) for shape in shapes)
    return _core.Shapes(described, tuple(name.encode() for name in other_names), False)


def _compared_paths(shape: Shape, path: str) -> Iterator[str]:
    """Yield the paths of the fields that are compared with those of the event before."""
    for key, field in shape.fields.items():
        if field.rule in _COMPARED:
            yield f"{path}/{key}"
        if field.inside is not None:
            yield from _compared_paths(field.inside, f"{path}/{key}")


def _described(shape: Shape, path: str, slots: Mapping[str, int]) -> tuple[Any, ...]:
    """Return a shape as the tuples that the compiled reader takes; `path`: where its object is."""
    fields = []
    for key, field in shape.fields.items():
        field_path = f"{path}/{key}"
        inside = None
        if field.inside is not None:
            inside = _described(field.inside, field_path, slots)
        description = (
            key.encode(),
            field.rule,
            field.kind,
            slots.get(field_path, 0),
            field.text,
            inside,
            field.may_be_nothing,
            field.is_required,
        )
        fields.append(description)
    return shape.refuses_others, tuple(fields)
