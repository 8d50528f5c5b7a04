"""JSON pointers (RFC 6901): places within what a target sends."""

from __future__ import annotations

from typing import Any

Path = tuple[str, ...]
ABSENT = object()


def steps(pointer: str) -> Path:
    """Return the steps of a JSON pointer; none for the data itself."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def value_at(tree: Any, path: Path) -> Any:
    """Return the value at a path; None without one, as in the many events without a usage."""
    value = look_up(tree, path)
    return None if value is ABSENT else value


def look_up(tree: Any, path: Path) -> Any:
    """Return the value at a path, or ABSENT, which null is not."""
    for step in path:
        if isinstance(tree, dict):
            tree = tree.get(step, ABSENT)
        elif isinstance(tree, list) and step.isdigit() and int(step) < len(tree):
            tree = tree[int(step)]
        else:
            return ABSENT
    return tree
