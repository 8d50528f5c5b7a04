"""A baseline: one small JSON file for each of its runs, in a folder that a repository or a bucket holds.

A file has the figures of a run with their intervals and what must be equal to compare it. Keys are sorted, so that a diff
shows what changed. Files with other endings are left alone. A run is judged by a baseline in history.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tailgauge.errors import UsageError
from tailgauge.rows.disk import writable
from tailgauge.rows.object_store import is_remote, local, remove, store
from tailgauge.rows.run_folder import write_json
from tailgauge.rows.text_file import FOLDER, MISSING, json_tree, no_number, read_text, refusal
from tailgauge_analysis.comparing.run_summary import SCHEMA_VERSION, RunSummary
from tailgauge_analysis.text.formatting import plain

_FILE = TypeAdapter(RunSummary)


def load(place: str, *, may_be_new: bool = False) -> list[RunSummary]:
    """Return the runs of a baseline, the oldest first. UsageError for a missing folder, or a file that is none of a baseline."""
    folder = local(place, suffix=".json")
    problem = refusal(folder)
    if problem == MISSING and may_be_new:
        return []
    if problem != FOLDER:
        expected = "expected a folder, as `tailgauge baseline add` makes it"
        raise UsageError(f"{place}: {problem or 'a file'}: {expected}")
    runs = []
    for path in folder.glob("*.json"):
        runs.append(_read(path, _named(place, path.name)))
    return sorted(runs, key=lambda run: (run.started_at, run.run_id))


def _named(place: str, name: str) -> str:
    return f"{place.rstrip('/')}/{name}"


def _read(path: Path, name: str) -> RunSummary:
    try:
        return _parsed(path.stem, json_tree(read_text(path), no_number))
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(map(str, detail["loc"])) or "the file"
        problem = f"{plain(key, 80)}: {detail['msg']}"
    except ValueError as error:
        problem = str(error)
    raise UsageError(
        f"{name}: not a run of a baseline: {problem}. Move it elsewhere, or add the run again"
    )


def _parsed(name: str, tree: Any) -> RunSummary:
    version = None
    if isinstance(tree, dict):
        version = tree.get("schema_version")
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise ValueError(f"schema_version: expected {SCHEMA_VERSION}, got {version}")
    run = _FILE.validate_python(tree)
    if run.run_id != name:  # else a copy would count as another run
        expected = f"expected {plain(name, 80)} as the file is named"
        raise ValueError(f"run_id: {expected}, got {plain(run.run_id, 80)}")
    return run


def save(place: str, run: RunSummary) -> str:
    """Write the file of a run and return its name. UsageError where that is not possible, or it is there already."""
    folder = local(place, suffix=".json")
    path = folder / f"{run.run_id}.json"
    name = _named(place, path.name)
    if path.exists():
        raise UsageError(f"{name}: the run is in this baseline already")
    writable(folder, place)
    write_json(path, json.loads(json.dumps(asdict(run), sort_keys=True)))
    if is_remote(place):
        store(path, name)
    return name


def delete(place: str, run: RunSummary) -> None:
    """Delete the file of a run. UsageError where that is not possible."""
    name = _named(place, f"{run.run_id}.json")
    if is_remote(place):
        remove(name)
        return
    try:
        Path(name).unlink()
    except OSError as error:
        raise UsageError(f"{name}: cannot be deleted: {error.strerror}") from error
