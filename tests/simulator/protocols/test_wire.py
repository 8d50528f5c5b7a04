"""What each protocol's events and bodies say."""

import json

import pytest

from tailgauge.simulator.protocols import anthropic, openai
from tailgauge.simulator.protocols.request import CallRequest, Refused, Reply
from tailgauge.simulator.protocols.wire import wire_of_path

REPLY = Reply(CallRequest("tiny", 7, 3, stream=True), "42", 1_700_000_000)
WITH_USAGE = Reply(CallRequest("tiny", 7, 3, stream=True, include_usage=True), "42", 1_700_000_000)


def events(raw):
    out = []
    for event in raw.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in event.split("\n"))
        data = lines["data"]
        out.append((lines.get("event"), data if data == "[DONE]" else json.loads(data)))
    return out


def test_an_openai_stream_without_usage_ends_with_the_finish_and_the_mark():
    (_, finish), (_, done) = events(openai.closing(REPLY))
    assert finish["choices"][0]["finish_reason"] == "length"
    assert done == "[DONE]"


def test_an_openai_stream_with_usage_sends_it_in_a_chunk_without_choices():
    [(_, opening)] = events(openai.opening(WITH_USAGE))
    (_, finish), (_, usage), (_, done) = events(openai.closing(WITH_USAGE))
    assert opening["usage"] is None
    assert finish["usage"] is None
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
    ],
)
def test_an_anthropic_error_has_type_message_and_request_id(status, kind):
    body = json.loads(anthropic.error_body(Refused(status, "no"), "req_1"))
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "req_1",
    }


@pytest.mark.parametrize(
    ("status", "code"), [(400, None), (401, "invalid_api_key"), (404, "unknown_url")]
)
def test_an_openai_error_has_type_param_and_code(status, code):
    body = json.loads(openai.error_body(Refused(status, "no", "messages"), "req_1"))
    expected = {"message": "no", "type": "invalid_request_error", "param": "messages", "code": code}
    assert body == {"error": expected}


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/chat/completions", "openai"), ("/v1/messages", "anthropic"), ("/", "anthropic")],
)
def test_a_path_has_its_providers_error_shape(path, name):
    assert wire_of_path(path) is {"openai": openai, "anthropic": anthropic}[name]
