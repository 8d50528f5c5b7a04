"""Where one more value lies: how often the limit is exceeded, and what the value's own error adds."""

import numpy as np
import pytest

from tailgauge_analysis.stats.prediction import Prediction


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
