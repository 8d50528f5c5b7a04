"""Ends and limits in a dry run: what only its own clock and its own short cuts could get wrong."""

from typing import get_args

import pytest
from dry_run.in_memory import UNBOUNDED, evenly, run_in_memory

from tailgauge.scenario.simulated import HeaderFamily

MODEL = {"ttft_ms": 100.0, "chunk_gap_ms": 5.0}
DECODED = {"served": {"service_tier": "priority"}}  # written and read, not known
WITHOUT_RESETS = {"mistral"}
ANSWER_COLUMNS = (
    "headers_at_ns", "first_event_at_ns", "first_content_at_ns", "last_content_at_ns", "stopped_at_ns", "ended_at_ns",
    "chunks", "input_tokens", "output_tokens", "ended", "model",
)  # fmt: skip


def run(simulated, target=None, **traffic):
    """The rows of five seconds at twenty calls per second."""
    tables = {"main": {"prompt_tokens": 10, "output_tokens": 20, **traffic}}
    return run_in_memory(
        evenly(
            20.0,
            5.0,
            target=target or {},
            limits=UNBOUNDED,
            simulated={**MODEL, **simulated},
            traffic=tables,
        )
    )


@pytest.mark.parametrize("ends", ["limit", "natural"])
@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_an_answer_at_its_limit_is_cut_where_answers_end_by_themselves(protocol, ends):
    natural = {"natural": {"share": 0.5, "tokens": 8}}
    kept = run(natural, {"protocol": protocol}, ends=ends)
    limit = "max_tokens" if protocol == "anthropic" else "length"
    classes = {
        reason: {row.ended for row in kept.attempts if row.stop_reason == reason}
        for reason in {row.stop_reason for row in kept.attempts}
    }

    assert classes == {
        limit: {"cut" if ends == "natural" else "ok"},
        ("end_turn" if protocol == "anthropic" else "stop"): {"ok"},
    }
    assert [row.output_tokens for row in kept.attempts] == [
        row.output_tokens for row in kept.server_rows
    ]


@pytest.mark.parametrize("served", [{}, DECODED], ids=["plain", "decoded"])
def test_a_user_who_leaves_has_what_came_until_then(served):
    kept = run(served, cancel={"share": 1.0, "after_chunks": 5})

    assert {(row.ended, row.chunks, row.stop_reason) for row in kept.attempts} == {
        ("cancelled", 5, None)
    }
    assert {row.output_tokens for row in kept.server_rows} == {5}
    assert {row.cancelled_at_ns - row.first_content_at_ns for row in kept.attempts} == {20_000_000}


def test_a_user_who_leaves_before_the_first_byte_has_nothing():
    kept = run(DECODED, cancel={"share": 1.0, "after_s": 0.05})

    assert {(row.ended, row.status, row.chunks, row.events) for row in kept.attempts} == {
        ("cancelled", None, 0, 0)
    }


def test_decoded_answers_have_the_times_of_plain_ones():
    plain = run({})
    decoded = run(DECODED)

    for name in ANSWER_COLUMNS:
        expected = [getattr(row, name) for row in plain.attempts]
        assert [getattr(row, name) for row in decoded.attempts] == expected
    for key, chunks in plain.chunks_of.items():
        assert decoded.chunks_of[key].arrived == chunks.arrived
        assert decoded.chunks_of[key].chars == chunks.chars
        assert decoded.chunks_of[key].low == chunks.low


def waits(**limits):
    """Seconds that each refused call has to wait."""
    kept = run({"limits": {"rpm": 60, "burst": 10, **limits}})
    refused = [row for row in kept.attempts if row.ended == "rate_limited"]
    assert len(refused) > 50
    return [row.retry_after_s for row in refused], {row.retry_after_from for row in refused}


@pytest.mark.parametrize("form", ["seconds", "milliseconds", "date"])
def test_every_form_of_a_wait_is_the_same_wait(form):
    expected, _ = waits()
    seconds, names = waits(retry_after=form)

    assert names == {"retry-after-ms" if form == "milliseconds" else "retry-after"}
    assert seconds == pytest.approx(expected, abs=1.0 if form == "date" else 1e-9)


@pytest.mark.parametrize("family", sorted(set(get_args(HeaderFamily)) - WITHOUT_RESETS))
def test_without_a_wait_the_reset_of_the_limit_is_one(family):
    expected, _ = waits(retry_after="none", headers="openai")
    seconds, names = waits(retry_after="none", headers=family)

    assert len(names) == 1
    assert seconds == pytest.approx(expected, abs=1.0)


def test_the_reset_of_a_limit_says_nothing_of_an_overload():
    busy = {"busy": {"kind": "error_event", "share": 0.5, "status": 529}}
    kept = run({"faults": busy, "limits": {"rpm": 6000}})
    overloaded = [row for row in kept.attempts if row.ended == "overloaded"]

    assert len(overloaded) > 30
    assert {(row.retry_after_s, row.retry_after_from) for row in overloaded} == {(None, None)}
    assert all(row.rate_limit_headers for row in overloaded)


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_a_limit_that_refuses_inside_a_200_is_that_limit(protocol):
    plain = run({"limits": {"rpm": 60, "burst": 10}}, {"protocol": protocol})
    kept = run({"limits": {"rpm": 60, "burst": 10, "in_band": True}}, {"protocol": protocol})

    for row, other in zip(kept.attempts, plain.attempts, strict=True):
        assert (row.ended, row.limit_kind) == (other.ended, other.limit_kind)
        assert row.retry_after_s == other.retry_after_s
    assert {row.status for row in kept.attempts} == {200}
    assert [row.error_status for row in kept.server_rows] == [
        row.error_status for row in plain.server_rows
    ]


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_marks_are_written_and_read_as_the_server_log_says(protocol):
    cache = {"prefixes": 2, "system_tokens": 400, "breakpoints": ["system"]}
    kept = run(
        {"cache": {"mode": "marked", "minimum_tokens": 0}},
        {"protocol": protocol},
        pattern="cached",
        cache=cache,
    )
    log = {row.request_id: row for row in kept.server_rows}

    for row in kept.attempts:
        sent = log[row.request_id]
        assert row.input_tokens == sent.input_tokens
        assert row.cache_read_input_tokens == sent.cache_read_tokens
        assert row.cache_creation_input_tokens == sent.cache_created_tokens
    reasons = [row.cache_reason for row in kept.server_rows]
    assert reasons.count("hit") > 90
    assert reasons.count("cold") + reasons.count("race") < 10
