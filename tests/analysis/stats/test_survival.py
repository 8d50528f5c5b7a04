"""Waits that were cut short, against the textbook and against known distributions."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from tailgauge_analysis.stats import quantiles
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.survival import Waits

MEDIAN, SIGMA, BOUND = 700.0, 0.7, 1000.0
NORMAL = NormalDist()


def answered_by(ms):
    return NORMAL.cdf(math.log(ms / MEDIAN) / SIGMA)


def lognormal(rng, n, correlation=0.0):
    """In order of arrival, AR(1) on the scale of the logarithm."""
    steps = rng.normal(size=n)
    z = steps.copy()
    for i in range(1, n):
        z[i] = correlation * z[i - 1] + math.sqrt(1 - correlation**2) * steps[i]
    return MEDIAN * np.exp(SIGMA * z)


def patient(ms, patience, failed_at=math.inf):
    """What is seen of waits whose users leave, and of which some fail."""
    failed_at, patience = np.broadcast_to(failed_at, ms.shape), np.broadcast_to(patience, ms.shape)
    end = np.minimum(ms, failed_at)
    return Waits(np.minimum(end, patience), (ms <= patience) & (ms < failed_at), patience < end)


def test_the_textbook_example():
    """Weeks in remission of the 6-MP group (Freireich 1963): the shares as printed everywhere, and an effective n that
    says as much as their printed standard errors (independent waits, so their order may not matter).
    """
    weeks = np.array(
        [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35], float
    )
    seen = np.array([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0], bool)
    mixed = np.random.default_rng(3).permutation(21)
    waits = Waits(weeks[mixed], seen[mixed], ~seen[mixed])
    printed = {
        7: (0.807, 0.0869),
        10: (0.753, 0.0963),
        13: (0.690, 0.1068),
        22: (0.538, 0.1282),
        23: (0.448, 0.1346),
    }

    for week, (share, error) in printed.items():
        found = waits.beyond(week)
        assert found.value == pytest.approx(share, abs=5e-4)
        assert found.n_eff <= share * (1 - share) / error**2 + 1
    assert [q.value for q in waits.quantiles((0.25, 0.5))] == [13, 23]


def test_without_cuts_it_is_the_plain_share_and_the_plain_quantile():
    ms = lognormal(np.random.default_rng(1), 800, 0.8)
    waits = Waits(ms, ms < 3000, np.zeros(800, bool))

    assert waits.beyond(BOUND) == proportion(~(ms <= BOUND))
    assert waits.quantiles((0.5, 0.99)) == quantiles.quantiles(
        np.where(ms < 3000, ms, np.inf), (0.5, 0.99)
    )


def test_with_one_cut_it_is_nearly_the_same():
    """Nothing jumps where the first wait is cut short, with correlation and failures."""
    ms = lognormal(np.random.default_rng(2), 4000, 0.8)
    cut = np.arange(4000) == 7
    plain, one = (Waits(ms, ~which & (ms < 3000), which) for which in (np.zeros(4000, bool), cut))

    assert one.beyond(BOUND).value == pytest.approx(plain.beyond(BOUND).value, abs=5e-4)
    assert one.beyond(BOUND).n_eff == pytest.approx(plain.beyond(BOUND).n_eff, rel=0.02)
    for a, b in zip(one.quantiles((0.5, 0.9)), plain.quantiles((0.5, 0.9)), strict=True):
        assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), rel=0.01)


@pytest.mark.slow("0.0-0.7", "0.1-0.0", "0.1-0.7")
@pytest.mark.parametrize("correlation", [0.0, 0.7])
@pytest.mark.parametrize("failing", [0.0, 0.1])
def test_the_intervals_hold_what_was_planted(sampling, correlation, failing):
    """Users leave at random moments, a tenth fails; every failure is beyond any bound."""
    runs, rng = sampling(5, 150, 1000)
    p = 0.8
    beyond = 1 - (1 - failing) * answered_by(BOUND)
    true = MEDIAN * math.exp(SIGMA * NORMAL.inv_cdf(p / (1 - failing)))
    held = []
    values = []
    for _ in range(runs):
        ms = lognormal(rng, 1000, correlation)
        failed_at = np.where(rng.random(1000) < failing, rng.exponential(100, 1000), np.inf)
        waits = patient(ms, rng.exponential(1500, 1000), failed_at)
        share, (q,) = waits.beyond(BOUND), waits.quantiles((p,))
        values.append(share.value)
        held.append((share.low <= beyond <= share.high, q.low <= true <= q.high))

    assert np.mean(values) == pytest.approx(beyond, abs=0.01)
    assert min(np.mean(held, axis=0)) >= 0.9


def test_what_fails_at_once_does_not_wait_for_those_who_leave():
    """Half fails at the start and half of the others leaves before 700 ms: failures that were kept among the waiting
    would hide what those who leave still had to wait for.
    """
    rng, n = np.random.default_rng(4), 20_000
    failed_at = np.where(rng.random(n) < 0.5, 1.0, np.inf)
    waits = patient(lognormal(rng, n), rng.uniform(0, 1400, n), failed_at)

    assert waits.beyond(BOUND).value == pytest.approx(1 - 0.5 * answered_by(BOUND), abs=0.015)


def test_what_nobody_waited_for_is_not_known():
    """All leave at 1,000 ms, 2% fail: the p95 is beyond, and no failure stands in for it; the share within the bound is known."""
    rng, n = np.random.default_rng(6), 5000
    waits = patient(lognormal(rng, n), BOUND, np.where(rng.random(n) < 0.02, 10.0, np.inf))
    p50, p95 = waits.quantiles((0.5, 0.95))
    within, later = waits.beyond(BOUND), waits.beyond(2000)

    assert p50.seen_to is None
    assert (p95.value, p95.seen_to) == (math.inf, BOUND)
    assert within.value == pytest.approx(1 - 0.98 * answered_by(BOUND), abs=0.02)
    assert later.value is None
    assert later.low == pytest.approx(0.02, abs=0.01)
    assert later.high == pytest.approx(within.high, abs=1e-4)


def test_a_failure_is_no_wait_that_might_go_on():
    """10% fail and all others are answered or leave after them: the p95 is a failure, whatever those who left would have seen."""
    rng, n = np.random.default_rng(7), 2000
    waits = patient(
        lognormal(rng, n),
        np.where(rng.random(n) < 0.02, 100.0, np.inf),
        np.where(rng.random(n) < 0.1, 10.0, np.inf),
    )
    (p95,) = waits.quantiles((0.95,))

    assert waits.cut.any()
    assert (p95.value, p95.seen_to) == (math.inf, None)


def test_who_left_a_moment_before_the_bound_has_waited_for_it():
    """The clock of a user's patience starts a moment before the first byte leaves."""
    waits = patient(lognormal(np.random.default_rng(8), 2000), BOUND - 0.5)

    assert waits.beyond(BOUND).value == pytest.approx(1 - answered_by(BOUND), abs=0.03)
    assert waits.beyond(BOUND).low > 0.2


