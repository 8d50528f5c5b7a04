"""Parts that came whole: their footers, the master's disk, and how they become one part per table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from worker.part_transfer import files, given_to, pieces, written

from tailgauge.master import part_receiver
from tailgauge.master.part_receiver import PartReceiver
from tailgauge.rows import parquet
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import RECORDED, SCHEMA_VERSION
from tailgauge_analysis.reading.parquet import listed

WORKER = 3
MARK = b"tailgauge.schema_version"


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("worker"))
    folder.create()
    return {n: written(folder, WORKER, "health", n).read_bytes() for n in range(12)}


@pytest.fixture
def master(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "one")
    folder.create()
    return folder


# --- footers ----------------------------------------------------------------------------------------------------


def stored(table: pa.Table, **how) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **how)
    return sink.getvalue().to_pybytes()


def health(spool, rows: int = 3) -> pa.Table:
    table = pq.read_table(pa.BufferReader(spool[0]))
    return pa.concat_tables([table] * rows).combine_chunks()


FOOTERS = {
    "another table": (
        lambda t: stored(t.drop_columns("at_ns")), "its columns are not those of health"),
    "a column more": (
        lambda t: stored(t.append_column("x", t["at_ns"])), "its columns are not those of health"),
    "another order": (
        lambda t: stored(t.select(t.column_names[::-1]).replace_schema_metadata(t.schema.metadata)),
        "its columns are not those of health"),
    "another type": (
        lambda t: stored(t.set_column(1, "in_flight", t["in_flight"].cast(pa.int64()))), "its columns are not those of health"),
    "no version": (
        lambda t: stored(t.replace_schema_metadata(None)), f"its schema version is not {SCHEMA_VERSION}"),
    "a newer version": (
        lambda t: stored(t.replace_schema_metadata({MARK: str(SCHEMA_VERSION + 1).encode()})),
        f"its schema version is not {SCHEMA_VERSION}"),
    "no rows": (
        lambda t: stored(t.slice(0, 0)), "no rows, too many rows, or a contradictory footer"),
    "a row group beyond what is written": (
        stored, "it has an impossible row group"),
    "too many rows": (
        lambda t: stored(t, row_group_size=2), "no rows, too many rows, or a contradictory footer"),
    "text": (
        lambda _: b"hello", "it is not a Parquet file, or has an enormous footer"),
    "a file cut short": (
        lambda t: stored(t)[:-9], "it is not a Parquet file, or has an enormous footer"),
    "a footer of a gigabyte": (
        lambda t: stored(t)[:-8] + (2**30).to_bytes(4, "little") + b"PAR1", "it is not a Parquet file, or has an enormous footer"),
    "a footer of nonsense": (
        lambda t: stored(t)[:-900] + b"\x99" * 892 + stored(t)[-8:], "its footer cannot be read"),
    "a footer longer than the file": (
        lambda _: b"PAR1" * 4 + (5000).to_bytes(4, "little") + b"PAR1", "its footer cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOOTERS)
def test_a_file_that_is_not_a_part_is_refused_although_its_checksum_is_right(
    case, master, spool, monkeypatch
):
    made, why = FOOTERS[case]
    data = made(health(spool))
    monkeypatch.setattr(parquet, "GROUP", 5)
    if case == "too many rows":
        monkeypatch.setattr(parquet, "MAX_ROWS", 8)

    answer = given_to(PartReceiver(master), pieces(data))[-1]

    assert (answer["state"], answer["why"]) == ("refused", why)
    assert files(master.path) == {}


@pytest.mark.parametrize("table", RECORDED)
def test_a_part_of_each_table_is_taken(table, master, tmp_path):
    path, target = tmp_path / "part", parquet.schema(table)
    least = {pa.string(): "text", pa.bool_(): False}
    row = [pa.array([None if f.nullable else least.get(f.type, 0)], f.type) for f in target]
    parquet.write_part(path, pa.Table.from_arrays(row, schema=target))

    answers = given_to(PartReceiver(master), pieces(path.read_bytes(), table=table))

    assert [a["state"] for a in answers] == ["done"]


# --- disk -------------------------------------------------------------------------------------------------------


def test_a_part_for_which_there_is_no_room_is_refused_before_it_is_begun(master, spool):
    free = shutil.disk_usage(master.path).free

    [answer] = given_to(PartReceiver(master, reserve=2 * free), pieces(spool[0]))

    assert answer["state"] == "refused"
    assert answer["why"].startswith("the master's disk is full: the file system at ")
    assert files(master.path) == {}


@pytest.mark.parametrize("reports", [True, False])
def test_a_disk_that_fills_up_in_mid_part_leaves_the_whole_parts_and_takes_the_next_when_there_is_room(
    reports, small_disk, spool, monkeypatch
):
    """Whether the file system says beforehand that it is full, or only when it is written to."""
    disk = small_disk(1_000_000)
    folder = RunFolder(disk / "one")
    folder.create()
    inbox, messages = PartReceiver(folder, reserve=0), pieces(spool[0], size=3000)
    given_to(inbox, messages)
    other = pieces(spool[1], "part-3-1.parquet", size=3000)
    inbox.take(WORKER, other[0])
    with pytest.raises(OSError, match="No space left"):
        (disk / "ballast").write_bytes(bytes(2_000_000))
    if not reports:
        monkeypatch.setattr(part_receiver, "free_space", lambda _: None)

    answer = inbox.take(WORKER, other[1])

    begin = (
        "the master's disk is full: "
        if reports
        else "the master cannot write it: no space is left ("
    )
    assert answer["state"] == "refused"
    assert answer["why"].startswith(f"{begin}the file system at /")
    assert sorted(files(folder.path)) == ["health/part-3-0.parquet"]
    (disk / "ballast").unlink()
    assert given_to(inbox, other)[-1]["state"] == "done"


def test_what_the_master_itself_has_to_write_keeps_its_room(small_disk, spool):
    """In mid part too: several workers may have begun parts for which there was room once."""
    disk = small_disk(1_000_000)
    folder = RunFolder(disk / "one")
    folder.create()
    inbox, messages = PartReceiver(folder, reserve=500_000), pieces(spool[0], size=3000)
    inbox.take(WORKER, messages[0])
    (disk / "ballast").write_bytes(bytes(500_000))

    answer = inbox.take(WORKER, messages[1])

    assert answer["why"].startswith("the master's disk is full: ")
    assert files(folder.path) == {}


# --- folding ----------------------------------------------------------------------------------------------------


def came(master, spool, count: int = 4) -> PartReceiver:
    inbox = PartReceiver(master)
    for n in range(count):
        assert given_to(inbox, pieces(spool[n], f"part-3-{n}.parquet"))[-1]["state"] == "done"
    return inbox


def test_what_came_is_folded_into_one_part_a_table_in_the_order_written(master, spool):
    inbox = came(master, spool, 12)  # part 10 stands after part 9, not after part 1

    assert inbox.fold(WORKER) == []

    assert list(files(master.path)) == ["health/part-3-all.parquet"]
    whole = pq.read_table(master.part("health", WORKER, "all"))
    assert whole["at_ns"].to_pylist() == [1000 * n + i for n in range(12) for i in range(3)]
    assert (
        whole.schema.metadata[b"tailgauge.replaces"].decode().split(",")[10] == "part-3-10.parquet"
    )


def test_folding_twice_changes_nothing_and_late_pieces_of_that_worker_are_refused(master, spool):
    inbox = came(master, spool)
    inbox.take(WORKER, pieces(spool[9], "part-3-9.parquet", size=3000)[0])
    inbox.fold(WORKER)
    before = files(master.path)

    assert inbox.fold(WORKER) == []
    late = [given_to(inbox, pieces(spool[n], f"part-3-{n}.parquet"))[0] for n in (0, 5)]

    assert [a["state"] for a in late] == ["done", "refused"]
    assert late[1]["why"] == "the rows of this worker are already folded"
    assert files(master.path) == before
    assert sorted(before) == ["health/part-3-all.parquet"]  # what was begun and never ended is gone
    assert inbox.rows[WORKER]["health"] == 12


def test_nothing_is_taken_once_the_rows_are_counted(master, spool):
    """Whoever it comes from: a worker without a part so far, one with a part that was begun, and one whose parts are folded."""
    inbox = came(master, spool)
    inbox.take(7, pieces(spool[9], "part-7-9.parquet", size=3000)[0])
    inbox.fold(WORKER)
    inbox.close()
    before = files(master.path)

    late = [
        inbox.take(worker, message)
        for worker in (WORKER, 7, 8)
        for message in pieces(spool[5], f"part-{worker}-5.parquet")
    ]

    assert {(answer["state"], answer["why"]) for answer in late} == {
        ("refused", "the run has ended, and its rows are counted")
    }
    assert sorted(files(master.path)) == sorted(before) == ["health/part-3-all.parquet"]


def test_a_single_part_stays_as_it_is_and_other_workers_are_not_touched(master, spool):
    inbox = came(master, spool, 1)
    given_to(inbox, pieces(spool[0], "part-31-0.parquet"), 31)

    inbox.fold(WORKER)

    assert sorted(files(master.path)) == ["health/part-3-0.parquet", "health/part-31-0.parquet"]


def test_parts_that_cannot_be_folded_stay_and_are_reported(master, spool):
    inbox = came(master, spool)
    damaged = bytearray(spool[1])
    damaged[4:2000] = bytes(1996)  # its pages; the footer stands
    master.part("health", WORKER, 1).write_bytes(damaged)

    [facts] = inbox.fold(WORKER)

    assert facts.startswith("health of worker 3: 4 parts were not folded: ")
    assert sorted(files(master.path)) == [f"health/part-3-{n}.parquet" for n in range(4)]


def test_a_kill_while_folding_loses_and_doubles_nothing(master, spool, monkeypatch):
    """As after a kill when one part is removed, and three stand beside the file that replaces all four."""
    inbox, original = came(master, spool), Path.unlink

    def cut(path: Path) -> None:
        if path.name != "part-3-0.parquet":
            raise OSError(5, "killed here")
        original(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", cut)
        inbox.fold(WORKER)
    assert sorted(files(master.path)) == [f"health/part-3-{n}.parquet" for n in (1, 2, 3, "all")]

    PartReceiver(master).fold(WORKER)

    problems: list[object] = []
    [whole] = listed([master.path], "health", problems)
    assert (whole.path.name, whole.rows, problems) == ("part-3-all.parquet", 12, [])
