"""A variant beside its control: paired stretches against a known ratio under a common drift; shares beside shares."""

import numpy as np
import pytest

from tailgauge_analysis.stats.bootstrap import Timed, quantile_ratio_interval
from tailgauge_analysis.stats.proportions import counted, difference, quantile_ratio
from tailgauge_analysis.stats.quantiles import quantiles

RATIO = 0.8


def two_variants(seed, n=1500):
    """Two variants that arrive by chance and share a load that goes up and down; the first is 0.8 times as slow."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, 600, (2, n)), axis=1)
    load = np.exp(0.8 * np.sin(at / 25 + rng.uniform(0, 6)))
    ms = 100 * load * np.exp(0.3 * rng.standard_normal((2, n)))
    return Timed(at[0] * 1e9, RATIO * ms[0]), Timed(at[1] * 1e9, ms[1])


def of(waits, p):
    return quantiles(waits.values, [p])[0]


@pytest.mark.slow
def test_paired_intervals_hold_the_ratio_and_are_narrower_under_a_common_drift(full_size):
    reps, hits, widths = (200 if full_size else 24), np.zeros(2), []
    for seed in range(reps):
        one, other = two_variants(seed)
        for i, p in enumerate((0.5, 0.9)):
            low, high = quantile_ratio_interval(one, other, of(one, p), of(other, p))
            hits[i] += low <= RATIO <= high
            apart = quantile_ratio(of(one, p), of(other, p))
            if apart.low is not None and apart.high is not None:
                widths.append((high - low) / (apart.high - apart.low))

    assert (hits / reps >= (0.9 if full_size else 0.8)).all(), hits / reps
    assert np.median(widths) < 0.7


def test_failures_few_requests_and_unsure_quantiles_have_no_paired_interval():
    one, other = two_variants(1)
    failing = Timed(one.at_ns, np.where(np.arange(len(one.values)) % 8 == 0, np.inf, one.values))
    few = Timed(one.at_ns[:150], one.values[:150])

    assert quantile_ratio_interval(failing, other, of(failing, 0.9), of(other, 0.9)) is None
    assert quantile_ratio_interval(few, other, of(few, 0.5), of(other, 0.5)) is None
    assert quantile_ratio_interval(one, other, of(one, 0.99), of(other, 0.99)) is None


def test_the_difference_of_two_shares():
    """The example of Newcombe, 56/70 against 48/80, is 0.20 (0.05 to 0.34) by Wilson's intervals; exact ones are wider."""
    found = difference(counted(56, 70), counted(48, 80))

    assert found.value == pytest.approx(0.2)
    assert 0.0 < found.low < 0.0524
    assert 0.3339 < found.high < 0.36
    assert difference(counted(0, 0), counted(1, 2)).value is None
