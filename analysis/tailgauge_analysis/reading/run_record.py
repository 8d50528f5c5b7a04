"""The run that some folders are parts of, from run.json and the records of its workers.

The result is a plain dict in which every key has its type, whatever the files held. Problems with the files are returned;
only a run that cannot be read at all is raised. If the master died, the run is rebuilt from the workers' records.

Of a worker, the master's entry counts while the master lives; of a worker that the master lost, its own last record, if
there is one; of a run whose master died, the workers' records. A record that still says `running` was written at the start,
so its counts are ignored.

The JSON files of a run folder, run.json and workers/<n>.json: found, read, and given their verdict.

A file that cannot be read is a problem, a sentence that names it; the checks decide what it means. Only a schema newer than
this version of Tailgauge is raised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailgauge.errors import RunDataError, UsageError
from tailgauge.machine import OF_THE_PROCESS
from tailgauge.rows.run_folder import RunFolder, write_json
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.rows.text_file import FOLDER, LARGEST_JSON, MISSING, json_tree, read_text, refusal
from tailgauge.suggestions import nearest
from tailgauge_analysis.reading.run_json import RunJson, WorkerJson
from tailgauge_analysis.text.formatting import listed, plain, plural
from tailgauge_analysis.text.json_values import Json, listing, table, text, whole

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
    problem = refusal(folder)
    if problem == MISSING:
        siblings = [path.name for path in folder.parent.glob("*") if path.is_dir()]
        near = nearest(folder.name, siblings) or ": `tailgauge runs` lists them"
        raise RunDataError(f"{folder}: no such run folder{near}")
    if problem != FOLDER:
        expected = "give the folder that holds run.json"
        raise RunDataError(f"{folder}: {problem or 'a file'}, not a run folder: {expected}")
    if not any((folder / name).exists() for name in ("run.json", "workers", *tables)):
        or_that = f"{next(iter(tables), 'workers')}/{_hint(folder)}"
        raise RunDataError(f"{folder}: not a run folder: it holds neither run.json nor {or_that}")


def _hint(folder: Path) -> str:
    """Where the run may be that was meant, as the end of a sentence; empty where none is near."""
    places = [f"{prefix}{name}" for prefix in ("*/", "runs/*/") for name in ("run.json", "workers")]
    near = sorted({path.parent for place in places for path in folder.glob(place)})
    if not near:
        return ": `tailgauge runs` lists the run folders"
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
        reason = str(error).removeprefix(f"{path}: ")
        if reason != MISSING:
            problems.append(Problem(DAMAGED, f"{_named(path)} cannot be read: {reason}"))
        return None
    if not isinstance(tree, dict):
        problems.append(Problem(DAMAGED, f"{_named(path)} is not a table"))
        return None
    version = tree.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version < 1:
        expected = f"expected a whole number from 1 to {SCHEMA_VERSION}, got {version!r}"
        problems.append(
            Problem(DAMAGED, f"{_named(path)} is not used: schema_version: {expected[:200]}")
        )
        return None
    check_version(path, version)
    return tree


def files_in(folder: Path, problems: list[Problem]) -> list[Path]:
    """The files in a folder, sorted; none, with a problem unless it is simply not there, where they cannot be listed.

    `Path.glob` takes a folder that may not be read for an empty one.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno in OF_THE_PROCESS:
            raise
        kind = (
            NOTE if folder.name == "target" else DAMAGED
        )  # no statistic rests on the endpoint's log
        problems.append(
            Problem(kind, f"{folder.name}/ cannot be read and is left out: {error.strerror}")
        )
        return []


def check_version(path: Path, version: int) -> None:
    """RunDataError where the schema of a file is newer than ours."""
    if version > SCHEMA_VERSION:
        newest = f"{SCHEMA_VERSION}, the newest that this tailgauge reads"
        raise RunDataError(f"{path}: schema version {version} is newer than {newest}")


def _unknown(_: str) -> None:
    """What a number that is none stands for."""


def _named(path: Path) -> str:
    return f"workers/{path.name}" if path.parent.name == "workers" else path.name


# --- the run ------------------------------------------------------------------------------------------------------

PLANNED = (
    "open",
    "partly open",
)  # arrivals whose number is in the plan, not in what the workers did
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
ENDED = ("drained", "failed")  # final states of a worker's own record
MOST = 10_000  # workers of a run
_COUNTED = ("counts", "leased", "rows")  # true only at the time of writing
_FINAL = ("rows", "counts", "unwritten", "why", "stamps", "reader", "priority", "task_errors")
_Found = list[tuple[Path, Json]]


def read(folders: Sequence[Path], look: Json | None = None) -> tuple[Json, list[Problem]]:
    """The run that these folders are parts of; RunDataError where they are not parts of one run.

    It must have ended; with `look`, values that replace those of run.json, it may go on.
    """
    problems: list[Problem] = []
    masters = _load([(folder, folder / "run.json") for folder in folders], problems)
    written = [
        (folder, path) for folder in folders for path in files_in(folder / "workers", problems)
    ]
    records = _load([(folder, path) for folder, path in written if path.match("*.json")], problems)
    _same_run([*masters, *((folder, table(tree, "run")) for folder, tree in records)])
    by_worker = [tree for _, tree in records]
    folder = masters[0][0] if masters else None
    for folder, tree in masters:
        if tree.get("state") == "running" and look is None and RunFolder(folder).is_recorded:
            problem = "the run is still going on: wait for its end; `tailgauge runs` shows when it is over"
            raise RunDataError(f"{folder}: {problem}")
    run = masters[0][1] if masters else _rebuilt(by_worker) if by_worker else {}
    # The last run.json of a master that is still running, or died, is older than the rows.
    closed = bool(masters) and run.get("state") != "running"
    workers = entries(listing(run, "workers"), by_worker, master_ended=closed)
    if not masters:
        lacks = (
            "damaged" if any((folder / "run.json").exists() for folder in folders) else "missing"
        )
        problems.append(Problem(MASTER, _without_master(lacks, workers)))
    complete = _complete(
        {**run, **(look or {}), "workers": workers}, folders, folder, closed=closed
    )
    return complete, [*problems, *(Problem(NOTE, note) for note in complete["notes"])]


