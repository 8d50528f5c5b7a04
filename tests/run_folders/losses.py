"""Synthetic runs of which a part was lost: as the master, or the workers, leave them behind.

Rule: the run is written whole first; then what was never transferred is moved into the worker's own folder, and run.json says
what a master says that has only the rest.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
from run_folders.run_data import RunData, edited_run

TABLES = ("requests", "attempts", "chunks", "health")


def lose(
    master_folder: Path, worker: int, parts: tuple[int, ...], spool: Path, *, ended: bool = False
) -> tuple[int, float, float]:
    """Worker `worker` was lost before these parts were transferred; they lie in `spool`, with its record. `ended`: by itself.

    Returns how many requests the master counts as lost, and from when to when they were due, in s.
    """
    facts = RunData(master_folder).facts
    started = facts["start_at_ns"]
    offset = facts["workers"][worker]["clock"]["offset_ns"]
    gone = [pq.read_table(master_folder / "requests" / f"part-{worker}-{n}.parquet") for n in parts]
    at_s = [
        (at + offset - started) / 1e9 for one in gone for at in one["scheduled_at_ns"].to_pylist()
    ]
    for table in TABLES:
        (spool / table).mkdir(parents=True, exist_ok=True)
        for n in parts:
            part = master_folder / table / f"part-{worker}-{n}.parquet"
            if part.exists():
                shutil.move(part, spool / table / part.name)
    (spool / "workers").mkdir(exist_ok=True)
    record = master_folder / "workers" / f"{worker}.json"
    written = json.loads(record.read_text())
    if not ended:  # what it wrote at its start
        written |= {
            "state": "running",
            "rows": {"requests": 0},
            "counts": {"leased": 0, "dispatched": 0},
        }
    (spool / "workers" / record.name).write_text(json.dumps(written))
    record.unlink()
    with edited_run(master_folder) as run:
        missing = [{"from_s": min(at_s), "to_s": max(at_s), "requests": len(at_s)}]
        silent = [{"from_s": min(at_s) - 1, "to_s": None}]
        run["workers"][worker] |= {
            "state": "lost",
            "rows": None,
            "missing": missing,
            "silent": silent,
        }
        counted = run["conservation"]
        counted["lost"] += len(at_s)
        counted["dispatched"] -= len(at_s)
        counted["ended"]["ok"] -= len(at_s)
    return len(at_s), min(at_s), max(at_s)


def orphan(master_folder: Path, into: Path) -> list[Path]:
    """The run without its master: a folder for each worker, with its parts and its record."""
    folders = []
    for record in sorted((master_folder / "workers").glob("*.json")):
        spool = into / f"worker-{record.stem}"
        for table in TABLES:
            (spool / table).mkdir(parents=True)
            for part in (master_folder / table).glob(f"part-{record.stem}-*.parquet"):
                shutil.copy(part, spool / table / part.name)
        (spool / "workers").mkdir()
        shutil.copy(record, spool / "workers" / record.name)
        folders.append(spool)
    return folders
