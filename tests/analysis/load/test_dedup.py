"""A row that lies in two folders counts once, under whichever names its parts go."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from tailgauge.rows.parquet import compact
from tailgauge_analysis.load.frames import load
from tailgauge_analysis.load.problems import NOTE
from tailgauge_analysis.verdict.conservation import conservation

TABLES = ("requests", "attempts", "chunks", "health")
N, CHUNKS = 40, 3


@pytest.fixture
def two(write, tmp_path):
    """The master's folder with all parts of two workers, and worker 1's own with copies of its own: `home, own`."""
    home, own = write(n=N, rate_per_s=10, parts=3, chunks=CHUNKS), tmp_path / "own"
    for table in TABLES:
        (own / table).mkdir(parents=True)
        for part in (home / table).glob("part-1-*.parquet"):
            shutil.copy(part, own / table)
    return home, own


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
    home, own = two

    assert set(counts(home, own).requests["folder"]) == {0}
    assert set(counts(own, home).requests["folder"]) == {0}  # home comes first, wherever it is named


@pytest.mark.parametrize("folded", [3, 2])
def test_parts_that_the_master_folded_are_not_read_again_from_the_worker_s_folder(two, folded):
    """By the recorder's own folding: all of the parts that had come, or all but the last."""
    home, own = two
    for table in TABLES:
        some = parts(home, table)
        for part in some[folded:]:
            part.unlink()
        compact(table, some[:folded], home / table / "part-1-all.parquet")
    frames = counts(home, own)

    of_1 = frames.requests[frames.requests["worker"] == 1]
    assert of_1["folder"].value_counts().to_dict() == ({0: 20} if folded == 3 else {0: 14, 1: 6})


def test_the_same_rows_under_other_names_count_once(two):
    """Whoever renamed or joined parts, the rows say what they are; each chunk too, though an answer's lie apart."""
    home, own = two
    for table in TABLES:
        some = parts(own, table)
        rows = [pq.read_table(part) for part in some]
        for part in some:
            part.unlink()
        for number, one in enumerate(rows):
            half = len(one) // 2
            for place, piece in enumerate((one[:half], one[half:])):
                pq.write_table(piece, own / table / f"part-1-{10 + 2 * number + place}.parquet")
    counts(home, own)
    for table in TABLES:
        parts(home, table)[1].unlink()
    frames = counts(home, own)

    assert (frames.requests["folder"] == 1).sum() > 0


def test_chunks_of_one_answer_may_lie_in_both_folders(write, synthetic, tmp_path):
    """The first chunks came home, under another name than the part that has them all."""
    home, own = write(n=2, rate_per_s=10, parts=1, chunks=9, offsets_ns=(0,)), tmp_path / "own"
    columns, _ = synthetic.rows_of(synthetic.Spec(n=2, rate_per_s=10, chunks=9, offsets_ns=(0,)))["chunks"]
    early = np.flatnonzero(columns["chunk_index"] < 4)
    synthetic.write_part(own, "chunks", "part-0-0", columns, np.arange(18), synthetic.START_AT_NS)
    synthetic.write_part(home, "chunks", "part-0-7", columns, early, synthetic.START_AT_NS)
    (home / "chunks" / "part-0-0.parquet").unlink()
    frames = load([home, own])

    assert frames.chunks.sizes.tolist() == [9, 9]
    np.testing.assert_allclose(frames.chunks.gaps_ns(np.array([0, 1])), 10_000_000)
    assert conservation(frames).broken == ()


def test_a_row_that_stands_twice_in_one_folder_is_still_found(two):
    home, own = two
    shutil.copy(parts(home, "requests")[0], home / "requests" / "part-1-9.parquet")

    assert conservation(load([home, own])).duplicates == 7


def test_a_request_that_two_workers_sent_is_still_found(two):
    """An id that was handed out twice is a fault of the harness, not a copy."""
    home, own = two
    shutil.copy(parts(own, "requests")[0], own / "requests" / "part-7-0.parquet")

    assert conservation(load([home, own])).duplicates == 7


def test_a_damaged_part_gives_way_to_its_copy(two):
    home, own = two
    parts(home, "attempts")[0].write_bytes(b"PAR1")
    frames = counts(home, own)

    assert [problem.kind for problem in frames.problems] == [NOTE]
    assert "its copy in another one is" in frames.problems[0].text
