"""Which file a scenario's name means: a path, or one of the scenarios that come with the package."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any

from tailgauge.errors import ScenarioError, UsageError
from tailgauge.rows.text_file import MISSING, read_text, refusal, toml
from tailgauge.table import nearest

# Packaged scenarios as `tailgauge scenario list` shows them: by what a user wants to know.
GROUPS = {
    "Start here": ("quickstart", "streaming", "checkup"),
    "One answer from many runs": ("headroom", "curve", "hedging", "models", "gateway", "calibrate"),
    "Kinds of calls": ("nonstreaming", "thinking", "tools", "structured", "custom_stream", "slow_reader"),
    "Work that is polled": ("batch", "job"),
    "Prompt caching and conversations": ("cached", "cached_multi_turn", "sessions"),
    "Several calls per request": ("fan_out", "hedged", "progressive", "fallback", "mix"),
    "Retries, cancellations and broken streams": ("retries", "retry_storm", "cancel", "resubmit", "resume"),
    "How the load arrives": ("arrivals", "steps", "closed", "trace"),
}


def minutes(name: str) -> float:
    """Return how long a packaged scenario runs: an experiment at most so long."""
    tables = read(find(name))
    experiment = tables.get("experiment", {})
    if experiment:
        return float(experiment["minutes"])
    return float(tables["stages"]["duration_s"]) / 60


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
    why = refusal(path)
    if why is None:
        return path
    folder = packaged("scenarios")
    if argument in names():
        return folder / f"{argument}.toml"
    if path.suffix == ".toml" and path.stem in names() and path.parts[:-1] in {(), ("scenarios",)}:
        return folder / path.name
    if why != MISSING:
        raise UsageError(f"{argument[:300]}: {why}: expected a scenario file")
    why = f"no such file, and no packaged scenario of that name{nearest(path.stem, names()) or '.'}"
    raise UsageError(f"{argument}: {why} `tailgauge scenario list` lists them")


def read(path: Path, number: Callable[[str], Any] = float) -> dict[str, Any]:
    """The tables of a TOML file, as they are written; `number` reads those with a fraction."""
    try:
        return toml(read_text(path), number)
    except ValueError as error:
        what = "not valid TOML: " if isinstance(error, TOMLDecodeError) else ""
        raise ScenarioError(f"{path}: {what}{error}") from error


def copy(argument: str, destination: Path) -> list[Path]:
    """Copy a scenario, and beside it the files that it names relative to itself; returns what was written.

    UsageError where one of them exists already: nothing is replaced.
    """
    source = find(argument)
    if destination.is_dir():
        destination /= source.name
    beside = {name for name in _texts(read(source)) if refusal(source.parent / name) is None}
    files = ((source.parent / name, destination.parent / name) for name in sorted(beside))
    pairs = [(source, destination), *files]
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
