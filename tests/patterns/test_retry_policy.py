"""When a failed call may be sent again."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.patterns.events import Ended
from tailgauge.patterns.policies import RETRYABLE, Retrier
from tailgauge.patterns.settings import Retry
from tailgauge.rows.schema import ENDED_CLASSES

S = 1_000_000_000


def begins(
    table, ended="rate_limited", at_ns=0, after_s=None, should=None, *, n=0, scheduled=0, draw=0.5
):
    """When a first call's retry begins."""
    failed = Ended(0, 0, at_ns, ended, after_s, should)
    return Retrier(table).begins_at_ns(failed, retries=n, scheduled_at_ns=scheduled, draw=draw)


def polite(**values):
    return Retry(policy="polite", **values)


def test_without_a_policy_nothing_is_retried():
    assert {begins(Retry(), ended, should=True) for ended in ENDED_CLASSES} == {None}


@pytest.mark.parametrize("policy", ["polite", "naive"])
def test_only_what_may_pass_is_retried(policy):
    table = Retry(policy=policy)
    retried = {ended for ended in ENDED_CLASSES if begins(table, ended) is not None}

    assert retried == {"rate_limited", "overloaded", "server_error", "connect_error", "timeout"}


@pytest.mark.parametrize("policy", ["polite", "naive"])
def test_what_the_target_says_itself_wins(policy):
    table = Retry(policy=policy)

    assert {begins(table, ended, should=False) for ended in ENDED_CLASSES} == {None}
    assert begins(table, "client_error", should=True) is not None  # a 409, say
    for ended in ("ok", "empty", "cancelled", "stream_error", "truncated"):
        assert begins(table, ended, should=True) is None


@pytest.mark.parametrize(
    ("n", "most_s"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (9, 8.0)]
)
def test_jitter_is_full_and_lies_above_the_floor(n, most_s):
    table = polite(max_retries=10)
    lowest, middle, highest = (
        begins(table, after_s=3.0, n=n, draw=draw) for draw in (0.0, 0.5, 1 - 1e-12)
    )

    assert lowest == 3 * S
    assert middle == 3 * S + most_s * S / 2
    assert highest == pytest.approx(3 * S + most_s * S, rel=1e-9)


def test_without_a_retry_after_the_jitter_stands_alone():
    assert begins(polite(), at_ns=7 * S, draw=0.0) == 7 * S
    assert begins(polite(), at_ns=7 * S, draw=0.5) == 7 * S + S // 4


def test_a_fraction_of_a_nanosecond_is_waited_too():
    assert begins(polite(), after_s=1e-9 / 3, draw=0.0) == 1


@pytest.mark.parametrize(("deadline_s", "may"), [(4.99, False), (5.0, True)])
def test_no_retry_that_would_begin_after_the_deadline(deadline_s, may):
    at = begins(
        polite(deadline_s=deadline_s), at_ns=12 * S, after_s=3.0, scheduled=10 * S, draw=0.0
    )

    assert at == (15 * S if may else None)


def test_at_most_as_many_as_allowed():
    assert begins(polite(max_retries=2), n=1) is not None
    assert begins(polite(max_retries=2), n=2) is None
    assert begins(Retry(policy="naive", max_retries=0)) is None


def test_the_naive_policy_waits_as_long_as_it_always_does():
    table = Retry(
        policy="naive", naive_wait_s=0.25, max_retries=50, budget_share=0.0, deadline_s=0.001
    )
    retrier = Retrier(table)
    starts = {
        retrier.begins_at_ns(
            Ended(0, 0, 9 * S, "rate_limited", 600.0),
            retries=n,
            scheduled_at_ns=0,
            draw=Random(n).random(),
        )
        for n in range(50)
    }

    assert starts == {9 * S + S // 4}


def test_a_retry_that_cannot_be_takes_nothing_from_the_budget():
    retrier = Retrier(polite(budget_burst=1, budget_share=0.0, deadline_s=10))

    def begins(after_s):
        failed = Ended(0, 0, 0, "overloaded", after_s)
        return retrier.begins_at_ns(failed, retries=0, scheduled_at_ns=0, draw=0.0)

    assert begins(11.0) is None  # past the deadline
    assert begins(1.0) == S
    assert begins(1.0) is None  # now the budget is used up


@given(
    st.integers(0, 10**15), st.floats(0, 1e4), st.integers(0, 99), st.floats(0, 1, exclude_max=True),
    st.sampled_from(sorted(RETRYABLE)),
)  # fmt: skip
def test_never_before_the_time_that_the_target_named(at_ns, after_s, n, draw, ended):
    table = polite(max_retries=100, deadline_s=1e9)
    at = begins(table, ended, at_ns, after_s, n=n, draw=draw)

    assert at is not None
    assert at - at_ns >= after_s * 1e9
    assert at - at_ns <= after_s * 1e9 + 8 * S + 2
