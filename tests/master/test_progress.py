"""The sentences and figures that a user reads, and the frame of run.json."""

from __future__ import annotations

import json

import pytest

from tailgauge.master import run_json
from tailgauge.master.progress import not_whole, preflight_failure
from tailgauge.protocols.table import Target
from tailgauge.rows.schema import SCHEMA_VERSION

URL = "http://127.0.0.1:8000"


def seen(ended="connect_error", status=None, error_type=None, message=None):
    return {"ended": ended, "status": status, "error_type": error_type, "message": message}


@pytest.mark.parametrize(
    ("ready_s", "hint"),
    [
        (0.0, "--set limits.ready_s=120 waits for it"),
        (300.0, "--set limits.ready_s=600 waits longer than the 300 s of this run"),
        (3000.0, "--set limits.ready_s=3600 waits longer than the 3000 s of this run"),
        (3600.0, "it was not ready within 3600 s"),
    ],
)
@pytest.mark.parametrize("status", [None, 503])
def test_the_advice_to_wait_is_longer_than_the_wait(status, ready_s, hint):
    found = seen(
        status=status, error_type="tcp", message="Loading model" if status else "Connection refused"
    )

    assert preflight_failure(URL, "openai", found, ready_s=ready_s).endswith(hint)


@pytest.mark.parametrize(("what", "sentence"), [
    (
        seen(error_type="tcp", message="Connection refused"),
        f"target {URL} could not be used (tcp): Connection refused. Is it running, and is the port right? If it is still loading: --set limits.ready_s=120 waits for it",
    ),
    (
        seen(error_type="dns", message="no address for nowhere"),
        f"target {URL} could not be used (dns): no address for nowhere. Is the host name right?",
    ),
    (
        seen(error_type="tls_certificate", message="certificate not trusted: self-signed certificate"),
        (f"target {URL} could not be used (tls_certificate): certificate not trusted: self-signed certificate. "
        "For a private certificate authority, set target.ca_file to its PEM file"),
    ),
    (
            seen("timeout"),
            f"target {URL} could not be used (timeout). It accepted the connection but did not answer: look at its log. To wait less: --set limits.attempt_deadline_s=10",
    ),
    (
        seen("connect_error", error_type="timeout", message="no answer to TCP connect in time"),
        f"target {URL} could not be used (timeout): no answer to TCP connect in time. No answer in time: is it still loading, or does a firewall block it?",
    ),
    (
        seen("client_error", 200, "not_an_event_stream", '{"choices": [{"text": "hi"}]}'),
        (f"target {URL} answered HTTP 200, but not with an event stream. The response is JSON, not an event stream. If the endpoint "
        "cannot stream, set stream = false (--set 'traffic.*.stream=false'); else are path and protocol right?"),
    ),
    (
        seen("stream_error", 200, "overloaded_error", "busy"),
        (f"target {URL} answered HTTP 200, but the stream ended as stream_error: busy. The target reported this error inside its "
        "answer: look at its log. To keep its bytes, add --keep-answers 1"),
    ),
    (
        seen("client_error", 400, "invalid", "This model's maximum context length is 64 tokens"),
        (f"target {URL} answered HTTP 400: This model's maximum context length is 64 tokens. Prompt and answer do not fit into "
        "the context of the model: use smaller sizes, such as --input-tokens 30 --output-tokens 20"),
    ),
    (seen("timeout", 200), f"target {URL} answered HTTP 200, but the stream ended as timeout."),
    (
        seen("client_error", 404, "not_json", "<html><body>Not\n  Found</body></html>"),
        f"target {URL} answered HTTP 404: Not Found. Is the base URL right, and is the protocol openai?",
    ),
    (
        seen("client_error", 401, "authentication_error", "invalid x-api-key"),
        (f"target {URL} answered HTTP 401: invalid x-api-key. No key was sent. If the target needs one: "
        "export API_KEY=... and add --set target.api_key_env=API_KEY"),
    ),
    (seen("server_error", 500, "server_error", "boom"), f"target {URL} answered HTTP 500: boom."),
    (
        seen("client_error", 400, "invalid", '{"error": {"type": "invalid", "message": "max_tokens is too large"}}'),
        f"target {URL} answered HTTP 400: max_tokens is too large.",
    ),
    (
        seen("client_error", 400, "invalid", '{"object": "error", "message": "context of 2048"}'),
        f"target {URL} answered HTTP 400: context of 2048.",
    ),
    (seen("client_error", 400, "x", "Model not found."), f"target {URL} answered HTTP 400: Model not found. The target does not have this model: choose another (--model NAME)"),
    (
        seen("truncated", 200, "no_end_mark"),
        (f"target {URL} answered HTTP 200, but the stream ended as truncated. The connection was closed and there was no end "
        "mark. For another API set target.protocol; for an application's own events protocol = \"sse\" and target.sse. To "
        "keep its bytes, add --keep-answers 1"),
    ),
    (
        seen("client_error", 200, "not_an_event_stream", "hello"),
        (f"target {URL} answered HTTP 200, but not with an event stream: hello. The response is not an "
        "event stream: are path and protocol right?"),
    ),
])  # fmt: skip
def test_an_unusable_target_is_reported_in_a_sentence_with_what_to_do(what, sentence):
    assert preflight_failure(URL, "openai", what) == sentence


