"""The run that some folders are parts of, from the JSON files run.json and workers/<n>.json; its rows are read in frames.py.

The result is a plain dict in which every key has its type (run_json.py), whatever the files held. A file that cannot be read is a
`Problem`, a sentence that names it; the checks decide what it means. An error is raised only for a newer schema version, and
where there is no run to read, or several.

Of a worker, the master's entry counts while the master lives; of a worker that the master lost, its own last record, if
there is one; of a run whose master died, the workers' records. A record that still says `running` was written at the start,
so its counts are ignored. A report writes its verdict into run.json here.
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
        advice = nearest(folder.name, siblings) or ": `tailgauge runs` lists them"
        raise RunDataError(f"{folder}: no such run folder{advice}")
    if problem != FOLDER:
        kind = problem or "a file"
        advice = "give the folder that holds run.json"
        raise RunDataError(f"{folder}: {kind}, not a run folder: {advice}")
    if not any((folder / name).exists() for name in ("run.json", "workers", *tables)):
        records = tables[0] if tables else "workers"
        problem = f"not a run folder: it holds neither run.json nor {records}/"
        raise RunDataError(f"{folder}: {problem}{_hint(folder)}")


def _hint(folder: Path) -> str:
    """Return where the run may be that was meant, as the end of a sentence; empty where none is near."""
    run_dirs: set[Path] = set()
    for pattern in ("*/run.json", "*/workers", "runs/*/run.json", "runs/*/workers"):
        run_dirs.update(path.parent for path in folder.glob(pattern))
    if not run_dirs:
        return ": `tailgauge runs` lists the run folders"
    newest = max(run_dirs)
    if len(run_dirs) > 1:
        return f". It holds {len(run_dirs)} runs; the last is {newest}"
    return f". Did you mean {newest}?"


def record_verdict(folder: Path, verdict: Json) -> None:
    """Put the verdict into run.json, if there is one and its master has finished with it; OSError if it cannot be."""
    path = folder / "run.json"
    tree = load(path, [])
    if tree is None or tree.get("state") == "running":
        return
    write_json(path, {**tree, "verdict": verdict})


def load(path: Path, problems: list[Problem]) -> Json | None:
    """Return the table that a JSON file holds, or None; then `problems` has the reason, unless the file is simply not there.

    RunDataError for a newer schema version.
    """
    try:
        tree = json_tree(read_text(path, LARGEST_JSON), _null)
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
    """Return the files in a folder, sorted; none, with a problem unless it is simply not there, where they cannot be listed.

    `Path.glob` takes a folder that may not be read for an empty one.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno in OF_THE_PROCESS:
            raise
        # No statistic rests on the endpoint's log.
        kind = NOTE if folder.name == "target" else DAMAGED
        problems.append(
            Problem(kind, f"{folder.name}/ cannot be read and is left out: {error.strerror}")
        )
        return []


def check_version(path: Path, version: int) -> None:
    """RunDataError where the schema of a file is newer than ours."""
    if version > SCHEMA_VERSION:
        newest = f"{SCHEMA_VERSION}, the newest that this tailgauge reads"
        raise RunDataError(f"{path}: schema version {version} is newer than {newest}")


def _null(_: str) -> None:
    """Take null for a number that JSON does not have, as NaN."""


def _named(path: Path) -> str:
    if path.parent.name == "workers":
        return f"workers/{path.name}"
    return path.name


# --- the run ------------------------------------------------------------------------------------------------------

# Arrivals whose number is in the plan, not in what the workers did.
PLANNED = ("open", "partly open")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
ENDED = ("drained", "failed")  # final states of a worker's own record
MOST = 10_000  # workers of a run
_COUNTED = ("counts", "leased", "rows")  # true only at the time of writing
_FINAL = ("rows", "counts", "unwritten", "why", "stamps", "reader", "priority", "task_errors")
_Found = list[tuple[Path, Json]]


def read(folders: Sequence[Path], look: Json | None = None) -> tuple[Json, list[Problem]]:
    """Return the run that these folders are parts of, with every key of run.json, and the problems with its files.

    RunDataError if they are parts of several runs, or if the run goes on; with `look`, values that replace those of run.json, it
    may. Where the master's record is missing the run is rebuilt from those of its workers.
    """
    problems: list[Problem] = []
    masters: _Found = []
    records: _Found = []
    for folder in folders:
        _load(folder, folder / "run.json", masters, problems)
    for folder in folders:
        for path in files_in(folder / "workers", problems):
            if path.suffix == ".json":
                _load(folder, path, records, problems)
    _same_run([*masters, *((folder, table(tree, "run")) for folder, tree in records)])
    by_worker = [tree for _, tree in records]
    if look is None:
        _check_ended(masters)
    master_folder = None
    run: Json = {}
    if masters:
        master_folder, run = masters[0]
    elif by_worker:
        run = _rebuilt(by_worker)
    # The last run.json of a master that is still running, or died, is older than the rows.
    is_final = bool(masters) and run.get("state") != "running"
    workers = entries(listing(run, "workers"), by_worker, master_ended=is_final)
    if not masters:
        is_damaged = any((folder / "run.json").exists() for folder in folders)
        state = "damaged" if is_damaged else "missing"
        problems.append(Problem(MASTER, _without_master(state, workers)))
    facts = {**run, **(look or {}), "workers": workers}
    complete = _complete(facts, folders, master_folder, is_final=is_final)
    for note in complete["notes"]:
        problems.append(Problem(NOTE, note))
    return complete, problems


