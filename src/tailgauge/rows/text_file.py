"""Files of users, opened in one place: regular files of bounded size, in UTF-8, and what TOML and JSON may hold.

Nothing here waits for a FIFO, reads a device, or recurses as deeply as a file says. Errors are UsageErrors and ScenarioErrors
that name the file; of values without a file they are ValueErrors.

Rows of a user's table, whatever its format: a JSON object a line, a JSON array of objects, CSV under a header; also gzipped.

One row is held at a time. Each comes with the number of the line on which it begins.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import itertools
import json
import math
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from tailgauge.errors import ScenarioError, UsageError
from tailgauge.rows.file_kind import beginning_problem, encoding_problem

MEBI = 2**20
LARGEST_TOML = MEBI
LARGEST_JSON = 64 * MEBI
LARGEST_TABLE = 4096 * MEBI  # of traces and prompts
LONGEST_LINE = 64 * MEBI
DEEPEST = 40  # levels of tables and lists
MOST_TABLES = 2_000  # and lists, of a TOML file: one of traffic takes milliseconds to check
UNPACKED = 100  # bytes that a byte of gzip may unpack to, beyond the first 64 MiB; text has some 10
MISSING = "no such file"
FOLDER = "a folder, not a file"
FLAT = f"expected at most {DEEPEST} levels of tables and lists"
WHOLE = "expected a whole number of 64 bits"
_WHOLE = range(-(2**63), 2**63)
_SAFE_DIGITS = 19  # fewer always make a whole number of 64 bits
_BEGINNING = 16  # bytes that show what kind of file it is
_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
_DECIMALS = 30  # of an exact number
_TEXTS = re.compile(
    r"""\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}.*?'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*""", re.DOTALL
)
# tomllib takes quadratic time for it.
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")
_DIGITS = re.compile(r"[\d_]{4300}")
_OPENED = re.compile(rf"(?:[\[{{][^\[\]{{}}#]*+){{{DEEPEST}}}")


def refusal(path: Path) -> str | None:
    """Return why this is no regular file; None for one."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except (OSError, ValueError) as error:  # too long, a circle of links, a NUL in it
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return FOLDER
    return "not a regular file"


def locate(name: str, folder: Path, where: str) -> Path:
    """Return the file that a scenario means: relative to the scenario's folder, else to here. `where`: its file and key."""
    for path in (folder / name, Path(name)):
        problem = refusal(path)
        if problem is None:
            return path
        if problem != MISSING:
            raise UsageError(f"{where}: {str(path)[:300]}: {problem}: expected a file")
    places = f" in {Path.cwd()}"
    if folder.resolve() != Path.cwd():
        places = f", neither in {folder.resolve()} nor in {Path.cwd()}"
    raise UsageError(f"{where}: {name}: {MISSING}{places}")


@contextmanager
def _opened(path: Path, largest: int) -> Iterator[io.BufferedReader]:
    """A regular file of at most so many bytes."""
    problem = refusal(path)
    try:
        if problem is None:
            # It may just have become a FIFO.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(handle, "rb") as file:  # noqa: PTH123 - of a descriptor
                if os.fstat(handle).st_size <= largest:
                    yield file
                    return
                problem = f"larger than {largest // MEBI:,} MiB"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    raise UsageError(f"{path}: {problem}")


def read_text(path: Path, largest: int = LARGEST_TOML) -> str:
    """Return the text of a file, without a byte order mark."""
    with _opened(path, largest) as file:
        data = file.read(largest)
    problem = encoding_problem(data)
    if problem:
        raise ScenarioError(f"{path}: {problem}")
    return data.decode("utf-8-sig")


class _Unpacked(gzip.GzipFile):
    """A gzip file; ScenarioError where it holds far more than text of its size does."""

    def __init__(self, path: Path, packed: io.BufferedReader) -> None:
        super().__init__(fileobj=packed)
        self._path = path
        self._left = LONGEST_LINE + UNPACKED * os.fstat(packed.fileno()).st_size

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        self._left -= len(data)
        if self._left < 0:
            problem = f"unpacks to more than {UNPACKED} times its size"
            raise ScenarioError(
                f"{self._path}: {problem}: expected text; if it is, unpack it first"
            )
        return data


@contextmanager
def opened_text(path: Path) -> Iterator[TextIO]:
    """The text of a table, unpacked where the name ends with .gz; ScenarioError where it is no text."""
    try:
        with _opened(path, LARGEST_TABLE) as raw:
            unpacked = _Unpacked(path, raw) if path.suffix == ".gz" else raw
            _refuse_other_kinds(path, unpacked.peek(_BEGINNING)[:_BEGINNING])
            yield io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline="")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except (EOFError, zlib.error) as error:
        raise ScenarioError(f"{path}: cannot be unpacked: {error}") from error


def _refuse_other_kinds(path: Path, beginning: bytes) -> None:
    """Raise ScenarioError for a table that is no text, as its first bytes show."""
    problem = beginning_problem(beginning)
    if problem and path.suffix.lower() in _SPREADSHEETS:
        problem = "a spreadsheet, not text: save it as CSV or as JSON lines"
    if problem:
        raise ScenarioError(f"{path}: {problem}")


