"""The recorder: rows come back as they went in, and no row is lost without a word."""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gevent
import pyarrow.parquet as pq
import pytest
from gevent.monkey import get_original
from rows.examples import (
    ATTEMPT,
    FULL_ATTEMPT,
    FULL_REQUEST,
    HEALTH,
    REQUEST,
    WORKER,
    append,
    chunks,
)
from starting.programs import scripts_path

from tailgauge.rows import recorder as recorders
from tailgauge.rows.recorder import Recorder, RecorderError
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import SCHEMA_VERSION, TABLES, columns

pytestmark = pytest.mark.gevent

WRITTEN = ("attempts", "chunks", "health", "requests")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def files(folder: RunFolder) -> list[str]:
    return sorted(
        str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()
    )


def rows(folder: RunFolder, table: str, number: Any = 0) -> list[dict[str, Any]]:
    return pq.read_table(folder.part(table, WORKER, number)).to_pylist()


@pytest.fixture
def recorded(folder: RunFolder) -> RunFolder:
    recorder = Recorder(folder, WORKER)
    recorder.warm_up()
    append(recorder)
    assert recorder.waiting_rows == 8
    recorder.flush(wait=True)
    recorder.close()
    assert recorder.waiting_rows == 0
    assert recorder.written == {"requests": 2, "attempts": 2, "chunks": 3, "health": 1}
    return folder


def test_rows_come_back_as_they_went_in_nulls_included(recorded):
    for table, expected in (
        ("requests", [REQUEST, FULL_REQUEST]),
        ("attempts", [ATTEMPT, FULL_ATTEMPT]),
        ("health", [HEALTH]),
    ):
        for row, given in zip(rows(recorded, table), expected, strict=True):
            assert {name: row[name] for name in asdict(given)} == asdict(given)
            assert row["worker"] == WORKER
    assert rows(recorded, "attempts")[0]["ended"] == "censored"


def test_chunks_come_back_with_their_numbers_and_an_exact_one_has_no_low(recorded):
    names = ("request_id", "leg", "attempt", "chunk_index", "arrived_at_ns", "low_at_ns", "exact", "kind", "read_index")  # fmt: skip
    found = rows(recorded, "chunks")

    assert [tuple(row[name] for name in names) for row in found] == [
        (1, 0, 0, 0, 1, None, True, "text", 0),
        (1, 0, 0, 1, 2, None, True, "thinking", 1),
        (65536, 2, 1, 7, 1, 9, False, "text", 0),
    ]
    assert {(row["lag_ns"], row["chars"]) for row in found} == {(0, 5)}


def test_a_part_says_which_schema_it_has_and_has_its_columns_in_their_order(recorded):
    for table in WRITTEN:
        schema = pq.read_schema(recorded.part(table, WORKER, 0))
        assert schema.names == [column.name for column in columns(table)]
        nullable = [column.name for column in columns(table) if column.nullable]
        assert [field.name for field in schema if field.nullable] == nullable
        assert schema.metadata[b"tailgauge.schema_version"].decode() == str(SCHEMA_VERSION)


# --- parts ------------------------------------------------------------------------------------------------------


def test_a_single_part_stays_as_it_is(recorded):
    assert files(recorded) == [f"{table}/part-3-0.parquet" for table in WRITTEN]


def test_parts_are_folded_into_one_file_a_table_that_names_what_it_stands_for(folder):
    """Nothing is lost or doubled; the chunks of an attempt stand together."""
    recorder = Recorder(folder, WORKER)
    for _ in range(3):
        append(recorder)
        recorder.flush(wait=True)
    recorder.health(HEALTH)
    assert len(files(folder)) == 12
    recorder.close()

    assert files(folder) == [f"{table}/part-3-all.parquet" for table in WRITTEN]
    whole = pq.read_schema(folder.part("chunks", WORKER, "all"))
    replaced = whole.metadata[b"tailgauge.replaces"].decode()
    assert replaced == "part-3-0.parquet,part-3-1.parquet,part-3-2.parquet"
    assert len(rows(folder, "requests", "all")) == 6
    assert len(rows(folder, "health", "all")) == 4
    indices = [row["chunk_index"] for row in rows(folder, "chunks", "all")]
    assert indices == [0, 1] * 3 + [7] * 3
    assert recorder.written == {"requests": 6, "attempts": 6, "chunks": 9, "health": 4}


def test_a_busy_writer_gets_the_next_rows_later_and_does_not_stall_the_hub(folder, monkeypatch):
    write_part = recorders.write_part

    def slow(*arguments: Any) -> None:
        get_original("time", "sleep")(0.2)  # on the pool's thread
        write_part(*arguments)

    monkeypatch.setattr(recorders, "write_part", slow)
    recorder = Recorder(folder, WORKER)
    for _ in range(2):
        recorder.request(REQUEST)
        recorder.flush()
    assert recorder.waiting_rows == 2  # one with the writer
    turns = 0
    while not recorder._writing.ready():
        gevent.sleep(0.01)
        turns += 1
    recorder.close()

    assert turns >= 3
    assert recorder.written["requests"] == 2


def test_a_kill_in_the_middle_of_a_part_leaves_readable_parts_only(command, tmp_path):
    script = Path(__file__).parent / "scripts/killed.py"
    done = command(["python", script, tmp_path, "part"], 30, env=scripts_path())
    counts = dict.fromkeys(TABLES, 0)
    for part in tmp_path.rglob("part-*.parquet"):
        counts[part.parent.name] += pq.read_metadata(part).num_rows

    assert done.returncode == -signal.SIGKILL
    # The tenth part is half.
    assert counts == {"requests": 6, "attempts": 4, "chunks": 6, "health": 2, "target": 0}
    assert len(list(tmp_path.rglob("*.tmp"))) == 1


# --- failures ---------------------------------------------------------------------------------------------------


def assert_it_fails_from_now_on(recorder: Recorder) -> None:
    recorder.flush(wait=True)
    for act in (recorder.check, recorder.check, recorder.close):
        with pytest.raises(RecorderError, match="a part could not be written under "):
            act()


def test_a_part_that_cannot_be_written_is_reported_at_every_check_from_then_on(folder):
    (folder.path / "requests").rmdir()
    (folder.path / "requests").write_text("in the way")
    recorder = Recorder(folder, WORKER)
    append(recorder)
    assert_it_fails_from_now_on(recorder)

    assert recorder.written["requests"] == 0
    assert not any(".tmp" in name for name in files(folder))


def test_rows_that_cannot_be_stored_are_reported_too_and_not_only_a_full_disk(folder):
    recorder = Recorder(folder, WORKER)
    broken = chunks(2)
    broken.chars.pop()
    recorder.chunks(1, 0, 0, 0, broken)
    assert_it_fails_from_now_on(recorder)


def test_half_a_character_from_a_target_costs_no_row(folder):
    recorder = Recorder(folder, WORKER)
    for model in ("a\ud800b", "größe", None):
        recorder.attempt(replace(ATTEMPT, model=model))
    recorder.close()

    assert [row["model"] for row in rows(folder, "attempts")] == [r"a\ud800b", "größe", None]