def test_the_bounds_of_none_and_of_all():
    none = Waits(np.full(299, 1.0), np.ones(299, bool), np.zeros(299, bool))
    everyone = Waits(np.full(20, 5.0), np.zeros(20, bool), np.ones(20, bool))

    assert none.beyond(2.0).high == pytest.approx(0.01, abs=1e-4)  # the rule of three
    assert none.beyond(2.0).high <= 0.01
    assert (everyone.beyond(2.0).value, everyone.beyond(2.0).high) == (1.0, 1.0)
    assert everyone.quantiles((0.5,))[0].seen_to == 5.0
    assert Waits(np.empty(0), np.empty(0, bool), np.empty(0, bool)).beyond(1.0).value is None


def test_the_last_who_waits_does_not_stand_for_all_who_left():
    """All leave at about 300 ms, one a little later, just after its answer came. Nothing else is known of later times."""
    rng, n = np.random.default_rng(9), 300
    ms, patience = lognormal(rng, n), 300 + rng.exponential(0.5, n)
    ms[0], patience[0] = 318.0, 320.0
    waits = patient(ms, patience)
    (p95,) = waits.quantiles((0.95,))
    later = waits.beyond(1000.0)

    assert p95.value == math.inf
    assert 300 <= p95.seen_to < 305
    assert later.value is None
    assert later.high > 0.8
    assert waits.beyond(300.0).value == pytest.approx(1 - answered_by(300), abs=0.05)