def text_lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, each with its number, from 1. Blank lines are no rows, whatever the format."""
    with opened_text(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 2), ""), 1):
            row = line.rstrip("\r\n")
            if len(row) > LONGEST_LINE:
                raise ScenarioError(
                    f"{path}:{number}: a line of more than {LONGEST_LINE:,} characters"
                )
            if blank or row.strip():
                yield number, row


def toml(text: str, number: Callable[[str], Any] = float) -> dict[str, Any]:
    """Return the tables of a TOML text; `number` reads those with a fraction.

    TOMLDecodeError where it is no TOML, else ValueError with the key, or the line if it is known, and what was expected.
    """
    bare = _TEXTS.sub(lambda match: "_" + "\n" * match[0].count("\n"), text)
    if long := _LONG_KEY.search(bare):
        raise _at_line(bare, long, FLAT)
    try:
        tree = tomllib.loads(text, parse_float=number)
    except RecursionError:
        raise _at_line(bare, _OPENED.search(bare), FLAT) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python reads no number of thousands of digits
        raise _at_line(bare, _DIGITS.search(bare), WHOLE) from None
    _check(tree)
    count = _count(tree)
    if count > MOST_TABLES:
        raise ValueError(f"expected at most {MOST_TABLES:,} tables and lists, got {count:,}")
    return tree


def _at_line(text: str, match: re.Match[str] | None, expected: str) -> ValueError:
    if match is None:
        return ValueError(expected)
    line = text.count("\n", 0, match.start()) + 1
    return ValueError(f"line {line}: {expected}")


def _check(tree: Any, key: str = "", depth: int = 0) -> None:
    """ValueError with the key of what no TOML file of ours can mean: TOML's own integers have 64 bits."""
    if isinstance(tree, dict | list):
        if depth == DEEPEST:
            raise ValueError(f"{key[:80]}: {FLAT}")
        prefix = f"{key}." if key else ""
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for name, value in items:
            _check(value, f"{prefix}{name}", depth + 1)
    elif isinstance(tree, int) and tree not in _WHOLE:
        raise ValueError(f"{key}: {WHOLE}")
    elif isinstance(tree, Decimal) and _decimals(tree) > _DECIMALS:
        raise ValueError(f"{key}: expected a number of at most {_DECIMALS} decimals")


def _decimals(number: Decimal) -> int:
    """Return how many digits stand behind the point; 0 for infinity and NaN, which have no exponent."""
    if not number.is_finite():
        return 0
    return -int(number.as_tuple().exponent)


def _count(tree: dict[str, Any]) -> int:
    """Return how many tables and lists a tree has."""
    tables = _tables([tree])
    count = 0
    while tables:
        count += len(tables)
        tables = _inner_tables(tables)
    return count


@functools.cache
def _decoder(odd: Callable[[str], Any]) -> json.JSONDecoder:
    def whole(digits: str) -> Any:
        if len(digits) < _SAFE_DIGITS:
            return int(digits)
        if len(digits) <= len(str(_WHOLE[0])) and int(digits) in _WHOLE:
            return int(digits)
        return odd(digits)

    def real(digits: str) -> Any:
        value = float(digits)
        if math.isfinite(value):
            return value
        return odd(digits)

    return json.JSONDecoder(parse_constant=odd, parse_int=whole, parse_float=real)


def json_tree(text: str, odd: Callable[[str], Any]) -> Any:
    """Return what a JSON text holds; `odd` stands in for a number that is none (NaN), infinite, or beyond 64 bits.

    ValueError where it is not JSON, or nested too deeply.
    """
    try:
        tree = _decoder(odd).decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError(FLAT) from None
    return _flat(tree)


def _flat(tree: Any) -> Any:
    """Return the tree; ValueError where it is nested too deeply."""
    tables = _tables([tree])
    for _ in range(DEEPEST):
        tables = _inner_tables(tables)
    if tables:
        raise ValueError(FLAT)
    return tree


def _inner_tables(parents: list[Any]) -> list[Any]:
    return list(itertools.chain.from_iterable(map(_tables, parents)))


def _tables(parent: dict[str, Any] | list[Any]) -> list[Any]:
    """Return the tables and lists in one; a long list of plain values costs little."""
    values = parent.values() if isinstance(parent, dict) else parent
    if {*map(type, values)}.isdisjoint({dict, list}):
        return []
    return [value for value in values if isinstance(value, dict | list)]


def no_number(text: str) -> Any:
    """Refuses the number that `json_tree` found odd."""
    raise ValueError(f"{text[:40]} is not a number of 64 bits")


def json_object(path: Path, number: int, text: str) -> dict[str, Any]:
    """Return the JSON object of a line; NaN and infinity are no numbers."""
    return as_object(path, number, _json_value(path, number, text), text)


def _json_value(path: Path, number: int, text: str) -> Any:
    """Return the JSON value of a line."""
    try:
        return json_tree(text, no_number)
    except ValueError as error:
        raise ScenarioError(f"{path}:{number}: {error}") from None


