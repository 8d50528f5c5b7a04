"""run.json and workers/<n>.json: what the owner and the workers say of a run.

Rule: only this module opens these files. It gives a plain dict in which every key that the analysis reads exists with
the right type, whatever the files held; what was wrong with them is told as a problem, never raised, except where the
run cannot be read at all. When the owner died, the run is rebuilt from the workers' own records.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailgauge.errors import RunDataError
from tailgauge.records import SCHEMA_VERSION
from tailgauge_analysis.problems import DAMAGED, NOTE, OWNER, Problem
from tailgauge_analysis.wording import plural

Json = dict[str, Any]

STATES = ("running", "complete", "interrupted", "guarded", "failed", "unusable")
WORKER_STATES = ("drained", "lost", "failed", "running")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


def read(folders: Sequence[Path]) -> tuple[Json, list[Problem]]:
    """The run that these folders are parts of; RunDataError where they are not parts of one run."""
    problems: list[Problem] = []
    owners = [
        (folder, tree) for folder in folders if (tree := _load(folder / "run.json", problems)) is not None
    ]
    records = [
        (folder, tree)
        for folder in folders
        for path in sorted((folder / "workers").glob("*.json"))
        if (tree := _load(path, problems)) is not None
    ]
    _same_run([*owners, *((folder, table(tree, "run")) for folder, tree in records)])
    own = [tree for _, tree in records]
    lacks = "damaged" if any((folder / "run.json").exists() for folder in folders) else "missing"
    if owners:
        run = owners[0][1]
        if run.get("state") == "running":  # what the owner last wrote is older than the rows
            stale = [
                {**w, "counts": {}, "leased": None, "rows": {}}
                for w in listing(run, "workers")
                if isinstance(w, dict)
            ]
            run = {**run, "conservation": {}, "workers": _latest(stale, own)}
    elif own:
        run = {**table(own[0], "run"), "state": "interrupted", "workers": own}
        problems.append(
            Problem(
                OWNER,
                f"run.json is {lacks}: rebuilt from the records of {plural(len(own), 'worker')}; others may be missing",
            )
        )
    else:
        run = {}
        problems.append(
            Problem(
                OWNER, f"run.json is {lacks} and workers/ holds no record: nothing says what was scheduled"
            )
        )
    return _normal(run, folders, rebuilt=not owners), problems


def check(folder: Path) -> None:
    """RunDataError unless it is a folder."""
    if not folder.exists():
        raise RunDataError(f"{folder}: no such run folder")
    if not folder.is_dir():
        raise RunDataError(f"{folder}: a file, not a run folder: give the folder that holds run.json")


def hint(folder: Path) -> str:
    """Where the run may be that was meant, as the end of a sentence; empty where none is near."""
    near = sorted(path.parent for path in [*folder.glob("*/run.json"), *folder.glob("runs/*/run.json")])
    if not near:
        return ""
    return (
        f". Did you mean {near[-1]}?"
        if len(near) == 1
        else f". It holds {len(near)} runs; the last is {near[-1]}"
    )


def record_verdict(folder: Path, verdict: Json) -> None:
    """Put the verdict into run.json, if there is one and its owner has finished with it; OSError if it cannot be."""
    path = folder / "run.json"
    tree = _load(path, [])
    if tree is None or tree.get("state") == "running":
        return
    fresh = path.with_name(f"run.json.{os.getpid()}.tmp")
    try:
        fresh.write_text(
            json.dumps({**tree, "verdict": verdict}, indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def table(tree: Any, key: str) -> Json:
    """The table under `key`, empty where there is none."""
    value = tree.get(key) if isinstance(tree, dict) else None
    return value if isinstance(value, dict) else {}


def listing(tree: Json, key: str) -> list[Any]:
    """The list under `key`, empty where there is none."""
    value = tree.get(key)
    return value if isinstance(value, list) else []


def whole(value: Any) -> int | None:
    """The whole number of 64 bits that `value` is, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def _load(path: Path, problems: list[Problem]) -> Json | None:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problems.append(Problem(DAMAGED, f"{path.name} cannot be read: {error}"))
        return None
    if not isinstance(tree, dict):
        problems.append(Problem(DAMAGED, f"{path.name} is not a table"))
        return None
    version = whole(tree.get("schema_version"))
    if version is not None and version > SCHEMA_VERSION:
        raise RunDataError(
            f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, the newest that this tailgauge reads"
        )
    return tree


