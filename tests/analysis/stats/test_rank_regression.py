"""Rank regression against known shifts, a search over all slopes, and how often its intervals hold the shift."""

import numpy as np
import pytest

from tailgauge_analysis.stats.rank_regression import scores, shifts


def dispersion(residuals):
    """Jaeckel's sum, by ranks from counting."""
    ranks = [
        (residuals < value).sum() + ((residuals == value).sum() + 1) / 2 for value in residuals
    ]
    return float((np.array(ranks) / (len(residuals) + 1) - 0.5) @ residuals)


def noise(rng, kind, n):
    match kind:
        case "lognormal":
            return rng.lognormal(0, 1.5, n)
        case "ties":
            return np.round(rng.exponential(3, n))
        case _:
            return rng.normal(0, 1, n)


def test_ties_share_their_scores():
    found = scores(np.array([5.0, 1, 5, 9]))

    assert found == pytest.approx(np.sqrt(12) * np.array([0, -0.3, 0, 0.3]))


@pytest.mark.parametrize("kind", ["normal", "lognormal", "ties"])
@pytest.mark.parametrize("seed", range(3))
def test_the_estimate_is_where_the_sum_is_smallest(kind, seed):
    rng = np.random.default_rng([3, seed])
    x = rng.normal(5, 2, 60)
    y = 3 + 0.7 * x + noise(rng, kind, 60)
    (found,) = shifts([x], [], y, [])
    tried = np.linspace(found.low, found.high, 801)
    best = min(dispersion(y - slope * x) for slope in tried)

    assert dispersion(y - found.value * x) <= best * 1.001 + 1e-9


def test_a_shift_is_found_beside_columns_that_move_with_it():
    rng = np.random.default_rng(5)
    beside = rng.normal(0, 1, 2000)
    x = 1000 * (beside + rng.normal(0, 1, 2000))
    y = 0.02 * x + 40 * beside + rng.exponential(5, 2000)
    found, other = shifts([x, beside], [], y, [])

    assert found.value == pytest.approx(0.02, rel=0.05)
    assert other.value == pytest.approx(40, rel=0.05)
    assert found.p_value < 1e-6


def test_few_groups_show_nothing_and_many_a_wider_interval():
    rng = np.random.default_rng(8)
    session = np.repeat(np.arange(40), 25)
    alike = rng.normal(0, 1, 40)[session]
    x = rng.normal(0, 1, 40)[session] + rng.normal(0, 0.2, 1000)
    y = alike + rng.normal(0, 0.5, 1000)
    order = rng.permutation(1000)
    (alone,) = shifts([x[order]], [], y[order], [])
    (grouped,) = shifts([x[order]], [], y[order], [session[order]])

    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)
    (of_two,) = shifts([x], [], y, [session // 20])
    assert of_two is None or of_two.p_value > 0.05


def covered(seed, n, case):
    """Whether the interval of a known shift holds it."""
    rng = np.random.default_rng([11, seed])
    x = rng.lognormal(0, 0.8, n)
    groups = []
    if case == "sessions":
        session = rng.integers(0, n // 10, n)
        x = x + rng.lognormal(0, 0.8, n)[session]
        added = rng.normal(0, 2, n)[session]
        groups = [session]
    elif case == "drift":
        added = 3 * np.sin(np.arange(n) / (n / 40))
    else:
        added = 0.0
    (found,) = shifts([x], [], 2 * x + added + rng.exponential(2, n), groups)
    if found is None:
        return True  # no estimate
    assert found.low <= found.value <= found.high
    return found.low <= 2 <= found.high


@pytest.mark.slow("sessions", "drift")
@pytest.mark.parametrize("case", ["independent", "sessions", "drift"])
def test_intervals_hold_the_shift_as_often_as_they_say(case, full_size):
    """Nominal 95%, of 60 (400) samples."""
    reps = 400 if full_size else 60
    held = sum(covered(seed, 400, case) for seed in range(reps))

    assert held >= (0.92 if full_size else 0.88) * reps
