"""What response headers say of limits and of when to come back."""

from __future__ import annotations

from datetime import timedelta
from email.utils import format_datetime

import pytest
from run_folders.limit_families import EPOCH_S, FAMILIES, NOW

from tailgauge import limits
from tailgauge.limits import LIMIT, REMAINING, RESET, Limit


def values(headers: dict[str, str]) -> dict[tuple[str, str], float]:
    return {(one.kind, one.role): one.value for one in limits.limits(list(headers.items()), NOW)}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_the_same_of_the_same_limits(family):
    assert values(FAMILIES[family]) == pytest.approx({
        ("requests", LIMIT): 900, ("requests", REMAINING): 100, ("requests", RESET): 12,
        ("tokens", LIMIT): 50_000, ("tokens", REMAINING): 20_000, ("tokens", RESET): 9,
    })  # fmt: skip
    assert limits.not_understood(list(FAMILIES[family].items())) == []
    assert all(limits.is_of_a_limit(name) for name in FAMILIES[family])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120ms", 0.12), ("6m0s", 360), ("1h2m3.5s", 3723.5), ("2", 2), ("0", 0), ("1.5", 1.5),
        (str(EPOCH_S + 30), 30), (str(EPOCH_S - 30), 0), ("2026-11-28T12:01:00Z", 60), ("2026-11-28T11:00:00Z", 0),
        (format_datetime(NOW + timedelta(seconds=5)), 5),
        ("soon", None), ("", None), ("-5", None), ("6x", None), ("s6", None), ("\xe9", None), ("9" * 400, None),
    ],
)  # fmt: skip
def test_a_reset_is_a_time_in_any_unit_or_nothing(text, seconds):
    found = values({"x-ratelimit-reset-tokens": text})

    assert found == ({} if seconds is None else {("tokens", RESET): pytest.approx(seconds)})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "-1"}, None),
        (
            {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "2026-11-28T12:00:03Z",
             "anthropic-ratelimit-tokens-remaining": "9", "anthropic-ratelimit-tokens-reset": "2026-11-28T12:00:50Z"},
            (3, "anthropic-ratelimit-requests-reset"),
        ),
        ({"x-rate-limit-reset-tokens": "2", "x-ratelimit-remaining-requests": "9"}, (2, "x-rate-limit-reset-tokens")),
        ({"ratelimit": '"requests";r=0;t=4'}, (4, "ratelimit")),
        ({"x-ratelimit-remaining-requests": "0"}, None),
        # Refused by none of these limits.
        ({"x-ratelimit-remaining-requests": "9", "x-ratelimit-reset-requests": "50s"}, None),
        (
            {"x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "8",
             "x-ratelimit-remaining-tokens-month": "5", "x-ratelimit-reset-tokens-month": "90000"},
            (8, "x-ratelimit-reset-tokens-minute"),
        ),
        (
            {"ratelimit-policy": '"burst";q=9;w=1, "daily";q=900;w=86400', "ratelimit": '"burst";r=0;t=1, "daily";r=5;t=9000'},
            (1, "ratelimit"),
        ),
        (
            {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-priority-tokens-remaining": "5",
             "anthropic-ratelimit-tokens-reset": "2026-11-28T12:00:03Z"},
            (3, "anthropic-ratelimit-tokens-reset"),
        ),
        (
            {"anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": str(int(NOW.timestamp()) + 6)},
            (6, "anthropic-ratelimit-unified-reset"),
        ),
        ({"anthropic-ratelimit-unified-reset": "soon"}, None),
        (
            {"anthropic-ratelimit-unified-reset": str(int(NOW.timestamp()) + 6), "retry-after": "2"},
            (2, "retry-after"),
        ),
        ({"llm_provider-retry-after": "4"}, (4, "llm_provider-retry-after")),
        ({"llm_provider-retry-after": "4", "retry-after": "5"}, (5, "retry-after")),
        ({"retry-after": "1e300"}, (4_294_967, "retry-after")),
        (
            {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "99999999s"},
            (4_294_967, "x-ratelimit-reset-requests"),
        ),
    ],
)  # fmt: skip
def test_the_wait_before_a_retry_is_read_in_the_order_of_the_sdks_and_then_from_the_reset(
    headers, expected
):
    found = limits.retry_after(list(headers.items()), NOW)

    assert found == (None if expected is None else (pytest.approx(expected[0]), expected[1]))


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({}, "unknown"),
        ({"x-ratelimit-remaining-req-minute": "0"}, "requests"),
        (
            {"x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-remaining-req-minute": "4"},
            "tokens",
        ),
        (
            {
                "x-ratelimit-remaining-tokens-per-minute": "0",
                "x-ratelimit-remaining-tokens-per-day": "4",
            },
            "tokens",
        ),
        ({"llm_provider-anthropic-ratelimit-input-tokens-remaining": "0"}, "input_tokens"),
        ({"ratelimit": '"output-tokens";r=0;t=4'}, "output_tokens"),
        ({"anthropic-priority-output-tokens-remaining": "0"}, "output_tokens"),
        ({"ratelimit-remaining": "0"}, "requests"),
    ],
)
def test_any_family_names_the_exhausted_limit(headers, kind):
    assert limits.limit_kind(list(headers.items())) == kind


