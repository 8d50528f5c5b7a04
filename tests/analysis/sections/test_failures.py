"""Failed requests have the kind that the target's own words, their status or their class show."""

import json

import pandas as pd
import pytest

from tailgauge_analysis.sections import failures
from tailgauge_analysis.sections.failures import Failure

INSIDE = {"ended": "client_error", "status": 200, "error_class": "client_error"}
BROKEN_BY_OVERLOAD = {
    "ended": "stream_error",
    "status": 200,
    "error_type": "overloaded",
    "error_class": "overloaded",
}
CUT_OFF = {"ended": "truncated", "status": 200, "error_type": "connection_closed"}
PAGE = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head></html>"
SIGN_IN = "<html><title>Sign in</title></html>"


def error_json(message, kind=""):
    return json.dumps({"error": {"type": kind, "message": message}})


def rejected(status, body="", ended="client_error", **more):
    return {"ended": ended, "status": status, "error_body": body, **more}


KINDS = [
    (failures.LIMIT, [
        rejected(429, ended="rate_limited"),
        rejected(429, error_json("Quota exceeded for requests per minute"), "rate_limited", error_type="RESOURCE_EXHAUSTED"),
        {"ended": "stream_error", "status": 200, "error_type": "rate_limit_exceeded", "error_class": "rate_limited"},
    ]),
    (failures.OVERLOAD, [
        rejected(529, error_json("Overloaded"), "overloaded"), BROKEN_BY_OVERLOAD, rejected(503, error_json("queue full"), "overloaded"),
    ]),
    (failures.QUOTA, [
        rejected(429, error_json("check your plan", "insufficient_quota"), "rate_limited"), rejected(402),
        rejected(400, error_json("Your credit balance is too low to access the API")),
    ]),
    (failures.KEY, [
        rejected(401), rejected(403, error_json("no permission")), rejected(400, error_json("API key not valid. Please pass a valid API key.")),
        {**INSIDE, "error_type": "authentication_error"},
    ]),
    (failures.MODEL, [
        rejected(404, error_json("The model `gpt-9` does not exist")), rejected(400, error_json("unknown model m")),
        rejected(404, error_json("models/x is not found for API version v1beta, or the model is not supported", "NOT_FOUND")),
    ]),
    (failures.ADDRESS, [rejected(404), rejected(405), rejected(404, SIGN_IN), rejected(404, error_type="not_json")]),
    (failures.REDIRECT, [rejected(307), rejected(301), rejected(308, error_type="not_json")]),
    (failures.REQUEST, [
        rejected(400), rejected(413), rejected(422, error_json("extra fields")),
        {**INSIDE, "error_type": "invalid_request_error"}, {**INSIDE, "ended": "stream_error"},
    ]),
    (failures.PAGE, [
        rejected(403, SIGN_IN), rejected(401, SIGN_IN), rejected(400, SIGN_IN),
        rejected(200, SIGN_IN, error_type="not_an_event_stream"),
    ]),
    (failures.OTHER_PROTOCOL, [
        {"ended": "truncated", "status": 200, "error_type": "no_end_mark", "is_not_understood": True},
        {"ended": "aborted", "status": 200, "error_type": "no_finish_reason", "is_not_understood": True},
    ]),
    (failures.PROTOCOL, [
        {"ended": "stream_error", "status": 200, "error_type": "malformed_event"},
        rejected(200, '{"id": "x"}', error_type="not_an_event_stream"),
        {"ended": "stream_error", "status": 200, "error_type": "second_message"},
    ]),
    (failures.GATEWAY, [
        rejected(502, PAGE, "server_error"), rejected(503, PAGE, "overloaded"), rejected(500, PAGE, "server_error"),
        rejected(503, "no healthy upstream", "overloaded"), rejected(521, "", "server_error"),
    ]),
    (failures.GATEWAY_TIME, [
        rejected(504, "", "server_error"), rejected(524, "", "server_error"),
        rejected(500, error_json("upstream request timeout"), "server_error"),
    ]),
    (failures.NOT_READY, [
        rejected(503, error_json("Loading model"), "overloaded"), rejected(503, error_json("the model is still loading"), "overloaded"),
        rejected(500, error_json("server not ready"), "server_error"),
    ]),
    (failures.BROKEN, [
        rejected(500, error_json("CUDA error"), "server_error"), rejected(501, "", "server_error"),
        {"ended": "stream_error", "status": 200, "error_type": "internal_error", "error_class": "server_error"},
    ]),
    (failures.WAITING, [{"ended": "timeout"}, {"ended": "censored"}, {"ended": "timeout", "status": 200}]),
    (failures.BROKEN_OFF, [CUT_OFF, {**CUT_OFF, "error_type": "no_end_mark"}, {"ended": "truncated"}]),
    (failures.UNREACHABLE, [
        {"ended": "connect_error", "error_type": "tcp"}, {"ended": "connect_error", "error_type": "timeout"},
        {"ended": "connect_error"},
    ]),
    (failures.RESET, [{"ended": "connect_error", "error_type": "closed"}, {"ended": "connect_error", "error_type": "reset"}]),
    (failures.NAME, [{"ended": "connect_error", "error_type": "dns"}]),
    (failures.TLS, [{"ended": "connect_error", "error_type": "tls"}, {"ended": "connect_error", "error_type": "tls_certificate"}]),
    (failures.CONTENT, [{"ended": "refused"}, {"ended": "filtered"}, {"ended": "refused", "stop_reason": "x"}]),
    (failures.ENGINE, [{"ended": "aborted", "error_type": "abort"}, {"ended": "aborted", "stop_reason": "error"}]),
    (failures.UNNAMED_END, [{"ended": "aborted", "error_type": "no_finish_reason"}]),
    (failures.UNKNOWN_END, [{"ended": "aborted", "error_type": "unknown_finish_reason", "stop_reason": "paused"}]),
    (failures.EMPTY, [{"ended": "empty", "stop_reason": "stop"}]),
    (failures.INSIDE, [{"ended": "stream_error", "status": 200, "error_type": "target: weird"}]),
    (failures.LEFT, [{"ended": "cancelled"}]),
    (failures.CLIENT, [{"ended": "client_drop"}]),
    (failures.PLUGIN, [{"ended": "plugin_error"}]),
    (failures.CHECK, [{"ended": "check_failed"}, {"ended": "check_failed", "error_body": "no answer"}]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "rows"), KINDS)
