"""Pieces of a stream: chunks that arrived together, and whether something between client and target put them together.

An engine may send several chunks at once too: a step of speculative decoding, several tokens per event, a fast engine whose
packets join. What collects a stream is regular where an engine is not: it passes on whenever a time is over, so that the
pieces come evenly however much they hold, or whenever enough is there, so that all pieces hold about the same. And it collects
from the first chunk on, while the first token of an engine comes alone, with the end of its prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.reading.chunks import GapRanges, blocks
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask

SAMPLED = 1_000_000  # gaps
# Chunks closer than a tenth of the run's median gap, within these bounds, arrived together.
NEAR_MS = (0.05, 0.5)
# Chunks of an answer that is judged alone, and of a piece that no target sends at once.
ENOUGH = 10
MANY = 4
FEW_CHUNKS = 3
MANY_TOKENS = 50
# Sizes of a proxy's buffer in bytes, and how near to one of them a piece is.
PAGES = 4096 * 2 ** np.arange(5)
OF_PAGE = 0.12
# Regular pieces. Chunks that join by chance, p of them, come in pieces of m = 1 / (1 - p) at intervals whose coefficient of
# variation is sqrt(p) = sqrt(1 - 1 / m) at least. Even: at most this share of it, for a run and for one answer.
EVEN_OF_RUN = 0.75
EVEN_OF_ANSWER = 0.5
EVEN_SIZES = 0.35  # coefficient of variation of the sizes
JOINED = 1.15  # chunks of a mean piece
FEWEST_PIECES = 20  # of a run, or 3 inner ones of an answer
FEWEST_OF_ANSWER = 3
FROM_FIRST = 0.1  # share of the answers whose first chunk did not come alone
OF_RUN = 0.1  # share of the answers that are regular by themselves
# Shares of the answers that were buffered, beside which others that came in pieces were too, and all others.
COMPANY = 0.2
ALL = 0.8
LATE_SHARE = 0.5  # of an interval: the client read later than this, so that it may have put the chunks together


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The pieces of all answers: of each, its answer, its chunks, the interval to the next in ns; and of each answer its
    pieces, and the chunks of the first.
    """

    answer: Ints
    chunks: Ints
    interval: Floats
    """NaN for the last of an answer"""
    count: Ints
    first: Ints

    @property
    def has_next_two(self) -> Mask:
        """Whether the interval leads to a piece that is not the last, which goes on when the answer ends."""
        inner = np.zeros(len(self.answer), np.bool_)
        inner[:-2] = self.answer[2:] == self.answer[:-2]
        return inner

    @property
    def is_inner(self) -> Mask:
        """Which are neither the first nor the last of their answer."""
        inner = np.zeros(len(self.answer), np.bool_)
        inner[1:-1] = self.answer[2:] == self.answer[:-2]
        return inner


