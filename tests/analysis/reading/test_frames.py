"""Loading: clocks, parts, and everything that can be wrong with a run folder."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from analysis.reading.damages import change_parts
from run_folders.run_data import edited_run

from tailgauge.errors import RunDataError
from tailgauge.rows.schema import ORIGIN
from tailgauge_analysis.reading.frames import kinds_of_answers, load, whole
from tailgauge_analysis.reading.run_record import MASTER, UNFINISHED


def kinds(frames):
    return [problem.kind for problem in frames.problems]


@pytest.mark.slow
def test_every_worker_is_mapped_to_the_clock_of_the_run(write):
    frames = load([write(n=40, rate_per_s=10, offsets_ns=(0, 3_600_000_000_000, -77))])

    requests = frames.requests.sort_values("request_id")
    assert requests["scheduled_at_ns"].tolist() == [i * 100_000_000 for i in range(40)]
    assert requests["worker"].tolist() == [i % 3 for i in range(40)]
    assert frames.attempts.sort_values("request_id")["sent_at_ns"].tolist() == [
        i * 100_000_000 + 50_000 for i in range(40)
    ]
    assert frames.health.groupby("worker")["at_ns"].min().tolist() == [10**9] * 3


def test_row_30_an_offset_that_is_known_within_an_error_moves_rows_by_no_more(write):
    """Workers 50 ms ahead and behind, measured with errors: intervals stay exact, times are off by the stated error."""
    folder = write(n=40, rate_per_s=10, offsets_ns=(0, -50_000_000, 50_000_000))
    wrong_by = (0, 90_000, -140_000)
    with edited_run(folder) as run:
        for worker, wrong in zip(run["workers"], wrong_by, strict=True):
            worker["clock"]["offset_ns"] += wrong
            worker["clock"] |= {"error_ns": 150_000, "drift_ppb": 12}
    frames = load([folder])

    rows = frames.attempts.sort_values("request_id").reset_index(drop=True)
    off = rows["scheduled_at_ns"] - rows["request_id"] // 65536 * 100_000_000
    assert off.tolist() == [wrong_by[i % 3] for i in range(40)]
    assert set(rows["first_content_at_ns"] - rows["scheduled_at_ns"]) == {200_000_000}
    assert [w["error_ns"] for w in frames.run["workers"]] == [150_000] * 3


@pytest.mark.parametrize(
    ("table", "dropped"),
    [*((table, ORIGIN) for table in ("requests", "attempts", "chunks")), ("requests", ["slot_wait_ns"])],
)  # fmt: skip
def test_a_folder_from_before_some_columns_is_read(write, table, dropped):
    folder = write(n=40, rate_per_s=10, offsets_ns=(0, 77))
    change_parts(folder, table, lambda rows: rows.drop_columns(list(dropped)))

    rows = whole([folder], table)
    frames = load([folder])

    assert set(rows["worker"]) == {0, 1}
    assert rows["wall_offset_ns"].isna().all() or dropped is not ORIGIN
    assert (len(frames.requests), frames.problems) == (40, ())


def test_the_offset_to_unix_time_holds_on_the_clock_of_the_run(write):
    folder = write(n=40, rate_per_s=10, offsets_ns=(0, 3_600_000_000_000))
    unix_ns = []
    for part in (folder / "requests").glob("*.parquet"):
        rows = pq.read_table(part)
        offsets = pa.array(
            [1_764_400_000 * 10**9 + number for number in range(len(rows))], pa.int64()
        )
        rows = rows.set_column(rows.column_names.index("wall_offset_ns"), "wall_offset_ns", offsets)
        unix_ns += pc.add(rows["scheduled_at_ns"], offsets).to_pylist()
        pq.write_table(rows, part, compression="zstd")

    rows = whole([folder], "requests")

    assert sorted(rows["scheduled_at_ns"] + rows["wall_offset_ns"]) == sorted(unix_ns)


def test_the_server_log_is_reduced_to_the_first_chunk(write):
    frames = load([write(n=10, chunks=3)])

    first = frames.attempts.sort_values("request_id")["first_content_at_ns"]
    log = frames.server_log.sort_values("request_id")
    assert (first.to_numpy() - log["first_chunk_sent_at_ns"].to_numpy()).tolist() == [50_000] * 10
    assert log["chunks_sent"].tolist() == [3] * 10


def test_a_part_without_a_column_is_named_and_left_out(write):
    folder = write(n=10, parts=1)
    change_parts(folder, "attempts", lambda rows: rows.drop_columns(["sent_at_ns"]))
    frames = load([folder])

    assert "column sent_at_ns is missing" in frames.problems[0].text


def test_unfinished_files_are_counted_and_ignored(write):
    folder = write(n=10)
    (folder / "chunks" / "part-0-7.tmp").write_bytes(b"PAR1")
    (folder / "chunks" / "part-0-8.parquet.tmp").write_bytes(b"")
    frames = load([folder])

    assert kinds(frames) == [UNFINISHED] * 2
    assert len(frames.chunks) == 200


def test_parts_that_a_compacted_file_replaces_are_not_read_twice(write, synthetic):
    """As after a crash between compaction and deletion."""
    folder = write(n=20, offsets_ns=(0,))
    columns, _ = synthetic.rows_of(synthetic.Spec(n=20, offsets_ns=(0,)))["requests"]
    names = "part-0-0.parquet,part-0-1.parquet"
    replaces = {"tailgauge.replaces": names}
    synthetic.write_part(
        folder, "requests", "part-0-all", columns, range(20), synthetic.START_AT_NS, replaces
    )
    frames = load([folder])

    assert len(frames.requests) == 20
    assert frames.problems == ()


def test_dictionary_encoded_text_reads_like_plain_text(write):
    folder = write(n=10, parts=1, offsets_ns=(0,))
    part = folder / "requests" / "part-0-0.parquet"
    table = pq.read_table(part)
    i = table.column_names.index("stage")
    pq.write_table(table.set_column(i, "stage", table["stage"].dictionary_encode()), part)

    assert load([folder]).requests["stage"].tolist() == ["warmup"] * 10


def test_local_part_folders_of_one_run_are_merged(write, losing, tmp_path):
    whole = write(n=40)
    merged, one = load(losing.orphan(whole, tmp_path / "apart")), load([whole])

    assert merged.rows == {key: n for key, n in one.rows.items() if key[0] != "target"}
    assert merged.run["run_id"] == one.run["run_id"]
    assert merged.run["rebuilt"]
    assert kinds(merged) == [MASTER]
    np.testing.assert_array_equal(
        merged.requests["scheduled_at_ns"], one.requests["scheduled_at_ns"]
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"workers": 3, "scenario": [], "conservation": null}',
        "\x00",
        '{"workers": [{}]}',
    ],
)
def test_a_damaged_run_json_is_no_traceback(write, text):
    folder = write(n=10)
    (folder / "run.json").write_text(text)

    assert len(load([folder]).requests) == 10


def test_a_run_id_may_not_leave_the_reports_folder(write):
    with pytest.raises(RunDataError, match="cannot name a report folder"):
        load([write(n=10, run_id="../../etc")])


def test_the_answer_of_a_request_is_that_of_its_pattern():
    run = {"patterns": {"echo": {"answer": "join"}}}

    assert kinds_of_answers(run, pd.Series(["echo", "streaming", "echo"])).tolist() == [
        "join",
        "single",
        "join",
    ]
