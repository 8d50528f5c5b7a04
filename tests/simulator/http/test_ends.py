"""How answers end, and errors inside a 200, as the official SDKs meet them and as the server log has them."""

from __future__ import annotations

import json
from typing import get_args

import anthropic
import httpx2
import openai
import pytest
from simulator.http.conftest import REQUEST, ServedForked, named
from simulator.http.test_faults import always

from tailgauge.scenario.simulated import ErrorShape

TIMES = pytest.mark.parametrize("times", [(), ("profile=tiny",)], ids=["model", "engine"])
WHOLE_OR_STREAM = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
ENDS = {  # kind -> stop reason, finish reason
    "refused": ("refusal", "stop"),
    "filtered": ("content_filter", "content_filter"),
    "aborted": ("abort", "abort"),
    "no_finish_reason": (None, None),
    "short": ("max_tokens", "length"),
}


def message(endpoint, *, stream, **more):
    if not stream:
        return endpoint.claude.messages.create(**REQUEST, **more)
    with endpoint.claude.messages.stream(**REQUEST, **more) as events:
        return events.get_final_message()


def completion(endpoint, *, stream, **more):
    """Text, refusal, finish reason and usage of a completion."""
    create = endpoint.chat.chat.completions.create
    if not stream:
        answer = create(**REQUEST, **more)
        choice = answer.choices[0]
        return (
            choice.message.content or "",
            choice.message.refusal or "",
            choice.finish_reason,
            answer.usage,
        )
    chunks = list(create(**REQUEST, **more, stream=True, stream_options={"include_usage": True}))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    text = "".join(delta.content or "" for delta in deltas)
    refusal = "".join(delta.refusal or "" for delta in deltas)
    return text, refusal, next(filter(None, reasons), None), chunks[-1].usage


def raw(endpoint: ServedForked, path: str) -> tuple[int, str]:
    """Status and body of a streamed call."""
    body = {**REQUEST, "stream": True}
    response = httpx2.post(f"{endpoint.url}{path}", json=body, timeout=10)
    return response.status_code, response.text


@TIMES
@WHOLE_OR_STREAM
@pytest.mark.parametrize("kind", ENDS)
def test_an_answer_ends_for_its_reason(serve, kind, times, stream):
    endpoint = serve(*always(kind, at_chunk=3), *times)
    stop_reason, finish_reason = ENDS[kind]
    answer = message(endpoint, stream=stream, **named("r"))
    text, refusal, reason, usage = completion(endpoint, stream=stream)

    assert answer.stop_reason == stop_reason
    assert answer.usage.output_tokens == usage.completion_tokens == 3
    assert reason == finish_reason
    assert (text or refusal) == answer.content[0].text == "sea sky sun "
    assert bool(refusal) == (kind == "refused")
    row = endpoint.row("r", "billed_output_tokens")
    assert (row["fault"], row["stop_reason"], row["status"]) == (kind, stop_reason, 200)
    assert (row["output_tokens"], row["billed_output_tokens"], row["error_status"]) == (3, 3, None)


@WHOLE_OR_STREAM
def test_a_refusal_has_its_category_and_may_have_no_text(serve, stream):
    endpoint = serve(*always("refused"), 'faults.f.category="bio"')
    answer = message(endpoint, stream=stream)
    _, refusal, reason, _ = completion(endpoint, stream=stream)

    assert (answer.stop_reason, answer.stop_details.category) == ("refusal", "bio")
    assert [block.text for block in answer.content] == [""]
    assert (refusal, reason) == ("sea ", "stop")


@pytest.mark.slow
@TIMES
def test_answers_end_by_themselves_at_a_drawn_length(serve, times):
    endpoint = serve("natural.share=0.5", "natural.tokens=8", "natural.sigma=0.5", *times)
    answers = [message(endpoint, stream=True, **named("r", call)) for call in range(40)]
    natural = [answer for answer in answers if answer.stop_reason == "end_turn"]
    others = [answer for answer in answers if answer.stop_reason == "max_tokens"]

    assert len(natural) + len(others) == 40
    assert 8 <= len(natural) <= 32
    assert len({answer.usage.output_tokens for answer in natural}) > 4
    assert all(answer.usage.output_tokens == 20 for answer in others)
    rows = endpoint.rows("r")
    assert [rows[call]["stop_reason"] for call in range(40)] == [
        answer.stop_reason for answer in answers
    ]
    assert [rows[call]["output_tokens"] for call in range(40)] == [
        answer.usage.output_tokens for answer in answers
    ]


