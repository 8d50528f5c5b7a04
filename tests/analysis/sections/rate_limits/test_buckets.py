"""Token buckets from the outside: rates and bursts are recovered from who was admitted."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from run_folders.limit_families import FAMILIES

from tailgauge_analysis.reading import rate_limit_headers
from tailgauge_analysis.sections.rate_limits import buckets, token_bucket
from tailgauge_analysis.sections.rate_limits.costs import Costs
from tailgauge_analysis.sections.rate_limits.token_bucket import Growth, growth


def served(at_s, rate, burst, cost=1.0):
    """What a bucket does with calls at these times: the same rule as the bucket's own, one call after another."""
    cost = np.broadcast_to(np.asarray(cost, np.float64), len(at_s))
    level, before, refused = float(burst), 0.0, np.zeros(len(at_s), np.bool_)
    for i, t in enumerate(at_s):
        level = min(burst, level + rate * (t - before))
        before = t
        refused[i] = level + 1e-9 < cost[i]
        level -= 0.0 if refused[i] else cost[i]
    return Costs(
        at_s=np.asarray(at_s),
        charge=np.where(refused, 0.0, cost),
        need=cost.copy(),
        refused=refused,
        attempt=np.arange(len(at_s)),
    )


def poisson(rate, seconds, seed=1):
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, int(rate * seconds * 1.5) + 20)
    at = np.cumsum(gaps)
    return at[at < seconds]


@pytest.mark.parametrize(
    ("rate", "burst", "offered"), [(5, 1, 4), (5, 3, 7), (2, 20, 4), (10, 10, 11)]
)
def test_rate_and_burst_lie_in_their_intervals(rate, burst, offered):
    costs = served(poisson(offered, 200), rate, burst)
    found = token_bucket.fit(costs)

    assert found.unexplained == 0
    assert found.rate_low <= rate <= found.rate_high
    assert found.burst_low - 1e-6 <= burst <= found.burst_high + 1e-6
    assert found.rate_high - found.rate_low < (0.2 if burst == 1 else 0.01) * rate


def test_a_single_refusal_leaves_the_rate_wide_open():
    costs = served(np.array([0.0, 0.1, 0.2, 0.3, 5.0, 9.0]), rate=1, burst=3)
    found = token_bucket.fit(costs)

    assert int(costs.refused.sum()) == 1
    assert found.rate_low is None or found.rate_low < 1
    assert found.rate_high is None or found.rate_high > 1


def test_without_a_refusal_there_is_nothing_to_fit():
    assert token_bucket.fit(served(poisson(1, 50), 100, 100)) is None


def test_late_and_early_calls_are_tolerated_and_counted():
    rng = np.random.default_rng(2)
    costs = served(poisson(7, 300), 5, 3)
    decision_lag_s = 0.004
    seen = costs.at_s + rng.exponential(decision_lag_s, len(costs.at_s))
    order = np.argsort(seen)
    moved = replace(costs.only(order), at_s=seen[order])
    found = token_bucket.fit(moved, decision_lag_s)

    assert 0 < found.unexplained < 0.1 * found.refused
    assert found.rate_low <= 5 <= found.rate_high
    assert found.rate == pytest.approx(5, rel=0.02)
    assert found.burst_low <= 3 <= found.burst_high
    assert found.burst_high - found.burst_low < 0.2


def test_refusals_by_chance_are_not_believed_to_be_a_bucket():
    rng = np.random.default_rng(3)
    at = poisson(10, 100)
    refused = rng.random(len(at)) < 0.2
    costs = served(at, rate=1e6, burst=1e6)
    found = token_bucket.fit(replace(costs, refused=refused, charge=np.where(refused, 0.0, 1.0)))

    assert not found.is_credible
    found = buckets.rate(None, found, None, rate_limit_headers.REQUESTS)
    assert found.value is None
    assert found.why == "no token bucket explains these 429s"


def test_deterministic_overload_is_refused_by_one_minus_r_over_lambda():
    """METHOD's law of the deterministic bucket: admitted in [0, T] at most b + r T, to one call."""
    at, rate, burst = np.arange(0, 400, 0.1), 6.0, 4
    costs = served(at, rate, burst)
    admitted = len(at) - int(costs.refused.sum())

    assert abs(admitted - (burst + rate * at[-1])) <= 1
    assert costs.refused.mean() == pytest.approx(1 - 6 / 10, abs=2 * burst / len(at) + 1 / len(at))
    found = token_bucket.fit(costs)
    assert found.rate_low <= rate <= found.rate_high


