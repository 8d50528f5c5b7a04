"""Queues with and without a steady state, and planted changes: how often each is called unstable.

Every experiment draws `RUNS` runs; the full size draws 200 from a fresh seed, which is printed.
"""

import numpy as np
import pytest

from tailgauge_analysis.stats.stationarity import (
    change,
    differs_at,
    growth,
    linear_fit,
    rises,
    trend,
)

CAPACITY, SLOTS = 11.3, 4


@pytest.fixture
def size(sampling):
    """Runs of an experiment and their generator."""
    return sampling(5, 40, 200)


def mm1(rng, runs, n, rho, backlog=0.0):
    """Arrivals, ends and sojourn times of M/M/1 queues with arrival rate 1, by Lindley's recursion."""
    gaps, service = rng.exponential(1, (runs, n)), rng.exponential(rho, (runs, n))
    steps = np.zeros((runs, n))
    np.cumsum(service[:, :-1] - gaps[:, 1:], axis=1, out=steps[:, 1:])
    sojourn = (
        np.maximum(steps - np.minimum.accumulate(steps, axis=1), backlog * rho + steps) + service
    )
    arrivals = np.cumsum(gaps, axis=1)
    return arrivals, arrivals + sojourn, sojourn


def replica(rng, runs, rate_per_s, seconds, sigma=0.3):
    """The same of Poisson arrivals at four slots, by Kiefer and Wolfowitz; the wait is until a slot is free."""
    n = int(rate_per_s * seconds + 5 * np.sqrt(rate_per_s * seconds))
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, (runs, n)), axis=1)
    service = rng.lognormal(-(sigma**2) / 2, sigma, (runs, n)) * SLOTS / CAPACITY
    free, wait, row = np.zeros((runs, SLOTS)), np.empty((runs, n)), np.arange(runs)
    for i in range(n):
        slot = free.argmin(axis=1)
        begun = np.maximum(arrivals[:, i], free[row, slot])
        wait[:, i], free[row, slot] = begun - arrivals[:, i], begun + service[:, i]
    return arrivals, arrivals + wait + service, wait + 0.05


def called_unstable(arrivals, ended, waits, from_s, to_s):
    """Share of the runs in which one of the three checks finds something."""
    found = []
    for at, end, wait, start in zip(
        arrivals, ended, waits, np.broadcast_to(from_s, len(arrivals)), strict=True
    ):
        sent = at < (to_s if to_s is not None else np.inf)
        steady = wait[sent & (at >= start)]
        grows = growth(at[sent], end[sent], start, to_s or at[-1]).rises
        found.append(bool(grows or trend(steady) or change(steady)))
    return np.mean(found)


@pytest.mark.parametrize(("rho", "most"), [(0.5, 0.03), (0.7, 0.03), (0.8, 0.03), (0.9, 0.08)])
def test_a_queue_below_its_capacity_is_stable(size, full_size, rho, most):
    runs, rng = size
    for n in (1000, 5000) if full_size else (1500,):
        arrivals, ended, waits = mm1(rng, runs, int(n / 0.9), rho)
        share = called_unstable(arrivals, ended, waits, arrivals[:, -n], None)
        assert share <= most + chance(runs, most), (n, share)


def chance(runs, share):
    """Two standard errors: what so many runs may show of this true share."""
    return 2 * np.sqrt(share * (1 - share) / runs)


@pytest.mark.parametrize(
    ("rate_per_s", "seconds", "low", "high"),
    [(9, 54, 0, 0.05), (13, 54, 0.9, 1), (15, 54, 0.9, 1), (12, 600, 0.9, 1), (9, 600, 0, 0.05)],
)
def test_a_replica_is_unstable_above_its_capacity(size, full_size, rate_per_s, seconds, low, high):
    runs, rng = size
    if seconds == 600 and not full_size:
        runs //= 4
    whole = seconds / 0.9
    arrivals, ended, waits = replica(rng, runs, rate_per_s, whole)
    share = called_unstable(arrivals, ended, waits, whole - seconds, whole)

    assert low - chance(runs, 0.9) * (not full_size) <= share <= high + chance(runs, high)


N = 5000
AT = np.arange(N) / N
SHAPES = {
    "linear x2": 1 + AT,
    "step x2 in the last 30%": np.where(AT < 0.7, 1, 2),
    "hump x3 in the middle fifth": np.where((AT >= 0.4) & (AT < 0.6), 3, 1),
    "x3 in the last tenth": np.where(AT < 0.9, 1, 3),
}


