"""Text files, read line by line.

Errors are ScenarioErrors that name the file and the line. Blank lines are no rows, whatever the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailgauge.errors import ScenarioError, UsageError

MAX_TOKENS = 10_000_000


def locate(name: str, folder: Path) -> Path:
    """The file that a scenario means: relative to the scenario's folder, else to here."""
    beside = folder / name
    if beside.is_file():
        return beside
    if Path(name).is_file():
        return Path(name)
    raise UsageError(f"{name}: no such file, neither in {folder.resolve()} nor in {Path.cwd()}")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, each with its number, from 1."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 text (byte {error.start})") from error


def json_object(path: Path, number: int, text: str) -> dict[str, Any]:
    """The JSON object of a line; NaN and infinity are no numbers."""

    def refuse(constant: str) -> Any:
        raise ScenarioError(f"{path}:{number}: {constant} is not a number")

    try:
        value = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ScenarioError(f"{path}:{number}: expected a JSON object, got {text[:40]!r}")
    return value
