"""Rows of a user's table, whatever its format: a JSON object a line, a JSON array of objects, CSV under a header; also gzipped.

One row is held at a time. Each comes with the number of the line on which it begins.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailgauge.errors import ScenarioError
from tailgauge.rows import text_file
from tailgauge.rows.text_file import LONGEST_LINE, opened_text, text_lines

_PIECE = 1 << 20  # characters that are read at once
_LONGEST_HEADER = 1 << 17


def table_rows(path: Path, *, is_json: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every row, by the names of its columns; ScenarioError with file and line.

    `is_json`: the file is no CSV, whatever it begins with.
    """
    first = _first(path)
    if not first:
        raise ScenarioError(f"{path}: is empty")
    if first == "[":
        yield from _array(path)
    elif first == "{" or is_json:
        for number, text in text_lines(path):
            yield number, text_file.json_object(path, number, text)
    else:
        yield from _csv(path)


def _first(path: Path) -> str:
    """The first character that is not blank; none in an empty file."""
    with opened_text(path) as file:
        while piece := file.read(_PIECE):
            if piece := piece.lstrip():
                return piece[0]
    return ""


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows under the names of the first line; a quoted cell may have several lines."""
    limit, names, number = csv.field_size_limit(_LONGEST_HEADER), list[str](), 0
    cells = csv.reader((f"{text}\n" for _, text in text_lines(path, blank=True)), strict=True)
    try:
        while True:
            number = cells.line_num + 1
            row = next(cells, None)
            if row is None:
                return
            if not row or not (names or any(row)):
                continue
            if not names:
                names = [name.strip() for name in row]
                csv.field_size_limit(LONGEST_LINE)
            elif len(row) != len(names):
                raise ScenarioError(f"{path}:{number}: has {len(row)} columns, the header {len(names)}")
            else:
                yield number, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise ScenarioError(f"{path}:{number}: not CSV: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _array(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of an array, however many and on however many lines."""
    line, size = 1, _PIECE
    with opened_text(path) as file:
        while "[" not in (text := file.read(_PIECE)):
            line += text.count("\n")
        begin, at = 0, text.index("[") + 1
        while True:
            end = _between(text, at)
            line, at = line + text.count("\n", begin, end), end
            begin = at
            if text[at : at + 1] == "]":
                return
            found = text_file.json_item(path, line, text, at) if at < len(text) else None
            if found is not None:
                yield line, found[0]
                at, size = found[1], _PIECE
            else:  # it goes on
                more = file.read(size)
                if not more or len(text) - at > LONGEST_LINE:
                    raise ScenarioError(f"{path}:{line}: {_fault(text[at:])}")
                text, begin, at, size = text[at:] + more, 0, 0, size * 2


def _between(text: str, at: int) -> int:
    while text[at : at + 1].isspace() or text[at : at + 1] == ",":
        at += 1
    return at


def _fault(text: str) -> str:
    """Why this begins no object of an array."""
    if len(text) > LONGEST_LINE:
        return f"an object of more than {LONGEST_LINE:,} characters, or not JSON"
    try:
        text_file.json_tree(text, text_file.no_number)
    except ValueError as error:
        return str(error) if text else "not JSON: the array has no end"
    return "not JSON: the array has no end"
