"""Which file a scenario's name means, a path or a packaged scenario; its tables as they are written, and copies of it.

A copy has the files that the scenario names.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any

from tailgauge.errors import ScenarioError, UsageError
from tailgauge.rows.file_kind import SAVED, format_of, toml_problem
from tailgauge.rows.text_file import FOLDER, MISSING, read_text, refusal, toml
from tailgauge.suggestions import near_names, url_argument

SHOWN_NAMES = 3  # of a suggestion
MOST_FILES = 5  # of a folder that are listed
EXPECTED = "expected a scenario in TOML; start from one with `tailgauge scenario copy streaming`"

# Packaged scenarios as `tailgauge scenario list` shows them: by what a user wants to know.
GROUPS = {
    "Start here": ("quickstart", "streaming", "checkup"),
    "One answer from many runs": ("headroom", "curve", "hedging", "models", "gateway", "calibrate"),
    "Kinds of calls": (
        "nonstreaming",
        "thinking",
        "tools",
        "structured",
        "custom_stream",
        "slow_reader",
    ),
    "Work that is polled": ("batch", "job"),
    "Prompt caching and conversations": ("cached", "cached_multi_turn", "sessions"),
    "Several calls per request": ("fan_out", "hedged", "progressive", "fallback", "mix"),
    "Retries, cancellations and broken streams": (
        "retries",
        "retry_storm",
        "cancel",
        "resubmit",
        "resume",
    ),
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
    """Return the folder of packaged `scenarios` or `locustfiles`: inside the wheel, or beside `src` in a checkout."""
    in_wheel = Path(__file__).parents[1] / folder
    if in_wheel.is_dir():
        return in_wheel
    return Path(__file__).parents[3] / folder


def names() -> list[str]:
    """Return the packaged scenarios."""
    return sorted(path.stem for path in packaged("scenarios").glob("*.toml"))


def find(argument: str) -> Path:
    """Return the file that a scenario argument means: a path, else the name of a packaged scenario, with or without
    `.toml`.

    UsageError where there is none, with names that are near it; also for a URL and for a folder.
    """
    if str(argument).startswith(("http://", "https://")):
        url = url_argument(argument)
        raise UsageError(
            f"expected a scenario, got an address: write it with --target, as in `tailgauge run streaming --target {url}`"
        )
    path = Path(argument)
    problem = refusal(path)
    if problem is None:
        return path
    folder = packaged("scenarios")
    if argument in names():
        return folder / f"{argument}.toml"
    if path.suffix == ".toml" and path.stem in names() and path.parts[:-1] in {(), ("scenarios",)}:
        return folder / path.name
    if problem == FOLDER:
        files = _listed(sorted(entry.name for entry in path.glob("*.toml")))
        if files:
            expected = f"give one of its files: {files}"
        else:
            expected = "it holds no *.toml file: `tailgauge scenario copy streaming` makes one"
        raise UsageError(f"{argument[:300]}: {problem}: {expected}")
    if problem != MISSING:
        raise UsageError(f"{argument[:300]}: {problem}: expected a scenario file")
    raise UsageError(f"{argument[:300]}: {_missing(path)}")


def _missing(path: Path) -> str:
    """Return why nothing is found by this name, and which names are near it."""
    if path.suffix or len(path.parts) > 1:
        return f"no such file{_near_files(path)}"
    problem = "no such file, and no packaged scenario of that name"
    listing = "`tailgauge scenario list` lists them"
    near = near_names(path.name, names(), SHOWN_NAMES, cutoff=0.6) or _about(path.name)
    if near:
        return f"{problem}; did you mean {' or '.join(near)}? {listing}"
    return f"{problem}. {listing}"


def _near_files(path: Path) -> str:
    """Return which files of the folder, or packaged scenarios, may have been meant, as the end of a message."""
    folder = path.parent
    if not folder.is_dir():
        return f": there is no folder {folder}"
    suffix = path.suffix or ".toml"
    files = [entry.name for entry in folder.iterdir() if entry.suffix == suffix]
    near = near_names(path.stem, [Path(name).stem for name in files], SHOWN_NAMES, cutoff=0.7)
    if near:
        return f"; did you mean {' or '.join(str(folder / (name + suffix)) for name in near)}?"
    near = near_names(path.stem, names(), cutoff=0.75)
    if near:
        return f"; did you mean the packaged scenario {near[0]}?"
    if files:
        return f"; {folder.resolve().name or folder} has {_listed(sorted(files))}"
    return f" in {folder.resolve()}. `tailgauge scenario list` lists the packaged scenarios"


def _about(word: str) -> list[str]:
    """Return the packaged scenarios whose name or description has this word in it; at most a few, the plainest first."""
    lowered = word.lower()
    if len(lowered) < len("llm"):
        return []
    pattern = re.compile(rf"\b{re.escape(lowered)}", re.IGNORECASE)
    descriptions = {name: str(read(find(name)).get("description", "")) for name in names()}
    by_name = [name for name in descriptions if lowered in name or name in lowered]
    by_text = [name for name, text in descriptions.items() if pattern.search(text)]
    by_text.sort(key=lambda name: len(descriptions[name]))
    return list(dict.fromkeys([*by_name, *by_text]))[:SHOWN_NAMES]


def _listed(files: list[str]) -> str:
    """Return a few names of a list."""
    names = ", ".join(files[:MOST_FILES])
    if len(files) > MOST_FILES:
        return f"{names} and {len(files) - MOST_FILES} more"
    return names


def read(
    path: Path, number: Callable[[str], Any] = float, *, expected: str = EXPECTED
) -> dict[str, Any]:
    """Return the tables of a TOML file, as they are written; `number` reads those with a fraction.

    `expected`: the end of the message about a file in another format.
    """
    text = _text(path, expected)
    try:
        return toml(text, number)
    except TOMLDecodeError as error:
        file_format = format_of(text, path.suffix)
        if not file_format:
            raise ScenarioError(f"{path}: not valid TOML: {toml_problem(text, error)}") from error
        if file_format == "Python":
            expected = "a locustfile runs with `locust -f FILE`, see `tailgauge docs locustfile`"
        raise ScenarioError(f"{path}: this is {file_format}: {expected}") from error
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from error


def _text(path: Path, expected: str) -> str:
    """Return the text of a file; of a file that is no text the error ends with what was expected."""
    try:
        return read_text(path)
    except ScenarioError as error:
        if "UTF-8" not in str(error) or SAVED in str(error):
            raise
        raise ScenarioError(f"{error}: {expected}") from error


def copy(argument: str, destination: Path) -> list[Path]:
    """Copy a scenario, and beside it the files that it names relative to itself; return what was written, the scenario
    first.

    `destination`: a file, or a folder. Every short text of the scenario that is the path of a file beside it counts as
    named. UsageError where one of them exists already, since nothing is replaced, and where one cannot be copied: then
    none is left.
    """
    source = find(argument)
    if destination.is_dir():
        destination /= source.name
    originals = {destination: source}
    for name in sorted(set(_paths_beside(read(source)))):
        original = source.parent / name
        path = destination.parent / name
        if refusal(original) is not None:
            continue
        if originals.setdefault(path, original) != original:
            problem = "the scenario names a file of this name: give the copy another one"
            raise UsageError(f"{path}: {problem}")
    for path in originals:
        if os.path.lexists(path):
            raise UsageError(f"{path}: exists already: name another file, or remove it")
    written: list[Path] = []
    for path, original in originals.items():
        written.append(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, path)
        except OSError as error:
            _remove(written)
            problem = f"{path}: cannot be written"
            if error.filename == str(original):
                problem = f"{original}: cannot be read"
            raise UsageError(f"{problem}: {error.strerror}") from error
    return written


def _remove(paths: list[Path]) -> None:
    """Remove files, as far as they are there."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _paths_beside(value: Any) -> Iterator[str]:
    """Yield what may be paths of files beside or below a scenario: its short texts, without those that lead elsewhere."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _paths_beside(item)
    elif isinstance(value, str) and 0 < len(value) < 256:
        parts = set(Path(value).parts)
        if not parts & {"/", ".."}:
            yield value