def _same_run(trees: Sequence[tuple[Path, Json]]) -> None:
    seen: dict[str, Path] = {}
    for folder, tree in trees:
        if isinstance(tree.get("run_id"), str):
            seen.setdefault(tree["run_id"], folder)
    if len(seen) > 1:
        named = " and ".join(f"{run_id} ({folder})" for run_id, folder in seen.items())
        raise RunDataError(
            f"these are different runs: {named}. Give folders of one run, or report them one at a time"
        )


def _latest(by_owner: Sequence[Json], own: Sequence[Json]) -> list[Json]:
    """Worker entries, each worker's own record before what the owner last heard."""
    entries = {whole(w.get("worker")): w for w in by_owner}
    return list({**entries, **{whole(w.get("worker")): w for w in own}}.values())


def _normal(run: Json, folders: Sequence[Path], rebuilt: bool) -> Json:
    run_id = run.get("run_id") if isinstance(run.get("run_id"), str) else folders[0].resolve().name
    if not _RUN_ID.fullmatch(str(run_id)):
        raise RunDataError(f"{folders[0]}: run_id {run_id!r} cannot name a report folder")
    state = run.get("state") if run.get("state") in STATES else "interrupted"
    return {
        "schema_version": whole(run.get("schema_version")),
        "run_id": run_id,
        "rebuilt": rebuilt,
        "state": state,
        "scenario": table(run, "scenario"),
        "scenario_file": text(run.get("scenario_file")),
        "overrides": [item for item in listing(run, "overrides") if isinstance(item, str)],
        "started_at": text(run.get("started_at")),
        "start_at_ns": whole(run.get("start_at_ns")),
        "admission_end_at_ns": whole(run.get("admission_end_at_ns")),
        "ended_at_ns": whole(run.get("ended_at_ns")),
        "seed": whole(run.get("seed")),
        "arrival": text(run.get("arrival")),
        "virtual": run.get("virtual") is True,
        "trace": table(run, "trace"),
        "estimate": table(run, "estimate"),
        "target": _facts(table(run, "target")),
        "second_target": _facts(table(run, "second_target")),
        "versions": _facts(table(run, "versions")),
        "owner": _facts(table(run, "owner")),
        "certificate": table(run, "certificate"),
        "workers": [
            _worker(w)
            for w in listing(run, "workers")
            if isinstance(w, dict) and whole(w.get("worker")) is not None
        ],
        "conservation": table(run, "conservation"),
        "notes": [note for note in listing(run, "notes") if isinstance(note, str)],
        "preflight": [
            {"ended": "unknown", **_facts(entry)}
            for entry in listing(run, "preflight")
            if isinstance(entry, dict)
        ],
    }


def _worker(entry: Json) -> Json:
    clock = table(entry, "clock")
    return {
        "worker": entry["worker"],
        "name": text(entry.get("name")),
        "host": text(entry.get("host")),
        "pid": whole(entry.get("pid")),
        "state": entry.get("state") if entry.get("state") in WORKER_STATES else "unknown",
        "offset_ns": whole(clock.get("offset_ns")),
        "error_ns": whole(clock.get("error_ns")),
        "stamps": text(entry.get("stamps")),
        "why": text(entry.get("why")),
        "leased": whole(entry.get("leased"))
        if "leased" in entry
        else whole(table(entry, "counts").get("leased")),
        "counts": table(entry, "counts"),
        "rows": {name: n for name, value in table(entry, "rows").items() if (n := whole(value)) is not None},
    }


def _facts(tree: Json) -> Json:
    """The entries that are text or a whole number; what is not known is left out."""
    return {str(key): value for key, value in tree.items() if isinstance(value, str | int)}


def text(value: Any) -> str:
    """The text that `value` is, empty where it is none."""
    return value if isinstance(value, str) else ""


def notes_of(run: Json) -> list[Problem]:
    """What the owner itself noted."""
    return [Problem(NOTE, note) for note in run["notes"]]
