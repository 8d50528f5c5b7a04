"""Rate-limit headers, letter by letter; row 15 of the ground truths: they are those of the bucket."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.scenario.simulated import LimitsTable
from tailgauge.simulator.behaviours.limits import Limits
from tailgauge.simulator.protocols import anthropic, openai

S = 1_000_000_000
WALL_NS = 1_763_712_000 * S  # 2025-11-21T08:00:00Z


def limits(rpm: int, itpm: int, otpm: int) -> Limits:
    return Limits(LimitsTable(rpm=rpm, itpm=itpm, otpm=otpm), 0)


def test_without_limits_there_are_no_headers():
    assert anthropic.limit_headers((), WALL_NS) == {}
    assert openai.limit_headers((), WALL_NS) == {}


def test_the_recorded_response_of_the_provider_is_reproduced():
    """Limit 16000, remaining 12000, reset 15 s later."""
    target = limits(50, 50_000, 16_000)
    target.admit("m", 300, 1, 0)
    target.produce(4000, 0)

    assert anthropic.limit_headers(target.readings(0), WALL_NS) == {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2025-11-21T08:00:02Z",  # 1.2 s, rounded up
        "anthropic-ratelimit-input-tokens-limit": "50000",
        "anthropic-ratelimit-input-tokens-remaining": "50000",  # 49,700
        "anthropic-ratelimit-input-tokens-reset": "2025-11-21T08:00:01Z",  # 0.36 s
        "anthropic-ratelimit-output-tokens-limit": "16000",
        "anthropic-ratelimit-output-tokens-remaining": "12000",
        "anthropic-ratelimit-output-tokens-reset": "2025-11-21T08:00:15Z",
        "anthropic-ratelimit-tokens-limit": "16000",  # the more restrictive one
        "anthropic-ratelimit-tokens-remaining": "12000",
        "anthropic-ratelimit-tokens-reset": "2025-11-21T08:00:15Z",
    }


def test_the_other_provider_writes_durations():
    target = limits(10_000, 150_000, 10**6)
    target.admit("m", 900, 1, 0)

    assert openai.limit_headers(target.readings(0), WALL_NS) == {
        "x-ratelimit-limit-requests": "10000",
        "x-ratelimit-remaining-requests": "9999",
        "x-ratelimit-reset-requests": "6ms",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-tokens": "149100",
        "x-ratelimit-reset-tokens": "360ms",
    }


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"), (1, "1ms"), (120_000_000, "120ms"), (999_000_001, "1s"), (1_500_000_000, "1.5s"),
        (8_640_000_000, "8.64s"), (59_999_000_000, "59.999s"), (60 * S, "1m0s"), (360 * S, "6m0s"),
        (61_250_000_000, "1m1.25s"), (3600 * S, "1h0m0s"), (3_723_004_000_000, "1h2m3.004s"), (10 * S, "10s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_go_writes_them(ns, text):
    assert openai.duration(ns) == text


@given(
    st.integers(1, 4000), st.integers(1000, 10**7), st.integers(1000, 10**6), st.integers(0, 10**7),
    st.integers(0, 10**6), st.integers(0, 90 * S), st.integers(0, S - 1),
)  # fmt: skip
def test_row_15_reset_is_the_refill_of_what_is_missing(
    rpm, itpm, otpm, prompt, produced, later_ns, wall_fraction_ns
):
    target = limits(rpm, itpm, otpm)
    charge = target.admit("m", 0, 1, 0).charge
    target.correct(charge, min(prompt, itpm), 0, 0)
    target.produce(min(produced, otpm), 0)
    wall_ns = WALL_NS + wall_fraction_ns
    headers = anthropic.limit_headers(target.readings(later_ns), wall_ns)

    for name, limit in (("requests", rpm), ("input-tokens", itpm), ("output-tokens", otpm)):
        shown, remaining, reset = (
            headers[f"anthropic-ratelimit-{name}-{what}"]
            for what in ("limit", "remaining", "reset")
        )
        assert int(shown) == limit
        rounding = 1 if name == "requests" else 501  # whole requests; thousands of tokens
        assert name == "requests" or int(remaining) % 1000 == 0
        reset_s = datetime.fromisoformat(reset).timestamp() - wall_ns / S
        missing_s = (limit - int(remaining)) * 60 / limit
        assert abs(reset_s - missing_s) <= 1 + rounding * 60 / limit + 1e-6


def test_with_a_burst_below_the_limit_the_headers_still_count_from_the_limit():
    """As where 60 requests per minute are enforced as one per second: 59 remain, and the next is refused."""
    target = Limits(LimitsTable(rpm=60, burst=1), 0)
    target.admit("m", 1, 1, 0)
    headers = anthropic.limit_headers(target.readings(0), WALL_NS)

    assert headers["anthropic-ratelimit-requests-remaining"] == "59"
    assert headers["anthropic-ratelimit-requests-reset"] == "2025-11-21T08:00:01Z"
    assert not target.admit("m", 1, 1, 0).admitted
