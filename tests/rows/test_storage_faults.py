"""Disks that are full, read-only, gone, hung or slow: the run is informed, no row is doubled, each that is lost is counted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pyarrow.parquet as pq
import pytest
from gevent.monkey import get_original
from rows.examples import ATTEMPT, REQUEST, WORKER, health
from starting.programs import scripts_path

from tailgauge.rows import parquet as row_parquet
from tailgauge.rows import recorder as recorders
from tailgauge.rows.recorder import Recorder, RecorderError
from tailgauge.rows.run_folder import RunFolder
from tailgauge_analysis.reading import parquet

pytestmark = pytest.mark.gevent

ALL = list(range(30))
NONE = {"requests": 0, "attempts": 0, "chunks": 0, "health": 0}
block_process = get_original("time", "sleep")


def made_in(path: Path) -> RunFolder:
    folder = RunFolder(path / "run")
    folder.create()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return made_in(tmp_path)


@pytest.fixture
def disk(small_disk: Callable[[int], Path]) -> Path:
    return small_disk(1_000_000)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The writer waits with each part until this is empty."""
    write_part = recorders.write_part
    held = [True]

    def wait_and_write(*arguments: Any) -> None:
        while held:
            block_process(0.01)
        write_part(*arguments)

    monkeypatch.setattr(recorders, "write_part", wait_and_write)
    return held


def error_of(act: Callable[[], object]) -> str:
    with pytest.raises(RecorderError) as error:
        act()
    return str(error.value)


def first_fault(recorder: Recorder) -> str:
    with gevent.Timeout(20):
        while True:
            try:
                recorder.check()
            except RecorderError as error:
                return str(error)
            gevent.sleep(0.01)


def numbers(folder: RunFolder) -> list[int]:
    """What is in the folder, in the order of the parts; no half part is left."""
    assert list(folder.path.rglob("*.tmp")) == []
    whole = folder.part("health", WORKER, "all")
    if whole.exists():
        parts = [whole]
    else:
        parts = sorted(
            folder.path.glob("health/part-*.parquet"),
            key=lambda part: int(part.stem.split("-")[2]),
        )
    return [number for part in parts for number in pq.read_table(part)["at_ns"].to_pylist()]