def json_item(path: Path, number: int, text: str, place: int) -> tuple[Any, int] | None:
    """Return the JSON value in `text` at `place`, and where it ends; None where it does not end, or is no JSON."""
    try:
        value, end = _decoder(no_number).raw_decode(text, place)
        if end == len(text) and not isinstance(value, dict | list | str):
            return None  # more digits may follow
        return _flat(value), end
    except json.JSONDecodeError:
        return None
    except RecursionError:
        raise ScenarioError(f"{path}:{number}: {FLAT}") from None
    except ValueError as error:
        raise ScenarioError(f"{path}:{number}: {error}") from None


def as_object(path: Path, number: int, value: Any, text: str) -> dict[str, Any]:
    """Return the value, if it is an object; else ScenarioError with the beginning of its text."""
    if not isinstance(value, dict):
        raise ScenarioError(f"{path}:{number}: expected a JSON object, got {text[:40]!r}")
    return value


# --- rows of a table, whatever its format -------------------------------------------------------------------------

_PIECE = 1 << 20  # characters that are read at once
_LONGEST_HEADER = 1 << 17


def table_rows(path: Path, *, is_json: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield every row, by the names of its columns; ScenarioError with file and line.

    `is_json`: the file is no CSV, whatever it begins with.
    """
    for number, value in table_values(path, is_json=is_json):
        if isinstance(value, dict):
            yield number, value
        else:
            as_object(path, number, value, json.dumps(value, ensure_ascii=False))


def table_values(path: Path, *, is_json: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield every row like `table_rows`, also those of a JSON file that are no objects."""
    character = _first_character(path)
    if not character:
        raise ScenarioError(f"{path}: is empty")
    if character == "[":
        yield from _array(path)
    elif character == "{" or is_json:
        for number, text in text_lines(path):
            yield number, _json_value(path, number, text)
    else:
        yield from _csv(path)


def _first_character(path: Path) -> str:
    """Return the first character that is not blank; none in an empty file."""
    with opened_text(path) as file:
        while True:
            piece = file.read(_PIECE)
            if not piece:
                return ""
            text = piece.lstrip()
            if text:
                return text[0]


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows under the names of the first line, each with the number of its line; a quoted cell may have several lines.

    The limit of csv for cells, which is global, is set meanwhile. ScenarioError with file and line.
    """
    limit = csv.field_size_limit(_LONGEST_HEADER)
    names: list[str] = []
    number = 0
    lines = (f"{text}\n" for _, text in text_lines(path, blank=True))
    cells = csv.reader(lines, strict=True)
    try:
        while True:
            number = cells.line_num + 1
            row = next(cells, None)
            if row is None:
                return
            # A blank line, or blank cells before the header.
            if not row or not (names or any(row)):
                continue
            if not names:
                names = [name.strip() for name in row]
                csv.field_size_limit(LONGEST_LINE)
                _check_separator(path, number, names)
            elif len(row) != len(names):
                raise ScenarioError(
                    f"{path}:{number}: has {len(row)} columns, the header {len(names)}"
                )
            else:
                yield number, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise ScenarioError(f"{path}:{number}: not CSV: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _check_separator(path: Path, number: int, names: list[str]) -> None:
    """Raise ScenarioError for a header whose only name is several, behind each other."""
    for separator, text in ((";", "';'"), ("\t", "a tab"), ("|", "'|'")):
        if len(names) == 1 and separator in names[0]:
            problem = f"the separator seems to be {text}: expected ',', and '.' in decimals"
            raise ScenarioError(f"{path}:{number}: {problem}")


def _array(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the values of a JSON array, each with the number of its line, however many and on however many lines.

    The file is read piece by piece: memory holds one value. ScenarioError with file and line.
    """
    line = 1
    size = _PIECE
    with opened_text(path) as file:
        while "[" not in (text := file.read(_PIECE)):
            line += text.count("\n")
        begin = 0
        place = text.index("[") + 1
        while True:
            end = _separators_end(text, place)
            line = line + text.count("\n", begin, end)
            place = end
            begin = place
            if text[place : place + 1] == "]":
                return
            item = json_item(path, line, text, place) if place < len(text) else None
            if item is not None:
                yield line, item[0]
                place = item[1]
                size = _PIECE
            else:  # it goes on
                piece = file.read(size)
                if not piece or len(text) - place > LONGEST_LINE:
                    raise ScenarioError(f"{path}:{line}: {_fault(text[place:])}")
                # The value is longer than what was read: read on, twice as much each time.
                text = text[place:] + piece
                begin = 0
                place = 0
                size = size * 2


def _separators_end(text: str, place: int) -> int:
    while text[place : place + 1].isspace() or text[place : place + 1] == ",":
        place += 1
    return place


def _fault(text: str) -> str:
    """Return why this begins no value of an array."""
    if len(text) > LONGEST_LINE:
        return f"an object of more than {LONGEST_LINE:,} characters, or not JSON"
    if text:
        try:
            json_tree(text, no_number)
        except ValueError as error:
            return str(error)
    return "not JSON: the array has no end"
