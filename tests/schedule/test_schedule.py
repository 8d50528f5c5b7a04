"""The plan of a run: its statistics, its reproducibility, and that no arrival is lost on the way to the workers."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.patterns.table import Traffic
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.schedule import arrival_times, plan
from tailgauge.schedule.settings import Arrival

CHAT = {"chat": Traffic()}
BOTH = {**CHAT, "skewed": Traffic(prompt_sigma=0.8)}
SLICE_NS = 5_000_000_000
PROCESSES = ("poisson", "constant", "gamma", "on_off")


def planned(process, rate_per_s, duration_s, traffic=CHAT, seed=1):
    return plan(Arrival(process=process, rate_per_s=rate_per_s), traffic, duration_s, seed)


def poisson(rate_per_s=100.0, duration_s=600.0, traffic=CHAT, seed=1):
    return planned("poisson", rate_per_s, duration_s, traffic, seed)


@pytest.mark.parametrize(
    ("rate_per_s", "duration_s", "count"),
    [
        (10, 30, 300),
        (1, 1, 1),
        (50, 0.5, 25),
        (0.1, 10, 1),
        (3, 7, 21),
        (7.5, 2, 15),
        (1000, 3, 3000),
        (0.1, 4, 0),
    ],
)
def test_constant_arrivals_are_rate_times_duration_at_equal_gaps(rate_per_s, duration_s, count):
    at_ns = planned("constant", rate_per_s, duration_s).at_ns

    assert len(at_ns) == count
    assert all(abs(gap - 1e9 / rate_per_s) <= 1 for gap in np.diff(at_ns))
    assert all(0 <= at < duration_s * 1e9 for at in at_ns)


def test_constant_arrivals_begin_after_half_a_gap():
    """So that they lie evenly in the run, with half a gap left at its end."""
    at_ns = planned("constant", 4, 1).at_ns

    assert at_ns.tolist() == [125_000_000, 375_000_000, 625_000_000, 875_000_000]


def test_poisson_gaps_are_exponential_in_their_tail():
    gaps = np.diff(poisson().at_ns)
    beyond = np.mean(gaps > 3 * gaps.mean())

    assert math.exp(-3) == pytest.approx(beyond, rel=0.1)


def test_the_number_of_poisson_arrivals_varies_as_it_should_from_seed_to_seed():
    """Rescaled arrivals would always hit the number: their variance would be 0 instead of the mean."""
    counts = np.array([len(poisson(10, 40, seed=seed)) for seed in range(200)])

    assert abs(counts.mean() - 400) < 4 * math.sqrt(400 / 200)
    assert 0.7 < counts.var(ddof=1) / counts.mean() < 1.4


def test_the_same_seed_gives_the_same_plan_to_the_byte():
    first, second = (poisson(20, 30, BOTH, seed=7) for _ in range(2))

    for field in ("at_ns", "traffic", "prompt_tokens", "output_tokens", "turns"):
        assert getattr(first, field).tobytes() == getattr(second, field).tobytes()


def test_a_plan_is_the_same_on_every_machine():
    """Philox and SeedSequence are specified: these figures may change only with a note in the changelog."""
    schedule = poisson(10, 30, BOTH, seed=1)

    assert len(schedule) == 290
    assert schedule.at_ns[:3].tolist() == [19_020_943, 53_828_435, 54_383_387]
    assert schedule.prompt_tokens[:6].tolist() == [117, 200, 123, 200, 113, 200]


def test_the_size_of_a_prompt_has_nothing_to_do_with_the_gap_before_it_or_the_kind_of_traffic():
    twins = {name: Traffic(prompt_sigma=0.8) for name in ("a", "b")}
    schedule = poisson(traffic=twins)
    sizes = np.log(schedule.prompt_tokens[1:])
    bound = 4 / math.sqrt(len(sizes))

    assert abs(np.corrcoef(np.diff(schedule.at_ns), sizes)[0, 1]) < bound
    assert abs(np.corrcoef(schedule.traffic[1:], sizes)[0, 1]) < bound
    assert abs(np.corrcoef(np.diff(schedule.at_ns), schedule.traffic[1:])[0, 1]) < bound


def test_a_mix_comes_in_the_proportions_of_its_weights():
    mix = {
        name: Traffic(weight=weight, prompt_tokens=prompt, output_tokens=output)
        for name, weight, prompt, output in (("a", 1, 10, 1), ("b", 3, 20, 2), ("c", 6, 30, 3))
    }
    schedule = poisson(traffic=mix)
    shares = np.bincount(schedule.traffic) / len(schedule)

    for share, expected in zip(shares, (0.1, 0.3, 0.6), strict=True):
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / len(schedule))
    assert schedule.prompt_tokens.tolist() == [(10, 20, 30)[i] for i in schedule.traffic]
    assert schedule.output_tokens.tolist() == [(1, 2, 3)[i] for i in schedule.traffic]


def test_sizes_are_lognormal_around_their_median():
    skewed = Traffic(prompt_sigma=0.8, output_tokens=300, output_sigma=0.6)
    schedule = poisson(traffic={"skewed": skewed})

    for sizes, median, sigma in (
        (schedule.prompt_tokens, 200, 0.8),
        (schedule.output_tokens, 300, 0.6),
    ):
        logs = np.log(sizes)
        assert math.log(median) == pytest.approx(np.median(logs), abs=0.02)
        assert logs.std() == pytest.approx(sigma, rel=0.02)


def test_a_prompt_has_a_token_at_least():
    assert (
        poisson(traffic={"tiny": Traffic(prompt_tokens=1, prompt_sigma=3.0)}).prompt_tokens.min()
        == 1
    )


@given(
    edges=st.lists(st.integers(-10, 31 * 10**9), max_size=12),
    process=st.sampled_from(PROCESSES),
    seed=st.integers(0, 1000),
)
def test_slices_partition_the_schedule_wherever_they_are_cut(edges, process, seed):
    schedule = planned(process, 10, 30, BOTH, seed)
    cuts = sorted({-20, *edges, 40 * 10**9})
    rows = [row for since, until in pairwise(cuts) for row in schedule.slice(since, until)]

    assert rows == list(schedule.slice(0, 40 * 10**9))
    assert [row[0] for row in rows] == [i * TURNS for i in range(len(schedule))]


def test_an_arrival_on_the_edge_belongs_to_the_later_slice():
    schedule = planned("constant", 4, 1)

    assert [row[1] for row in schedule.slice(0, 375_000_000)] == [125_000_000]
    assert next(schedule.slice(375_000_000, 10**9))[1] == 375_000_000


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_the_shares_of_any_number_of_workers_reunite_to_the_same_schedule(workers):
    """Arrival i goes to worker i mod W: what is sent does not depend on how many send it."""
    schedule = poisson(20, 30, BOTH)
    shares = [[] for _ in range(workers)]
    for since in range(0, 30_000_000_000, SLICE_NS):
        for row in schedule.slice(since, since + SLICE_NS):
            shares[(row[0] // TURNS) % workers].append(row)
    sizes = [len(share) for share in shares]

    assert sorted(row for share in shares for row in share) == list(
        schedule.slice(0, 30_000_000_000)
    )
    assert max(sizes) - min(sizes) <= 1


@given(st.floats(0.01, 200), st.floats(0.1, 20), st.integers(0, 50))
def test_arrivals_are_in_order_and_within_the_run_at_any_rate_and_duration(
    rate_per_s, duration_s, seed
):
    for process in PROCESSES:
        times = arrival_times(Arrival(process=process, rate_per_s=rate_per_s), duration_s, seed)

        assert ((times >= 0) & (times < duration_s)).all()
        assert (np.diff(times) >= 0).all()
