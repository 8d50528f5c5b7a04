"""Fluidity: does an answer keep up with its reader?

Rule: arrival times of chunks, tokens in each, two deadlines in; the share of deadlines met out. The first token is due
`first_ms` after the start, each later one `each_ms` after the one before; time that a token comes early may be used by
those after it. A late token misses its own deadline and every further one that passes while it is awaited, then the
count begins anew:

    gap <= each + slack    met;  slack becomes slack + each - gap
    else                   missed 1 + floor((gap - each - slack) / each) deadlines;  slack becomes 0
    index = met / (met + missed)

Tokens of one chunk come together, so that several tokens in a chunk cost nothing unless the chunk is late. After the
fluidity-index of Etalon (Agrawal et al. 2024).
"""

from __future__ import annotations

import numpy as np

from tailgauge_analysis.stats.quantiles import Floats, Ints


def fluidity(
    first_ms: Floats, gaps_ms: Floats, of: Ints, tokens: Floats, due_first_ms: float, due_each_ms: float
) -> Floats:
    """Index of each answer. `first_ms`: wait for its first chunk; `gaps_ms`: between its chunks, `of` the answer that
    each belongs to, ascending; `tokens`: mean tokens a chunk of each answer.
    """  # fmt: skip
    n = len(first_ms)
    more = np.maximum(tokens - 1, 0) * due_each_ms  # a chunk's further tokens are there at once
    late = first_ms - due_first_ms
    missed = np.where(late > 0, 1 + np.floor(late / due_each_ms), 0.0)
    met = np.where(late > 0, 0.0, 1.0) + np.maximum(tokens - 1, 0)
    slack = np.maximum(-late, 0) + more
    sizes = np.bincount(of, minlength=n)
    begin = np.cumsum(sizes) - sizes
    for k in range(int(sizes.max()) if n and len(of) else 0):  # the k-th gap of every answer that has one
        rows = np.flatnonzero(sizes > k)
        over = gaps_ms[begin[rows] + k] - due_each_ms - slack[rows]
        in_time = over <= 1e-9
        missed[rows] += np.where(in_time, 0, 1 + np.floor(np.maximum(over, 0) / due_each_ms))
        met[rows] += np.where(in_time, 1, 0) + np.maximum(tokens[rows] - 1, 0)
        slack[rows] = np.where(in_time, np.maximum(-over, 0), 0) + more[rows]
    index: Floats = met / (met + missed)
    return index
