"""Why requests did not complete, and the advice that follows from it: a rate is blamed only for what load can cause."""

import json

import pytest

from tailgauge_analysis.report.report import make
from tailgauge_analysis.sections import advice
from tailgauge_analysis.sections.advice import Failure
from tailgauge_analysis.text.section import FAIL, NO_ANSWER

OK = {"first": 100, "stop_reason": "stop", "output_tokens": 20}
EMPTY = {"ended": "empty", "stop_reason": "stop"}
INSIDE_CLIENT_ERROR = {
    "ended": "client_error", "status": 200, "error_type": "invalid_request_error", "error_class": "client_error",
}  # fmt: skip
BROKEN_BY_OVERLOAD = {
    "ended": "stream_error", "first": 100, "status": 200, "error_type": "overloaded", "error_class": "overloaded",
}  # fmt: skip
NO_JSON = {"ended": "stream_error", "first": 100, "status": 200, "error_type": "malformed_event"}
NO_STREAM = {"ended": "client_error", "status": 200, "error_type": "not_an_event_stream"}
SECOND_MESSAGE = {"ended": "stream_error", "first": 100, "status": 200, "error_type": "second_message"}
CUT_OFF = {"ended": "truncated", "first": 100, "status": 200, "error_type": "connection_closed"}
UNNAMED = {"ended": "aborted", "first": 100, "status": 200, "error_type": "no_finish_reason"}
UNKNOWN = {**UNNAMED, "error_type": "unknown_finish_reason", "stop_reason": "paused"}
RATE = "lower the rate, or find the limit: tailgauge run headroom"


def with_status(status, ended="client_error"):
    return {"ended": ended, "status": status, "error_type": "some_error"}


@pytest.fixture
def result(mixed, tmp_path):
    """Return the result of a run whose requests have these attempts, one every 100 ms."""

    def of(*attempts, **scenario):
        run = mixed(duration_s=100.0)
        for number, attempt in enumerate(attempts):
            run.request(100 * number, [attempt], ended=attempt.get("ended", "ok"), asked_output_tokens=200)
        folder = run.write(tmp_path / "run")
        tree = json.loads((folder / "run.json").read_text())
        tree["scenario"] |= scenario
        (folder / "run.json").write_text(json.dumps(tree))
        return make([folder], tmp_path).report.result

    return of


def failure(attempt):
    names = ("ended", "status", "error_type", "error_class", "stop_reason")
    return Failure(requests=1, **{name: attempt.get(name) for name in names})


@pytest.mark.parametrize(
    ("kind", "attempts"),
    [
        (advice.LOAD, [with_status(429, "rate_limited"), with_status(529, "overloaded"), BROKEN_BY_OVERLOAD]),
        (advice.SLOW, [with_status(500, "server_error"), {"ended": "timeout"}, with_status(502, "server_error")]),
        (advice.KEY, [with_status(401), with_status(403), {**with_status(401), "error_type": "not_json"}]),
        (advice.ADDRESS, [with_status(404), with_status(405), {**with_status(404), "error_type": "not_json"}]),
        (advice.REDIRECT, [with_status(307), with_status(301), {**with_status(308), "error_type": "not_json"}]),
        (advice.REQUEST, [with_status(400), INSIDE_CLIENT_ERROR, {**INSIDE_CLIENT_ERROR, "ended": "stream_error"}]),
        (advice.PROTOCOL, [NO_JSON, NO_STREAM, SECOND_MESSAGE]),
        (advice.BROKEN_OFF, [CUT_OFF, {**CUT_OFF, "error_type": "no_end_mark"}, {"ended": "truncated"}]),
        (advice.CONTENT, [{"ended": "refused"}, {"ended": "filtered"}, {"ended": "refused", "stop_reason": "x"}]),
        (advice.ENGINE, [{"ended": "aborted", "error_type": "abort"}, {"ended": "aborted", "stop_reason": "error"}]),
        (advice.UNNAMED_END, [UNNAMED]),
        (advice.UNKNOWN_END, [UNKNOWN]),
        (advice.EMPTY, [EMPTY]),
        (advice.INSIDE, [{**NO_JSON, "error_type": "target: weird"}]),
    ],
)  # fmt: skip
def test_a_failure_has_the_kind_that_its_rows_show(kind, attempts):
    assert {failure(attempt).kind for attempt in attempts} == {kind}


