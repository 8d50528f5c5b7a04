"""Chunks folded while they are read come out as if all had been sorted at once, in whatever order they lie in the parts."""

import numpy as np
import pyarrow as pa
import pytest

from tailgauge_analysis.reading import chunks
from tailgauge_analysis.reading.chunks import Fold

TYPES = {
    "leg": pa.int16(),
    "attempt": pa.int16(),
    "chunk_index": pa.int32(),
    "chars": pa.int32(),
    "kind": pa.string(),
    "exact": pa.bool_(),
}


def rows_of(seed, attempts=40):
    """Rows of attempts of 0 to 30 chunks, in order."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 31, attempts)
    of = np.repeat(np.arange(attempts), sizes)
    arrived = rng.integers(10**9, 10**12, len(of))
    exact = rng.random(len(of)) < 0.7
    low = [
        None if is_exact else int(at - rng.integers(0, 10**9))
        for is_exact, at in zip(exact, arrived, strict=True)
    ]
    return {
        "request_id": of // 4 * 65536, "leg": of // 2 % 2, "attempt": of % 2,
        "chunk_index": np.concatenate([np.arange(n) for n in sizes]), "arrived_at_ns": arrived,
        "kind": rng.choice(["text", "thinking", "tool_json", "other"], len(of)),
        "exact": exact, "low_at_ns": low,
        "lag_ns": rng.integers(-5, 4 * 10**9, len(of)), "chars": rng.integers(0, 9, len(of)),
    }  # fmt: skip


def taken(rows, order):
    return {name: [values[i] for i in order] for name, values in rows.items()}


def folded(rows, pieces=3, shift_ns=0):
    fold = Fold(len(rows["leg"]))
    for some in np.array_split(np.arange(len(rows["leg"])), pieces):
        cells = {
            name: pa.array(v, TYPES.get(name, pa.int64())) for name, v in taken(rows, some).items()
        }
        fold.add(pa.table(cells), shift_ns)
    return fold.chunks()


def by_attempt(rows):
    """Chunks of each attempt in their order: number, arrival, width of its range, characters."""
    found = {}
    for place in np.lexsort((rows["chunk_index"],)):
        key = tuple(int(rows[name][place]) for name in ("request_id", "leg", "attempt"))
        arrived = int(rows["arrived_at_ns"][place])
        low = rows["low_at_ns"][place]
        width = 0 if low is None else arrived - int(low)
        found.setdefault(key, []).append((arrived, width, int(rows["chars"][place])))
    return found


@pytest.fixture(params=["in order", "interleaved", "shuffled", "with holes"])
def rows(request):
    rng = np.random.default_rng(7)
    rows = rows_of(11)
    n = len(rows["leg"])
    order = {
        "in order": np.arange(n),
        "interleaved": np.lexsort((np.arange(n), np.asarray(rows["chunk_index"]) // 5)),
        "shuffled": rng.permutation(n),
        "with holes": np.flatnonzero(rng.random(n) < 0.6),
    }[request.param]
    return taken(rows, order)


def test_the_order_of_the_rows_does_not_matter(rows, monkeypatch):
    """Gaps, and the widths of the ranges at their ends, against the rows sorted by attempt and number."""
    monkeypatch.setattr(chunks, "BLOCK", 50)  # several blocks, as in a large run
    found, expected = folded(rows), by_attempt(rows)
    keys = sorted(expected, reverse=True)
    places = found.places(*np.array(keys).T)
    ranges = found.gap_ranges(places)
    gaps = []
    before = []
    after = []
    for key in keys:
        arrived, widths, _ = zip(*expected[key], strict=True)
        gaps += np.diff(arrived).tolist()
        before += widths[:-1]
        after += widths[1:]
    begin, end = np.zeros((2, len(gaps)))
    np.add.at(begin, ranges.gap[ranges.begins], ranges.ns[ranges.begins])
    np.add.at(end, ranges.gap[~ranges.begins], ranges.ns[~ranges.begins])

    assert len(found) == len(rows["leg"])
    assert found.sizes[places].tolist() == [len(expected[key]) for key in keys]
    assert found.gaps_ns(places).tolist() == gaps
    assert (begin.tolist(), end.tolist()) == (before, after)


def test_sums_are_those_of_the_rows(rows):
    found, expected = folded(rows), by_attempt(rows)
    with_range = np.bincount(found.entries_of_ranges(), minlength=len(expected)).tolist()

    assert found.chars.sum() == sum(rows["chars"])
    assert found.thinking.sum() == rows["kind"].count("thinking")
    keys = zip(found.request_id.tolist(), found.leg.tolist(), found.attempt.tolist(), strict=True)
    for entry, key in enumerate(keys):
        of = expected[key]
        assert with_range[entry] == sum(width > 0 for _, width, _ in of)
        assert found.first_chars[entry] == of[0][2]


def test_attempts_without_chunks_have_no_place():
    found = folded(rows_of(3))
    some = np.array([0, 65536 * 9, 5, -65536]), np.array([-1, 1, 0, 0]), np.array([0, 7, 0, 0])

    assert found.places(*some).tolist() == [-1] * 4
    assert chunks.Fold(0).chunks().places(*some).tolist() == [-1] * 4
    assert chunks.Fold(0).chunks().gaps_ns(np.empty(0, int)).tolist() == []


def test_times_are_moved_to_the_clock_of_the_run():
    rows = rows_of(8)

    assert (folded(rows, shift_ns=-500).arrived_at_ns + 500).tolist() == folded(
        rows
    ).arrived_at_ns.tolist()
