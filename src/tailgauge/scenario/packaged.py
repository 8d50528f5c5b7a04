"""Which file a scenario's name means: a path, or one of the scenarios that come with the package."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tailgauge.errors import ScenarioError, UsageError
from tailgauge.table import nearest


def packaged(folder: str) -> Path:
    """The folder of packaged `scenarios` or `locustfiles`: inside the wheel, or beside `src` in a checkout."""
    inside = Path(__file__).parents[1] / folder
    return inside if inside.is_dir() else Path(__file__).parents[3] / folder


def names() -> list[str]:
    """The packaged scenarios."""
    return sorted(path.stem for path in packaged("scenarios").glob("*.toml"))


def find(argument: str) -> Path:
    """The file that a scenario argument means: a path, else the name of a packaged scenario."""
    path = Path(argument)
    if path.is_file():
        return path
    folder = packaged("scenarios")
    if argument in names():
        return folder / f"{argument}.toml"
    if path.suffix == ".toml" and path.stem in names() and path.parts[:-1] in {(), ("scenarios",)}:
        return folder / path.name
    near = nearest(path.stem, names())
    raise UsageError(
        f"{argument}: no such file, and no packaged scenario of that name{near or '.'} `tailgauge scenario list` lists them"
    )


def read(path: Path, number: Callable[[str], Any] = float) -> dict[str, Any]:
    """The tables of a TOML file, as they are written; `number` reads those with a fraction."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"), parse_float=number)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except ValueError as error:  # TOMLDecodeError, or a date that no calendar has
        raise ScenarioError(f"{path}: not valid TOML: {error}") from error


def copy(argument: str, destination: Path) -> list[Path]:
    """Copy a scenario, and beside it the files that it names relative to itself; returns what was written.

    UsageError where one of them exists already: nothing is replaced.
    """
    source = find(argument)
    if destination.is_dir():
        destination /= source.name
    beside = {name for name in _texts(read(source)) if (source.parent / name).is_file()}
    pairs = [(source, destination)]
    pairs += [(source.parent / name, destination.parent / name) for name in sorted(beside)]
    for _, path in pairs:
        if path.exists():
            raise UsageError(f"{path}: exists already: name another file, or remove it")
    try:
        for original, path in pairs:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, path)
    except OSError as error:
        raise UsageError(f"{destination}: cannot be written: {error.strerror}") from error
    return [path for _, path in pairs]


def _texts(value: Any) -> Iterator[str]:
    """Relative paths that a tree of tables may name: its short texts."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
    elif isinstance(value, str) and 0 < len(value) < 256 and not {"/", ".."} & set(Path(value).parts):
        yield value