def _check_ended(masters: _Found) -> None:
    """Refuse a run that is still being recorded."""
    for folder, tree in masters:
        if tree.get("state") == "running" and RunFolder(folder).is_recorded:
            problem = "the run is still going on: wait for its end; `tailgauge runs` shows when it is over"
            raise RunDataError(f"{folder}: {problem}")


def _load(folder: Path, path: Path, records: _Found, problems: list[Problem]) -> None:
    """Append the record in a file, with the folder that it is of."""
    tree = load(path, problems)
    if tree is not None:
        records.append((folder, tree))


def _rebuilt(by_worker: Sequence[Json]) -> Json:
    """Return the run as a worker recorded it; a worker that was lost early does not know its start."""
    runs = [table(tree, "run") for tree in by_worker]
    started = [run for run in runs if whole(run.get("start_at_ns")) is not None]
    run = started[0] if started else runs[0]
    return {**run, "state": "interrupted"}


def _without_master(state: str, workers: Sequence[Json]) -> str:
    """Describe a run whose run.json is `state`: damaged or missing."""
    if not workers:
        return f"run.json is {state} and workers/ holds no record: the schedule is unknown"
    names = [str(worker["worker"]) for worker in workers if worker["recorded_state"]]
    origin = f"rebuilt from the records of {plural(len(names), 'worker')} ({listed(names)})"
    rest = "others may be missing, and requests that were not leased to them are unknown"
    return f"run.json is {state}: {origin}; {rest}"


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
    run: Json, folders: Sequence[Path], master_folder: Path | None, *, is_final: bool
) -> Json:
    """Return every key of run.json with its type, and what follows from the files."""
    record = RunJson.model_validate(run)
    run_id = run.get("run_id")
    if not isinstance(run_id, str):
        run_id = folders[0].resolve().name
    if not _RUN_ID.fullmatch(run_id):
        raise RunDataError(f"{folders[0]}: run_id {run_id!r} cannot name a report folder")
    engine_tokens: Json = {}
    if record.engine_tokens:
        engine_tokens = record.engine_tokens.model_dump()
        engine_tokens["engine"] = plain(record.engine_tokens.engine, 40)
    planned = None
    if record.arrival in PLANNED:
        planned = whole(record.conservation.get("scheduled"))
    return {
        **record.model_dump(),
        "workers": record.workers,
        "not_leased": record.not_leased,
        "master_stalled": record.master_stalled,
        "run_id": run_id,
        "master_folder": master_folder,  # with run.json
        "rebuilt": master_folder is None,
        "closed": is_final,  # the master's record is final
        "engine_tokens": engine_tokens,
        "conservation": record.conservation if is_final else {},
        "planned": planned,
        "preflight": [{"ended": "unknown", **entry} for entry in record.preflight],
    }


def entries(
    by_master: Sequence[Any], by_worker: Sequence[Json], *, master_ended: bool
) -> list[Json]:
    """Return one complete entry per worker, by number, from what the master and what the workers themselves recorded.

    Where the master ended, its entry counts, and of workers that it lost their last own record; else the workers' records. Of several
    records of a worker the first final one counts, else the last.
    """
    listed: dict[int, Json] = {}
    for entry in by_master:
        number = _number(entry)
        if number is not None:
            listed[number] = entry
    records: dict[int, Json] = {}
    for record in by_worker:
        number = _number(record)
        if number is not None and not _has_ended(records.get(number, {})):
            records[number] = record
    numbers = set(listed)
    if not master_ended:
        numbers.update(records)
        # A worker below the last one was there too, whether or not its folder is given.
        last_number = max(records, default=-1)
        if not listed and last_number < MOST:
            numbers.update(range(last_number))
    # Both return the entry of one worker from the master's and the worker's.
    join = _of_lost if master_ended else _of_orphan
    complete = []
    for number in sorted(numbers):
        entry = join(listed.get(number, {}), records.get(number, {}))
        complete.append(_complete_entry({**entry, "worker": number}))
    return complete


def _number(entry: Any) -> int | None:
    if not isinstance(entry, dict):
        return None
    return whole(entry.get("worker"))


def _has_ended(record: Json) -> bool:
    return record.get("state") in ENDED


def _of_lost(entry: Json, record: Json) -> Json:
    """Return the master's entry; of a worker that it lost, with the final values of the worker's record."""
    if entry.get("state") != "lost" or not _has_ended(record):
        return entry
    final = {key: record[key] for key in _FINAL if key in record}
    if table(record, "clock").get("offset_ns") is not None:
        final["clock"] = record["clock"]
    return {**entry, **final, "recorded_state": record["state"]}


def _of_orphan(entry: Json, record: Json) -> Json:
    """Return the entry of a master that died, without counts, overridden by the worker's record."""
    recorded = record
    if not _has_ended(record):
        recorded = _without_counts(record)
    return {**_without_counts(entry), **recorded, "recorded_state": record.get("state", "")}


def _without_counts(entry: Json) -> Json:
    return {key: value for key, value in entry.items() if key not in _COUNTED}


def _complete_entry(entry: Json) -> Json:
    """Return every key with its type, those of the clock among them."""
    record = WorkerJson.model_validate(entry)
    if "leased" in entry:
        leased = record.leased
    else:
        leased = whole(record.counts.get("leased"))
    return {
        **record.model_dump(exclude={"clock"}),
        **record.clock.model_dump(),
        "missing": record.missing,
        "silent": record.silent,
        "leased": leased,
        "recorded_state": text(entry.get("recorded_state")),
    }
