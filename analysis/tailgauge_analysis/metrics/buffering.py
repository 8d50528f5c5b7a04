"""Bunches: several tokens in one chunk, or a whole answer that something on the way held back.

Rule: arrays of one entry an answer in and out.

    coalescing  tokens / chunks of an answer: 1 where each token is a chunk
    buffered    of 10 chunks or more, more than 80% of the chunks arrive within 5% of the time from sending to the end, or an answer of more
                than 50 tokens comes in fewer than 3 chunks: a proxy collected the stream, and its TTFT is an e2e
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailgauge_analysis.stats.quantiles import Floats, Ints

MOST_CHUNKS, OF_SPAN, ENOUGH = 0.8, 0.05, 10
FEW_CHUNKS, MANY_TOKENS = 3, 50


def coalescing(tokens: Floats, chunks: Floats) -> Floats:
    """Tokens a chunk; NaN where one of them is not known."""
    out: Floats = tokens / np.where(chunks > 0, chunks, np.nan)
    return out


def buffered(gaps_ms: Floats, of: Ints, span_ms: Floats, tokens: Floats) -> npt.NDArray[np.bool_]:
    """Which answers came in a bunch. `of`: the answer of each gap, ascending; `span_ms`: sent to last content."""
    n = len(span_ms)
    sizes = np.bincount(of, minlength=n)
    chunks = sizes + 1
    few = (chunks < FEW_CHUNKS) & (tokens > MANY_TOKENS)
    needed = np.floor(MOST_CHUNKS * chunks).astype(np.int64)  # gaps that hold more than 80% of the chunks
    begin = np.cumsum(sizes) - sizes
    total = np.concatenate(([0.0], np.cumsum(gaps_ms)))
    at = np.arange(len(gaps_ms))
    whole = at + needed[of] <= (begin + sizes)[of]
    starts, answer_of_start = at[whole], of[whole]
    width = total[starts + needed[answer_of_start]] - total[starts]
    narrow = np.full(n, np.inf)
    np.minimum.at(narrow, answer_of_start, width)
    return few | ((chunks >= ENOUGH) & (narrow <= OF_SPAN * span_ms))
