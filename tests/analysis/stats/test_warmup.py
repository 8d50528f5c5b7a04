"""MSER-5 on series whose settled mean is known."""

import numpy as np
import pytest

from tailgauge_analysis.stats.warmup import settling


def sojourn(rng, n, rho, backlog):
    """Times in an M/M/1 queue, arrival rate 1, that starts with so many requests waiting."""
    service = rng.exponential(rho, n)
    steps = np.concatenate(([0.0], np.cumsum(service[:-1] - rng.exponential(1.0, n - 1))))
    return np.maximum(steps - np.minimum.accumulate(steps), backlog * rho + steps) + service


def test_row_26_the_mean_of_a_queue_that_starts_with_a_backlog_is_recovered(full_size):
    """The raw mean is several times the planted, what is left of it within 5% over the repetitions."""
    rng, planted = np.random.default_rng(1), 0.7 / 0.3
    raw, cut = [], []
    for _ in range(100 if full_size else 40):
        series = sojourn(rng, 20_000, 0.7, 400)
        found = settling(series)
        assert found.settles
        assert found.material
        raw.append(series.mean())
        cut.append(series[found.cut :].mean())

    assert np.mean(raw) > 1.5 * planted
    assert np.mean(cut) == pytest.approx(planted, rel=0.05)


def test_a_settled_series_has_no_material_warm_up():
    rng = np.random.default_rng(2)

    assert not any(settling(rng.lognormal(5, 0.5, 2000)).material for _ in range(200))
    assert settling(np.full(1000, 7.0)).cut == 0


def test_a_series_that_keeps_growing_does_not_settle():
    found = settling(1000 + np.arange(1000.0))

    assert not found.settles
    assert found.material
    assert found.drift == pytest.approx(0.5, abs=0.01)


def test_a_busy_queue_is_not_called_unsettled():
    """At 80% load the means of halves differ by chance; few of such runs may be blamed for it."""
    rng = np.random.default_rng(4)
    blamed = [settling(sojourn(rng, 20_000, 0.8, 0)).material for _ in range(100)]

    assert sum(blamed) <= 5


def test_a_step_is_cut_where_it_ends():
    rng = np.random.default_rng(3)
    series = np.concatenate((rng.normal(300, 10, 200), rng.normal(100, 10, 800)))

    assert settling(series).cut == 200
    assert settling(series + 1e9).cut == 200


def test_a_short_series_says_nothing():
    assert settling(np.arange(49.0)) is None
