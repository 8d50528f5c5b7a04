"""Numbers and untrusted text as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge_analysis.text.formatting import (
    clock,
    count,
    ms,
    percentile,
    plain,
    plural,
    share,
    share_range,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0421, "0.042"), (4.213, "4.21"), (42.13, "42.1"), (421.3, "421"), (4213.4, "4,213"), (None, "–"),
     (math.inf, "–"), (math.nan, "–"), (9.996, "10.0"), (-3.5, "-3.50")],
)  # fmt: skip
def test_milliseconds(value, text):
    assert ms(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0%"),
        (1.0, "100%"),
        (0.042, "4.2%"),
        (0.9998, "99.980%"),
        (0.00012, "0.012%"),
        (1.0221, "102.2%"),
        (-0.042, "-4.2%"),
        (1e-7, "<0.001%"),
        (0.9999999, ">99.999%"),
        (1.0000001, ">100%"),
        (-1e-7, ">-0.001%"),
        (None, "–"),
    ],
)
def test_shares(value, text):
    assert share(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.9999999, 1.0, "99.99999% – 100.00000%"),  # once read 100.000% – 100%
        (0.9996, 0.99951, "99.951% – 99.960%"),  # once read 99.960% – 99.951%
        (0.99949, 0.9951, "99.510% – 99.949%"),
        (0.9963, 1.0, "99.63% – 100.00%"),
        (0.0, 0.0037, "0.00% – 0.37%"),
        (0.0, 1.0, "0% – 100%"),
        (0.00003, 0.70169, "0.003% – 70.2%"),  # once read 0.003% – 70.169%
        (0.5, 0.5, "50.0% – 50.0%"),
        (0.5, 0.999999, "50.0% – 99.9999%"),  # once read 50.0% – >99.999%
        (0.9999999, 0.9999999, "99.99999% – 99.99999%"),  # once read >99.999%
        (0.000002, 0.3, "0.0002% – 30.0%"),
        (-0.32, 0.1, "-32.0% – 10.0%"),
        (None, 0.5, "– – 50.0%"),
        (None, None, "– – –"),
    ],
)
def test_intervals_of_shares(low, high, text):
    assert share_range(low, high) == text


shares = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 1.0]), st.floats(0, 1e-3), st.floats(0, 1e-3).map(lambda v: 1 - v),
    st.integers(1, 10**6).flatmap(lambda n: st.integers(0, n).map(lambda k: k / n)),
)  # fmt: skip


@given(shares)
def test_only_nothing_reads_as_0_and_only_all_reads_as_100_per_cent(value):
    text = share(value)

    if text[0] in "<>":
        assert value < 1e-5 or value > 1 - 1e-5
    else:
        assert (float(text[:-1]) == 0) == (value == 0)
        assert (float(text[:-1]) == 100) == (value == 1)
        assert float(text[:-1]) == pytest.approx(100 * value, abs=0.051)


@given(shares, shares)
def test_the_ends_of_an_interval_differ_ascend_and_have_the_same_precision_unless_it_is_far_apart(
    a, b
):
    text = share_range(a, b)
    ends = text.removesuffix("%").split("% – ")

    if ends[0] == ends[1]:
        assert abs(a - b) < 1e-13
        return
    decimals = {len(end.partition(".")[2]) for end in ends}
    low, high = (float(end.strip("<>")) for end in ends)
    assert len(decimals) == 1 or (min(decimals), max(decimals) >= 3) == (1, True)
    assert low < high
    assert (low, high) == pytest.approx((100 * min(a, b), 100 * max(a, b)), abs=0.051)


def test_the_rest():
    assert [clock(12), clock(3723), clock(-1)] == ["00:12", "1:02:03", "00:00"]
    assert [count(12345), count(None)] == ["12,345", "–"]
    assert [plural(1, "row"), plural(2000, "row")] == ["1 row", "2,000 rows"]
    assert [percentile(0.99), percentile(0.999), percentile(0.5)] == ["p99", "p99.9", "p50"]


def test_untrusted_text_cannot_command_a_terminal():
    assert plain("a\x1b[2J\r\nb\u202e\x07 c") == "a[2J b c"
    assert plain("x" * 50, 10) == "x" * 9 + "…"
