"""Chunks: folded while they are read, because a run may have a hundred million.

Of a chunk only its arrival is kept, 8 bytes, and the width of its range if it has one; everything else is summed by run. A run is a stretch of
rows of one attempt whose numbers follow each other, as workers write them. Parts are read a row group at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tailgauge.rows.schema import THINKING
from tailgauge_analysis.stats.quantiles import Floats, Ints

_NUMBERS = ("request_id", "leg", "attempt", "chunk_index", "arrived_at_ns", "chars")
WANTED = (*_NUMBERS, "kind", "exact", "low_at_ns")
ARRIVAL = 8  # bytes of one in memory
BLOCK = 2_000_000  # chunks that are worked on at once


@dataclass(frozen=True, slots=True)
class Stretches:
    """One entry per run of chunks: its attempt, where its rows are, the number of its first chunk, and sums over its chunks."""

    request_id: Ints
    leg: Ints
    attempt: Ints
    first: Ints
    length: Ints
    chars: Ints
    first_chars: Ints
    thinking: Ints

    def taken(self, rows: npt.NDArray[np.intp]) -> Stretches:
        """Return these of the stretches, in this order."""
        return Stretches(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Ranges:
    """Chunks that are known to lie in a range: where each is, and how long before its arrival it may have come."""

    chunk: Ints
    ns: Ints


@dataclass(frozen=True, slots=True)
class GapRanges:
    """Gaps that begin or end with such a chunk. One that `begins` so may be longer by `ns`, the others shorter."""

    gap: Ints
    ns: Floats
    begins: npt.NDArray[np.bool_]

    def only(self, mask: npt.NDArray[np.bool_]) -> GapRanges:
        """Return the ranges of the gaps that a mask selects, by the gaps' new numbers."""
        is_selected = mask[self.gap]
        if not is_selected.any():
            return NO_RANGES
        # Half the memory of the usual 64 bits: a run has fewer than four billion gaps.
        number = np.cumsum(mask, dtype=np.uint32)
        gap = number[self.gap[is_selected]].astype(np.int64) - 1
        return GapRanges(gap, self.ns[is_selected], self.begins[is_selected])


NO_RANGES = GapRanges(np.empty(0, np.int64), np.empty(0), np.empty(0, np.bool_))


@dataclass(frozen=True, slots=True)
class Chunks:
    """All chunks of a run, by attempt (request, leg, attempt ascending) and number; one entry an attempt but for
    `arrived_at_ns`, which may have been let go.
    """

    request_id: Ints
    leg: Ints
    attempt: Ints
    sizes: Ints
    chars: Ints
    thinking: Ints
    first_chars: Ints
    arrived_at_ns: Ints
    ranges: Ranges

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def without_arrivals(self) -> Chunks:
        """Return the same, with only what is small: nothing but the gaps needs the arrivals."""
        return replace(self, arrived_at_ns=np.empty(0, np.int64))

    def places(self, request_id: Ints, leg: Ints, attempt: Ints) -> Ints:
        """Return the entry of each attempt asked for; -1 where it has no chunk."""
        calls = pd.MultiIndex.from_arrays([self.request_id, self.leg, self.attempt])
        return calls.get_indexer(pd.MultiIndex.from_arrays([request_id, leg, attempt])).astype(
            np.int64
        )

    def within(self, from_ns: float, to_ns: float) -> Ints:
        """Return how many chunks of each attempt arrived in this time."""
        out = np.zeros(len(self.sizes), np.int64)
        begin = 0
        for block in blocks(self.sizes):
            ends = np.cumsum(self.sizes[block])
            arrived = self.arrived_at_ns[begin : begin + int(ends[-1])]
            total = np.concatenate(([0], np.cumsum((arrived >= from_ns) & (arrived < to_ns))))
            out[block] = total[ends] - total[ends - self.sizes[block]]
            begin += int(ends[-1])
        return out

    def gaps_ns(self, places: Ints) -> Floats:
        """Times between consecutive chunks of these attempts, one attempt after the other."""
        begin = np.cumsum(self.sizes) - self.sizes
        sizes = self.sizes[places]
        out = np.empty(int(np.maximum(sizes - 1, 0).sum()))
        filled = 0
        for block in blocks(sizes):
            rows, ends = _spread(begin[places[block]], sizes[block])
            gaps = np.diff(self.arrived_at_ns[rows])
            if len(ends) > 1:
                gaps = np.delete(gaps, ends[:-1] - 1)  # from one stream to the next
            out[filled : filled + len(gaps)] = gaps
            filled += len(gaps)
        return out

    def entries_of_ranges(self) -> Ints:
        """Return the entry of each chunk that has a range."""
        begin = np.cumsum(self.sizes) - self.sizes
        return (np.searchsorted(begin, self.ranges.chunk, "right") - 1).astype(np.int64)

    def gap_ranges(self, places: Ints) -> GapRanges:
        """Of the gaps that `gaps_ns` gives for the same places, those with a chunk in a range."""
        begin = np.cumsum(self.sizes) - self.sizes
        entry = self.entries_of_ranges()
        number = np.full(len(self.sizes), -1, np.int64)
        number[places] = np.arange(len(places))
        gaps = np.maximum(self.sizes[places] - 1, 0)
        first_gap = np.cumsum(gaps) - gaps
        stream = number[entry]
        chunk = self.ranges.chunk - begin[entry]
        ns = self.ranges.ns.astype(np.float64)
        ends = (stream >= 0) & (chunk > 0)
        begins = (stream >= 0) & (chunk < self.sizes[entry] - 1)
        ended_gap = first_gap[stream[ends]] + chunk[ends] - 1
        begun_gap = first_gap[stream[begins]] + chunk[begins]
        return GapRanges(
            gap=np.concatenate([ended_gap, begun_gap]),
            ns=np.concatenate([ns[ends], ns[begins]]),
            begins=np.repeat([False, True], [len(ended_gap), len(begun_gap)]),
        )


