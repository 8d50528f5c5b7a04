"""Disks that are full, read-only, gone, hung or slow: the run is informed, no row is doubled, each that is lost is counted."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from starting.programs import scripts_path

from tailgauge_analysis.reading import parquet

ALL = list(range(30))
NONE = {"requests": 0, "attempts": 0, "chunks": 0, "health": 0}


@pytest.fixture(scope="module")
def seen(run_script, tmp_path_factory, request):
    """Where no small disk can be mounted, the cases that need one are not there, and their tests skip."""
    disk = [request.getfixturevalue("small_disk")(1_000_000)] if os.geteuid() == 0 else []
    return run_script("rows/scripts/storage_faults.py", tmp_path_factory.mktemp("runs"), *disk)


@pytest.fixture
def on_small_disk(small_disk, seen):
    """What was seen on the small disk; skips without one."""
    return seen


def test_a_full_disk_is_reported_with_its_space_and_what_to_do(on_small_disk):
    facts = on_small_disk["full_for_good"]

    begin, _, rest = facts["fault"].partition(": ")
    assert begin.startswith("a part could not be written under /")
    assert rest.startswith("no space is left (the file system at /")
    assert re.search(
        r" has 0\.\d of 1 MB free\): free some space there or choose another --out$", rest
    )
    assert facts["end"].endswith("choose another --out; after a retry at the end: rows lost: 21")


def test_what_a_full_disk_did_not_take_is_counted_and_what_it_took_is_whole(on_small_disk):
    facts = on_small_disk["full_for_good"]

    assert facts["numbers"] == ALL[:10]
    assert facts["written"] == NONE | {"health": 10}
    assert facts["before"] == NONE | {"health": 10, "requests": 1}
    assert facts["unwritten"] == NONE | {"health": 20, "requests": 1}
    assert facts["then"] == 21  # no row was given up before the end
    assert facts["left"] == []


def test_a_disk_that_has_room_again_at_the_end_gets_every_row_once_and_in_order(on_small_disk):
    facts = on_small_disk["full_and_recovers"]

    assert facts["then"] == 21  # not before the end: load is on, and the run is over anyway
    assert facts["numbers"] == ALL
    assert (facts["written"], facts["unwritten"]) == (NONE | {"health": 30, "requests": 1}, NONE)
    fault, then = (
        facts[name].partition(" has ") for name in ("fault", "end")
    )  # the free space may change
    assert then[0] == fault[0]
    assert then[2].endswith(
        ": free some space there or choose another --out; after a retry at the end: no rows lost"
    )


def test_without_room_to_compact_the_parts_stay(on_small_disk):
    facts = on_small_disk["no_space_to_compact"]

    assert facts["numbers"] == ALL
    assert (facts["unwritten"], facts["left"]) == (NONE, [])
    assert facts["end"] is None
    (remark,) = facts["remarks"]
    assert remark.startswith(
        "health: the parts could not be compacted; none is lost: no space is left "
    )


def test_a_read_only_disk_is_reported_as_such(on_small_disk):
    facts = on_small_disk["read_only"]

    assert ": the file system is read-only (" in facts["fault"]
    assert facts["fault"].endswith("): mount it for writing or choose another --out")
    assert facts["unwritten"] == NONE | {"health": 10}


def test_a_folder_that_is_gone_is_reported_as_such(seen):
    assert ": the folder is gone (" in seen["gone"]["fault"]
    assert seen["gone"]["unwritten"] == NONE | {"health": 10}


def test_a_disk_that_does_not_answer_stalls_neither_the_hub_nor_the_end(seen):
    facts = seen["hung"]

    assert " is too slow: one part takes more than " in facts["fault"]
    assert facts["turns"] >= 3  # the hub had its turns while the end was waited for
    assert facts["requests"] == 1  # written before
    assert facts["unwritten"] == NONE | {"health": 20}
    assert facts["end"].endswith("rows lost: 20")


def test_a_slow_part_ends_the_run_and_is_not_lost(seen):
    facts = seen["slow"]

    assert " is too slow: one part takes more than " in facts["fault"]
    assert (facts["numbers"], facts["unwritten"]) == (ALL[:20], NONE)


def test_rows_in_memory_are_bounded_those_of_the_writer_included(seen):
    facts = seen["too_many_rows"]

    assert facts["before"] is None
    assert facts["fault"].endswith(": 20 rows wait in memory: choose a faster one (--out)")
    assert (facts["numbers"], facts["unwritten"]) == (ALL[:20], NONE)


def test_a_table_that_cannot_be_stored_keeps_no_other_back(seen):
    facts = seen["one_table_fails"]

    assert (facts["numbers"], facts["unwritten"]) == (ALL[:10], NONE | {"attempts": 1})


def test_finished_parts_are_handed_on_in_their_order_by_the_writer_and_stay_apart(seen):
    expected = [
        [table, f"part-3-{number}.parquet", True, True]
        for number in range(3)
        for table in ("requests", "health")
    ]

    assert seen["handed_on"]["seen"] == expected
    assert seen["handed_on"]["numbers"] == ALL


def test_a_part_that_cannot_be_handed_on_is_reported(seen):
    facts = seen["handing_on_fails"]

    assert "part-3-0.parquet could not be passed on: KeyError" in facts["end"]
    assert (facts["numbers"], facts["unwritten"]) == (ALL[:10], NONE)


def test_the_page_on_the_data_says_what_the_bounds_are_and_a_part_of_all_that_waits_can_be_shipped(
    seen, checkout
):
    page = (checkout / "docs/reference/data-format.md").read_text(encoding="utf-8")
    seconds, rows, chunks, shipped = seen["limits"]

    assert (
        f"takes {seconds:.0f} s for one part, or that falls behind by {rows:,} rows or {chunks:,} chunks"
        in page
    )
    assert 2 * chunks <= shipped


def test_a_kill_while_compacting_loses_and_doubles_nothing(command, tmp_path):
    """One of three parts is removed already, two stand beside the file that replaces them."""
    script = Path(__file__).parent / "scripts/storage_faults.py"

    done = command(["python", script, tmp_path, "kill"], 30, env=scripts_path())

    problems: list[object] = []
    listed = parquet.listed([tmp_path / "killed"], "health", problems)
    assert done.returncode == -9
    assert len(list((tmp_path / "killed/health").iterdir())) == 3
    assert ([part.path.name for part in listed], problems) == (["part-3-all.parquet"], [])
    assert parquet.read(listed[0], ["at_ns"], [])["at_ns"].to_pylist() == ALL
