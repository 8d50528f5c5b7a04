"""Targets that want their requests in another form: found in the preflight, once, and said; see scripts/adaptations.py."""

from __future__ import annotations

import pytest

from tailgauge.master.progress import adaptation_notes, preflight_failure
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.protocol import Adaptation
from tailgauge.protocols.table import Target

LIMITS = {"max_tokens", "max_completion_tokens"}
OTHER = ["max_completion_tokens", None]


@pytest.fixture(scope="module")
def facts(run_script):
    return run_script("worker/scripts/adaptations.py")


def limits_of(bodies):
    return [sorted(LIMITS & set(body)) for body in bodies]


class TestLimits:
    @pytest.mark.parametrize("case", ["openai", "litellm", "pydantic"])
    def test_a_refused_limit_is_sent_under_its_other_name_from_then_on(self, facts, case):
        found = facts["limits"][case]

        assert found["adaptations"] == {"main": OTHER}
        assert limits_of(found["bodies"]) == [
            ["max_tokens"],
            ["max_completion_tokens"],
            ["max_completion_tokens"],
        ]
        assert [call["ended"] for call in found["calls"]] == ["ok", "ok"]

    def test_the_second_try_is_a_retry_of_the_same_request(self, facts):
        found = facts["limits"]["openai"]

        assert found["attempts"] == [
            [-1, 0, "primary", "client_error"],
            [-1, 1, "retry", "ok"],
            [-2, 0, "primary", "ok"],
        ]
        assert found["requests"] == [[-1, 2, 1, "ok"], [-2, 1, 0, "ok"]]

    @pytest.mark.parametrize("case", ["too large", "another field", "no JSON", "429"])
    def test_other_refusals_are_not_tried_again(self, facts, case):
        found = facts["limits"][case]

        assert found["adaptations"] == {}
        assert len(found["bodies"]) == (2 if case == "429" else 1)  # a run makes sense with a 429

    @pytest.mark.parametrize(
        ("case", "fields"),
        [
            ("max_tokens", [["max_tokens"]]),
            ("max_completion_tokens", [["max_completion_tokens"]] * 2),
            ("none", [[], []]),
        ],
    )
    def test_what_the_scenario_names_is_sent_and_nothing_else_is_tried(self, facts, case, fields):
        assert limits_of(facts["named_limits"][case]["bodies"]) == fields
        assert facts["named_limits"][case]["adaptations"] == {}

    def test_a_named_field_that_is_refused_ends_in_what_to_set(self, facts):
        (call,) = facts["named_limits"]["max_tokens"]["calls"]

        text = preflight_failure("http://h", "openai", call)
        assert text.startswith(
            "target http://h answered HTTP 400: Unsupported parameter: 'max_tokens' is not supported"
        )
        assert text.endswith(
            "It refuses max_tokens: use --set target.max_tokens_field=max_completion_tokens, "
            "or with `none` send no maximum of output tokens"
        )

    def test_at_the_provider_the_older_name_is_tried_where_the_newer_is_refused(self):
        wire = OpenAI(Target(protocol="openai"), "https://api.openai.com/v1")

        assert wire.adaptation(
            "Unrecognized request argument supplied: max_completion_tokens"
        ) == Adaptation("max_tokens")
        assert wire.adaptation("Unrecognized request argument supplied: max_tokens") is None
        assert wire.adaptation("") is None


class TestMarks:
    @pytest.mark.parametrize("maker", ["vllm", "sglang", "llamacpp"])
    def test_an_engine_that_caches_by_itself_gets_none(self, facts, maker):
        found = facts["marks"][maker]

        assert found["adaptations"] == {"main": [None, maker]}
        assert {type(body["messages"][0]["content"]) for body in found["bodies"]} == {str}
        assert [call["ended"] for call in found["calls"]] == ["ok", "ok"]

    @pytest.mark.parametrize("case", ["breakpoints = []", "named"])
    def test_a_scenario_that_says_so_gets_none_and_no_list_is_asked_for(self, facts, case):
        found = facts["marks"][case]

        assert found["adaptations"] == {}
        assert [call["ended"] for call in found["calls"]] == ["ok", "ok"]

    @pytest.mark.parametrize("maker", ["somebody", "tailgauge"])
    def test_others_get_them_already_in_the_preflight_and_a_refusal_says_what_to_set(
        self, facts, maker
    ):
        found = facts["marks"][maker]
        (body,) = found["bodies"]
        (call,) = found["calls"]

        assert body["messages"][0]["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"}
        assert body["prompt_cache_options"] == {"mode": "explicit"}
        assert body["prompt_cache_key"]
        assert preflight_failure("http://h", "openai", call) == (
            "target http://h answered HTTP 400: Unknown parameter: prompt_cache_breakpoint. It takes no cache marks: --set "
            "'traffic.*.cache.breakpoints=[]'"
        )


def test_a_fault_of_our_own_is_named_as_ours(facts):
    (call,) = facts["our_bug"]["preflight"]["calls"]

    assert (call["status"], call["ended"], call["error_type"]) == (
        None,
        "censored",
        "internal_error",
    )
    assert call["message"] == "KeyError('planted')"


def test_in_the_run_it_is_reported_at_once_and_leaves_nothing_open(facts):
    found = facts["our_bug"]["in the run"]

    assert found["row"] == ["censored", "internal_error", "KeyError('planted')", None]
    assert found["bugs"] == ["KeyError('planted')"]
    assert found["received"] == ["censored"]
    assert facts["our_bug"]["requests"] == 1


@pytest.mark.parametrize(
    ("adaptation", "texts"),
    [
        (Adaptation(), []),
        (
            Adaptation(max_tokens_field="max_completion_tokens"),
            [
                (
                    "second_target refused the usual field with the maximum of output tokens: max_completion_tokens is sent "
                    'instead. Set second_target.max_tokens_field = "max_completion_tokens" to skip this try'
                )
            ],
        ),
        (
            Adaptation(automatic_cache="v\x1b[31mllm"),
            [
                (
                    "second_target lists its models as those of v[31mllm, which caches without marks: none are sent. Set "
                    "breakpoints = [] to skip this question"
                )
            ],
        ),
    ],
)
def test_the_notes_say_what_was_found_and_how_to_say_so(adaptation, texts):
    assert list(adaptation_notes("second_target", adaptation)) == texts