class Fold:
    """The chunks read until now: the arrival of each, in order of reading; of all else sums over runs of consecutive chunks."""

    def __init__(self, limit: int) -> None:
        self._arrived = np.empty(limit, np.int64)
        self._rows = 0
        self._ranges: list[Ranges] = []
        self._stretches: list[Stretches] = []

    def add(self, table: pa.Table, shift_ns: int) -> int:
        """Add rows of a worker; of each only its arrival and its range is kept, the rest as sums over runs of consecutive chunks.

        `shift_ns` leads from the worker's clock to the run's. Returns the bytes kept in addition to the arrivals, whose array was
        made for `limit` chunks.
        """
        n = table.num_rows
        if not n:
            return 0
        column = {name: table[name].to_numpy() for name in _NUMBERS}
        is_thinking = pc.fill_null(pc.equal(table["kind"], THINKING), False).to_numpy()
        rows = slice(self._rows, self._rows + n)
        np.add(column["arrived_at_ns"], shift_ns, out=self._arrived[rows])
        self._rows += n
        # Chunks that may have arrived earlier than their timestamp says.
        inexact = np.flatnonzero(~table["exact"].to_numpy())
        sums = _sums_by_run(column, is_thinking)
        if len(inexact):
            low = pc.coalesce(table["low_at_ns"], table["arrived_at_ns"]).take(inexact).to_numpy()
            self._ranges.append(
                Ranges(rows.start + inexact, np.maximum(column["arrived_at_ns"][inexact] - low, 0))
            )
        self._stretches.append(sums)
        size: int = 2 * inexact.nbytes  # the two arrays of Ranges
        for field in fields(Stretches):
            size += getattr(sums, field.name).nbytes
        return size

    def chunks(self) -> Chunks:
        """Return all chunks in order of attempt and number, with one entry per attempt. It can be called once: the memory is given on.

        The stretches are runs of consecutive chunks as they were read. An attempt has several where its chunks were read in parts.
        """
        arrived = self._arrived[: self._rows]
        del self._arrived
        stretches = _joined(self._stretches)
        self._stretches = []
        order = np.lexsort(
            (stretches.first, stretches.attempt, stretches.leg, stretches.request_id)
        )
        begin = (np.cumsum(stretches.length) - stretches.length)[order]
        stretches = stretches.taken(order)
        ranges = Ranges(
            chunk=_whole(ranges.chunk for ranges in self._ranges),
            ns=_whole(ranges.ns for ranges in self._ranges),
        )
        # `begin`: where each stretch lies among the arrivals as read. Out of order they are moved, and the ranges with them.
        if (np.diff(begin) < 0).any():
            arrived = _gathered(arrived, begin, stretches.length)
            new_begin = np.cumsum(stretches.length) - stretches.length
            by_old = np.argsort(begin)
            run = by_old[np.searchsorted(begin[by_old], ranges.chunk, "right") - 1]
            moved = new_begin[run] + ranges.chunk - begin[run]
            in_order = np.argsort(moved)
            ranges = Ranges(moved[in_order], ranges.ns[in_order])
        first_run = np.flatnonzero(~_continues(stretches))  # of each attempt
        return Chunks(
            request_id=stretches.request_id[first_run],
            leg=stretches.leg[first_run],
            attempt=stretches.attempt[first_run],
            sizes=_sums(stretches.length, first_run),
            chars=_sums(stretches.chars, first_run),
            thinking=_sums(stretches.thinking, first_run),
            first_chars=stretches.first_chars[first_run],
            arrived_at_ns=arrived,
            ranges=ranges,
        )


