"""The recorder: rows come back as they went in, and no row is lost without a word. See scripts/recorder.py."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from starting.programs import scripts_path

from tailgauge.rows.schema import SCHEMA_VERSION, TABLES, columns


@pytest.fixture(scope="module")
def seen(run_script, tmp_path_factory):
    return run_script("rows/scripts/recorder.py", tmp_path_factory.mktemp("runs"))


def test_rows_come_back_as_they_went_in_nulls_included(seen):
    tables = seen["round_trip"]["tables"]
    dropped, full = tables["requests"]

    assert [dropped[k] for k in ("request_id", "session_id", "dispatched_at_ns", "ended_at_ns", "ended")] == [
        1, None, None, None, "client_drop",
    ]  # fmt: skip
    assert [full[k] for k in ("request_id", "session_id", "traffic", "scheduled_at_ns", "ended_at_ns")] == [
        -1, 7, "größe", -5, 2**62,
    ]  # fmt: skip
    bare, rich = tables["attempts"]
    assert [bare[k] for k in ("status", "retry_after_s", "connection_is_new", "error_body", "thinking_tokens", "ended")] == [
        None, None, None, None, None, "censored",
    ]  # fmt: skip
    assert [rich[k] for k in ("status", "retry_after_s", "connection_is_new", "error_body", "thinking_tokens")] == [
        200, 1.5, False, "ü\n🙂", 0,
    ]  # fmt: skip
    assert tables["health"][0]["cpu_share"] == 0.5
    assert tables["health"][0]["clock_step_ns"] == -16


def test_chunks_come_back_with_their_numbers_and_an_exact_one_has_no_low(seen):
    chunks = seen["round_trip"]["tables"]["chunks"]

    assert [(c["request_id"], c["leg"], c["attempt"], c["chunk_index"]) for c in chunks] == [
        (1, 0, 0, 0), (1, 0, 0, 1), (65536, 2, 1, 7),
    ]  # fmt: skip
    assert [c["low_at_ns"] for c in chunks] == [None, None, 9]
    assert [c["kind"] for c in chunks] == ["text", "thinking", "text"]
    assert [(c["arrived_at_ns"], c["lag_ns"], c["exact"], c["read_index"], c["chars"]) for c in chunks] == [
        (1, 0, True, 0, 5), (2, 0, True, 1, 5), (1, 0, False, 0, 5),
    ]  # fmt: skip


@pytest.mark.parametrize("table", ["requests", "attempts", "chunks", "health"])
def test_a_part_has_the_columns_of_the_record_in_their_order(seen, table):
    assert list(seen["round_trip"]["tables"][table][0]) == [c.name for c in columns(table)]


def test_a_part_says_which_schema_it_has(seen):
    assert seen["round_trip"]["metadata"]["tailgauge.schema_version"] == str(SCHEMA_VERSION)
    assert seen["round_trip"]["nullable"] == [c.name for c in columns("attempts") if c.nullable][:3]


def test_rows_are_counted_while_they_wait_and_when_they_are_written(seen):
    assert seen["round_trip"]["waiting"] == [8, 0]
    assert seen["round_trip"]["written"] == {"requests": 2, "attempts": 2, "chunks": 3, "health": 1}


def test_pandas_never_enters_a_worker(seen):
    assert not seen["round_trip"]["pandas"]


# --- parts ------------------------------------------------------------------------------------------------------


def test_parts_are_folded_into_one_file_a_table_that_names_what_it_stands_for(seen):
    facts = seen["compaction"]

    assert len(facts["before"]) == 12
    assert facts["after"] == [
        f"{t}/part-3-all.parquet" for t in ("attempts", "chunks", "health", "requests")
    ]
    assert facts["replaces"] == "part-3-0.parquet,part-3-1.parquet,part-3-2.parquet"


def test_folding_loses_and_doubles_nothing(seen):
    facts = seen["compaction"]

    assert (facts["requests"], facts["health"]) == (6, 4)
    assert facts["indices"] == [0, 1] * 3 + [7] * 3  # those of an attempt together
    assert facts["written"] == {"requests": 6, "attempts": 6, "chunks": 9, "health": 4}


def test_a_single_part_stays_as_it_is(seen):
    assert seen["round_trip"]["files"] == [
        f"{t}/part-3-0.parquet" for t in ("attempts", "chunks", "health", "requests")
    ]


def test_a_busy_writer_gets_the_next_rows_later_and_does_not_stall_the_hub(seen):
    facts = seen["busy_writer"]

    assert (facts["waiting"], facts["written"]) == (2, 2)  # one with the writer
    assert facts["turns"] >= 3


def test_a_kill_in_the_middle_of_a_part_leaves_readable_parts_only(command, tmp_path):
    done = command(
        ["python", Path(__file__).parent / "scripts/recorder.py", tmp_path, "kill"],
        30,
        env=scripts_path(),
    )
    parts = sorted((tmp_path / "killed").rglob("part-*.parquet"))
    counts = {
        table: sum(pq.read_metadata(p).num_rows for p in parts if p.parent.name == table)
        for table in TABLES
    }

    assert done.returncode == -signal.SIGKILL
    assert counts == {
        "requests": 6,
        "attempts": 4,
        "chunks": 6,
        "health": 2,
        "target": 0,
    }  # the 10th part is half
    assert len(list((tmp_path / "killed").rglob("*.tmp"))) == 1


# --- failures ---------------------------------------------------------------------------------------------------


def test_a_part_that_cannot_be_written_is_reported_at_every_check_from_then_on(seen):
    facts = seen["folder_gone"]

    assert all("a part could not be written under " in text for text in facts["printed"])
    assert facts["written"]["requests"] == 0
    assert facts["left"] == []


def test_rows_that_cannot_be_stored_are_reported_too_and_not_only_a_full_disk(seen):
    assert len(seen["chunks_that_do_not_fit"]) == 3
    assert all(
        "a part could not be written under " in text for text in seen["chunks_that_do_not_fit"]
    )


def test_half_a_character_from_a_target_costs_no_row(seen):
    assert seen["half_a_character"] == [r"a\ud800b", "größe", None]