def test_ends_and_errors_are_drawn_beside_each_other(serve):
    endpoint = serve(
        *(f"faults.a.{text}" for text in ("kind=refused", "share=0.3")),
        *(f"faults.b.{text}" for text in ("kind=error_event", "share=0.3", "status=529")),
    )
    ended = []
    for call in range(40):
        try:
            ended.append(message(endpoint, stream=True, **named("r", call)).stop_reason)
        except anthropic.APIStatusError as error:
            ended.append(error.type)
    rows = endpoint.rows("r")

    assert {"refusal", "overloaded_error", "max_tokens"} == set(ended)
    expected = {"refusal": (200, "refused", None), "overloaded_error": (200, "error_event", 529)}
    assert [expected.get(end, (200, None, None)) for end in ended] == [
        (rows[call]["status"], rows[call]["fault"], rows[call]["error_status"])
        for call in range(40)
    ]


@pytest.mark.parametrize("at_chunk", [0, 2])
@pytest.mark.parametrize("shape", get_args(ErrorShape))
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_an_error_inside_a_200_has_its_shape(serve, shape, path, at_chunk):
    endpoint = serve(
        *always("error_event", at_chunk=at_chunk, status=500), f"faults.f.shape={shape}"
    )
    status, body = raw(endpoint, path)
    events = [event for event in body.split("\n\n") if event]
    errors = {
        "provider": '"message":"Internal server error"',
        "wrapped": '{"error":{"message":"Internal server error","type":"None"',
        "flat": '{"object":"error","message":"Internal server error"',
        "message": '{"message":"Internal server error","code":500}',
        "detail": '{"detail":"Internal server error","status":500}',
        "field": 'error: {"code":500,"message":"Internal server error"',
        "chunk": '"error":{"code":500,"message":"Internal server error"}',
    }

    assert status == 200
    assert body.count("sea") + body.count("sky") == at_chunk
    has_done = events[-1] == "data: [DONE]"
    assert has_done == (shape in {"flat", "field", "chunk"})
    error = events[-2] if has_done else events[-1]
    assert errors[shape] in error
    assert error.startswith("event: error\n") == (shape == "provider" and path == "/v1/messages")


def test_an_overload_inside_a_stream_has_each_providers_name(serve):
    endpoint = serve(*always("error_event", status=529))
    _, messages = raw(endpoint, "/v1/messages")
    _, chat = raw(endpoint, "/v1/chat/completions")

    assert '"type":"overloaded_error"' in messages
    assert '"code":"engine_overloaded"' in chat


@pytest.mark.parametrize(
    ("overload", "kind", "status"),
    [("false", "rate_limit_error", 429), ("true", "overloaded_error", 529)],
)
def test_a_limit_may_refuse_inside_a_200(serve, overload, kind, status):
    endpoint = serve(
        "limits.rpm=1", "limits.burst=1", "limits.in_band=true", f"limits.overload={overload}"
    )
    message(endpoint, stream=True, **named("r", 1))
    with pytest.raises(anthropic.APIStatusError) as caught:
        message(endpoint, stream=True, **named("r", 2))
    with pytest.raises(anthropic.APIStatusError) as whole:
        message(endpoint, stream=False, **named("r", 3))
    with pytest.raises(openai.APIError):
        completion(endpoint, stream=True, **named("r", 4))
    rows = endpoint.rows("r")

    assert (caught.value.status_code, caught.value.type) == (200, kind)
    assert int(caught.value.response.headers["retry-after"]) > 0
    assert (whole.value.status_code, whole.value.type) == (status, kind)
    assert [rows[call]["status"] for call in (1, 2, 3, 4)] == [200, 200, status, 200]
    assert [rows[call]["limit_kind"] for call in (1, 2, 3, 4)] == [
        None,
        "requests",
        "requests",
        "requests",
    ]
    assert [rows[call]["error_status"] for call in (1, 2, 3)] == [None, status, status]


