"""The JSON files of a run folder, run.json and workers/<n>.json: found, read, and given their verdict.

A file that cannot be read is a problem, a sentence that names it; the checks decide what it means. Only a schema newer than
this version of Tailgauge is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailgauge.errors import RunDataError, UsageError
from tailgauge.rows.run_folder import write_json
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.rows.text_file import FOLDER, LARGEST_JSON, MISSING, json_tree, read_text, refusal
from tailgauge_analysis.reading.old_schemas import NEW_SINCE, renamed
from tailgauge_analysis.text.json_values import Json

DAMAGED = "damaged"  # a part or file that cannot be read: its rows are missing
MASTER = "master"  # the run's master left no record
UNFINISHED = "unfinished"  # a *.tmp file left behind
NOTE = "note"  # worth knowing, costs nothing


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding about the data."""

    kind: str
    text: str


def check(folder: Path, *tables: str) -> None:
    """RunDataError unless it is a folder with the record of a run, or with one of these tables."""
    why = refusal(folder)
    if why == MISSING:
        raise RunDataError(f"{folder}: no such run folder")
    if why != FOLDER:
        expected = "give the folder that holds run.json"
        raise RunDataError(f"{folder}: {why or 'a file'}, not a run folder: {expected}")
    if not any((folder / name).exists() for name in ("run.json", "workers", *tables)):
        or_that = f"{next(iter(tables), 'workers')}/{_hint(folder)}"
        raise RunDataError(f"{folder}: not a run folder: it holds neither run.json nor {or_that}")


def _hint(folder: Path) -> str:
    """Where the run may be that was meant, as the end of a sentence; empty where none is near."""
    places = [f"{at}{name}" for at in ("*/", "runs/*/") for name in ("run.json", "workers")]
    near = sorted({path.parent for place in places for path in folder.glob(place)})
    if not near:
        return ""
    several = f". It holds {len(near)} runs; the last is {near[-1]}"
    return several if near[1:] else f". Did you mean {near[-1]}?"


def record_verdict(folder: Path, verdict: Json) -> None:
    """Put the verdict into run.json, if there is one and its master has finished with it; OSError if it cannot be."""
    path = folder / "run.json"
    tree = load(path, [])
    if tree is None or tree.get("state") == "running":
        return
    write_json(path, {**tree, "verdict": verdict})


def load(path: Path, problems: list[Problem]) -> Json | None:
    """The table that a JSON file holds; None, with a problem unless it is simply not there, where it holds none."""
    try:
        tree = json_tree(read_text(path, LARGEST_JSON), _unknown)
    except (UsageError, ValueError) as error:
        why = str(error).removeprefix(f"{path}: ")
        if why != MISSING:
            problems.append(Problem(DAMAGED, f"{_named(path)} cannot be read: {why}"))
        return None
    if not isinstance(tree, dict):
        problems.append(Problem(DAMAGED, f"{_named(path)} is not a table"))
        return None
    version = tree.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version < 1:
        expected = f"expected a whole number from 1 to {SCHEMA_VERSION}, got {version!r}"
        problems.append(Problem(DAMAGED, f"{_named(path)} is not used: schema_version: {expected[:200]}"))
        return None
    check_version(path, version)
    return renamed(tree) if version < NEW_SINCE else tree


def check_version(path: Path, version: int) -> None:
    """RunDataError where the schema of a file is newer than ours."""
    if version > SCHEMA_VERSION:
        newest = f"{SCHEMA_VERSION}, the newest that this tailgauge reads"
        raise RunDataError(f"{path}: schema version {version} is newer than {newest}")


def _unknown(_: str) -> None:
    """What a number that is none stands for."""


def _named(path: Path) -> str:
    return f"workers/{path.name}" if path.parent.name == "workers" else path.name