@pytest.mark.parametrize(
    ("location", "advice"),
    [
        ("https://api.example/v1/chat", "write --target https://api.example/v1/chat"),
        ("/v2/chat", "write --target http://127.0.0.1:8000/v2/chat"),
        ("/v1/chat/", "--target cannot end in a slash: let the target answer without it"),
        ("mailto:x@y", "give --target the address that answers"),
    ],
)
def test_a_redirect_names_where_to_and_what_to_set(location, advice):
    call = seen("client_error", 307, "redirect", location) | {"url": f"{URL}/v1/chat"}
    sentence = preflight_failure(f"{URL}/v1/chat", "openai", call)

    assert sentence.startswith(f"target {URL}/v1/chat answered HTTP 307 with location {location}. ")
    assert sentence.endswith(advice)


def test_a_whole_answer_to_a_streamed_call_names_the_setting_for_endpoints_without_streams():
    whole = seen("client_error", 200, "not_an_event_stream", '{"choices": [{"message": {}}]}')

    assert "set stream = false (--set 'traffic.*.stream=false')" in preflight_failure(
        URL, "openai", whole
    )


@pytest.mark.parametrize(("streamed", "noun"), [(True, "stream"), (False, "answer")])
def test_only_a_streamed_call_has_a_stream(streamed, noun):
    call = seen("timeout", 200) | {"streamed": streamed}

    assert preflight_failure(URL, "openai", call).startswith(
        f"target {URL} answered HTTP 200, but the {noun} ended as timeout"
    )


@pytest.mark.parametrize(
    ("wanted_whole", "streamed", "words", "is_named"),
    [
        (True, True, 32, True),
        (True, False, 32, False),
        (False, True, 32, False),
        (True, True, 0, False),
    ],
)
def test_a_target_that_only_streams_is_named_where_whole_answers_are_wanted(
    wanted_whole, streamed, words, is_named
):
    call = {"request_id": -1, "wanted_whole": wanted_whole, "streamed": streamed, "words": words}

    assert ("set stream = true" in not_whole(call)) == is_named


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (502, "not_json", "<html>502 Bad Gateway</html>"),
        (503, "not_json", "no healthy upstream"),
        (504, None, None),
    ],
)
def test_the_error_of_a_gateway_is_not_taken_for_another_protocol(status, kind, text):
    sentence = preflight_failure(URL, "openai", seen("server_error", status, kind, text))

    assert "gateway or proxy in front of the target: is its backend up" in sentence
    assert "protocol" not in sentence


@pytest.mark.parametrize(
    ("message", "how"),
    [
        ("[{'loc': ['body', 'stream_options'], 'msg': 'Extra inputs are not permitted'}]", "stream_options: streamed calls need it"),
        ("Unrecognized request argument supplied: response_format", "response_format: leave `schema` out"),
        ("top_k is not supported", "top_k: leave it out of target.body"),
        ("min_tokens: unexpected field", "min_tokens: leave `output` out"),
    ],
)  # fmt: skip
def test_a_refused_field_is_named_with_the_key_that_leaves_it_out(message, how):
    target = Target(url=URL, protocol="openai", body={"top_k": 5})
    sentence = preflight_failure(URL, "openai", seen("client_error", 422, None, message), target)

    assert f"It refuses the field {how}" in sentence


def test_a_field_that_no_refusal_names_gets_no_advice():
    call = seen("client_error", 422, None, "tools[0].name is too long")

    assert "It refuses" not in preflight_failure(URL, "openai", call)


@pytest.mark.parametrize(
    ("body", "is_user_defined"),
    [({"prompt": "{prompt}"}, True), ({"q": "{prompt}", "model": "{model}"}, False)],
)
def test_a_missing_model_is_not_blamed_where_the_body_names_none(body, is_user_defined):
    target = Target(url=URL, protocol="sse", sse={"body": body})
    call = seen("client_error", 404, None, "The model `None` does not exist") | {
        "url": f"{URL}/",
        "model": "m",
    }
    sentence = preflight_failure(URL, "sse", call, target)

    assert (
        f"sends the body in target.sse.body to {URL}/: is target.sse.path right? For an OpenAI API use --protocol openai"
        in sentence
    ) is is_user_defined
    assert ("--model" in sentence) is not is_user_defined


@pytest.mark.parametrize(("protocol", "other"), [("anthropic", "openai"), ("openai", "anthropic")])
def test_a_stream_of_another_protocol_is_named_with_the_option(protocol, other):
    call = seen("stream_error", 200, "malformed_event", f"an event of protocol {other}")

    assert preflight_failure(URL, protocol, call).endswith(
        f"The target streams as {other} does: use --protocol {other}"
    )


def test_a_targets_long_words_are_cut():
    sentence = preflight_failure(URL, "openai", seen("server_error", 500, None, "x" * 5000))

    assert sentence == f"target {URL} answered HTTP 500: {'x' * 200}...."


def test_a_targets_text_are_reported_without_their_power():
    text = "<b>\x1b[31mno</b>\x1b]0;title\x07 \u202eway\n\x9b2J"

    assert preflight_failure(URL, "openai", seen("server_error", 500, None, text)) == (
        f"target {URL} answered HTTP 500: [31mno ]0;title way 2J."
    )


def test_the_frame_of_run_json_names_versions_and_the_machine_and_is_plain_json():
    tree = run_json.frame({"run_id": "r"}, "running", ["a note"], [])

    assert tree["schema_version"] == SCHEMA_VERSION
    assert (tree["run_id"], tree["state"], tree["notes"], tree["verdict"]) == (
        "r",
        "running",
        ["a note"],
        None,
    )
    assert {"tailgauge", "python", "kernel", *run_json.PACKAGES} == set(tree["versions"])
    assert "not installed" not in tree["versions"].values()
    assert json.loads(json.dumps(tree)) == tree
