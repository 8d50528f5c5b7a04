"""The run that some folders are parts of, as its master and its workers tell of it.

Rule: one plain dict in which every key that the analysis reads exists with the right type, whatever the files held;
what was wrong with them is told as a problem, never raised, except where the run cannot be read at all. When the master
died, the run is rebuilt from the workers' own records.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tailgauge.errors import RunDataError
from tailgauge_analysis.load.problems import MASTER, NOTE, Problem
from tailgauge_analysis.load.run_files import load
from tailgauge_analysis.load.run_json import RunJson
from tailgauge_analysis.load.worker_entry import entries
from tailgauge_analysis.text.formatting import listed, plain, plural
from tailgauge_analysis.text.json_values import Json, listing, table, whole

PLANNED = ("open", "partly open")  # arrivals whose number is in the plan, not in what the workers did
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_Found = list[tuple[Path, Json]]


def read(folders: Sequence[Path]) -> tuple[Json, list[Problem]]:
    """The run that these folders are parts of; RunDataError where they are not parts of one run."""
    problems: list[Problem] = []
    masters = _load([(folder, folder / "run.json") for folder in folders], problems)
    records = _load([(f, path) for f in folders for path in sorted((f / "workers").glob("*.json"))], problems)
    _same_run([*masters, *((folder, table(tree, "run")) for folder, tree in records)])
    own = [tree for _, tree in records]
    home = masters[0][0] if masters else None
    run = masters[0][1] if masters else _rebuilt(own) if own else {}
    # What a master that goes on, or died, wrote last is older than the rows.
    closed = bool(masters) and run.get("state") != "running"
    workers = entries(listing(run, "workers"), own, master_ended=closed)
    if not masters:
        lacks = "damaged" if any((folder / "run.json").exists() for folder in folders) else "missing"
        problems.append(Problem(MASTER, _without_master(lacks, workers)))
    return _complete({**run, "workers": workers}, folders, home, closed=closed), problems


def notes_of(run: Json) -> list[Problem]:
    """What the master itself noted."""
    return [Problem(NOTE, note) for note in run["notes"]]


def _load(places: Sequence[tuple[Path, Path]], problems: list[Problem]) -> _Found:
    return [(folder, tree) for folder, path in places if (tree := load(path, problems)) is not None]


def _rebuilt(own: Sequence[Json]) -> Json:
    """What the workers say of the run; one that was lost early does not know when it began."""
    said = sorted((table(tree, "run") for tree in own), key=lambda run: whole(run.get("start_at_ns")) is None)
    return {**said[0], "state": "interrupted"}


def _without_master(lacks: str, workers: Sequence[Json]) -> str:
    if not workers:
        return f"run.json is {lacks} and workers/ holds no record: nothing says what was scheduled"
    known = [str(w["worker"]) for w in workers if w["own_state"]]
    of = f"rebuilt from the records of {plural(len(known), 'worker')} ({listed(known)})"
    return f"run.json is {lacks}: {of}; others may be missing, and nothing says what was scheduled beyond what they held"


def _same_run(trees: _Found) -> None:
    seen: dict[str, Path] = {}
    for folder, tree in trees:
        if isinstance(tree.get("run_id"), str):
            seen.setdefault(tree["run_id"], folder)
    if len(seen) > 1:
        named = " and ".join(f"{run_id} ({folder})" for run_id, folder in seen.items())
        raise RunDataError(
            f"these are different runs: {named}. Give folders of one run, or report them one at a time"
        )


def _complete(run: Json, folders: Sequence[Path], home: Path | None, *, closed: bool) -> Json:
    """Every key of run.json with its type, and what follows from the files."""
    given = RunJson.model_validate(run)
    run_id = run["run_id"] if isinstance(run.get("run_id"), str) else folders[0].resolve().name
    if not _RUN_ID.fullmatch(run_id):
        raise RunDataError(f"{folders[0]}: run_id {run_id!r} cannot name a report folder")
    tokens = given.engine_tokens
    return {
        **given.model_dump(),
        "run_id": run_id,
        "home": home,  # the folder with run.json
        "rebuilt": home is None,
        "closed": closed,  # its master had the last word
        "engine_tokens": {**tokens.model_dump(), "engine": plain(tokens.engine, 40)} if tokens else {},
        "conservation": given.conservation if closed else {},
        "planned": whole(given.conservation.get("scheduled")) if given.arrival in PLANNED else None,
        "preflight": [{"ended": "unknown", **entry} for entry in given.preflight],
    }