def test_headers_that_look_like_a_limit_and_are_in_no_family_are_named():
    headers = [
        ("x-foo-ratelimit-left", "3"),
        ("x-dreams-rate-limit", "4"),
        ("x-foo-limit", "4"),
        ("x-foo-limit", "5"),
        ("llm_provider-x-quota-left", "5"),
        ("x-limited-edition", "1"),
        ("date", "x"),
    ]

    assert limits.not_understood(headers) == [
        "x-foo-ratelimit-left", "x-dreams-rate-limit", "x-foo-limit", "llm_provider-x-quota-left",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "x-ratelimit-tokens-query-cost", "anthropic-ratelimit-unified-5h-utilization", "x-envoy-ratelimited",
        "llm_provider-x-ratelimit-over-limit", "x-ratelimit-api_key-remaining-max_parallel_requests",
    ],
)  # fmt: skip
def test_headers_that_are_known_and_no_limit_are_not_named(name):
    assert limits.not_understood([(name, "1")]) == []
    assert limits.limits([(name, "1")], NOW) == []


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("x-ratelimit-api_key-remaining-tokens", ("tokens", REMAINING, None)),
        ("x-ratelimit-model_per_key-limit-requests", ("requests", LIMIT, None)),
        ("x-litellm-key-rpm-limit", ("requests", LIMIT, None)),
        ("x-litellm-key-remaining-tokens-gpt-5.6-mini", ("tokens", REMAINING, None)),
        ("x-ratelimit-limit-requests-day", ("requests", LIMIT, 86_400)),
        ("x-ratelimit-limit-tokens-prompt", ("input_tokens", LIMIT, None)),
        ("x-ratelimit-remaining-project-tokens", ("tokens", REMAINING, None)),
        ("x-tokenlimit-remaining", ("tokens", REMAINING, None)),
        ("x-ratelimit-limit", ("requests", LIMIT, None)),
    ],
)
def test_names_of_gateways_and_of_other_providers(name, limit):
    (found,) = limits.limits([(name, "7")], NOW)

    assert (found.kind, found.role, found.window_s) == limit
    assert limits.not_understood([(name, "7")]) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ratelimit-policy": "100;w=10"}, {("requests", LIMIT, 10): 100}),
        ({"ratelimit-limit": "100, 100;w=10"}, {("requests", LIMIT, 10): 100}),
        (
            {"ratelimit": "limit=100, remaining=5, reset=9"},
            {
                ("requests", LIMIT, None): 100,
                ("requests", REMAINING, None): 5,
                ("requests", RESET, None): 9,
            },
        ),
        (
            {"ratelimit": "default;r=5;t=9"},
            {("requests", REMAINING, None): 5, ("requests", RESET, None): 9},
        ),
        (
            {"ratelimit-policy": '"a;b, c";q=7;w=60;qu="tokens"', "ratelimit": '"a;b, c";r=3'},
            {("tokens", LIMIT, 60): 7, ("tokens", REMAINING, 60): 3},
        ),
        (
            {
                "ratelimit-policy": '"peak";q=3;qu="concurrent-requests", "size";q=9;qu="content-bytes"',
                "ratelimit": '"size";r=3',
            },
            {},
        ),
        ({"ratelimit": ';;, ,"'}, {}),
    ],
)
def test_structured_fields_of_every_draft(fields, expected):
    found = limits.limits(list(fields.items()), NOW)

    assert {(one.kind, one.role, one.window_s): one.value for one in found} == expected


def test_a_header_with_an_endless_name_is_not_understood():
    name = "x-ratelimit-api_key-limit-tokens" + "a" * 1000

    assert limits.is_of_a_limit(name)
    assert limits.not_understood([(name, "1")]) == [name]
    assert limits.limits([(name, "1")], NOW) == []


def test_a_window_is_part_of_a_limit():
    (monthly,) = limits.limits([("x-ratelimit-limit-tokens-month", "1000000000")], NOW)

    assert monthly == Limit("tokens", LIMIT, 1e9, 2_592_000, "x-ratelimit-limit-tokens-month")
