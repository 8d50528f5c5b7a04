"""A part that lies in two folders counts once, folded or not."""

import shutil

import pytest

from tailgauge.rows.parquet import compact
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.reading.run_record import NOTE
from tailgauge_analysis.verdict.conservation import conservation

TABLES = ("requests", "attempts", "chunks", "health")
N, CHUNKS = 40, 3


@pytest.fixture
def two(write, tmp_path):
    """The master's folder with all parts of two workers, and worker 1's worker_dir with copies of its worker_dir: `master_dir, worker_dir`."""
    master_dir, worker_dir = (
        write(n=N, rate_per_s=10, parts=3, chunks=CHUNKS),
        tmp_path / "worker_dir",
    )
    for table in TABLES:
        (worker_dir / table).mkdir(parents=True)
        for part in (master_dir / table).glob("part-1-*.parquet"):
            shutil.copy(part, worker_dir / table)
    return master_dir, worker_dir


def counts(*folders):
    frames = load(folders)
    c = conservation(frames)
    assert (c.lost, c.broken, c.duplicates, c.missing_rows) == (0, (), 0, 0)
    held = (
        frames.requests["request_id"].nunique(),
        len(frames.requests),
        len(frames.attempts),
        len(frames.chunks),
    )
    assert held == (N, N, N, N * CHUNKS)
    assert frames.health.groupby("worker").size().nunique() == 1
    return frames


def parts(folder, table, worker=1):
    return sorted((folder / table).glob(f"part-{worker}-*.parquet"))


def test_copies_of_the_same_name_count_once(two):
    master_dir, worker_dir = two

    assert set(counts(master_dir, worker_dir).requests["folder"]) == {0}
    assert set(counts(worker_dir, master_dir).requests["folder"]) == {
        0
    }  # master_dir comes first, wherever it is named


@pytest.mark.slow("2")
@pytest.mark.parametrize("folded", [3, 2])
def test_parts_that_the_master_folded_are_not_read_again_from_the_worker_s_folder(two, folded):
    """By the recorder's worker_dir folding: all of the parts that had come, or all but the last."""
    master_dir, worker_dir = two
    for table in TABLES:
        some = parts(master_dir, table)
        for part in some[folded:]:
            part.unlink()
        compact(table, some[:folded], master_dir / table / "part-1-all.parquet")
    frames = counts(master_dir, worker_dir)

    of_1 = frames.requests[frames.requests["worker"] == 1]
    assert of_1["folder"].value_counts().to_dict() == ({0: 20} if folded == 3 else {0: 14, 1: 6})


def test_copies_under_other_names_are_duplicates(two):
    """Tailgauge renames no part. Rows of a renamed copy are reported as duplicates."""
    master_dir, worker_dir = two
    for table in TABLES:
        for number, part in enumerate(parts(worker_dir, table)):
            part.rename(part.with_name(f"part-1-{10 + number}.parquet"))

    found = conservation(load([master_dir, worker_dir]))

    assert found.duplicates == 20
    assert "worker 1 wrote 60 rows of chunks, its parts have 120" in found.broken


@pytest.mark.slow("two")
@pytest.mark.parametrize("name", ["part-1-9.parquet", "part-7-0.parquet"], ids=["one", "two"])
def test_a_request_that_one_or_two_workers_sent_twice_is_still_found(two, name):
    """An id that was handed out twice is a fault of the harness, not a copy."""
    master_dir, worker_dir = two
    folder = master_dir if name == "part-1-9.parquet" else worker_dir
    shutil.copy(parts(folder, "requests")[0], folder / "requests" / name)

    assert conservation(load([master_dir, worker_dir])).duplicates == 7


def test_a_damaged_part_yields_to_its_copy(two):
    master_dir, worker_dir = two
    parts(master_dir, "attempts")[0].write_bytes(b"PAR1")
    frames = counts(master_dir, worker_dir)

    assert [problem.kind for problem in frames.problems] == [NOTE]
    assert "its copy in another one is" in frames.problems[0].text
