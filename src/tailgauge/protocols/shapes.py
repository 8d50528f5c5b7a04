"""The shapes of a protocol's plain events: those that bring content, or nothing, and nothing else that its `on_event` acts on.

The compiled reader decodes such events (`transport/core/shape.h`); any other goes to `on_event`. So a shape may leave plain
events out, and must not take in one that means more. A key that it does not name may have any value.
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
(
    _ANYTHING, _NEVER, _NOTHING, _TEXT, _CONTENT, _FIRST_CONTENT, _INSIDE, _ONE_INSIDE, _SAME, _ROLE, _SAME_WITH_ROLE, _COUNT,
) = range(12)  # fmt: skip
_COMPARED = frozenset({_SAME, _SAME_WITH_ROLE, _COUNT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What the value of a key must be. See the functions below."""

    rule: int
    kind: int = 0
    text: str | None = None
    inside: Shape | None = None
    may_be_nothing: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """An object with these fields. `refuses_others`: and with no others."""

    fields: Mapping[str, Field]
    refuses_others: bool = False


ANYTHING = Field(rule=_ANYTHING)
NEVER = Field(rule=_NEVER)  # the key must not be there
NOTHING = Field(rule=_NOTHING)  # null, false, "", [] or {}
SAME = Field(rule=_SAME)  # the value of the event before; where it is another, Python sees it
COUNT = Field(rule=_COUNT)  # a whole number that does not fall; Python sees the last
SAME_WITH_ROLE = Field(
    rule=_SAME_WITH_ROLE
)  # of an event with a role: the value of the event before


def nothing_or(text: str) -> Field:
    """Nothing, or this text."""
    return Field(rule=_NOTHING, text=text)


def role(text: str) -> Field:
    """This text, or nothing."""
    return Field(rule=_ROLE, text=text, may_be_nothing=True)


def text(value: str) -> Field:
    """This text, which must be there."""
    return Field(rule=_TEXT, text=value, is_required=True)


def content(kind: int) -> Field:
    """A text that is content of this kind."""
    return Field(rule=_CONTENT, kind=kind)


def first_content(kind: int) -> Field:
    """The same; where several fields of an event have one, it is the first."""
    return Field(rule=_FIRST_CONTENT, kind=kind)


def inside(fields: Mapping[str, Field], *, refuses_others: bool = False) -> Field:
    """An object."""
    return Field(rule=_INSIDE, inside=Shape(fields, refuses_others))


def one_inside(fields: Mapping[str, Field]) -> Field:
    """A list with one object."""
    return Field(rule=_ONE_INSIDE, inside=Shape(fields))


def required(field: Field) -> Field:
    """The same, which must be there."""
    return replace(field, is_required=True)


def or_nothing(field: Field) -> Field:
    """The same, or nothing; an object, or null."""
    return replace(field, may_be_nothing=True)


def compiled(shapes: Sequence[Shape], other_names: Sequence[str]) -> Any:
    """Shapes for the compiled reader, None where there is none. Events with one of the names are never plain."""
    if _core is None or not shapes:
        return None
    paths = dict.fromkeys(path for shape in shapes for path in _compared_paths(shape, ""))
    numbers = {
        path: number for number, path in enumerate(paths, 1)
    }  # 0: whether the event has a role
    described = tuple(_described(shape, "", numbers) for shape in shapes)
    return _core.Shapes(described, tuple(name.encode() for name in other_names), False)


def _compared_paths(shape: Shape, path: str) -> Iterator[str]:
    for key, field in shape.fields.items():
        if field.rule in _COMPARED:
            yield f"{path}/{key}"
        if field.inside is not None:
            yield from _compared_paths(field.inside, f"{path}/{key}")


def _described(shape: Shape, path: str, numbers: Mapping[str, int]) -> tuple[Any, ...]:
    """A shape as the compiled reader takes it."""
    fields = []
    for key, field in shape.fields.items():
        place = f"{path}/{key}"
        within = None if field.inside is None else _described(field.inside, place, numbers)
        fields.append((
            key.encode(), field.rule, field.kind, numbers.get(place, 0), field.text, within, field.may_be_nothing,
            field.is_required,
        ))  # fmt: skip
    return shape.refuses_others, tuple(fields)
