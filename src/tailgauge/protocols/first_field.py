"""When the first field of a JSON answer is usable, found while the answer still comes.

A field is its first complete plain value: a string that is closed, or a number, true, false or null whose end is
certain. Whatever is no JSON has no field. The parser is jiter's, which reads unfinished JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jiter

_MAY_END = frozenset('",}]')  # only a piece with one of these can complete a value
_OPENS = frozenset(("", "{", "["))
_NUMBER_GOES_ON = frozenset("0123456789+-.eE")
MAX_TEXT = 65_536  # an answer whose first field is longer is not followed: each piece parses all before it


class FirstField:
    """Follows the JSON of an answer's text, or else of its tool's input: prose before a tool call has no field."""

    def __init__(self) -> None:
        self._texts: dict[
            int, str | None
        ] = {}  # by kind of content; None: no JSON, or none that can be followed

    def feed(self, kind: int, text: str) -> bool:
        """Take the next piece; whether it completed the first field."""
        before = self._texts.get(kind, "")
        if before is None:
            return False
        self._texts[kind] = read = before + text
        if _MAY_END.isdisjoint(text) and read.lstrip()[:1] in _OPENS:
            return False
        try:
            tree = jiter.from_json(read.encode("utf-8", "replace"), partial_mode="on")
        except ValueError:
            tree = None
        if not isinstance(tree, dict | list) or len(read) > MAX_TEXT:
            self._texts[kind] = None
            return False
        return _has_value(tree, read[-1])


def _has_value(tree: Any, last: str) -> bool:
    """Whether the first plain value is complete; `last` is the last character that came."""
    first, second = next(leaves := _leaves(tree), _NONE), next(leaves, _NONE)
    number = isinstance(first, int | float) and not isinstance(first, bool)
    return first is not _NONE and not (number and second is _NONE and last in _NUMBER_GOES_ON)


_NONE = object()


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(item)
    else:
        yield tree
