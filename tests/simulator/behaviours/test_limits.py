"""Who is refused, by which limit, and until when."""

from __future__ import annotations

import pytest

from tailgauge.scenario.simulated import LimitsTable
from tailgauge.simulator.behaviours.limits import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    REQUESTS,
    Limits,
)

S = 1_000_000_000


def limits(**values):
    return Limits(LimitsTable(**values), 0)


def level(target: Limits, kind: str, now_ns: int = 0) -> int:
    return next(one.remaining for one in target.readings(now_ns) if one.kind == kind)


def test_without_limits_everyone_is_admitted_and_no_header_is_due():
    target = limits()
    decisions = [target.admit("m", 10**9, 10**9, 0) for _ in range(1000)]

    assert all(one.admitted for one in decisions)
    target.correct(decisions[0].charge, 5, 5, 0)
    target.produce(5, 0)
    target.end(decisions[0].charge, 5, 0)
    assert target.readings(0) == ()


@pytest.mark.parametrize(
    ("one", "kind", "wait_s"),
    [
        ({"rpm": 60, "burst": 2}, REQUESTS, 1),
        ({"rpm": 7, "burst": 2}, REQUESTS, 9),  # 60 / 7 = 8.57
        ({"itpm": 6000, "itpm_burst": 250}, INPUT_TOKENS, 1),  # (100 - 50) / 100 = 0.5
        ({"itpm": 600, "itpm_burst": 250}, INPUT_TOKENS, 5),
        ({"otpm": 600, "otpm_burst": 250, "otpm_mode": "reserve"}, OUTPUT_TOKENS, 5),
    ],
)
def test_the_third_of_three_requests_at_once_learns_which_limit_and_how_long(one, kind, wait_s):
    target = limits(**one)
    first, second, third = (target.admit("m", 100, 100, 0) for _ in range(3))

    assert first.admitted
    assert second.admitted
    assert (third.admitted, third.kind, third.retry_after_s, third.error_code) == (
        False,
        kind,
        wait_s,
        None,
    )
    assert kind.replace("_", " ") in third.message
    assert not target.admit("m", 100, 100, 0).admitted
    assert target.admit("m", 100, 100, wait_s * S).admitted


def test_of_several_limits_the_last_to_allow_the_request_is_named():
    target = limits(rpm=60, burst=1, itpm=600, itpm_burst=100)
    assert target.admit("m", 100, 1, 0).admitted
    refused = target.admit("m", 100, 1, 0)

    assert (refused.kind, refused.retry_after_s) == (INPUT_TOKENS, 10)


def test_a_refused_request_costs_nothing():
    target = limits(rpm=60, burst=5, itpm=600, itpm_burst=100)
    for _ in range(20):
        target.admit("m", 80, 1, 0)

    assert level(target, REQUESTS) == 59
    assert level(target, INPUT_TOKENS) == 520


def test_a_prompt_larger_than_the_bucket_is_sent_away_until_the_bucket_is_full():
    target = limits(itpm=600)
    assert target.admit("m", 100, 1, 0).admitted

    assert target.admit("m", 601, 1, 0).retry_after_s == 10
    assert target.admit("m", 601, 1, 10 * S).retry_after_s == 1


@pytest.mark.parametrize(("reads_count", "left"), [(False, 800), (True, 300)])
def test_input_is_corrected_to_what_counts(reads_count, left):
    target = limits(itpm=1000, reads_count=reads_count)
    charge = target.admit("m", 700, 1, 0).charge
    assert level(target, INPUT_TOKENS) == 300
    target.correct(charge, 200, 500, 0)

    assert level(target, INPUT_TOKENS) == left


def test_output_is_counted_as_it_is_produced_and_only_an_empty_bucket_refuses():
    target = limits(otpm=600, otpm_burst=100)
    charge = target.admit("m", 1, 10**6, 0).charge  # max_tokens plays no part
    target.produce(99, 0)
    assert target.admit("m", 1, 10**6, 0).admitted
    target.produce(21, 0)
    refused = target.admit("m", 1, 1, 0)

    assert (refused.kind, refused.retry_after_s) == (
        OUTPUT_TOKENS,
        3,
    )  # 20 of debt and 1 to be there, at 10 a second
    target.end(charge, 120, 0)
    assert target.admit("m", 1, 1, 2_100_000_000).admitted


def test_reserved_output_is_given_back_at_the_end():
    target = limits(otpm=1000, otpm_mode="reserve")
    charge = target.admit("m", 1, 900, 0).charge
    target.produce(50, 0)
    assert level(target, OUTPUT_TOKENS) == 100
    target.end(charge, 50, 0)

    assert level(target, OUTPUT_TOKENS) == 950


@pytest.mark.parametrize(("refill_s", "burst"), [(60, 600), (6, 60)])
def test_without_a_burst_a_bucket_holds_what_comes_back_in_the_refill_time(refill_s, burst):
    target = Limits(LimitsTable(itpm=600), 0, refill_s)

    assert not target.admit("m", burst + 1, 1, 0).admitted
    assert target.admit("m", burst, 1, 0).admitted
