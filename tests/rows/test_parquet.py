"""Chunks are stored in few bytes and come back as they were, whatever their times are."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tailgauge.rows import parquet
from tailgauge.rows.schema import CHUNK_KINDS, Chunks, Origin, RequestRow

COLUMNS = ("kind", "arrived_at_ns", "low_at_ns", "lag_ns", "read_index", "chars")
# Quantiles of a real run of 200 streams, 20 ms from chunk to chunk: how far a gap is off, and our own lag.
SHARES = (
    0, 0.002, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93,
    0.95, 0.97, 0.98, 0.99, 0.998, 1,
)  # fmt: skip
OFF_NS = (
    -20000000, -7703562, -5135951, -3660893, -3137395, -2665545, -2066429, -1236611, -51194, -15597, -7274, -3879, -1313,
    -8, 1306, 3881, 7376, 16210, 62603, 1241096, 2075123, 2655573, 3103176, 3559772, 4558458, 7178003, 9542828,
)  # fmt: skip
LAGS_NS = (
    4978, 7770, 9646, 10593, 11276, 12559, 13949, 17021, 25293, 27384, 28951, 30726, 35850, 42186, 64653, 187503, 387216,
    836473, 1561268, 2614551, 3264034, 3878838, 4452766, 4771196, 6214499, 9594556, 33159641,
)  # fmt: skip


def attempt(rng, key, count, wild):
    """Chunks of one attempt, each with a truth of its own; `wild`: times and numbers of which nothing can be foreseen."""
    together = rng.random(count) < (0.4 if wild else 0.002)  # with the chunk before, in one read
    together[:1] = False
    read = np.cumsum(~together) - 1 + rng.integers(0, 3)
    if wild:
        steps = rng.choice([-(10**12), 0, 1, 20_000_000, 2**40], count) + rng.integers(-5, 5, count)
        lags = rng.choice([0, -7, 2**33, 30_000], count)
    else:
        steps, lags = jitter(rng, count)
    arrived = rng.integers(10**14, 2 * 10**14) + np.cumsum(np.where(together, 0, steps))
    first = np.maximum.accumulate(np.where(together, 0, np.arange(count)))
    lags = lags[first] if count else lags
    low = np.where(np.append(together[1:], False), arrived[np.maximum(first - 1, 0)], 0)
    if wild:
        odd = rng.random(count) < 0.3
        low[odd] = rng.integers(1, 2**60, count)[odd]
        lags = np.where(rng.random(count) < 0.1, lags + 1, lags)
        arrived = arrived + (rng.random(count) < 0.1)
    kind = rng.integers(0, 3, count) if wild else np.zeros(count, np.int64)
    return key, {
        "kind": [CHUNK_KINDS[k] for k in kind], "arrived_at_ns": arrived.tolist(), "low_at_ns": [at or None for at in low.tolist()],
        "lag_ns": lags.tolist(), "read_index": read.tolist(), "chars": rng.integers(1, 9 if wild else 6, count).tolist(),
    }  # fmt: skip


def jitter(rng, count):
    """Gaps and lags of 9,600 chunks a second on a busy machine, where each alone is off by milliseconds now and then."""
    return (
        20_000_000 + np.interp(rng.random(count), SHARES, OFF_NS).astype(np.int64),
        np.interp(rng.random(count), SHARES, LAGS_NS).astype(np.int64),
    )


def segment(one, begin, end):
    """Chunks `begin` to `end` of an attempt, as its decoder hands them over."""
    key, rows = one
    some = {name: values[begin:end] for name, values in rows.items()}
    read_at = [at + lag for at, lag in zip(some["arrived_at_ns"], some["lag_ns"], strict=True)]
    return (*key, begin, Chunks(
        bytearray(map(CHUNK_KINDS.index, some["kind"])), array("q", some["arrived_at_ns"]),
        array("q", [at or 0 for at in some["low_at_ns"]]), array("q", read_at), array("i", some["read_index"]),
        array("i", some["chars"]),
    ))  # fmt: skip


def stored(folder: Path, attempts, cuts):
    """Attempts written as parts, each cut into so many pieces, and compacted."""
    pieces = [parquet.Segments() for _ in range(max(cuts))]
    for one, cut in zip(attempts, cuts, strict=True):
        ends = np.linspace(0, len(one[1]["chars"]), cut + 1).astype(int)
        for number in range(cut):
            pieces[number].add(*segment(one, ends[number], ends[number + 1]))
    files = [folder / f"part-0-{number}.parquet" for number in range(len(pieces))]
    for file, segments in zip(files, pieces, strict=True):
        parquet.write_part(file, parquet.chunk_table(segments))
    parquet.compact("chunks", files, folder / "part-0-all.parquet")
    return folder / "part-0-all.parquet"


def by_attempt(rows):
    """Columns of each attempt, in the order in which they stand."""
    found = {}
    for row in rows.to_pylist():
        held = found.setdefault(
            (row["request_id"], row["leg"], row["attempt"]),
            {"chunk_index": []} | {n: [] for n in COLUMNS},
        )
        for name, values in held.items():
            values.append(row[name])
    return found


@pytest.mark.parametrize("seed", range(8))
def test_every_value_comes_back(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "GROUP", (7, 100, 500_000)[seed % 3])
    rng = np.random.default_rng(seed)
    keys = [
        (65536 * int(i) - 65536, leg, number)
        for i in range(9)
        for leg in (0, 3)
        for number in (0, 1)
    ]
    attempts = [
        attempt(rng, key, int(rng.integers(1, 60)), wild=seed < 6)
        for key in rng.permutation(keys).tolist()
    ]

    whole = stored(tmp_path, attempts, rng.integers(1, 5, len(attempts)).tolist())

    with pq.ParquetFile(whole) as file:
        groups = [file.read_row_group(i) for i in range(file.num_row_groups)]
    facts = [group.drop_columns("exact") for group in groups]
    found = {}
    for group in facts:  # an attempt may go on in the next
        for key, columns in by_attempt(group).items():
            for name, values in columns.items():
                found.setdefault(key, {}).setdefault(name, []).extend(values)
    expected = {
        tuple(key): {"chunk_index": list(range(len(rows["chars"])))} | rows
        for key, rows in attempts
    }
    for columns in found.values():  # groups are in order of the parts
        order = np.argsort(columns["chunk_index"])
        columns.update({name: [values[i] for i in order] for name, values in columns.items()})
    assert found == expected
    assert pq.read_table(whole).drop_columns("exact").to_pylist() == [
        row for group in facts for row in group.to_pylist()
    ]
    assert pq.read_table(whole)["exact"].to_pylist() == [
        row["low_at_ns"] is None for group in facts for row in group.to_pylist()
    ]


def even(rng, count):
    """Gaps that are off by 1 ms, as usual as a bell, and lags of some 40 us."""
    lags = np.exp(rng.normal(np.log(40_000), 0.8, count))
    return 20_000_000 + rng.normal(0, 1e6, count).astype(np.int64), lags.astype(np.int64)


@pytest.mark.parametrize("times", [jitter, even])
def test_a_chunk_takes_at_most_eight_bytes(times, tmp_path, monkeypatch, full_size):
    """Streams of 200 chunks, in parts of four seconds; at full size a million chunks."""
    monkeypatch.setitem(globals(), "jitter", times)
    streams = 5000 if full_size else 500
    rng = np.random.default_rng(1)
    attempts = [attempt(rng, (65536 * i, 0, 0), 200, wild=False) for i in range(streams)]

    whole = stored(tmp_path, attempts, [2] * streams)

    assert whole.stat().st_size < 8 * pq.read_metadata(whole).num_rows


def test_a_plain_reader_gets_times_in_every_row_and_whole_numbers(tmp_path):
    one = ((1, 0, 0), {
        "kind": ["text"] * 4, "arrived_at_ns": [100, 130, 130, 135], "low_at_ns": [60, 100, None, None],
        "lag_ns": [5, 6, 6, 4 * 10**9], "read_index": [1, 2, 2, 3], "chars": [1] * 4,
    })  # fmt: skip
    folder = tmp_path / "chunks"
    folder.mkdir()
    stored(folder, [one], [1])

    rows = pd.read_parquet(folder)

    assert rows.groupby(["request_id", "leg", "attempt"]).arrived_at_ns.diff().tolist()[1:] == [
        30,
        0,
        5,
    ]
    assert rows.lag_ns.tolist() == [5, 6, 6, 4 * 10**9]
    assert rows.low_at_ns.tolist() == [60, 100, pd.NA, pd.NA]
    assert {
        name for name, kind in rows.dtypes.items() if not pd.api.types.is_integer_dtype(kind)
    } == {
        "kind",
        "exact",
    }


DATA_FORMAT = Path(__file__).parents[2] / "docs" / "reference" / "data-format.md"


def test_rows_of_two_machines_are_joined_as_the_page_says(tmp_path):
    """Two chunks of the same instant, on clocks that are an hour apart."""
    hour_ns = 3600 * 10**9
    unix_ns = 1_764_400_000 * 10**9
    for worker, clock_ns in enumerate((5 * hour_ns, 4 * hour_ns)):
        origin = Origin(worker, unix_ns - clock_ns)
        request = RequestRow(
            65536 * worker, "steady", "chat", "streaming", None, clock_ns - 9, None, None, "ok", 1, 1, 5, 5, "hello"
        )  # fmt: skip
        chunk = {"kind": ["text"], "arrived_at_ns": [clock_ns], "low_at_ns": [None], "lag_ns": [3], "read_index": [0],
                 "chars": [4]}  # fmt: skip
        segments = parquet.Segments()
        segments.add(*segment(((65536 * worker, 0, 0), chunk), 0, 1))
        tables = {
            "requests": parquet.row_table("requests", [request], origin),
            "chunks": parquet.chunk_table(segments, origin),
        }
        for name, table in tables.items():
            (tmp_path / name).mkdir(exist_ok=True)
            parquet.write_part(tmp_path / name / f"part-{worker}-0.parquet", table)
    page = DATA_FORMAT.read_text(encoding="utf-8").replace("runs/...", str(tmp_path))
    seen = {"pd": pd}

    for code in page.split("```python\n")[1:]:
        exec(code.partition("```")[0], seen)  # noqa: S102 - the page's

    rows = seen["rows"]
    assert rows.worker.tolist() == [0, 1]
    assert rows.arrived.tolist() == [pd.Timestamp(unix_ns, tz="UTC")] * 2
    assert rows.traffic.tolist() == ["chat", "chat"]


def two_parts(folder):
    """Two parts of one chunk each."""
    chunks = Chunks(
        bytearray(1),
        array("q", [1]),
        array("q", [1]),
        array("q", [1]),
        array("i", [1]),
        array("i", [1]),
    )
    files = [folder / f"part-0-{number}.parquet" for number in range(2)]
    for number, file in enumerate(files):
        segments = parquet.Segments()
        segments.add(number, 0, 0, 0, chunks)
        parquet.write_part(file, parquet.chunk_table(segments))
    return files


def test_parts_stay_where_their_rows_cannot_be_flushed_to_the_disk(tmp_path, monkeypatch):
    """Else a power failure could take both the parts and the file that has their rows."""
    files = two_parts(tmp_path)

    def fsync(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        parquet.compact("chunks", files, tmp_path / "part-0-all.parquet")

    assert sorted(tmp_path.iterdir()) == files


def test_a_part_that_cannot_be_removed_after_compaction_is_named(tmp_path, monkeypatch):
    """Its rows are in the compacted part too: whoever reads both would count them twice."""
    files = two_parts(tmp_path)

    def unlink(path, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(
        OSError, match=r"part-0-0.parquet, part-0-1.parquet could not be removed: the same rows"
    ):
        parquet.compact("chunks", files, tmp_path / "part-0-all.parquet")

    assert (tmp_path / "part-0-all.parquet").exists()
