"""Waits second by second: how many answered requests of each stretch of time waited how long.

Rule: counts in cells, at most COLUMNS x ROWS of them whatever the run's size; stretches are of equal length, classes of
wait equally wide on a logarithmic axis. Requests count by scheduled time, warm-up and cool-down included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.stats.quantiles import Floats, Ints

COLUMNS, ROWS = 300, 28
WIDTHS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
FEWEST = 50  # requests


@dataclass(frozen=True, slots=True)
class Heat:
    """`counts[row, column]`; rows are classes of wait, the shortest first."""

    width_s: int
    at_s: Floats
    edges_ms: Floats
    middle_ms: Floats
    counts: Ints


def heat(scheduled_s: Floats, wait_ms: Floats) -> Heat | None:
    """The cells of requests; None where too few of them waited a time that is known."""
    known = ~np.isnan(wait_ms) & (wait_ms > 0)
    at, wait = scheduled_s[known], wait_ms[known]
    if len(at) < FEWEST:
        return None
    low, high = float(wait.min()), float(wait.max())
    edges = np.geomspace(low, max(high, low * 1.2), ROWS + 1)
    length = float(at.max())
    width = next((w for w in WIDTHS_S if length // w < COLUMNS), WIDTHS_S[-1])
    columns = int(length // width) + 1
    row = np.clip(np.searchsorted(edges, wait, "right") - 1, 0, ROWS - 1)
    cell = row * columns + (at // width).astype(np.int64)
    counts = np.bincount(cell, minlength=ROWS * columns).reshape(ROWS, columns)
    at_s = np.arange(columns, dtype=np.float64) * width + width / 2
    return Heat(width, at_s, edges, np.sqrt(edges[1:] * edges[:-1]), counts)