def waves(rng, runs, phi):
    """Lognormal waits whose logarithms are AR(1)."""
    noise = rng.normal(0, np.sqrt(1 - phi**2), (runs, N + 100))
    for i in range(1, N + 100):
        noise[:, i] += phi * noise[:, i - 1]
    return 0.2 * np.exp(0.5 * noise[:, 100:])


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("phi", [0.0, 0.7, 0.9])
def test_a_planted_change_is_found(size, shape, phi):
    runs, rng = size
    waits = waves(rng, max(20, runs // 2), phi) * SHAPES[shape]
    found = [bool(trend(wait) or change(wait)) for wait in waits]

    assert np.mean(found) >= 0.9


@pytest.mark.slow("0.7", "0.9")
@pytest.mark.parametrize("phi", [0.0, 0.7, 0.9])
def test_waves_without_a_change_are_stable(size, phi):
    runs, rng = size
    found = [bool(trend(wait) or change(wait)) for wait in waves(rng, runs, phi)]

    assert np.mean(found) <= 0.03 + chance(runs, 0.03)


def test_several_levels_are_found(size):
    """A change is no wave, however many there are."""
    runs, rng = size
    waits = waves(rng, runs // 2, 0.7) * np.where(AT < 0.2, 4, np.where(AT < 0.6, 1, 2))

    assert np.mean([change(wait) is not None for wait in waits]) >= 0.9


def test_a_stretch_is_found_to_a_few_requests(size):
    waits = waves(size[1], 1, 0.0)[0] * 0.01 + np.where((AT >= 0.4) & (AT < 0.6), 3, 1)
    found = change(waits)

    assert (found.begin, found.end) == (pytest.approx(2000, abs=10), pytest.approx(3000, abs=10))
    assert found.fit > 0.9


def test_requests_without_an_answer_count_as_the_slowest(size):
    """A tenth that fails at the end is a change; the same share spread over the run is none."""
    waits = waves(size[1], 1, 0.0)[0]
    late, spread = waits.copy(), waits.copy()
    late[-500:] = np.inf
    spread[size[1].permutation(N)[:500]] = np.inf

    assert change(late).begin == pytest.approx(4500, abs=20)
    assert change(late).end == N
    assert change(spread) is None
    assert trend(spread) == 0


@pytest.mark.slow
def test_the_start_of_a_queue_with_a_backlog_is_found_and_its_mean_recovered(size):
    """The raw mean is several times the planted one; without the stretch at the start it is near it."""
    runs, rng = size
    waits = mm1(rng, min(runs, 40), 20_000, 0.7, backlog=400)[2]
    found = [change(wait) for wait in waits]
    cut = [
        wait[one.end :].mean()
        for wait, one in zip(waits, found, strict=True)
        if one is not None and one.begin == 0
    ]

    assert len(cut) >= 0.95 * len(waits)
    assert waits.mean() > 1.5 * 0.7 / 0.3
    assert np.mean(cut) == pytest.approx(0.7 / 0.3, rel=0.05)


def test_equal_values_and_short_series_show_nothing():
    assert (trend(np.full(1000, 0.2)), change(np.full(1000, 0.2))) == (0, None)
    assert change(np.r_[np.full(20, 9.0), np.full(30, 1.0)]) is None
    assert trend(np.arange(1000.0)) == 1
    assert trend(-np.arange(1000.0) + 2000) == -1
    assert trend(100_000 + np.arange(1000.0)) == 0  # 1% is significant and does not matter


@pytest.mark.parametrize("n", [0, 1, 9, 11])
def test_few_values_show_nothing(n):
    for values in (np.full(n, 0.2), np.arange(float(n)) % 2, np.full(n, np.inf)):
        assert (trend(values), change(values)) == (0, None)
        assert 0 <= linear_fit(values) <= 1
        assert not rises(values)
    assert differs_at(np.zeros(0), np.ones(n)) is None


def test_the_detectable_growth_is_what_the_check_sees_in_nine_of_ten_runs(size):
    """Of runs at 9/s; a replica whose backlog grows by that much is seen by the check of growth alone."""
    runs, rng = size
    whole = 60.0
    below = replica(rng, runs, 9, whole)
    least = np.median(
        [growth(a, e, 6, whole).detectable_per_s for a, e, _ in zip(*below, strict=True)]
    )
    above = replica(rng, runs, CAPACITY + least, whole)
    found = [growth(a[a < whole], e[a < whole], 6, whole) for a, e, _ in zip(*above, strict=True)]

    assert np.mean([one.rises for one in found]) >= 0.9 - chance(runs, 0.9)
    assert np.median([one.per_s for one in found]) == pytest.approx(least, rel=0.25)
