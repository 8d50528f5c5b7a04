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


def by_hand(rows):
    """Gaps of each attempt, by its key."""
    found = {}
    keys = zip(rows["request_id"], rows["leg"], rows["attempt"], strict=True)
    for *key, _, at in sorted((*map(int, key), int(i), int(t)) for key, i, t in zip(keys, rows["chunk_index"], rows["arrived_at_ns"], strict=True)):  # fmt: skip
        found.setdefault(tuple(key), []).append(at)
    return {key: np.diff(times).tolist() for key, times in found.items()}


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
    monkeypatch.setattr(chunks, "BLOCK", 50)  # several blocks, as in a large run
    found, expected = folded(rows), by_hand(rows)

    assert len(found) == len(rows["leg"])
    keys = np.array(sorted(expected, reverse=True)).T
    places = found.places(*keys)
    gaps = np.split(found.gaps_ns(places), np.cumsum(found.sizes[places] - 1)[:-1])
    assert [g.tolist() for g in gaps] == [expected[tuple(map(int, key))] for key in keys.T]


def test_gaps_know_the_ranges_at_their_ends(rows, monkeypatch):
    """Against the widths of the rows, sorted by attempt and number: of the first chunk of a gap, and of its last."""
    monkeypatch.setattr(chunks, "BLOCK", 50)
    found, expected = folded(rows), by_hand(rows)
    keys = np.array(sorted(expected, reverse=True)).T
    ranges = found.gap_ranges(found.places(*keys))
    more, less = np.zeros((2, sum(map(len, expected.values()))))
    np.add.at(more, ranges.gap[ranges.begins], ranges.ns[ranges.begins])
    np.add.at(less, ranges.gap[~ranges.begins], ranges.ns[~ranges.begins])

    of = {}
    names = ("request_id", "leg", "attempt", "chunk_index", "arrived_at_ns", "low_at_ns")
    for *key, index, at, low in zip(*(rows[name] for name in names), strict=True):
        of.setdefault(tuple(map(int, key)), []).append(
            (int(index), int(at), 0 if low is None else int(at - low))
        )
    widths = [[width for *_, width in sorted(of[tuple(map(int, key))])] for key in keys.T]
    assert more.tolist() == [width for each in widths for width in each[:-1]]
    assert less.tolist() == [width for each in widths for width in each[1:]]


def test_sums_are_those_of_the_rows(rows):
    found = folded(rows)

    assert found.chars.sum() == sum(rows["chars"])
    with_range = found.entries_of_ranges()
    assert len(with_range) == sum(not exact for exact in rows["exact"])
    for entry, request in enumerate(found.request_id):
        call = (request, found.leg[entry], found.attempt[entry])
        calls = zip(rows["request_id"], rows["leg"], rows["attempt"], rows["exact"], strict=True)
        inexact = [(*key, exact) for *key, exact in calls].count((*call, False))
        assert (with_range == entry).sum() == inexact
    assert found.thinking.sum() == rows["kind"].count("thinking")
    firsts = {}
    for key in sorted(
        zip(
            rows["request_id"],
            rows["leg"],
            rows["attempt"],
            rows["chunk_index"],
            rows["chars"],
            strict=True,
        )
    ):
        firsts.setdefault(key[:3], key[4])
    assert found.first_chars.tolist() == list(firsts.values())


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