@pytest.mark.parametrize(
    "attempt", [with_status(429, "rate_limited"), {"ended": "timeout"}, BROKEN_BY_OVERLOAD]
)
def test_a_rate_is_blamed_for_what_load_can_cause(result, attempt):
    found = result(*[OK, attempt] * 10)

    assert found.outcome == FAIL
    assert found.advice.startswith(RATE)


@pytest.mark.parametrize(
    ("attempt", "advice"),
    [
        (EMPTY, "look at the prompts and the model"),
        (with_status(401), "check the key"),
        (with_status(403), "check the key"),
        (with_status(400), "change what is sent"),
        (INSIDE_CLIENT_ERROR, "change what is sent"),
        (NO_JSON, "look at the endpoint or the gateway before it"),
        (NO_STREAM, "look at the endpoint or the gateway before it"),
        (CUT_OFF, "look at the logs and the time limits"),
        (with_status(404), "check the target's address"),
        (
            {**with_status(307), "error_type": "redirect", "error_body": "https://b.example/v1"},
            "the target answers 307 with location https://b.example/v1: set target.url to it",
        ),
        (with_status(307), "set target.url to the address that answers"),
    ],
)
def test_a_rate_is_not_blamed_for_anything_else(result, attempt, advice):
    found = result(*[OK, attempt] * 10)

    assert found.outcome == FAIL
    assert found.advice.startswith(advice)
    assert "rate" not in found.advice


@pytest.mark.parametrize(
    ("attempts", "advice"),
    [
        ([with_status(429, "rate_limited")], RATE),
        ([with_status(401)], "check the key"),
        ([with_status(500, "server_error")], "check the target's address"),
        ([NO_JSON], "look at the endpoint"),
    ],
)
def test_without_any_answer_the_advice_follows_the_failures_too(result, attempts, advice):
    found = result(*attempts * 10)

    assert found.outcome == NO_ANSWER
    assert found.advice.startswith(advice)


def test_the_kind_of_most_failures_decides(result):
    few = [OK, with_status(429, "rate_limited"), with_status(401), with_status(403), EMPTY]

    assert result(*few * 5).advice.startswith("check the key")


def test_an_objective_on_errors_has_the_advice_of_the_failures(result):
    found = result(*[OK, with_status(400)] * 20, slo={"few": "error_rate < 10%"})

    assert found.advice.startswith("change what is sent")


def test_the_ends_are_listed_with_what_was_seen(result):
    others = [UNNAMED, UNNAMED, UNNAMED, UNKNOWN, UNKNOWN, with_status(401), INSIDE_CLIENT_ERROR, NO_JSON]
    found = result(*[OK] * 2, *others)

    assert found.details[0] == (
        "not completed: 3 without a finish reason, 2 with the unknown finish reason 'paused', "
        "1 rejected (in a 200), 1 rejected (401), 1 with an answer that is not the protocol's"
    )


def test_the_share_of_a_cause_is_one_of_all_requests_as_in_the_list(result):
    found = result(*[CUT_OFF, UNNAMED] * 2)

    assert found.sentence == (
        "50% of 4 requests got an answer without a finish reason: none of 4 requests completed"
    )
    assert found.details[0] == "not completed: 2 without a finish reason, 2 truncated"


@pytest.mark.parametrize(
    ("attempts", "likely"),
    [
        ([UNNAMED] * 10, "no answer names one, so the engine or a gateway before it probably leaves it out"),
        ([CUT_OFF, UNNAMED, UNNAMED], "no answer names one"),
        ([OK, UNNAMED], "other answers name one, so these probably broke off"),
    ],
)
def test_an_answer_without_a_finish_reason_has_the_likely_cause(result, attempts, likely):
    advice = result(*attempts * 4).advice

    assert advice.startswith("the answers end without a finish reason, SDK users get null: ")
    assert likely in advice
    assert "aborted" not in advice
