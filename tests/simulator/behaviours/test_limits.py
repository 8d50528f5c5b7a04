"""Who is refused, by which limit, and until when."""

from __future__ import annotations

import pytest

from tailgauge.simulator.limits import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    RAMP,
    REQUESTS,
    SPEND,
    Allowance,
    Limits,
    LimitSettings,
    ModelLimits,
)
from tailgauge.simulator.ramp import RampSettings

S = 1_000_000_000


def limits(**one: object) -> Limits:
    return Limits(LimitSettings((ModelLimits(**one),)), 0)


def level(target: Limits, kind: str, now_ns: int = 0) -> int:
    return next(one.remaining for one in target.readings("m", now_ns) if one.kind == kind)


def test_without_limits_everyone_is_admitted_and_no_header_is_due() -> None:
    target = Limits(LimitSettings(), 0)
    decisions = [target.admit("m", 10**9, 10**9, 0) for _ in range(1000)]

    assert all(one.admitted for one in decisions)
    target.correct(decisions[0].charge, 5, 5, 0)
    target.produce(decisions[0].charge, 5, 0)
    target.end(decisions[0].charge, 5, 0)
    assert target.readings("m", 0) == ()


@pytest.mark.parametrize(
    ("one", "kind", "wait_s"),
    [
        ({"requests": Allowance(60, 2)}, REQUESTS, 1),
        ({"requests": Allowance(7, 2)}, REQUESTS, 9),  # 60 / 7 = 8.57
        ({"input_tokens": Allowance(6000, 250)}, INPUT_TOKENS, 1),  # (100 - 50) / 100 = 0.5
        ({"input_tokens": Allowance(600, 250)}, INPUT_TOKENS, 5),
        ({"output_tokens": Allowance(600, 250), "output_mode": "reserve"}, OUTPUT_TOKENS, 5),
    ],
)
def test_the_third_of_three_requests_at_once_is_told_which_limit_and_how_long(
    one: dict[str, object], kind: str, wait_s: int
) -> None:
    target = limits(**one)
    first, second, third = (target.admit("m", 100, 100, 0) for _ in range(3))

    assert first.admitted
    assert second.admitted
    assert (third.admitted, third.kind, third.retry_after_s, third.error_code) == (False, kind, wait_s, None)
    assert kind.replace("_", " ") in third.message
    assert not target.admit("m", 100, 100, 0).admitted
    assert target.admit("m", 100, 100, wait_s * S).admitted


def test_of_several_limits_the_last_to_allow_the_request_is_named() -> None:
    target = limits(requests=Allowance(60, 1), input_tokens=Allowance(600, 100))
    assert target.admit("m", 100, 1, 0).admitted
    refused = target.admit("m", 100, 1, 0)

    assert (refused.kind, refused.retry_after_s) == (INPUT_TOKENS, 10)


def test_a_refused_request_costs_nothing() -> None:
    target = limits(requests=Allowance(60, 5), input_tokens=Allowance(600, 100))
    for _ in range(20):
        target.admit("m", 80, 1, 0)

    assert level(target, REQUESTS) == 59
    assert level(target, INPUT_TOKENS) == 520


def test_a_prompt_larger_than_the_bucket_is_sent_away_until_the_bucket_is_full() -> None:
    target = limits(input_tokens=Allowance(600))
    assert target.admit("m", 100, 1, 0).admitted

    assert target.admit("m", 601, 1, 0).retry_after_s == 10
    assert target.admit("m", 601, 1, 10 * S).retry_after_s == 1


@pytest.mark.parametrize(("reads_count", "left"), [(False, 800), (True, 300)])
def test_input_is_corrected_to_what_counts(reads_count: bool, left: int) -> None:
    target = limits(input_tokens=Allowance(1000), reads_count=reads_count)
    charge = target.admit("m", 700, 1, 0).charge
    assert level(target, INPUT_TOKENS) == 300
    target.correct(charge, 200, 500, 0)

    assert level(target, INPUT_TOKENS) == left


def test_output_is_counted_as_it_is_produced_and_only_an_empty_bucket_refuses() -> None:
    target = limits(output_tokens=Allowance(600, 100))
    charge = target.admit("m", 1, 10**6, 0).charge  # max_tokens plays no part
    target.produce(charge, 99, 0)
    assert target.admit("m", 1, 10**6, 0).admitted
    target.produce(charge, 21, 0)
    refused = target.admit("m", 1, 1, 0)

    assert (refused.kind, refused.retry_after_s) == (
        OUTPUT_TOKENS,
        3,
    )  # 20 of debt and 1 to be there, at 10 a second
    target.end(charge, 120, 0)
    assert target.admit("m", 1, 1, 2_100_000_000).admitted


def test_reserved_output_is_given_back_at_the_end() -> None:
    target = limits(output_tokens=Allowance(1000), output_mode="reserve")
    charge = target.admit("m", 1, 900, 0).charge
    target.produce(charge, 50, 0)
    assert level(target, OUTPUT_TOKENS) == 100
    target.end(charge, 50, 0)

    assert level(target, OUTPUT_TOKENS) == 950


def test_a_model_belongs_to_the_first_class_that_names_it_and_shares_its_buckets() -> None:
    opus = ModelLimits(("claude-opus-4-*", "claude-opus-5"), requests=Allowance(60, 2))
    rest = ModelLimits(("claude-*",), requests=Allowance(60, 1))
    target = Limits(LimitSettings((opus, rest)), 0)
    asked = (
        "claude-opus-4-5",
        "claude-opus-5",
        "claude-opus-4-1",
        "claude-haiku",
        "claude-sonnet",
        "other",
        "other",
    )

    assert [target.admit(model, 1, 1, 0).admitted for model in asked] == [
        True, True, False, True, False, True, True,
    ]  # fmt: skip


def test_growth_that_is_too_fast_has_its_own_code() -> None:
    target = limits(requests=Allowance(6000), ramp=RampSettings(growth=2, floor=3))
    decisions = [target.admit("m", 1, 1, 0) for _ in range(4)]

    assert [one.admitted for one in decisions] == [True, True, True, False]
    assert (decisions[3].kind, decisions[3].error_code) == (RAMP, "ramp_limit_exceeded")
    assert decisions[3].retry_after_s is not None
    assert level(target, REQUESTS) == 5997


def test_an_empty_purse_refuses_every_model_and_names_no_time() -> None:
    target = Limits(LimitSettings(spend=100), 0)
    target.spend(99)
    assert target.admit("m", 1, 1, 0).admitted
    target.spend(1)
    refused = target.admit("m", 1, 1, 10**15)

    assert (refused.kind, refused.retry_after_s, refused.error_code) == (
        SPEND,
        None,
        "enforced_spend_limit_reached",
    )
