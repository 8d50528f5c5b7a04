"""Parts of a worker: the master and the analysis take their rows, or say why not; nothing else happens.

The analysis reads parts that no master has checked.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from worker.part_transfer import ROWS, written

from tailgauge.master.conservation import count_rows, request_ids
from tailgauge.master.part_receiver import PartReceiver
from tailgauge.rows.parquet import checked_rows
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import CLIENT_DROP
from tailgauge_analysis.reading.frames import WANTED
from tailgauge_analysis.reading.parquet import listed, read

FOLDER = RunFolder(Path(tempfile.mkdtemp(prefix="tailgauge-fuzz-")))
atexit.register(shutil.rmtree, FOLDER.path, ignore_errors=True)
WORKER = 3
TABLES = tuple(ROWS)


def corpus() -> list[bytes]:
    FOLDER.create()
    parts = [written(FOLDER, WORKER, table, number) for number, table in enumerate(TABLES)]
    entries = [bytes([number]) + part.read_bytes() for number, part in enumerate(parts)]
    for part in parts:
        part.unlink()
    return entries


def check(data: bytes) -> None:
    """The first byte says as what table the rest comes."""
    table = TABLES[data[0] % len(TABLES)] if data else TABLES[0]
    FOLDER.create()
    path = FOLDER.part(table, WORKER, 0)
    path.write_bytes(data[1:])
    whole = FOLDER.part(table, WORKER, "all")
    try:
        of_analysis(table)
        count_rows(FOLDER, WORKER, CLIENT_DROP)
        request_ids(FOLDER, WORKER)
        of_master(path, table, whole)
    finally:
        path.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)


def of_analysis(table: str) -> None:
    """A part is read, or a problem names it."""
    problems: list[object] = []
    parts = listed([FOLDER.path], table, problems)  # type: ignore[arg-type]
    rows = sum(read(part, WANTED[table], problems).num_rows for part in parts)  # type: ignore[arg-type]
    expected = sum(part.rows for part in parts)
    assert problems or rows == expected > 0 or expected == 0, (
        f"{rows} of {expected} rows, and no problem"
    )


def of_master(path: Path, table: str, whole: Path) -> None:
    """A part that is taken can be folded; or the receiver says why it stays as it is."""
    try:
        rows = checked_rows(path, table)
    except ValueError:
        return
    assert rows > 0
    receiver = PartReceiver(FOLDER)
    second = FOLDER.part(table, WORKER, 1)
    second.write_bytes(path.read_bytes())
    try:
        problems = receiver.fold(WORKER)
        assert whole.exists() != bool(problems), problems
    finally:
        second.unlink(missing_ok=True)
