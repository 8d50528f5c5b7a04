"""What the tables of a scenario have in common: how strict they are, the numbers they use, keys that need another.

Also the text of a message about a wrong value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from tailgauge.redaction import MIN_SECRET
from tailgauge.suggestions import nearest

Row = TypeVar("Row")
MOST_NAMES = 8  # valid keys that a message lists
MANUAL = "`tailgauge docs scenarios` has all"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
    """Rows by their `name`. ValueError if two have the same: the later one would silently replace the other."""
    out: dict[str, Row] = {}
    for row in rows:
        name = row.name  # type: ignore[attr-defined]
        if name in out:
            raise ValueError(f"{out[name]!r} and {row!r} have the same name: {name!r}")
        out[name] = row
    return out


class Table(BaseModel):
    """A frozen table that refuses unknown keys, wrong types, NaN and infinity. A text below a key is its meaning in the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def refuse_unused(self, key: str, used_by: Mapping[str, Collection[str]]) -> None:
        """Refuse a key that was changed although no value of `key` among its `used_by` is chosen."""
        chosen = getattr(self, key)
        for name, values in used_by.items():
            default = type(self).model_fields[name].default
            if chosen not in values and getattr(self, name) != default:
                raise ValueError(f"{name}: does not apply with {key} = {chosen!r}")


def with_choices(name: str, base: type[Table], key: str, rows: Collection[Any]) -> Any:
    """`base`, whose `key` is the name of one of `rows`, and with one more table for each that has a `settings_type`.

    ValueError if such a table would replace a key that `base` has.
    """
    tables = {row.name: row.settings_type for row in rows if row.settings_type is not None}
    _refuse_taken(key, tables, base)
    field = base.model_fields[key]
    text = "; ".join(f"`{row.name}`, {row.summary}" for row in rows)
    fields: dict[str, Any] = {choice: (table, table()) for choice, table in tables.items()}
    names = tuple(row.name for row in rows)
    fields[key] = (Literal[names], Field(field.default, description=f"{field.description}: {text}"))
    return create_model(name, __base__=base, __doc__=base.__doc__, **fields)


def _refuse_taken(key: str, tables: Iterable[str], model: type[Table]) -> None:
    for name in sorted(tables):
        if name in model.model_fields:
            raise ValueError(
                f"{key} {name!r}: its table would replace the key {name!r}: choose another name"
            )


def add_class(
    rows: MutableMapping[str, Any],
    row: Any,
    base: type,
    model: type[Table] | None = None,
    key: str = "",
) -> None:
    """Add a plugin's class to a table of classes by name, and its name as a choice of `key` to a model of `with_choices`.

    `base`: of what it must be a subclass. TypeError and ValueError, and nothing is added, where it is none,
    is not complete, or hides another. A class with `settings_type` gets a table of its own in the model.
    Models of that model must be rebuilt.
    """
    if not (isinstance(row, type) and issubclass(row, base)):
        raise TypeError(f"expected subclasses of {base.__name__}, got {row!r}")
    missing = sorted(getattr(row, "__abstractmethods__", ()))
    for attribute in ("name", "summary"):
        if not isinstance(getattr(row, attribute, None), str):
            missing.append(attribute)
    if missing:
        raise ValueError(f"{row.__name__}: lacks {', '.join(missing)}")
    name = row.name  # type: ignore[attr-defined]
    table = getattr(row, "settings_type", None)
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{row.__name__}: expected a name of lower-case letters, digits and _, got {name!r}"
        )
    if name in rows:
        raise ValueError(f"{row.__name__}: the name {name!r} is taken: choose another")
    if model is not None:
        if table is not None:
            _refuse_taken(key, (name,), model)
            model.model_fields[name] = FieldInfo.from_annotated_attribute(table, table())
        add_choice(model, key, name)
    rows[name] = row


def add_choice(model: type[Table], key: str, name: str) -> None:
    """Let a name be a choice of a key, too. Models of that model must be rebuilt."""
    field = model.model_fields[key]
    field.annotation = Literal[(*get_args(field.annotation), name)]  # type: ignore[assignment]
    model.model_rebuild(force=True)


_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "model_type": "a table",
    "mapping_type": "a table of tables",
    "dict_type": "a table of tables",
    "missing": "a value",
    "finite_number": "a finite number",
    "int_from_float": "a whole number",
    "too_short": "at least one table",
    "string_pattern_mismatch": "the name of an environment variable",
    "string_too_short": "some text",
    "date_type": "a date as 2026-11-01, without quotes",
    "list_type": "a list",
    "tuple_type": "a list",
    "is_instance_of": "a number",
}
_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


_TOO_LONG = {"string_too_long": "characters", "too_long": "of them"}


def problem(error: Any, names: Collection[str], elsewhere: str = "") -> str:
    """Return what one of pydantic's errors expected and got, for the user.

    `names`: the valid keys of the table, for an unknown one; `elsewhere`: where that key belongs, as the
    end of the message, empty if nowhere. A value where the name of a variable was expected
    is not repeated: it may be the secret.
    """
    kind = error["type"]
    context = error.get("ctx", {})
    value = error.get("input")
    shown = repr(value)
    if isinstance(value, Decimal):
        shown = str(value)
    got = f", got {shown[:200]}"
    if kind == "extra_forbidden":
        near = elsewhere or nearest(str(error["loc"][-1]), names)
        return f"unknown key{near or _all_of(names)}"
    # What was written in place of the name of a variable may be the API key itself.
    may_be_secret = kind == "string_pattern_mismatch" and len(str(value)) >= MIN_SECRET
    if kind in _EXPECTED:
        expected = f"expected {_EXPECTED[kind]}"
        if kind != "missing" and not may_be_secret:
            expected += got
        return expected
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return f"expected {context['expected']}{got}{nearest(str(value), choices)}"
    if kind in _BOUNDS:
        key, sign = _BOUNDS[kind]
        return f"expected a number {sign} {context[key]:g}{got}"
    if kind in _TOO_LONG:
        return f"expected at most {context['max_length']} {_TOO_LONG[kind]}{got}"
    return f"{error['msg']}, got {str(value)[:80]!r}"


def _all_of(names: Collection[str]) -> str:
    """Return the valid keys, as the end of a message; of many the first."""
    listed = list(names)
    text = f". Expected one of: {', '.join(listed[:MOST_NAMES])}"
    if len(listed) > MOST_NAMES:
        text += f", ... ({MANUAL})"
    return text


def tables_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the tables that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    tables = []
    for inner in get_args(annotation):
        tables += tables_in(inner)
    return tables


def names_at(table: type[BaseModel], loc: Sequence[Any]) -> list[str]:
    """Return the valid keys of the table at the location of an error; none where there is no table."""
    parts = iter(loc)
    for part in parts:
        field = table.model_fields.get(str(part))
        tables = tables_in(field.annotation) if field is not None else []
        if field is None or not tables:
            return []
        table = tables[0]
        if get_origin(field.annotation) in {Mapping, dict, list, tuple}:
            next(parts, None)  # a name or number that the user chooses
    return list(table.model_fields)


Positive = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Sigma = Annotated[float, Field(ge=0, le=3)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