def test_a_failure_has_the_kind_that_its_row_shows(kind, rows):
    assert [Failure(**row).kind for row in rows] == [kind] * len(rows)


def test_every_kind_is_tried():
    assert {kind for kind, _ in KINDS} == set(failures.KINDS) - {failures.GONE}  # of many rows


UNREAD_ROW = {
    "ended": "truncated", "status": 200, "error_type": "no_end_mark", "error_class": None, "stop_reason": None,
    "error_body": None, "events": 45, "chunks": 0, "tolerated": "unknown_event",
}  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "changes", "kind"),
    [
        ("openai", {}, failures.OTHER_PROTOCOL),
        (
            "anthropic",
            {"tolerated": "no_event_name,unknown_event", "events": 3},
            failures.OTHER_PROTOCOL,
        ),
        ("openai", {"ended": "aborted", "error_type": "no_finish_reason"}, failures.OTHER_PROTOCOL),
        ("sse", {"tolerated": None}, failures.OTHER_PROTOCOL),
        ("openai", {"chunks": 4}, failures.BROKEN_OFF),
        ("openai", {"error_type": "connection_closed", "events": 1}, failures.BROKEN_OFF),
        ("openai", {"tolerated": None}, failures.BROKEN_OFF),
        ("sse", {"tolerated": None, "events": 1}, failures.BROKEN_OFF),
        ("sse", {"tolerated": None, "events": 0}, failures.BROKEN_OFF),
    ],
)
def test_events_of_which_none_was_understood_are_another_protocol(protocol, changes, kind):
    found = failures.classified(pd.DataFrame([UNREAD_ROW | changes]), protocol)

    assert list(found.rows["kind"]) == [kind]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (error_json("slow down"), "slow down"),
        ('{"error": "Loading model"}', "Loading model"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"message": "x\\u001b[2Jy"}', "x[2Jy"),
        (PAGE, "502 Bad Gateway"),
        ("<html><body>Blocked</body></html>", "Blocked"),
        ("no healthy upstream", "no healthy upstream"),
        ('{"status": 3}', ""),
        ("", ""),
    ],
)
def test_the_text_is_the_targets_own(body, text):
    assert Failure(ended="server_error", error_body=body).text == text
