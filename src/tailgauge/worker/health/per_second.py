"""What a worker collects within a second, for the quantiles of its health row.

Rule: on the way only stamps are kept, as the arrays in which they came; they are worked on once a second, all at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Quantiles = tuple[int | None, int | None, int]  # p50, p99, largest


class Second:
    """The current second."""

    def __init__(self) -> None:
        self._arrived: list[array[int]] = []
        self._read_at: list[array[int]] = []
        self._late = array("q")

    def reads(self, arrived: array[int], read_at: array[int]) -> None:
        """Some reads were decoded; the arrays do not change any more."""
        self._arrived.append(arrived)
        self._read_at.append(read_at)

    def dispatched(self, late_ns: int) -> None:
        """A request was dispatched, so late."""
        self._late.append(late_ns)

    def close(self) -> tuple[Quantiles, Quantiles]:
        """Receive lag and late dispatch in ns; the next second begins."""
        lags = _joined(self._read_at) - _joined(self._arrived)
        late = _joined([self._late])
        self._arrived, self._read_at, self._late = [], [], array("q")
        return _quantiles(lags), _quantiles(late)


def _joined(pieces: Sequence[array[int]]) -> npt.NDArray[np.int64]:
    return np.frombuffer(b"".join(pieces), np.int64)


def _quantiles(values: npt.NDArray[np.int64]) -> Quantiles:
    """The smallest value that a share of all does not exceed."""
    n = len(values)
    if not n:
        return None, None, 0
    at = [-(-n // 2) - 1, -(-99 * n // 100) - 1, n - 1]
    middle, high, most = np.partition(values, at)[at].tolist()
    return middle, high, most
