"""Values out of JSON of which nothing is certain."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from pydantic import Field

Json = dict[str, Any]


def one_of(*values: str) -> Any:
    """Annotates a text of a report with its possible values, for the JSON Schema."""
    return Field(json_schema_extra={"enum": list(values)})


def parsed(text: object) -> Json:
    """Return the texts and numbers of the table that a JSON text holds, empty where it holds none."""
    try:
        tree = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(tree, dict):
        return {}
    return {key: value for key, value in tree.items() if not isinstance(value, dict | list)}


def table(tree: Any, key: str) -> Json:
    """Return the table under `key`, empty where there is none."""
    if not isinstance(tree, dict):
        return {}
    value = tree.get(key)
    return value if isinstance(value, dict) else {}


def tables(tree: Any, key: str) -> dict[str, Json]:
    """Return the tables in the table under `key`, by their names."""
    parent = table(tree, key)
    return {name: table(parent, name) for name in parent}


def listing(tree: Json, key: str) -> list[Any]:
    """Return the list under `key`, empty where there is none."""
    value = tree.get(key)
    return value if isinstance(value, list) else []


def whole(value: Any) -> int | None:
    """Return the whole number of 64 bits that `value` is, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 1 << 62 else None


def number(value: Any) -> float | None:
    """Return the finite number that `value` is, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        if math.isfinite(value):
            return float(value)
    except OverflowError:
        return None
    return None


def text(value: Any) -> str:
    """Return the text that `value` is, empty where it is none."""
    return value if isinstance(value, str) else ""


def key_lines(tree: Json, name: str = "") -> Iterator[str]:
    """Yield a line for each table in a tree of JSON: `traffic.chat: pattern "streaming", weight 1.0`, the tables within it after it.

    `name`: where the tree stands, with dots; empty at the top. Keys without a value (null, an empty text or list) are left out.
    """
    values = []
    inner = []
    path_prefix = ""
    line_prefix = ""
    if name:
        path_prefix = f"{name}."
        line_prefix = f"{name}: "
    for key, value in tree.items():
        if isinstance(value, dict):
            inner.append((f"{path_prefix}{key}", value))
        elif value not in (None, "", []):
            values.append(f"{key} {json.dumps(value, ensure_ascii=False, allow_nan=False)}")
    if values:
        yield line_prefix + ", ".join(values)
    for path, table_of_keys in inner:
        yield from key_lines(table_of_keys, path)
