"""Where every scheduled request went, by the master's books."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailgauge.master.conservation import Share, conserve, count_rows, request_ids
from tailgauge.rows.run_folder import RunFolder


def counts(dispatched=0, client_drop=0, censored=0, **ended):
    return {
        "dispatched": dispatched,
        "client_drop": client_drop,
        "censored": censored,
        "ended": ended,
    }


ZERO = {"dispatched": 0, "client_drop": 0, "not_reached": 0, "lost": 0, "ended": {}, "censored": 0}
# scheduled, shares (number leased, counts, of these lost) -> what differs from zero
BOOKS = {
    "nothing planned": (0, [], {}),
    "nothing handed out": (10, [(0, None)], {"not_reached": 10}),
    "everything well": (10, [(10, counts(10, ok=10))], {"dispatched": 10, "ended": {"ok": 10}}),
    "two workers add up": (
        10, [(6, counts(5, 1, ok=4, empty=1)), (4, counts(3, censored=1, ok=2))],
        {"dispatched": 8, "client_drop": 1, "not_reached": 1, "ended": {"ok": 6, "empty": 1}, "censored": 1},
    ),
    "cut short": (10, [(6, counts(4, ok=4))], {"dispatched": 4, "not_reached": 6, "ended": {"ok": 4}}),
    "a worker lost without a word": (10, [(6, None, 6), (4, counts(4, ok=4))], {"dispatched": 4, "lost": 6, "ended": {"ok": 4}}),
    "a worker lost with rows": (10, [(6, counts(3, 1, ok=3), 2)],
                                {"dispatched": 3, "client_drop": 1, "lost": 2, "not_reached": 4, "ended": {"ok": 3}}),
    "a worker that could not write its last rows": (10, [(10, counts(5, ok=5), 2)],
                                                    {"dispatched": 5, "lost": 2, "not_reached": 3, "ended": {"ok": 5}}),
    "a failed worker did not reach its rest": (5, [(5, counts(2, ok=1, censored=1))],
                                               {"dispatched": 2, "not_reached": 3, "ended": {"ok": 1}, "censored": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("scheduled", "shares", "expected"), BOOKS.values(), ids=BOOKS)
def test_every_scheduled_request_is_in_exactly_one_place(scheduled, shares, expected):
    books = conserve(scheduled, [Share(*share) for share in shares])

    assert books == {**ZERO, "scheduled": scheduled, **expected}
    assert (
        scheduled
        == books["dispatched"] + books["client_drop"] + books["not_reached"] + books["lost"]
    )


# --- rows of a lost worker --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path)
    made.create()
    return made


def put(folder, number, rows, worker=0, **metadata):
    table = pa.table({"stage": [s for s, _ in rows], "ended": [e for _, e in rows]})
    named = {f"tailgauge.{key}": value for key, value in metadata.items()}
    pq.write_table(table.replace_schema_metadata(named), folder.part("requests", worker, number))


def test_a_lost_worker_is_counted_by_the_rows_that_it_left(folder):
    put(folder, 0, [("preflight", "ok"), ("warmup", "ok"), ("steady", "ok")])
    put(folder, 1, [("steady", "timeout"), ("steady", "client_drop"), ("cooldown", "censored")])

    assert count_rows(folder, 0, "client_drop") == counts(4, 1, 1, ok=2, timeout=1)


def test_only_the_lost_workers_own_rows_count(folder):
    put(folder, 0, [("steady", "ok")], worker=1)
    put(folder, 0, [("steady", "ok")] * 5, worker=11)

    assert count_rows(folder, 1, "client_drop") == counts(1, ok=1)


def test_a_worker_that_left_nothing_counts_nothing(folder):
    assert count_rows(folder, 0, "client_drop") == counts()


def test_a_part_that_cannot_be_read_counts_nothing(folder):
    put(folder, 0, [("steady", "ok")])
    folder.part("requests", 0, 1).write_bytes(b"PAR1 and then the disk was full")

    assert count_rows(folder, 0, "client_drop") == counts(1, ok=1)


@pytest.mark.parametrize(
    "columns",
    [{"at_ns": [1]}, {"stage": [7], "ended": ["ok"]}, {"stage": [[1]], "ended": ["ok"]}, {"stage": ["steady"], "ended": [[b"x"]]}],
    ids=["of another table", "numbers", "lists", "lists of bytes"],
)  # fmt: skip
def test_a_part_of_other_columns_counts_nothing_and_ends_no_run(folder, columns):
    put(folder, 0, [("steady", "ok")])
    pq.write_table(pa.table(columns), folder.part("requests", 0, 1))

    assert count_rows(folder, 0, "client_drop")["dispatched"] <= 2
    assert request_ids(folder, 0) == set()


def test_a_note_on_replaced_parts_that_is_no_text_replaces_nothing(folder):
    put(folder, 0, [("steady", "ok")], replaces=b"\xff\xfe")

    assert count_rows(folder, 0, "client_drop") == counts(1, ok=1)


def test_rows_are_counted_once_where_a_kill_left_both_the_parts_and_their_sum(folder):
    put(folder, 0, [("steady", "ok")] * 2)
    put(folder, 1, [("steady", "ok")] * 3)
    put(folder, "all", [("steady", "ok")] * 5, replaces="part-0-0.parquet,part-0-1.parquet")

    assert count_rows(folder, 0, "client_drop") == counts(5, ok=5)
