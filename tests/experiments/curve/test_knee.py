"""The knee from shares whose truth is known."""

import math

import numpy as np
import pytest
from tailgauge.experiments.curve.knee import Sample
from tailgauge.experiments.headroom.judge import Rate

from tailgauge.experiments.curve import knee

KNEE, SLOPE, ALLOWED = 10.0, 16.0, 0.05
LOADS = (2.5, 5.0, 10.0, 20.0, 9.0, 9.6, 10.4, 11.2)


def share(load):
    return 1 / (1 + math.exp(-math.log(ALLOWED / (1 - ALLOWED)) - SLOPE * (load / KNEE - 1)))


def drawn(rng, each):
    """Samples whose requests are late `each` at a time."""
    n = 900
    return [
        Sample(x, rng.binomial(n // each, share(x)) * each / (n // each * each), n, n / each) for x in LOADS
    ]


@pytest.mark.parametrize("each", [1, 10, 40])
def test_the_interval_holds_the_knee(each):
    rng = np.random.default_rng(each)
    places = knee.grid(LOADS)
    found = [knee.ends(places, knee.fit(places, drawn(rng, each), ALLOWED, 13.0).chance) for _ in range(30)]

    assert sum(one.low <= KNEE <= one.high for one in found) >= 26
    assert np.median([one.high - one.low for one in found]) < {1: 0.06, 10: 0.12, 40: 0.3}[each] * KNEE


def test_runs_that_scatter_more_than_they_should_make_it_wider():
    places = knee.grid(LOADS)
    near = [
        Sample(x, share(x) * wrong, 900, 90.0)
        for x, wrong in zip(LOADS, (1, 1, 3, 1, 0.1, 3, 0.2, 1.5), strict=True)
    ]
    alike = [Sample(x, share(x), 900, 90.0) for x in LOADS]
    widths = [
        (one.high - one.low) for one in (knee.ends(places, knee.fit(places, of, ALLOWED, 13.0).chance) for of in (near, alike))
    ]  # fmt: skip

    assert widths[0] > 1.2 * widths[1]


def test_the_lowest_of_two_is_no_higher_than_either():
    places = knee.grid(LOADS)
    a, b = (knee.known(places, Rate(value, 0.95 * value, 1.05 * value)) for value in (10.0, 10.2))
    both = knee.ends(places, knee.first([a, b]))

    assert knee.ends(places, a).value == pytest.approx(10.0, rel=0.01)
    assert both.value < 10.0
    assert both.low == pytest.approx(knee.ends(places, a).low, rel=0.02)


def test_short_runs_near_saturation_may_miss_more_and_none_misses_more_than_what_is_spare():
    short, long = (knee.missed(9.5, 10.0, 3.0, ALLOWED, seconds) for seconds in (30.0, 600.0))

    assert long < 0.01 < short <= 0.1
    assert knee.missed(9.5, 10.0, 0.0, ALLOWED, 30.0) == 0.0
