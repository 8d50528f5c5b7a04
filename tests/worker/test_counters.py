"""Quantiles of a second: exactly the sorted values at their ranks."""

from array import array

import numpy as np
import pytest

from tailgauge.worker.counters import Second


@pytest.mark.parametrize("n", [1, 2, 99, 100, 101, 5000])
def test_the_quantiles_are_values_that_were_seen(n):
    second, lags = Second(), np.random.default_rng(n).permutation(n) + 1
    for piece in np.array_split(lags, 3):
        arrived = array("q", range(len(piece)))
        second.reads(arrived, array("q", [at + int(lag) for at, lag in zip(arrived, piece, strict=True)]))
    second.dispatched(7)

    assert second.close() == ((-(-n // 2), -(-99 * n // 100), n), (7, 7, 7))
    assert second.close() == ((None, None, 0), (None, None, 0))
