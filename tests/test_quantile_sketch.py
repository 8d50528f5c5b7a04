"""The live quantiles: one percent of error, and sums of sketches that are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge import quantile_sketch


def sketch_of(values):
    bins: quantile_sketch.Bins = {}
    for value in values:
        quantile_sketch.add(bins, float(value))
    return bins


def exact(values, p):
    return sorted(values)[max(1, math.ceil(p * len(values))) - 1]


@pytest.mark.parametrize("p", [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0])
@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
def test_a_quantile_of_lognormal_latencies_is_within_one_percent_of_the_exact_one(p, sigma):
    values = np.random.default_rng(1).lognormal(5.0, sigma, 20_000)

    assert quantile_sketch.quantile(sketch_of(values), p) == pytest.approx(
        exact(values, p), rel=0.01
    )


@given(st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_of_anything_positive_is_within_one_percent(values, p):
    assert quantile_sketch.quantile(sketch_of(values), p) == pytest.approx(
        exact(values, p), rel=0.0101
    )


@given(st.lists(st.lists(st.floats(1e-3, 1e7), max_size=20), max_size=5))
def test_merged_sketches_are_the_sketch_of_all_values(parts):
    merged: quantile_sketch.Bins = {}
    for part in parts:
        quantile_sketch.merge(merged, sketch_of(part))

    assert merged == sketch_of([value for part in parts for value in part])


def test_merging_leaves_the_other_sketch_alone():
    other = sketch_of([5.0])
    quantile_sketch.merge(sketch_of([5.0]), other)

    assert other == sketch_of([5.0])


def test_an_empty_sketch_has_no_quantile():
    assert quantile_sketch.quantile({}, 0.5) is None


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_a_value_that_is_not_positive_counts_as_the_smallest(value):
    bins = sketch_of([value, 100.0])

    assert quantile_sketch.quantile(bins, 0.5) == pytest.approx(1e-9, rel=0.01)
    assert quantile_sketch.quantile(bins, 1.0) == pytest.approx(100.0, rel=0.01)


@given(st.lists(st.lists(st.floats(1e-9, 1e12), max_size=20), max_size=5))
def test_the_total_of_packed_sketches_is_their_merged_sketch(parts):
    merged: quantile_sketch.Bins = {}
    for part in parts:
        quantile_sketch.merge(merged, sketch_of(part))

    assert (
        quantile_sketch.total(quantile_sketch.packed(sketch_of(part)) for part in parts) == merged
    )


def test_a_packed_bin_takes_six_bytes_and_holds_billions():
    bins = {-1036: 4_000_000_000, 0: 1, 691: 2}

    assert len(quantile_sketch.packed(bins)) == 18
    assert quantile_sketch.total(
        [quantile_sketch.packed(bins), quantile_sketch.packed({}), quantile_sketch.packed({0: 3})]
    ) == {**bins, 0: 4}
