"""The sign-flip test against brute force, and how often it is wrong on blocks of a queue that drifts."""

import itertools

import numpy as np
import pytest

from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis.stats.sign_flips import flips

BLOCK_S, WASHOUT_S, PAIRS = 60.0, 10.0, 30


def queue(rng, seconds, rate=8.0, load=0.8, drift=0.1):
    """Scheduled times and times in the system of an M/M/1 queue whose server slows down by `drift` (Lindley)."""
    n = rng.poisson(rate * seconds)
    at = np.sort(rng.random(n) * seconds)
    service = rng.exponential(load / rate, n) * (1 + drift * at / seconds)
    steps = np.concatenate([[0.0], service[:-1] - np.diff(at)])
    sums = np.cumsum(steps)
    return at, sums - np.minimum.accumulate(sums) + service


def crossover(seed, effect=1.0, p=0.99):
    """Differences of ln p99 in pairs of blocks, a coin drawing which is B's; B's times are `effect` as long."""
    rng = np.random.default_rng([seed, 25])
    b_first = np.random.default_rng(seed).random(PAIRS) < 0.5
    at, values = queue(rng, 2 * PAIRS * BLOCK_S)
    of_b = np.stack([b_first, ~b_first], axis=1).ravel()[
        np.minimum((at / BLOCK_S).astype(int), 2 * PAIRS - 1)
    ]
    values = np.where(of_b, values * effect, values)
    starts = np.arange(2 * PAIRS) * BLOCK_S
    blocks = zip(np.searchsorted(at, starts + WASHOUT_S), np.searchsorted(at, starts + BLOCK_S), strict=True)
    logs = [np.log(np.quantile(values[a:b], p, method="inverted_cdf")) for a, b in blocks]
    first, second = np.array(logs).reshape(-1, 2).T
    return np.where(b_first, first - second, second - first)


def brute(values):
    """Two-sided p-value by writing out every pattern of signs."""
    seen = abs(values.mean())
    patterns = np.array(list(itertools.product((-1, 1), repeat=len(values))))
    return float((np.abs((patterns * values).mean(axis=1)) >= seen - 1e-12).mean())


@pytest.mark.parametrize("seed", range(6))
def test_p_value_is_the_share_of_all_patterns(seed):
    values = np.random.default_rng(seed).normal(0.3, 1, 8)

    assert flips(values).p_value == pytest.approx(brute(values))


@pytest.mark.parametrize("seed", range(6))
def test_ends_of_the_interval_are_where_the_test_turns(seed):
    values = np.random.default_rng(seed).normal(0.1, 1, 9)
    found = flips(values)

    for end, outwards in ((found.low, -1e-6), (found.high, 1e-6)):
        assert brute(values - (end + outwards)) <= 0.05
        assert brute(values - (end - outwards)) > 0.05


def test_drawn_patterns_say_nearly_what_all_of_them_say():
    """16 pairs: 9,999 drawn patterns against all 65,536."""
    values = np.random.default_rng(3).normal(0.6, 1, 16)

    assert flips(values).p_value == pytest.approx(brute(values), abs=0.01)


def test_with_fewer_than_six_pairs_there_is_no_interval():
    few, enough = (flips(np.linspace(0.5, 0.6, n)) for n in (FEWEST_PAIRS - 1, FEWEST_PAIRS))

    assert (few.low, few.high) == (None, None)
    assert few.p_value > 0.05
    assert (enough.low, enough.high) == (0.5, 0.6)
    assert enough.p_value == 2 / 2**FEWEST_PAIRS


def test_differences_that_are_no_numbers_are_refused():
    for bad in ([], [0.1, np.inf], [np.nan]):
        with pytest.raises(ValueError, match="finite differences"):
            flips(np.array(bad))


def test_equal_variants_seldom_differ_though_the_server_drifts(full_size):
    """p99 of a queue at 80% load that slows down by a tenth: 5% false positives are asked for."""
    reps, low, high = (200, 0.02, 0.09) if full_size else (40, 0.0, 0.15)
    found = [flips(crossover(seed)) for seed in range(reps)]
    wrong = float(np.mean([one.p_value <= 0.05 for one in found]))

    assert low <= wrong <= high
    for one in found:  # test and interval agree
        assert (one.p_value <= 0.05) == (not one.low <= 0 <= one.high)


def test_the_interval_contains_the_effect_and_a_large_effect_is_found(full_size):
    """B's times are 1.5 times as long, exactly."""
    found = [flips(crossover(seed, effect=1.5)) for seed in range(200 if full_size else 40)]
    planted = np.log(1.5)

    assert np.mean([one.low <= planted <= one.high for one in found]) >= (0.91 if full_size else 0.85)
    assert np.mean([one.p_value <= 0.05 for one in found]) >= 0.9


def test_two_runs_one_after_the_other_differ_though_nothing_changed(full_size):
    """Why single runs are refused: a bootstrap of their own requests, p99, calls equal halves different."""
    wrong, reps = 0, 60 if full_size else 15
    for seed in range(reps):
        rng = np.random.default_rng([seed, 70])
        at, values = queue(rng, 3600.0)
        ends = []
        for half in (values[at < 1800], values[at >= 1800]):
            drawn = half[rng.integers(0, len(half), (60, len(half)))]
            ends.append(np.quantile(drawn, 0.99, axis=1, method="inverted_cdf"))
        low, high = np.quantile(ends[1] - ends[0], (0.025, 0.975))
        wrong += not low <= 0 <= high

    assert wrong / reps >= 0.4
