"""Where one more value lies: how often the limit is exceeded, and what the value's own error adds."""

import numpy as np
import pytest

from tailgauge_analysis.stats.prediction import Prediction, varies_between


@pytest.mark.parametrize("n", [5, 20])
def test_one_value_in_twenty_lies_above_the_limit(n):
    rng = np.random.default_rng(n)
    above = []
    for _ in range(4000):
        *earlier, new = rng.normal(3, 2, n + 1)
        prediction = Prediction.of(np.array(earlier))
        above.append(new > prediction.mean + prediction.reach(0.95))

    assert np.mean(above) == pytest.approx(0.05, abs=0.012)


def test_the_chance_beyond_the_limit_is_what_was_asked_for_and_an_own_error_widens_it():
    earlier = np.array([1.0, 2.0, 4.0, 3.0, 2.5])
    plain, unsure = Prediction.of(earlier), Prediction.of(earlier, variance=4.0)

    assert plain.chance(plain.reach(0.95)) == pytest.approx(0.05)
    assert unsure.reach(0.95) > plain.reach(0.95)
    assert Prediction.of(earlier, variance=-1.0) == plain


def of_slow_machines(rng, count):
    """One in ten is 40% slower."""
    return 0.04 * rng.standard_normal(count) + np.log(1.4) * (rng.random(count) < 0.1)


HEAVY = {
    "t3": lambda rng, count: 0.05 * rng.standard_t(3, count),
    "t2": lambda rng, count: 0.04 * rng.standard_t(2, count),
    "slow machines": of_slow_machines,
}


@pytest.mark.parametrize("n", [5, 10, 20])
@pytest.mark.parametrize("kind", HEAVY)
def test_heavy_tails_take_few_unchanged_values_for_worse(n, kind):
    """Five values that met no slow machine cannot tell one: 6% instead of 5% of unchanged values are called worse."""
    rng = np.random.default_rng([n, len(kind)])
    margin = np.log(1.05)
    times = 3000
    called = 0
    for _ in range(times):
        *earlier, new = HEAVY[kind](rng, n + 1)
        prediction = Prediction.of(np.array(earlier))
        called += new > prediction.mean + margin + prediction.limit(0.95)

    allowed = 0.065 if (n, kind) == (5, "slow machines") else 0.05
    assert called / times <= allowed + 3 * np.sqrt(0.05 * 0.95 / times) * (kind == "slow machines")


@pytest.mark.parametrize("n", [5, 8, 20])
def test_values_vary_between_runs_where_their_errors_do_not_explain_it(n):
    rng = np.random.default_rng(n)
    errors = np.full(n, 0.02)
    alike = [varies_between(rng.normal(0, 0.02, n), errors) for _ in range(2000)]
    spread = [varies_between(rng.normal(0, 0.08, n), errors) for _ in range(2000)]

    assert np.mean(alike) == pytest.approx(0.05, abs=0.02)
    assert np.mean(spread) >= 0.95