def _load(places: Sequence[tuple[Path, Path]], problems: list[Problem]) -> _Found:
    return [(folder, tree) for folder, path in places if (tree := load(path, problems)) is not None]


def _rebuilt(by_worker: Sequence[Json]) -> Json:
    """The run as a worker recorded it; a worker that was lost early does not know its start."""
    runs = [table(tree, "run") for tree in by_worker]
    started = (run for run in runs if whole(run.get("start_at_ns")) is not None)
    return {**next(started, runs[0]), "state": "interrupted"}


def _without_master(lacks: str, workers: Sequence[Json]) -> str:
    if not workers:
        return f"run.json is {lacks} and workers/ holds no record: the schedule is unknown"
    names = [str(w["worker"]) for w in workers if w["recorded_state"]]
    origin = f"rebuilt from the records of {plural(len(names), 'worker')} ({listed(names)})"
    return f"run.json is {lacks}: {origin}; others may be missing, and requests that were not leased to them are unknown"


def _same_run(trees: _Found) -> None:
    folders_by_run: dict[str, Path] = {}
    for folder, tree in trees:
        if isinstance(tree.get("run_id"), str):
            folders_by_run.setdefault(tree["run_id"], folder)
    if len(folders_by_run) > 1:
        named = " and ".join(f"{run_id} ({folder})" for run_id, folder in folders_by_run.items())
        advice = "Give folders of one run, or report them one at a time"
        raise RunDataError(f"these are different runs: {named}. {advice}")


def _complete(
    run: Json, folders: Sequence[Path], master_folder: Path | None, *, closed: bool
) -> Json:
    """Every key of run.json with its type, and what follows from the files."""
    record = RunJson.model_validate(run)
    run_id = run["run_id"] if isinstance(run.get("run_id"), str) else folders[0].resolve().name
    if not _RUN_ID.fullmatch(run_id):
        raise RunDataError(f"{folders[0]}: run_id {run_id!r} cannot name a report folder")
    tokens = record.engine_tokens
    return {
        **record.model_dump(),
        **{key: getattr(record, key) for key in ("workers", "not_leased", "master_stalled")},
        "run_id": run_id,
        "master_folder": master_folder,  # with run.json
        "rebuilt": master_folder is None,
        "closed": closed,  # the master's record is final
        "engine_tokens": {**tokens.model_dump(), "engine": plain(tokens.engine, 40)}
        if tokens
        else {},
        "conservation": record.conservation if closed else {},
        "planned": whole(record.conservation.get("scheduled"))
        if record.arrival in PLANNED
        else None,
        "preflight": [{"ended": "unknown", **entry} for entry in record.preflight],
    }


def entries(
    by_master: Sequence[Any], by_worker: Sequence[Json], *, master_ended: bool
) -> list[Json]:
    """One entry per worker, by number."""
    listed = {number: w for w in by_master if (number := _number(w)) is not None}
    records: dict[int, Json] = {}
    for record in by_worker:
        number = _number(record)
        if number is not None and not _has_ended(records.get(number, {})):
            records[number] = record
    join = _of_lost if master_ended else _of_orphan
    end = max(
        records, default=-1
    )  # a worker below it was there too, whether or not its folder is given
    unlisted = range(end) if not listed and end < MOST else ()
    numbers = sorted(listed if master_ended else {*listed, *records, *unlisted})
    entries = (
        (number, join(listed.get(number, {}), records.get(number, {}))) for number in numbers
    )
    return [_complete_entry({**entry, "worker": number}) for number, entry in entries]


def _number(entry: Any) -> int | None:
    return whole(entry.get("worker")) if isinstance(entry, dict) else None


def _has_ended(record: Json) -> bool:
    return record.get("state") in ENDED


def _of_lost(entry: Json, record: Json) -> Json:
    """The master's entry; of a worker that it lost, with the final values of the worker's record."""
    if entry.get("state") != "lost" or not _has_ended(record):
        return entry
    clock = (
        {"clock": record["clock"]} if table(record, "clock").get("offset_ns") is not None else {}
    )
    final = {key: record[key] for key in _FINAL if key in record}
    return {**entry, **final, **clock, "recorded_state": record["state"]}


def _of_orphan(entry: Json, record: Json) -> Json:
    """The entry of a master that died, without counts, overridden by the worker's record."""
    facts = {key: value for key, value in entry.items() if key not in _COUNTED}
    recorded = (
        record if _has_ended(record) else {k: v for k, v in record.items() if k not in _COUNTED}
    )
    return {**facts, **recorded, "recorded_state": record.get("state", "")}


def _complete_entry(entry: Json) -> Json:
    """Every key with its type, those of the clock among them."""
    record = WorkerJson.model_validate(entry)
    leased = record.leased if "leased" in entry else whole(record.counts.get("leased"))
    return {
        **record.model_dump(exclude={"clock"}),
        **record.clock.model_dump(),
        "missing": record.missing,
        "silent": record.silent,
        "leased": leased,
        "recorded_state": text(entry.get("recorded_state")),
    }
