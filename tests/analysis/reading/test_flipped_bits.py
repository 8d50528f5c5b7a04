"""Stored rows whose bits flip are noticed: every page of a part carries a checksum, and every reader compares it."""

import secrets

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_folders.dry_runs import dry_run_folder

from tailgauge.master.conservation import request_ids
from tailgauge.rows.parquet import compact, encoding, row_table, write_part
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import TABLES, HealthRow, columns
from tailgauge_analysis.reading import parquet
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.reading.run_record import DAMAGED, NOTE
from tailgauge_analysis.report.report import make

TREE = {
    "arrival": {"rate_per_s": 20},
    "stages": {"duration_s": 5, "warmup_s": 0.5},
    "traffic": {"chat": {"prompt_tokens": 50, "output_tokens": 8, "retry": {"policy": "polite"}}},
    "simulated": {"ttft_ms": 150.0, "ttft_sigma": 0.6, "chunk_gap_ms": 5.0, "limits": {"rpm": 900, "burst": 20}},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A run folder with one part of each table, the chunks in their compacted form."""
    made = RunFolder(dry_run_folder(TREE, tmp_path))
    drawn = np.random.default_rng(3)
    rows = [HealthRow(*map(int, drawn.integers(0, 2**31, 16))) for _ in range(200)]
    write_part(made.part("health", 0, 0), row_table("health", rows))
    compact("chunks", [made.part("chunks", 0, 0)], made.part("chunks", 0, "all"))
    return made


def read(folder, table):
    problems = []
    (part,) = parquet.listed([folder.path], table, problems) or [None]
    rows = (
        parquet.read(part, [column.name for column in columns(table)], problems) if part else None
    )
    return rows, problems


def pages(path):
    """First byte of the first page, and the byte behind the last one."""
    data = path.read_bytes()
    return 4, len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def flip_in_page(path, group=0):
    """A bit near the end of a group's request ids."""
    footer = pq.read_metadata(path)
    names = footer.schema.to_arrow_schema().names
    column = footer.row_group(group).column(names.index("request_id"))
    flip(path, 8 * (column.data_page_offset + column.total_compressed_size - 5))


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_no_flipped_bit_changes_a_row_unnoticed(folder, table, full_size):
    seed, flips = (secrets.randbits(32), 600) if full_size else (16, 60)
    print(f"seed {seed}")
    (path,) = (folder.path / table).glob("*.parquet")
    rows, problems = read(folder, table)
    assert problems == []
    first, last = pages(path)
    bits = np.random.default_rng(seed).integers(first * 8, last * 8, flips)
    noticed = 0
    for bit in map(int, bits):
        flip(path, bit)
        now, problems = read(folder, table)
        noticed += bool(problems)
        assert problems or now.equals(rows), f"bit {bit}"
        flip(path, bit)

    assert noticed > flips / 2
    assert read(folder, table)[0].equals(rows)


@pytest.mark.slow
def test_a_flipped_bit_is_named_with_its_file_and_makes_the_run_invalid(folder, tmp_path):
    path = folder.part("requests", 0, 0)
    table = pq.read_table(path)
    pq.write_table(
        table, path, row_group_size=25, **encoding(table.schema)
    )  # groups of a long run's file
    flip_in_page(path, 1)
    frames = load([folder.path])
    report = make([folder.path], tmp_path)

    [problem] = [one for one in frames.problems if one.kind == DAMAGED]
    assert problem.text == (
        f"requests/part-0-0.parquet 25 of its {table.num_rows} rows cannot be read and are left out: "
        "a page does not match its checksum"
    )
    assert len(frames.requests) == table.num_rows - 25
    assert report.exit_code == 3
    assert "a page does not match its checksum. Check the disk" in report.markdown.read_text()


def test_damage_of_the_endpoints_log_is_a_note(folder):
    (path,) = (folder.path / "target").glob("*.parquet")
    flip_in_page(path)

    kinds = [one.kind for one in load([folder.path]).problems if "checksum" in one.text]
    assert kinds == [NOTE]


@pytest.mark.parametrize("table", TABLES)
def test_parts_without_checksums_still_load(folder, table):
    (path,) = (folder.path / table).glob("*.parquet")
    rows, _ = read(folder, table)
    stored = pq.read_table(path)
    pq.write_table(stored, path, **{**encoding(stored.schema), "write_page_checksum": False})
    now, problems = read(folder, table)

    assert problems == []
    assert now.equals(rows)


def test_neither_compaction_nor_the_count_of_a_lost_worker_believes_a_damaged_part(folder):
    """A compacted file would give the wrong rows a right checksum."""
    path = folder.part("requests", 0, 0)
    assert request_ids(folder, 0)
    flip_in_page(path)

    with pytest.raises(OSError, match="checksum"):
        compact("requests", [path], folder.part("requests", 0, "all"))
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert request_ids(folder, 0) == set()