def read(rows):
    """Columns of a table of header texts."""
    texts = pa.table(
        {rate_limit_headers.SOURCE: pa.array(rows, pa.string()), "n": pa.array(range(len(rows)))}
    )
    return rate_limit_headers.lean(texts).to_pandas()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_limits_are_the_same_columns_whatever_the_family(family):
    found = read([json.dumps(FAMILIES[family]), None])

    assert found.drop(columns="n").iloc[0].to_dict() == {
        "header_requests_limit": 900, "header_requests_remaining": 100,
        "header_tokens_limit": 50_000, "header_tokens_remaining": 20_000,
    }  # fmt: skip


def test_of_several_windows_the_shortest_counts_with_what_is_left_of_it():
    mistral = {
        "x-ratelimit-limit-tokens-month": "4000000",
        "x-ratelimit-remaining-tokens-month": "39",
        "x-ratelimit-limit-tokens-minute": "50000",
        "x-ratelimit-remaining-tokens-minute": "700",
    }
    ietf = {
        "ratelimit-policy": '"daily";q=900;w=86400, "burst";q=9;w=1',
        "ratelimit": '"daily";r=5;t=9000, "burst";r=2;t=1',
    }
    half = {name: mistral[name] for name in list(mistral)[:3]}
    found = read([json.dumps(mistral), json.dumps(ietf), json.dumps(half)])

    assert found["header_tokens_limit"].tolist()[0::2] == [50_000, 4_000_000]
    assert found["header_tokens_remaining"].tolist()[0::2] == [700, 39]
    assert found["header_tokens_window_s"].tolist()[0::2] == [60, 2_592_000]
    assert (found["header_requests_limit"][1], found["header_requests_remaining"][1]) == (9, 2)
    assert found["header_requests_window_s"][1] == 1


def test_further_windows_have_columns_of_their_names():
    groq = {"x-ratelimit-limit-requests-day": "1000", "x-ratelimit-remaining-requests-day": "90"}
    minute = {
        "x-ratelimit-limit-requests-minute": "50",
        "x-ratelimit-remaining-requests-minute": "49",
    }
    ietf = {
        "ratelimit-policy": '"daily";q=900;w=86400, "burst";q=9;w=1',
        "ratelimit": '"daily";r=5;t=9000, "burst";r=2;t=1',
    }
    found = read([json.dumps(groq | minute), json.dumps(ietf), json.dumps(groq), None])

    assert found["header_requests_limit"].tolist()[:3] == [50, 9, 1000]
    assert found["header_requests_limit_86400_s"].tolist()[:2] == [1000, 900]
    assert found["header_requests_remaining_86400_s"].tolist()[:2] == [90, 5]
    assert found["header_requests_remaining_86400_s"].isna().tolist() == [False, False, True, True]
    assert rate_limit_headers.further_windows_s(found.columns, "requests") == [86_400]
    assert rate_limit_headers.further_windows_s(found.columns, "tokens") == []


def test_a_header_with_hundreds_of_windows_makes_few_columns():
    policies = [f'"p{window}";q=9;w={window}' for window in range(1, 60)]
    left = [f'"p{window}";r=2' for window in range(1, 60)]
    found = read(
        [json.dumps({"ratelimit-policy": ", ".join(policies), "ratelimit": ", ".join(left)})]
    )

    assert (found["header_requests_limit"][0], found["header_requests_window_s"][0]) == (9, 1)
    assert len(found.columns) <= 4 + 2 * rate_limit_headers.MOST_WINDOWS


def test_the_rate_is_of_the_window_that_the_header_names():
    rows = pd.DataFrame({
        "header_tokens_limit": [4e6], "header_tokens_remaining": [39.0], "header_tokens_window_s": [2_592_000.0],
    })  # fmt: skip
    found = buckets.read_headers(rows, rate_limit_headers.TOKENS, np.array([False]))

    assert buckets.rate(found, None, None, rate_limit_headers.TOKENS).value == 4e6 / 2_592_000


def groq(missing, reset):
    """Headers of 14,400 requests a day, which is nowhere said."""
    return json.dumps({
        "x-ratelimit-limit-requests": "14400", "x-ratelimit-remaining-requests": str(14_400 - missing),
        "x-ratelimit-reset-requests": reset,
    })  # fmt: skip