@pytest.mark.parametrize(
    ("form", "header"),
    [
        ("seconds", "retry-after"),
        ("milliseconds", "retry-after-ms"),
        ("date", "retry-after"),
        ("none", ""),
    ],
)
def test_a_rejection_says_when_to_come_back_in_one_of_its_forms(serve, form, header):
    endpoint = serve("limits.rpm=1", "limits.burst=1", f"limits.retry_after={form}")
    message(endpoint, stream=False)
    with pytest.raises(anthropic.RateLimitError) as caught:
        message(endpoint, stream=False)
    headers = caught.value.response.headers
    names = {name for name in headers if name.startswith("retry-after")}

    assert names == ({header} if header else set())
    if form == "milliseconds":
        assert 50_000 <= int(headers[header]) <= 60_000
    if form == "date":
        assert headers[header].endswith(" GMT")


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("provider", {"anthropic-ratelimit-requests-remaining"}),
        ("openai", {"x-ratelimit-remaining-requests"}),
        ("azure", {"x-ratelimit-remaining-requests"}),
        ("mistral", {"x-ratelimit-remaining-req-minute"}),
        ("litellm", {"llm_provider-anthropic-ratelimit-requests-remaining"}),
        ("ietf", {"ratelimit", "ratelimit-policy"}),
        ("epoch", {"x-ratelimit-reset-requests"}),
    ],
)
def test_limit_headers_are_those_of_their_family(serve, family, names):
    endpoint = serve("limits.rpm=60", "limits.itpm=6000", f"limits.headers={family}")
    response = endpoint.claude.messages.with_raw_response.create(**REQUEST)

    assert names <= {name.lower() for name in response.headers}


def test_a_miss_of_the_cache_has_the_providers_reason(serve):
    endpoint = serve("cache.mode=marked", "cache.minimum_tokens=0")

    def send(system, previous, question="hello"):
        marked = {"type": "text", "text": system * 40, "cache_control": {"type": "ephemeral"}}
        body = {
            **REQUEST,
            "system": [marked],
            "messages": [{"role": "user", "content": question}],
        }
        return endpoint.claude.messages.create(
            **body, extra_body={"diagnostics": {"previous_message_id": previous}}
        )

    first = send("a rule ", None)
    again = send("a rule ", first.id)
    changed = send("another rule ", first.id)
    unknown = send("a rule ", "msg_of_nobody")
    reasons = [answer.diagnostics for answer in (first, again, changed, unknown)]

    assert reasons[0] is None
    assert reasons[1].cache_miss_reason is None
    assert reasons[2].cache_miss_reason.type == "system_changed"
    assert reasons[2].cache_miss_reason.cache_missed_input_tokens == 70
    assert reasons[3].cache_miss_reason.type == "previous_message_not_found"


def test_breakpoints_of_chat_completions_are_written_and_read(serve):
    endpoint = serve("cache.mode=marked", "cache.minimum_tokens=0")

    def send(question, mode, *, marked=True):
        part = {"type": "text", "text": "a long rule " * 100}
        if marked:
            part["prompt_cache_breakpoint"] = {"mode": "explicit"}
        body = {
            "model": "m",
            "max_tokens": 4,
            "messages": [
                {"role": "system", "content": [part]},
                {"role": "user", "content": question},
            ],
        }
        if mode is not None:
            body["extra_body"] = {"prompt_cache_options": {"mode": mode}}
        usage = endpoint.chat.chat.completions.create(**body).usage
        assert usage is not None
        details = usage.prompt_tokens_details
        assert details is not None
        return usage.prompt_tokens, details.cached_tokens, details.cache_write_tokens

    assert send("abcd", "explicit") == (301, 0, 300)
    assert send("efgh", "explicit") == (301, 300, 0)
    assert send("ijkl", None) == (301, 300, 1)  # one more by the provider itself, at the end
    assert send("ijkl", None) == (301, 301, 0)
    assert send("mnop", None, marked=False) == (301, 0, 0)  # no breakpoints, no options: no cache
    assert send("qrst", "implicit", marked=False) == (301, 300, 1)


def test_a_wrong_breakpoint_is_refused(serve):
    endpoint = serve("cache.mode=marked")
    part = {
        "type": "text",
        "text": "hello",
        "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "5m"},
    }
    with pytest.raises(openai.BadRequestError) as caught:
        endpoint.chat.chat.completions.create(
            model="m",
            max_tokens=4,
            messages=[{"role": "user", "content": [part]}],
        )

    assert json.dumps(caught.value.body).count("30m, 12h") == 1