def filled(disk: Path) -> Path:
    """A file that takes all the space of a disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


class Full:
    """A disk that is full after ten rows of thirty, and to the end, or not."""

    def __init__(self, disk: Path, *, recovers: bool) -> None:
        self.folder = made_in(disk)
        self.recorder = recorder = Recorder(self.folder, WORKER)
        health(recorder, 0)
        recorder.flush(wait=True)
        recorder.check()
        ballast = filled(disk)
        health(recorder, 10)
        recorder.request(REQUEST)
        recorder.flush()
        self.fault = first_fault(recorder)
        recorder.flush(wait=True)  # the disk is full until no table is left to try
        assert recorder.unwritten == NONE | {"health": 10, "requests": 1}
        health(recorder, 20)
        if recovers:
            ballast.unlink()
        recorder.flush(wait=True)
        # No row is tried again or given up before the end: load is on, and the run is over anyway.
        assert recorder.waiting_rows == 21
        self.end = error_of(recorder.close)
        ballast.unlink(missing_ok=True)


def test_a_full_disk_is_reported_with_its_space_and_what_to_do_and_what_it_did_not_take_is_counted(
    disk,
):
    full = Full(disk, recovers=False)

    assert re.fullmatch(
        r"a part could not be written under /.*: no space is left \(the file system at /.* "
        r"has 0\.\d of 1 MB free\): free some space there or choose another --out",
        full.fault,
    )
    assert full.end.endswith("choose another --out; after a retry at the end: rows lost: 21")
    assert numbers(full.folder) == ALL[:10]
    assert full.recorder.written == NONE | {"health": 10}
    assert full.recorder.unwritten == NONE | {"health": 20, "requests": 1}


def test_a_disk_that_has_room_again_at_the_end_gets_every_row_once_and_in_order(disk):
    full = Full(disk, recovers=True)

    assert numbers(full.folder) == ALL
    assert full.recorder.written == NONE | {"health": 30, "requests": 1}
    assert full.recorder.unwritten == NONE
    assert full.end.partition(" has ")[0] == full.fault.partition(" has ")[0]
    assert full.end.endswith(
        ": free some space there or choose another --out; after a retry at the end: no rows lost"
    )


def test_without_room_to_compact_the_parts_stay(disk):
    folder = made_in(disk)
    recorder = Recorder(folder, WORKER)
    for number in range(3):
        health(recorder, 10 * number)
        recorder.flush(wait=True)
    ballast = filled(disk)
    recorder.close()
    ballast.unlink()

    assert (numbers(folder), recorder.unwritten) == (ALL, NONE)
    (remark,) = recorder.remarks
    assert remark.startswith(
        "health: the parts could not be compacted; none is lost: no space is left "
    )


def test_a_read_only_disk_is_reported_as_such(disk):
    recorder = Recorder(made_in(disk), WORKER)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    health(recorder, 0)
    recorder.flush()
    fault = first_fault(recorder)
    error_of(recorder.close)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)

    assert ": the file system is read-only (" in fault
    assert fault.endswith("): mount it for writing or choose another --out")
    assert recorder.unwritten == NONE | {"health": 10}


def test_a_folder_that_is_gone_is_reported_as_such(folder):
    recorder = Recorder(folder, WORKER)
    shutil.rmtree(folder.path)
    health(recorder, 0)
    recorder.flush()

    assert ": the folder is gone (" in first_fault(recorder)
    error_of(recorder.close)
    assert recorder.unwritten == NONE | {"health": 10}


def test_a_disk_that_does_not_answer_stalls_neither_the_hub_nor_the_end(folder, monkeypatch):
    """A pipe that nobody reads stands for it: the system call does not come back."""
    monkeypatch.setattr(recorders, "MAX_WRITING_S", 0.3)
    pipe = folder.part("health", WORKER, 0).with_suffix(".tmp")
    os.mkfifo(pipe)
    recorder = Recorder(folder, WORKER)
    health(recorder, 0)
    recorder.request(REQUEST)
    recorder.flush()
    turns = []

    def take_turns() -> None:
        while True:
            gevent.sleep(0.01)
            turns.append(time.monotonic())

    taking_turns = gevent.spawn(take_turns)
    fault = first_fault(recorder)
    health(recorder, 10)
    recorder.flush()
    turns.clear()
    end = error_of(recorder.close)
    taking_turns.kill()

    assert " is too slow: one part takes more than " in fault
    assert len(turns) >= 3, "the hub had its turns while the end was waited for"
    assert pq.read_metadata(folder.part("requests", WORKER, 0)).num_rows == 1  # written before
    assert recorder.unwritten == NONE | {"health": 20}
    assert end.endswith("rows lost: 20")


def test_a_slow_part_ends_the_run_and_is_not_lost(folder, held, monkeypatch):
    """It takes too long and comes in the end."""
    with monkeypatch.context() as patches:
        patches.setattr(recorders, "MAX_WRITING_S", 0.2)
        recorder = Recorder(folder, WORKER)
        health(recorder, 0)
        recorder.flush()
        fault = first_fault(recorder)
        held.clear()
    health(recorder, 10)
    error_of(recorder.close)

    assert " is too slow: one part takes more than " in fault
    assert (numbers(folder), recorder.unwritten) == (ALL[:20], NONE)


def test_rows_in_memory_are_bounded_those_of_the_writer_included(folder, held, monkeypatch):
    """Each kind of row has its own bound."""
    monkeypatch.setattr(recorders, "MAX_WAITING_ROWS", 15)
    recorder = Recorder(folder, WORKER)
    health(recorder, 0)
    recorder.flush()
    gevent.sleep(0.05)
    recorder.check()
    health(recorder, 10)
    fault = error_of(recorder.check)
    held.clear()
    error_of(recorder.close)

    assert fault.endswith(": 20 rows wait in memory: choose a faster one (--out)")
    assert (numbers(folder), recorder.unwritten) == (ALL[:20], NONE)


def test_a_table_that_cannot_be_stored_keeps_no_other_back(folder):
    recorder = Recorder(folder, WORKER)
    recorder.attempt(replace(ATTEMPT, status="none"))
    health(recorder, 0)
    recorder.flush()
    first_fault(recorder)
    error_of(recorder.close)

    assert (numbers(folder), recorder.unwritten) == (ALL[:10], NONE | {"attempts": 1})


def test_finished_parts_are_handed_on_in_their_order_by_the_writer_and_stay_apart(folder):
    handed = []
    main = threading.get_native_id()

    def on_part(table: str, path: Path) -> None:
        assert path.exists()
        assert threading.get_native_id() != main
        handed.append((table, path.name))

    recorder = Recorder(folder, WORKER, on_part, compacts=False)
    for number in range(3):
        health(recorder, 10 * number)
        recorder.request(REQUEST)
        if number < 2:
            recorder.flush(wait=True)
    recorder.close()

    assert handed == [
        (table, f"part-3-{number}.parquet")
        for number in range(3)
        for table in ("requests", "health")
    ]
    assert numbers(folder) == ALL


def test_a_part_that_cannot_be_handed_on_is_reported(folder):
    def on_part(table: str, path: Path) -> None:
        raise KeyError(path.name)

    recorder = Recorder(folder, WORKER, on_part)
    health(recorder, 0)

    assert "part-3-0.parquet could not be passed on: KeyError" in error_of(recorder.close)
    assert (numbers(folder), recorder.unwritten) == (ALL[:10], NONE)


def test_the_page_on_the_data_says_what_the_bounds_are_and_a_part_of_all_that_waits_can_be_shipped(
    checkout,
):
    page = (checkout / "docs/reference/data-format.md").read_text(encoding="utf-8")

    assert (
        f"takes {recorders.MAX_WRITING_S:.0f} s for one part, or that falls behind by "
        f"{recorders.MAX_WAITING_ROWS:,} rows or {recorders.MAX_WAITING_CHUNKS:,} chunks"
    ) in page
    assert 2 * recorders.MAX_WAITING_CHUNKS <= row_parquet.MAX_ROWS


def test_a_kill_while_compacting_loses_and_doubles_nothing(command, tmp_path):
    """One of three parts is removed already, two stand beside the file that replaces them."""
    script = Path(__file__).parent / "scripts/killed.py"
    done = command(["python", script, tmp_path / "run", "compaction"], 30, env=scripts_path())

    problems: list[object] = []
    listed = parquet.listed([tmp_path / "run"], "health", problems)
    assert done.returncode == -9
    assert done.stdout == "False\n", "pandas never enters a worker"
    assert len(list((tmp_path / "run/health").iterdir())) == 3
    assert ([part.path.name for part in listed], problems) == (["part-3-all.parquet"], [])
    assert parquet.read(listed[0], ["at_ns"], [])["at_ns"].to_pylist() == ALL