def test_resets_show_that_a_limit_is_per_day():
    found = read([groq(1, "6s"), groq(30, "2m59.56s"), groq(31, "3m6s"), groq(31, "3m5.9s"), None])

    assert found["header_requests_window_s"].tolist()[:4] == [86_400] * 4
    assert np.isnan(found["header_requests_window_s"][4])


@pytest.mark.parametrize(
    "texts",
    [
        [groq(1, "6s"), groq(1, "6s"), groq(2, "12s")],  # too few levels
        [
            groq(1, "6s"),
            groq(30, "2m54s"),
            groq(60, "2m48s"),
            groq(90, "2m42s"),
        ],  # a window that ends at a time
        [groq(1, "4ms"), groq(2, "8ms"), groq(3, "12ms")],  # a minute
        [groq(1, "1s"), groq(2, "1s"), groq(3, "1s")],  # rounded up
        [groq(0, "0s"), groq(1, "soon"), groq(2, "1893456000")],
    ],
)
def test_resets_that_do_not_agree_tell_no_window(texts):
    assert "header_requests_window_s" not in read(texts).columns


def test_headers_that_say_nothing_leave_no_column():
    assert read([None, None]).columns.tolist() == ["n"]
    assert read(
        ['{"x-ratelimit-limit-requests": "many"}', "no json", "[1]", "{}"]
    ).columns.tolist() == ["n"]


def test_the_recorded_response_of_the_documentation_gives_its_rate():
    """A limit of 16,000 per minute."""
    rows = pd.DataFrame({
        "header_input_tokens_limit": [16000.0], "header_input_tokens_remaining": [12000.0],
    })  # fmt: skip
    found = buckets.read_headers(rows, rate_limit_headers.INPUT, np.array([False]))

    assert found.slack == 500
    found = buckets.rate(found, None, None, rate_limit_headers.INPUT)
    assert (found.value, found.how) == (16000 / 60, "headers")


def test_a_header_that_the_429s_contradict_is_not_believed():
    costs = served(poisson(7, 200), 5, 3)
    n = len(costs.at_s)
    rows = pd.DataFrame({
        "header_requests_limit": [900.0] * n, "header_requests_remaining": [897.0] * n,
        "headers_at_ns": costs.at_s * 1e9, "ended_at_ns": costs.at_s * 1e9,
    })  # fmt: skip
    found = buckets.read_headers(rows, rate_limit_headers.REQUESTS, costs.refused)
    found = buckets.rate(found, token_bucket.fit(costs), costs, rate_limit_headers.REQUESTS)

    assert found.how == "429s"
    assert found.low <= 5 <= found.high
    assert found.why == "headers name 900 per minute, but the 429s do not match that limit"


def test_the_mean_use_is_over_the_trace():
    costs = served(np.array([0.0, 0.1, 0.2, 20.0]), rate=100, burst=100)

    assert costs.mean_per_s == pytest.approx(4 / 20)
    assert costs.only(slice(1)).mean_per_s is None


def test_the_growth_factor_is_where_the_bucket_first_refuses():
    """One call a second on a bucket that regains two: twice the calls are allowed, and no bucket allows (r T + b) / T."""
    costs = served(np.arange(0.0, 400), rate=2, burst=5)
    found = growth(costs, 2.0, (5.0, 5.0, 5.0))

    assert found.calls == 400
    assert 1.8 <= found.value <= (2 * 399 + 5) / 399
    assert found.low <= found.value <= found.high


def test_growth_is_less_in_a_smaller_bucket():
    costs = served(poisson(2, 200), rate=50, burst=50)
    factors = [growth(costs, 10.0, (burst,) * 3).value for burst in (4.0, 8.0, 30.0)]

    assert factors == sorted(factors)
    assert factors[0] < factors[1] < factors[2]


def test_growth_below_one_thins_a_trace_that_is_too_much():
    costs = served(poisson(20, 100), rate=5, burst=5)
    found = growth(replace(costs, charge=costs.need), 5.0, (5.0,) * 3)

    assert 0 < found.low <= found.value <= found.high < 0.25


def test_a_factor_beyond_the_search_is_reported_as_more_than_the_most():
    found = growth(served(poisson(1, 100), 1e6, 1e6), 1e6, (1e6,) * 3)

    assert found.value is None
    assert found.high is None
    assert found.why == "more than 10x"


def test_a_handful_of_calls_says_nothing_of_growth():
    found = growth(served(np.arange(5.0), 1, 5), 1.0, (5.0,) * 3)

    assert found == Growth(calls=5, why="fewer than 20 calls")
