"""The paired t-test on blocks of a queue that drifts, and the size that it finds."""

import numpy as np
import pytest

from tailgauge_analysis.stats.estimate import by_student, paired

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
    blocks = zip(
        np.searchsorted(at, starts + WASHOUT_S), np.searchsorted(at, starts + BLOCK_S), strict=True
    )
    logs = [np.log(np.quantile(values[a:b], p, method="inverted_cdf")) for a, b in blocks]
    first, second = np.array(logs).reshape(-1, 2).T
    return np.where(b_first, first - second, second - first)


def test_the_interval_is_that_of_students_t():
    found = paired(np.array([1.0, 2.0, 3.0, 6.0]))

    assert (found.value, found.low, found.high) == pytest.approx((3.0, -0.4374, 6.4374), abs=1e-4)
    assert found.p_value == pytest.approx(0.0691, abs=1e-3)


def test_a_single_pair_has_no_interval_and_no_spread_is_no_chance():
    assert paired(np.array([0.3])) is None
    assert paired(np.zeros(6)).p_value == 1
    assert by_student(0.1, 0.1, 0.1, 5).p_value == 0


@pytest.mark.parametrize("noise", ["normal", "t3"])
@pytest.mark.parametrize("pairs", [6, 20])
def test_equal_pairs_are_called_different_in_one_of_twenty(noise, pairs, full_size):
    rng, reps = np.random.default_rng([pairs, len(noise)]), 4000 if full_size else 800
    draw = rng.standard_normal if noise == "normal" else lambda size: rng.standard_t(3, size)
    wrong = np.mean([paired(draw(pairs)).p_value <= 0.05 for _ in range(reps)])

    assert wrong <= (0.06 if full_size else 0.075)


def test_the_smallest_change_is_found_in_eight_of_ten_repetitions():
    """Of 8 pairs, and of the 6 that are needed where only 3 are known."""
    rng = np.random.default_rng(4)
    for known, planned in ((8, 8), (3, 6)):
        sizes = [paired(rng.standard_normal(known)).smallest(known, 6) for _ in range(400)]
        smallest = np.sqrt(np.mean(np.square(sizes)))
        found = [paired(smallest + rng.standard_normal(planned)).low > 0 for _ in range(800)]
        assert np.mean(found) == pytest.approx(0.8, abs=0.12)


def test_equal_variants_seldom_differ_though_the_server_drifts(full_size):
    """p99 of a queue at 80% load that slows down by a tenth: 5% false positives are asked for."""
    reps, low, high = (200, 0.02, 0.09) if full_size else (40, 0.0, 0.15)
    found = [paired(crossover(seed)) for seed in range(reps)]
    wrong = float(np.mean([one.p_value <= 0.05 for one in found]))

    assert low <= wrong <= high
    for one in found:  # test and interval agree
        assert (one.p_value <= 0.05) == (not one.low <= 0 <= one.high)


def test_the_interval_contains_the_effect_and_a_large_effect_is_found(full_size):
    """B's times are 1.5 times as long, exactly."""
    found = [paired(crossover(seed, effect=1.5)) for seed in range(200 if full_size else 40)]
    planted = np.log(1.5)

    assert np.mean([one.low <= planted <= one.high for one in found]) >= (
        0.91 if full_size else 0.85
    )
    assert np.mean([one.p_value <= 0.05 for one in found]) >= 0.9