def sampled(gaps_ns: Floats) -> Floats:
    """Return gaps of the whole run, a million at most: there may be a hundred million."""
    return gaps_ns[:: 1 + len(gaps_ns) // SAMPLED]


def near_ns(gaps_ns: Floats) -> float:
    """Return the longest gap between chunks that arrived together."""
    low_ns, high_ns = (1e6 * ms for ms in NEAR_MS)
    sample = sampled(gaps_ns)
    separate = sample[sample > low_ns]
    if not len(separate):
        return low_ns
    return float(np.clip(np.median(separate) / 10, low_ns, high_ns))


def collected(
    gaps_ns: Floats,
    sizes: Ints,
    tokens: Floats,
    body_bytes: Floats,
    ranges: GapRanges | None = None,
) -> tuple[Mask, Mask]:
    """Return which answers were buffered, and which arrived at one moment.

    `sizes`: gaps of each answer; `tokens`: those that were streamed, at most; `ranges`: gaps that are known within a range only.
    Buffered: more than 50 tokens in fewer than 3 chunks; or at least 10 chunks in one or two pieces, in pieces of 4 chunks or
    more from the first on, or in pieces of one size in bytes, that of a proxy's buffer; or in pieces that are regular.
    How long the answer was waited for does not matter.
    """
    near = near_ns(gaps_ns)
    n = len(sizes)
    buffered = np.zeros(n, np.bool_)
    at_once = np.zeros(n, np.bool_)
    has_pieces = np.zeros(n, np.bool_)
    starts_joined = np.zeros(n, np.bool_)
    is_joined = np.zeros(n, np.bool_)
    is_regular = np.zeros(n, np.bool_)
    # Where the client read late it may have put chunks together itself: regular pieces show nothing then.
    is_by_client = _by_client(gaps_ns, near, ranges)
    for block, pieces in _in_blocks(gaps_ns, sizes, near):
        chunks = sizes[block] + 1
        large = (pieces.first >= MANY) & (chunks >= MANY * pieces.count)
        large |= _paged(pieces, body_bytes[block] / chunks)
        few = (chunks < FEW_CHUNKS) & (tokens[block] > MANY_TOKENS)
        buffered[block] = few | ((chunks >= ENOUGH) & ((pieces.count <= 2) | large))
        at_once[block] = pieces.count == 1
        has_pieces[block] = pieces.count >= 2
        starts_joined[block] = pieces.first >= 2
        is_joined[block] = (chunks >= JOINED * pieces.count) | (pieces.first >= 2)
        if not is_by_client:
            is_regular[block] = _regular_alone(pieces)
    if is_by_client or not n:
        return buffered, at_once
    # What collects a stream does so from the first chunk on; the first token of an engine comes alone.
    starts_early = has_pieces.any() and starts_joined[has_pieces].mean() >= FROM_FIRST
    if starts_early and _run_is_regular(_in_blocks(gaps_ns, sizes, near)):
        buffered |= is_joined
    elif is_regular.mean() >= OF_RUN and starts_joined[is_regular].mean() >= FROM_FIRST:
        buffered |= is_regular
    # Where much of a run was buffered, answers that show it less were too.
    if buffered.mean() >= COMPANY:
        buffered |= is_joined
    if buffered.mean() >= ALL:
        buffered |= sizes > 0
    return buffered, at_once


def _in_blocks(gaps_ns: Floats, sizes: Ints, near: float) -> Iterator[tuple[slice, Pieces]]:
    """Yield the pieces of some answers at a time: those of a whole run take several times as much memory as its gaps."""
    begin = 0
    for block in blocks(sizes):
        counts = sizes[block]
        end = begin + int(counts.sum())
        yield block, _pieces(gaps_ns[begin:end], counts, near)
        begin = end


def _pieces(gaps: Floats, counts: Ints, near: float) -> Pieces:
    """Cut answers into pieces. `counts`: gaps of each."""
    is_last = np.zeros(int(counts.sum()) + len(counts), np.bool_)  # of the chunks of its answer
    is_last[np.cumsum(counts + 1) - 1] = True
    gap_after = np.full(len(is_last), np.nan)
    gap_after[~is_last] = gaps
    ends = np.flatnonzero(is_last | (gap_after > near))
    ends_of_answers = np.flatnonzero(is_last[ends])
    count = np.diff(ends_of_answers, prepend=-1)
    chunks = np.diff(ends, prepend=-1)
    return Pieces(
        answer=np.repeat(np.arange(len(counts)), count),
        chunks=chunks,
        interval=gap_after[ends],
        count=count,
        first=chunks[ends_of_answers - count + 1],
    )


def _paged(pieces: Pieces, bytes_per_chunk: Floats) -> Mask:
    """Return whether two inner pieces or more are of one size, that of a buffer."""
    inner = pieces.is_inner
    by_answer = pd.Series(pieces.chunks[inner]).groupby(pieces.answer[inner])
    summary = by_answer.agg(["min", "max", "mean", "size"])
    size = summary["mean"].to_numpy() * bytes_per_chunk[summary.index]
    near_page = np.abs(size[:, None] / PAGES - 1).min(axis=1) <= OF_PAGE
    is_paged = np.zeros(len(bytes_per_chunk), np.bool_)
    is_even = (
        (summary["size"] >= 2) & (summary["min"] >= 2) & (summary["max"] - summary["min"] <= 2)
    )
    is_paged[summary.index] = is_even.to_numpy(np.bool_) & near_page
    return is_paged


def _run_is_regular(parts: Iterable[tuple[slice, Pieces]]) -> bool:
    """Return whether the inner pieces of a run come evenly, or hold about the same."""
    sizes = []
    times = []
    for _, pieces in parts:
        sizes.append(pieces.chunks[pieces.is_inner])
        times.append(pieces.interval[pieces.has_next_two])
    chunks = np.concatenate(sizes)
    intervals = np.concatenate(times)
    if len(chunks) < FEWEST_PIECES or chunks.mean() < JOINED:
        return False
    by_chance = np.sqrt(1 - 1 / chunks.mean())
    if np.std(intervals) <= EVEN_OF_RUN * by_chance * intervals.mean():
        return True
    is_joined = (chunks >= 2).mean() >= 0.95
    return bool(is_joined and np.std(chunks) <= EVEN_SIZES * chunks.mean())


def _regular_alone(pieces: Pieces) -> Mask:
    """Return which answers came in regular pieces, each judged by itself: evenly in time, or of equal size from the first on.

    The first and the last piece do not count, because they may be shorter.
    """
    n = len(pieces.count)
    inner = pieces.is_inner
    sizes = pd.Series(pieces.chunks[inner]).groupby(pieces.answer[inner])
    chunks = sizes.agg(["mean", "min", "std", "size"]).reindex(np.arange(n))
    timed = pieces.has_next_two
    intervals = pd.Series(pieces.interval[timed]).groupby(pieces.answer[timed])
    times = intervals.agg(["mean", "std"]).reindex(np.arange(n))
    is_judged = (chunks["size"] >= FEWEST_OF_ANSWER) & (chunks["mean"] >= JOINED)
    # The coefficient of variation of the intervals between pieces that only join by chance.
    by_chance = np.sqrt(1 - 1 / chunks["mean"])
    is_even = times["std"] <= EVEN_OF_ANSWER * by_chance * times["mean"]
    is_full = (chunks["min"] >= 2) & (chunks["std"] <= EVEN_SIZES * chunks["mean"])
    long = np.bincount(pieces.answer, pieces.chunks, n) >= ENOUGH
    is_full &= pieces.first >= 2
    regular: Mask = (is_judged & (is_even | is_full)).to_numpy(np.bool_) & long
    return regular


def _by_client(gaps_ns: Floats, near: float, ranges: GapRanges | None) -> bool:
    """Return whether the client itself may have put chunks together: it read them late, by much of the time between pieces."""
    if ranges is None or not len(ranges.gap):
        return False
    is_joined = gaps_ns[ranges.gap] <= near
    late_ns = ranges.ns[is_joined & ranges.begins]
    sample = sampled(gaps_ns)
    separate = sample[sample > near]
    if not len(late_ns) or not len(separate):
        return False
    return float(np.median(late_ns)) > LATE_SHARE * float(np.median(separate))
