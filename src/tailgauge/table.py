"""What the tables of a scenario have in common: how strict they are, the numbers they use, keys that need another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

Row = TypeVar("Row")


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
    """A frozen table that refuses unknown keys, wrong types, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def refuse_unused(self, key: str, used_by: Mapping[str, Collection[str]]) -> None:
        """Refuse a key that was changed although no value of `key` among its `used_by` is chosen."""
        chosen = getattr(self, key)
        for name, values in used_by.items():
            if chosen not in values and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: does not apply with {key} = {chosen!r}")


def with_choices(
    name: str, base: type[Table], key: str, summaries: Mapping[str, str], tables: Mapping[str, type[Table]]
) -> Any:
    """`base`, whose `key` is one of `summaries`, and with one more table for each choice that has `tables`.

    ValueError if such a table would replace a key that `base` has.
    """
    taken = sorted(tables.keys() & base.model_fields.keys())
    if taken:
        raise ValueError(
            f"{key} {taken[0]!r}: its table would replace the key {taken[0]!r}: choose another name"
        )
    field = base.model_fields[key]
    text = "; ".join(f"`{choice}`, {summary}" for choice, summary in summaries.items())
    more: dict[str, Any] = {choice: (table, table()) for choice, table in tables.items()}
    more[key] = (
        Literal[tuple(summaries)],
        Field(field.default, description=f"{field.description}: {text}"),
    )
    return create_model(name, __base__=base, __doc__=base.__doc__, **more)


Positive = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Sigma = Annotated[float, Field(ge=0, le=3)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