def blocks(sizes: Ints) -> Iterator[slice]:
    """Stretches of entries that have BLOCK chunks together, or one entry that has more."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        start_chunk = 0
        if start:
            start_chunk = int(ends[start - 1])
        stop = max(start + 1, int(np.searchsorted(ends, start_chunk + BLOCK, "right")))
        yield slice(start, stop)
        start = stop


def _joined(stretches: Sequence[Stretches]) -> Stretches:
    """Return the stretches of all, one after the other."""
    columns = {}
    for field in fields(Stretches):
        columns[field.name] = _whole(getattr(part, field.name) for part in stretches)
    return Stretches(**columns)


def _whole(parts: Iterable[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _sums_by_run(column: dict[str, Ints], is_thinking: npt.NDArray[np.bool_]) -> Stretches:
    """Return an entry per run of consecutive chunks of an attempt, with sums over its chunks."""
    request_id = column["request_id"]
    leg = column["leg"]
    attempt = column["attempt"]
    index = column["chunk_index"]
    begins = np.ones(len(request_id), np.bool_)
    begins[1:] = np.diff(index) != 1
    for key in (request_id, leg, attempt):
        begins[1:] |= key[1:] != key[:-1]
    places = np.flatnonzero(begins)
    thinking = np.zeros(len(places), np.int64)
    if is_thinking.any():
        thinking = np.add.reduceat(is_thinking, places, dtype=np.int64)
    return Stretches(
        request_id=request_id[places],
        leg=leg[places].astype(np.int64),
        attempt=attempt[places].astype(np.int64),
        first=index[places].astype(np.int64),
        length=np.diff(places, append=len(request_id)),
        chars=np.add.reduceat(column["chars"], places, dtype=np.int64),
        first_chars=column["chars"][places].astype(np.int64),
        thinking=thinking,
    )


def _continues(stretches: Stretches) -> npt.NDArray[np.bool_]:
    """Return whether a run is of the attempt of the run before it."""
    continues = np.zeros(len(stretches.first), np.bool_)
    if len(continues):
        continues[1:] = np.diff(stretches.request_id) == 0
        continues[1:] &= np.diff(stretches.leg) == 0
        continues[1:] &= np.diff(stretches.attempt) == 0
    return continues


def _sums(values: Ints, begins: npt.NDArray[np.intp]) -> Ints:
    """Return the sums of the values from each of these places to the next one."""
    if not len(begins):
        return np.empty(0, np.int64)
    return np.add.reduceat(values, begins)


def _gathered(values: Ints, begin: Ints, sizes: Ints) -> Ints:
    """Stretches of `values`, one after the other."""
    out = np.empty(int(sizes.sum()), values.dtype)
    filled = 0
    for block in blocks(sizes):
        rows, _ = _spread(begin[block], sizes[block])
        out[filled : filled + len(rows)] = values[rows]
        filled += len(rows)
    return out


def _spread(begin: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Indices of stretches, one after the other, and where each ends among them; empty ones have no end."""
    begin = begin[sizes > 0]
    sizes = sizes[sizes > 0]
    ends = np.cumsum(sizes)
    return np.repeat(begin - (ends - sizes), sizes) + np.arange(int(sizes.sum())), ends
