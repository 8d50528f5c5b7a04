"""Intervals hold where requests depend on each other in ways that the processes here know."""

import math

import numpy as np
import pytest

from tailgauge_analysis.stats import dependence
from tailgauge_analysis.stats.dependence import Grouping, clusters_of
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, UNRELIABLE, quantiles

PS = (0.5, 0.95)
NORMAL = {0.5: 0.0, 0.95: 1.6449}  # quantiles of a standard normal variable


def autoregressive(rng, n, phi):
    values = rng.standard_normal(n) * math.sqrt(1 - phi**2)
    values[0] = rng.standard_normal()
    for i in range(1, n):
        values[i] += phi * values[i - 1]
    return values


def independent(rng, n):
    return rng.standard_normal(n), ()


def with_groups(rng, n):
    """Independent, with groups that mean nothing."""
    codes = (rng.integers(0, n // 4, n), rng.integers(0, 40, n), rng.integers(0, 2, n))
    names = ("session", "prompt", "worker")
    groupings = [
        Grouping(name, code, name == "session") for name, code in zip(names, codes, strict=True)
    ]
    return rng.standard_normal(n), groupings


def common(codes, share, rng):
    """Values of which a share of the variance is common to those of a group."""
    noise = rng.standard_normal(len(codes))
    return (
        math.sqrt(share) * rng.standard_normal(codes.max() + 1)[codes]
        + math.sqrt(1 - share) * noise
    )


def sessions(turns, share, spread=0.1):
    def made(rng, n):
        begun = rng.uniform(0, 1, n // turns)
        at = np.repeat(begun, turns) + spread * rng.uniform(0, 1, n // turns * turns)
        codes = np.repeat(np.arange(n // turns), turns)[np.argsort(at)]
        return common(codes, share, rng), [Grouping("session", codes, True)]

    return made


def users(count, share):
    def made(rng, n):
        codes = np.concatenate([rng.permutation(count) for _ in range(n // count)])
        return common(codes, share, rng), [Grouping("user", codes, True)]

    return made


def tags(count, share):
    def made(rng, n):
        codes = rng.integers(0, count, n)
        return common(codes, share, rng), [Grouping("tag", codes)]

    return made


def replicas(count, phi):
    """Calls that go round replicas, each with slow times of itself; the rows do not know which."""

    def made(rng, n):
        values = np.empty(n)
        for first in range(count):
            values[first::count] = autoregressive(rng, len(values[first::count]), phi)
        return values, ()

    return made


def both(turns, share, phi):
    """Sessions beside slow times."""

    def made(rng, n):
        values, groupings = sessions(turns, share, 0.5)(rng, n)
        slow = autoregressive(rng, len(values), phi)
        return (values + slow) / math.sqrt(2), groupings

    return made


PROCESSES = {
    "independent": (independent, 1000),
    "sessions of 5": (sessions(5, 0.5), 1000),
    "sessions of 20, far apart": (sessions(20, 0.3, 1.0), 2000),
    "60 users": (users(60, 0.2), 1200),
    "80 tags": (tags(80, 0.2), 1600),
    "3 replicas": (replicas(3, 0.6), 1500),
    "5 replicas": (replicas(5, 0.5), 1500),
    "sessions and slow times": (both(5, 0.8, 0.7), 1500),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_unmarked_intervals_hold(name, full_size):
    """95% of them do; by chance fewer than 84% of 120 in one of 100,000 repetitions."""
    made, n = PROCESSES[name]
    seeds = range(1000 if full_size else 60)
    held = []
    for seed in seeds:
        values, groupings = made(np.random.default_rng([seed, n]), n)
        found = quantiles(values, PS, groupings=groupings, tie=0.0)
        unmarked = [quantile for quantile in found if not quantile.mark]
        held += [quantile.low <= NORMAL[quantile.p] <= quantile.high for quantile in unmarked]
    assert len(held) > 0.8 * 2 * len(seeds)
    assert np.mean(held) >= (0.93 if full_size else 0.9)


@pytest.mark.slow(
    "200-with_groups", "600-independent", "600-with_groups", "3000-independent", "3000-with_groups"
)
@pytest.mark.parametrize("made", [independent, with_groups])
@pytest.mark.parametrize("n", [200, 600, 3000])
def test_independent_values_keep_their_n_eff(made, n):
    parts = []
    for seed in range(60):
        values, groupings = made(np.random.default_rng([seed, n]), n)
        parts += [found.n_eff / n for found in quantiles(values, (0.5, 0.95), groupings=groupings)]
    assert np.median(parts) >= 0.9
    assert np.quantile(parts, 0.1) >= 0.75


@pytest.mark.parametrize(
    ("made", "n", "name"),
    [
        (sessions(5, 0.5), 2000, "session"),
        (users(50, 0.3), 1000, "user"),
        (tags(60, 0.4), 1800, "tag"),
        (replicas(3, 0.7), 1500, dependence.NEIGHBOURS),
        (independent, 1000, ""),
    ],
)
def test_what_limits_n_eff_is_named(made, n, name):
    values, groupings = made(np.random.default_rng(7), n)
    median = quantiles(values, (0.5,), groupings=groupings, tie=0.0)[0]

    assert median.limited_by == name
    assert (median.n_eff < 0.6 * n) == bool(name)


@pytest.mark.parametrize(("made", "n"), [(sessions(5, 0.7), 1000), (users(40, 0.5), 1200)])
def test_a_share_knows_its_groups(made, n, full_size):
    held = 0
    seeds = range(500 if full_size else 60)
    for seed in seeds:
        values, groupings = made(np.random.default_rng(seed), n)
        share = proportion(values > NORMAL[0.95], groupings=groupings, waits_ms=values)
        held += share.low <= 0.05 <= share.high
    assert held >= (0.93 if full_size else 0.9) * len(seeds)


@pytest.mark.parametrize(
    ("groups", "share", "mark"), [(12, 0.3, UNRELIABLE), (12, 0.0, UNRELIABLE), (60, 0.3, "")]
)
def test_few_users_are_marked_whatever_they_do(groups, share, mark):
    values, groupings = users(groups, share)(np.random.default_rng(1), 1200)

    assert quantiles(values, (0.5,), groupings=groupings)[0].mark == mark


@pytest.mark.parametrize("name", ["worker", "target", "tag size"])
def test_a_few_parts_of_the_traffic_that_differ_are_no_error(name):
    """Any run has both, in the same shares."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 2, 2000)
    values = 100 + 50 * codes + rng.exponential(20, 2000)
    median, p95 = quantiles(values, PS, groupings=[Grouping(name, codes)])

    assert (median.mark, p95.mark) == ("", "")
    assert min(median.n_eff, p95.n_eff) > 1800


@pytest.mark.parametrize(
    "codes",
    [
        np.arange(500),
        np.full(500, -1),
        np.zeros(500, np.int64),
        np.repeat(np.arange(250), 2),
        np.concatenate((np.zeros(400, np.int64), np.arange(1, 101))),
        np.concatenate((np.full(490, -1), np.arange(10) // 5)),
    ],
    ids=["single", "none", "one", "pairs", "one large", "a few small"],
)
def test_groups_of_any_sizes_do_no_harm(codes):
    values = np.random.default_rng(3).exponential(100, 500)
    plain = quantiles(values, (0.5, 0.9))
    found = quantiles(values, (0.5, 0.9), groupings=[Grouping("session", codes, True)])

    assert [quantile.value for quantile in found] == [quantile.value for quantile in plain]
    assert all(quantile.n_eff >= 0.8 * 500 for quantile in found)
    assert clusters_of([Grouping("session", np.empty(0, np.int64), True)]) == ()


@pytest.mark.parametrize(
    "values",
    [
        np.full(600, 200.0),
        200 + np.random.default_rng(1).normal(0, 0.002, 600),
        35.5 + 0.004 * np.sin(np.arange(600) / 40),
        np.where(np.arange(900) % 300 < 3, 120.004, 120.0),
    ],
    ids=["constant", "jitter", "slow jitter", "steps"],
)
def test_values_within_a_hundredth_of_a_millisecond_are_ties(values):
    for quantile in quantiles(values, (0.5, 0.95, 0.99)):
        assert (quantile.mark, quantile.n_eff) == ("", len(values))


@pytest.mark.parametrize(("unit", "tie"), [(1e6, 1e4), (1e-3, 1e-5)])
def test_ties_have_the_unit_of_the_values(unit, tie):
    jitter = 200 + np.random.default_rng(4).normal(0, 0.002, 600)

    assert quantiles(jitter * unit, (0.99,), tie=tie)[0].mark == ""


@pytest.mark.parametrize(
    ("made", "n"),
    [(replicas(1, 0.95), 400), (replicas(1, 0.9), 300), (sessions(20, 0.9, 0.1), 600)],
)
def test_a_share_of_none_is_as_unsure_as_the_waits_of_the_same_requests(made, n):
    """The other waits show that so many requests say what some 40 would."""
    values, groupings = made(np.random.default_rng(6), n)
    none = np.zeros(len(values), np.bool_)
    plain = proportion(none)
    found = proportion(none, groupings=groupings, waits_ms=values)
    every = proportion(~none, groupings=groupings, waits_ms=values)

    assert plain.n_eff == len(values)
    assert found.n_eff == every.n_eff < len(values) / 3
    assert found.high > 2.5 * plain.high
    assert found.low == 0.0


def test_a_long_burst_among_short_ones_is_one_episode():
    failed = np.zeros(4000, np.bool_)
    failed[500:600] = True
    failed[[1000, 1500, 2000, 2500, 3000, 3500]] = True
    even = np.zeros(4000, np.bool_)
    for begin in range(200, 4000, 400):
        even[begin : begin + 10] = True

    assert proportion(failed).mark == FEW_EPISODES
    assert proportion(failed).episodes == 1
    assert (proportion(even).mark, proportion(even).episodes) == ("", 10)


def test_groups_of_several_samples_stay_apart():
    first = (Grouping("session", np.array([0, 0, -1]), True),)
    second = (Grouping("session", np.array([0, 1, 0]), True), Grouping("tag", np.array([0, 0, 1])))
    session, tag = dependence.joined([(first, 3), (second, 3)])

    assert session.codes.tolist() == [0, 0, -1, 1, 2, 1]
    assert tag.codes[:3].tolist() == [-1, -1, -1]
    assert session.follows_by_construction
