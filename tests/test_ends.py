"""The class of an answer by what it says of its own end."""

from dataclasses import replace

import pytest

from tailgauge import vendors
from tailgauge.ends import End, Ended, class_of_end
from tailgauge.rows.schema import ABORTED, CUT, EMPTY, FILTERED, OK, REFUSED, WITH_ANSWER

ANSWER = End(
    protocol="anthropic", stop_reason="end_turn", output_tokens=20, characters=80, max_tokens=50
)


def ended(**differs):
    return class_of_end(replace(ANSWER, **differs)).ended


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", "tool_use", "END_TURN"])
def test_an_answer_that_ends_by_itself_is_ok(reason):
    assert ended(stop_reason=reason) == OK
    assert ended(stop_reason=reason, has_content=False) == EMPTY


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        ("anthropic", "max_tokens"),
        ("anthropic", "model_context_window_exceeded"),
        ("openai", "length"),
        ("openai", "MAX_TOKENS"),
        ("openai", "model_length"),
    ],
)
class TestLimit:
    def test_with_as_many_tokens_as_planned_it_is_ok(self, protocol, reason):
        assert ended(protocol=protocol, stop_reason=reason, output_tokens=50) == OK

    @pytest.mark.parametrize("tokens", [1, 2, 49])
    def test_with_fewer_it_is_cut(self, protocol, reason, tokens):
        assert ended(protocol=protocol, stop_reason=reason, output_tokens=tokens) == CUT

    def test_where_answers_end_by_themselves_it_is_cut(self, protocol, reason):
        end = {"protocol": protocol, "stop_reason": reason, "output_tokens": 50}
        assert ended(**end, ends_naturally=True) == CUT

    def test_without_a_count_the_text_decides_as_far_as_it_can(self, protocol, reason):
        end = {"protocol": protocol, "stop_reason": reason, "output_tokens": None}
        assert ended(**end, characters=49) == CUT
        assert ended(**end, characters=50) == OK
        assert ended(**end, characters=49, has_hidden_tokens=True) == OK

    def test_without_content_it_is_empty(self, protocol, reason):
        assert ended(protocol=protocol, stop_reason=reason, has_content=False) == EMPTY


@pytest.mark.parametrize(
    ("protocol", "reason", "expected"),
    [
        ("anthropic", "refusal", REFUSED),
        ("openai", "refusal", REFUSED),
        ("openai", "content_filter", FILTERED),
        ("openai", "SAFETY", FILTERED),
        ("openai", "sensitive", FILTERED),
        ("anthropic", "pause_turn", CUT),
        ("anthropic", "compaction", CUT),
    ],
)
@pytest.mark.parametrize("has_content", [True, False])
def test_refusals_filters_and_pauses_are_no_success_whatever_came(
    protocol, reason, expected, has_content
):
    assert ended(protocol=protocol, stop_reason=reason, has_content=has_content) == expected


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (None, "no_finish_reason"),
        ("", "unknown_finish_reason"),
        ("fell_asleep", "unknown_finish_reason"),
        ("abort", "abort"),
        ("insufficient_system_resource", "insufficient_system_resource"),
    ],
)
def test_an_engine_that_gave_up_is_named(reason, name):
    assert class_of_end(replace(ANSWER, protocol="openai", stop_reason=reason)) == Ended(
        ABORTED, name
    )


def test_a_refusal_in_words_is_one_whatever_the_reason_of_its_end():
    assert ended(is_refusal=True) == REFUSED
    assert ended(is_refusal=True, stop_reason="max_tokens") == REFUSED
    assert ended(is_refusal=True, stop_reason="abort", protocol="openai") == ABORTED


def test_a_protocol_that_names_no_reason_ends_by_its_mark():
    application = replace(ANSWER, protocol="sse", stop_reason=None, needs_reason=False)

    assert class_of_end(application) == Ended(OK)
    assert class_of_end(replace(application, has_content=False)) == Ended(EMPTY)


def test_only_an_answer_that_ended_by_itself_or_by_its_limit_counts_as_completed():
    """Each reason of the table, at every combination of what else is known."""
    for protocol, reasons in vendors.TABLE["ends"].items():
        for reason, meaning in reasons.items():
            for tokens in (None, 20, 50):
                found = ended(protocol=protocol, stop_reason=reason, output_tokens=tokens)
                assert (found in WITH_ANSWER) == (meaning in {"ok", "limit", "cut"}), (
                    protocol,
                    reason,
                )
                assert (found == OK) <= (meaning in {"ok", "limit"}), (protocol, reason)
