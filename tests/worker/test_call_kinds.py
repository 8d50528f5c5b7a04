"""Every kind of call: its body, what the endpoint makes of it, and each stamp beside the time at which it was written.

The servers record the call, write at known times, or are the simulated endpoint, which refuses a body that is not the
protocol. A time is right if it lies between the writing of its event and the writing of the next one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gevent
import pytest
from starting.endpoint import endpoint as simulated_endpoint
from transport.scripted_server import SSE, Server
from worker.one_call import PLAIN, choice, endpoint, event, made, recording, seen, writing

from tailgauge.call import (
    ASSISTANT,
    JOB_FETCH,
    JOB_POLL,
    JOB_SUBMIT,
    MAIN,
    SECOND,
    USER,
    Call,
    Message,
    Part,
    Prompt,
    Tool,
)
from tailgauge.protocols.custom_sse import SseSettings
from tailgauge.protocols.target import Endpoint
from tailgauge.worker.cache_tracker import CacheNote

pytestmark = pytest.mark.gevent

BOTH = pytest.mark.parametrize("protocol", ["anthropic", "openai"])
SECRETS = {
    "ANTHROPIC_API_KEY": "must-not-go-out", "OPENAI_API_KEY": "must-not-go-out", "ANTHROPIC_AUTH_TOKEN": "must-not-go-out",
    "ANTHROPIC_CUSTOM_HEADERS": "x-secret: must-not-go-out", "OPENAI_ORG_ID": "must-not-go-out", "APP_KEY": "key-of-the-app",
}  # fmt: skip
WORDS = [{"role": "user", "content": "some words"}]
SCHEMA = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
TOOLS = (
    Tool("look", "Looks.", '{"type":"object","properties":{"at":{"type":"string"}}}'),
    Tool("act", "Acts.", '{"type":"object"}', ttl="1h"),
)


def talk(short: str, long: str) -> Prompt:
    """A conversation with marks of a protocol's lives."""
    return Prompt(
        (
            Message(USER, (Part("an example"),)),
            Message(ASSISTANT, (Part("its answer", ttl=short),)),
            Message(USER, (Part("first part"), Part("second part", ttl=short))),
        ),
        system=(Part("be kind"), Part("be brief", ttl=long)),
        tools=TOOLS,
    )


TALK = talk("5m", "1h")
CALLS = {
    "plain": Call(PLAIN, 7),
    "another model": Call(PLAIN, 7, model="other"),
    "system": Call(Prompt(PLAIN.messages, system=(Part("be kind"),)), 7),
    "conversation": Call(TALK, 40),
    "forced tool": Call(Prompt(PLAIN.messages, tools=TOOLS[:1]), 40, use_tool=True),
    "adaptive": Call(PLAIN, 40, thinking="adaptive"),
    "enabled": Call(PLAIN, 2000, thinking="enabled", thinking_tokens=1024),
    "schema": Call(PLAIN, 7, schema=SCHEMA),
    "whole": Call(PLAIN, 7, stream=False),
    "whole with a tool": Call(Prompt(PLAIN.messages, tools=TOOLS[:1]), 40, stream=False, use_tool=True, keep_text=True),
}  # fmt: skip
OF_OPENAI = {**CALLS, "conversation": Call(talk("30m", "12h"), 40)}
PRE_WARM = Call(Prompt(PLAIN.messages, system=(Part("be kind", ttl="5m"),)), 0, stream=False)


class Book:
    """Notes what it is given, and knows one thing."""

    def __init__(self) -> None:
        self.facts: list[str] = []

    def sent(self, _: Any, key: Any, __: int, traffic: str = "") -> Any:
        self.facts.append(f"sent {key} {traffic}")
        return CacheNote(3, "abc", "warm", 5, 1, 2, "5m", 4, "def", None)

    def begun(self, key: Any, _: int) -> None:
        self.facts.append(f"begun {key}")

    def ended(self, key: Any, _: int) -> None:
        self.facts.append(f"ended {key}")


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def calls_of(protocol: str) -> dict[str, Call]:
    return OF_OPENAI if protocol == "openai" else CALLS


def request_of(server: Server) -> dict[str, Any]:
    """The last request, which carries its id and no foreign key."""
    request = seen(server)
    assert request["headers"]["x-client-request-id"] == "run-1/65536/1/2"
    assert "must-not-go-out" not in json.dumps(request)
    return request


def body(protocol: str, name: str) -> dict[str, Any]:
    server = recording()
    made(endpoint(server.url, protocol), calls_of(protocol)[name])
    return request_of(server)["body"]


def received_events(facts: dict[str, Any]) -> dict[str, Any]:
    """What the pattern received, by the name of the event."""
    assert len(dict(facts["received"])) == len(facts["received"])
    return dict(facts["received"])


# --- bodies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "path"), [("anthropic", "/v1/messages"), ("openai", "/v1/chat/completions")]
)
def test_a_plain_call_says_nothing_that_was_not_asked_for(protocol, path):
    """No key of the provider goes to another host."""
    server = recording()
    made(endpoint(server.url, protocol), CALLS["plain"])
    request = request_of(server)
    plain = {"model": "tiny", "max_tokens": 7, "messages": WORDS, "stream": True}
    if protocol == "openai":
        plain["stream_options"] = {"include_usage": True}

    assert request["body"] == plain
    assert request["first"] == f"POST {path} HTTP/1.1"
    assert request["headers"]["accept-encoding"] == "identity"
    assert not {"authorization", "x-api-key", "api-key"} & set(request["headers"])
    assert body(protocol, "another model") == {**plain, "model": "other"}


def test_anthropic_gets_the_prompt_with_its_marks_where_they_stand():
    def text(printed, ttl=None):
        block = {"type": "text", "text": printed}
        return (
            block if ttl is None else {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}
        )

    asked = body("anthropic", "conversation")
    look, act = asked["tools"]

    assert asked["system"] == [text("be kind"), text("be brief", "1h")]
    assert asked["messages"] == [
        {"role": "user", "content": "an example"},
        {"role": "assistant", "content": [text("its answer", "5m")]},
        {"role": "user", "content": [text("first part"), text("second part", "5m")]},
    ]
    assert (look["name"], "cache_control" in look) == ("look", False)
    assert act == {"name": "act", "description": "Acts.", "input_schema": {"type": "object"},
                   "cache_control": {"type": "ephemeral", "ttl": "1h"}}  # fmt: skip
    assert "tool_choice" not in asked
    assert body("anthropic", "system")["system"] == "be kind"


def test_openai_gets_the_prompt_with_breakpoints_but_not_behind_tools_and_the_system_as_a_message():
    def text(printed, **mark):
        block = {"type": "text", "text": printed}
        return {**block, "prompt_cache_breakpoint": {"mode": "explicit", **mark}} if mark else block

    asked = body("openai", "conversation")
    short = {"type": "text", "text": "its answer", "prompt_cache_breakpoint": {"mode": "explicit"}}

    assert asked["messages"] == [
        {"role": "system", "content": [text("be kind"), text("be brief", ttl="12h")]},
        {"role": "user", "content": "an example"},
        {"role": "assistant", "content": [short]},
        {"role": "user", "content": [text("first part"), {**short, "text": "second part"}]},
    ]
    assert asked["prompt_cache_options"] == {"mode": "explicit"}
    assert body("openai", "system")["messages"][0] == {"role": "system", "content": "be kind"}
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["look", "act"]
    assert "cache_control" not in json.dumps(asked)


@pytest.mark.parametrize(
    ("protocol", "name", "beyond_plain"),
    [
        ("anthropic", "forced tool", {"tool_choice": {"type": "any"}}),
        ("anthropic", "adaptive", {"thinking": {"type": "adaptive"}}),
        ("anthropic", "enabled", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("anthropic", "whole", {"stream": False}),
        ("openai", "forced tool", {"tool_choice": "required"}),
        ("openai", "adaptive", {"reasoning_effort": "medium", "chat_template_kwargs": {"enable_thinking": True}}),
        ("openai", "enabled", {"reasoning_effort": "medium", "thinking_token_budget": 1024,
                               "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 1024}}),
        ("openai", "whole", {"stream": False}),
    ],
)  # fmt: skip
def test_what_is_asked_for_stands_in_the_body(protocol, name, beyond_plain):
    asked = body(protocol, name)
    plain = body(protocol, "plain")
    changed = {key: value for key, value in asked.items() if plain.get(key) != value}
    changed.pop("max_tokens", None)
    changed.pop("tools", None)

    assert changed == beyond_plain
    assert not {"temperature", "top_p", "top_k"} & set(asked)
    if not asked["stream"]:
        assert "stream_options" not in asked


def test_a_schema_goes_out_as_each_protocol_has_it():
    output_format = body("anthropic", "schema")["output_config"]["format"]
    schema = output_format["schema"]

    assert schema["required"] == ["a"]
    assert output_format["type"] == "json_schema"
    assert body("openai", "schema")["response_format"] == {
        "type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }  # fmt: skip


def test_a_pre_warming_call_asks_for_nothing():
    server = recording()
    made(endpoint(server.url), PRE_WARM)
    asked = request_of(server)["body"]

    assert (asked["max_tokens"], asked["stream"]) == (0, False)
    assert asked["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "5m"}


def batch_calls(batch_id: str) -> dict[str, Call]:
    submit = Call(PLAIN, 5, kind=JOB_SUBMIT, batch=(PLAIN, Prompt.of("more"), TALK))
    return {
        "submit": submit,
        "poll": replace(submit, kind=JOB_POLL, batch=(), job=batch_id),
        "fetch": replace(submit, kind=JOB_FETCH, batch=(), job=batch_id),
    }


def test_a_batch_is_submitted_polled_and_fetched():
    server = recording()
    requests = []
    for call in batch_calls("msgbatch_1").values():
        made(endpoint(server.url), call)
        requests.append(request_of(server))

    assert [request["first"] for request in requests] == [
        "POST /v1/messages/batches HTTP/1.1",
        "GET /v1/messages/batches/msgbatch_1 HTTP/1.1",
        "GET /v1/messages/batches/msgbatch_1/results HTTP/1.1",
    ]
    asked = requests[0]["body"]["requests"]
    assert [one["custom_id"] for one in asked] == ["0", "1", "2"]
    assert asked[0]["params"] == {"model": "tiny", "max_tokens": 5, "messages": WORDS}
    assert "stream" not in asked[2]["params"]


# --- the simulated endpoint, which checks what it is asked --------------------------------------------------------


SETTINGS = (
    "ttft_ms=2", "chunk_gap_ms=0.05", "content.thinking_share=0.4", "content.tool_share=0.4",
    "cache.mode=marked", "cache.minimum_tokens=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def simulated():
    with simulated_endpoint(*(f"--set=simulated.{setting}" for setting in SETTINGS)) as started:
        yield started.url


@BOTH
def test_the_simulated_endpoint_takes_every_kind_of_call(simulated, protocol):
    known = {
        name: made(endpoint(simulated, protocol), replace(call, keep_text=True, watch_field=True))
        for name, call in calls_of(protocol).items()
    }
    row = {name: facts["row"] for name, facts in known.items()}

    assert {name: facts["ended"] for name, facts in row.items()} == dict.fromkeys(CALLS, "ok")
    assert row["plain"]["chunks"] == 7
    assert list(json.loads(received_events(known["schema"])["Ended"]["text"]))
    assert row["schema"]["first_content_at_ns"] <= row["schema"]["first_field_at_ns"]
    assert row["adaptive"]["thinking_tokens"] == 16
    assert row["adaptive"]["first_thinking_at_ns"] is not None
    tool = row["forced tool"]
    assert tool["first_tool_json_at_ns"] <= tool["first_field_at_ns"] <= tool["tool_ready_at_ns"]
    assert (row["whole"]["streamed"], row["whole"]["chunks"]) == (False, 1)
    assert (row["whole"]["output_tokens"], known["whole"]["chars"]) == (7, [28])
    if protocol == "anthropic":
        # Marks are seen as marks.
        assert row["conversation"]["cache_creation_1h_input_tokens"] > 0
        assert row["conversation"]["cache_creation_5m_input_tokens"] > 0


def test_the_simulated_endpoint_takes_a_pre_warming_call(simulated):
    row = made(endpoint(simulated), PRE_WARM)["row"]

    assert (row["status"], row["ended"], row["output_tokens"]) == (200, "empty", 0)
    assert row["cache_creation_5m_input_tokens"] > 0


def test_the_calls_of_a_batch_are_rows_and_their_usage_is_added_up(simulated):
    target = endpoint(simulated)
    submitted = made(target, batch_calls("")["submit"])
    status = json.loads(received_events(submitted)["Ended"]["text"])
    calls = batch_calls(status["id"])
    while status["processing_status"] != "ended":
        assert status["processing_status"] == "in_progress"
        gevent.sleep(0.2)
        polled = made(target, calls["poll"])
        assert polled["row"]["ended"] == "ok"
        status = json.loads(received_events(polled)["Ended"]["text"])
    fetched = made(target, calls["fetch"])
    missing = made(target, replace(calls["fetch"], job="none"))

    row = fetched["row"]
    assert submitted["row"]["ended"] == row["ended"] == "ok"
    assert (row["output_tokens"], row["chunks"], row["model"]) == (15, 0, "tiny")
    assert row["input_tokens"] > 6
    lines = [json.loads(line) for line in received_events(fetched)["Ended"]["text"].splitlines()]
    assert sorted(line["custom_id"] for line in lines) == ["0", "1", "2"]
    assert {line["result"]["type"] for line in lines} == {"succeeded"}
    assert (missing["row"]["ended"], missing["row"]["status"]) == ("client_error", 404)
    assert missing["row"]["error_type"] == "not_found_error"


def custom_stream(url: str) -> Endpoint:
    """The simulated endpoint's chat completions, written as if they were an application's own."""
    sse = SseSettings(
        path="/v1/chat/completions",
        body={"model": "{model}", "stream": True, "max_tokens": "{max_tokens}", "stream_options": {"include_usage": True},
              "messages": [{"role": "user", "content": "{prompt}"}]},
        content={"text": "/choices/0/delta/content"},
        input_tokens="/usage/prompt_tokens", output_tokens="/usage/completion_tokens",
    )  # fmt: skip
    return endpoint(url, "sse", sse=sse)


def test_an_application_may_be_told_in_a_scenario(simulated):
    row = made(custom_stream(simulated), Call(TALK, 9))["row"]

    assert (row["ended"], row["protocol"]) == ("ok", "sse")
    assert (row["chunks"], row["output_tokens"]) == (9, 9)
    assert row["input_tokens"] > 0


# --- events at known times ----------------------------------------------------------------------------------------


def claude(*trees: Any) -> list[bytes]:
    return [event(tree, tree["type"]) for tree in trees]


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def argument(text: str, index: int = 0) -> bytes:
    return choice(tool_calls=[{"index": index, "function": {"arguments": text}}])


TIMED = {
    "anthropic": claude(
        {"type": "message_start", "message": {"id": "m", "model": "tiny", "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
        delta(0, type="thinking_delta", thinking="hm"),
        delta(0, type="signature_delta", signature="x"),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text"}},
        delta(1, type="text_delta", text="well"),
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use"}},
        delta(2, type="input_json_delta", partial_json=""),
        delta(2, type="input_json_delta", partial_json='{"at": "h'),
        delta(2, type="input_json_delta", partial_json='ere", "n'),
        delta(2, type="input_json_delta", partial_json='": 1}'),
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ),
    "openai": [
        choice(role="assistant", content=""), choice(reasoning_content="hm"), choice(content="well"), argument('{"at": "h'),
        argument('ere", "n'), argument('": 1}'), argument("{}", 1),
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}), event("[DONE]"),
    ],
    "sse": [
        event("retrieval", "status"), event("a source", "cite"), event("generation", "status"), event({"t": "well"}, "tok"),
        event({"t": ", yes"}, "tok"), event("retrieval", "status"), event({"n": {"in": 4, "out": 2}}, "use"), event("", "done"),
    ],
}  # fmt: skip
APP = SseSettings(
    path="/ask?v=1", body={"q": "{prompt}", "opts": {"n": "{max_tokens}", "ids": ["{call_id}", "{model}"]}},
    content={"event": "tok", "text": "/t"}, end={"event": "done"}, phase={"event": "status"},
    citation={"event": "cite"}, input_tokens="/n/in", output_tokens="/n/out",
)  # fmt: skip


def event_of(wrote, at_ns):
    """Number of the event after whose writing, and before the next one's, a time lies."""
    return sum(written <= at_ns for written in wrote) - 1


LANDMARKS = {
    "anthropic": {"first_event": 0, "first_thinking": 2, "first_content": 2, "first_text": 6, "first_tool_json": 10,
                  "first_field": 11, "last_content": 12, "tool_ready": 13, "stopped": 15},
    "openai": {"first_event": 0, "first_thinking": 1, "first_content": 1, "first_text": 2, "first_tool_json": 3,
               "first_field": 4, "last_content": 6, "tool_ready": 6, "stopped": 8},
    "sse": {"first_event": 0, "first_content": 3, "first_text": 3, "last_content": 4, "stopped": 7},
}  # fmt: skip


WATCH = {"watch_field": True, "watch_chunks": 3, "keep_text": True}
TIMINGS = b'server-timing: db;desc="a, b";dur=53.5, cache;dur=0.1, miss'


class Timed:
    """A call to a server that writes its events at known times."""

    def __init__(self, protocol: str, **watch: Any) -> None:
        target: dict[str, Any] = {}
        if protocol == "sse":
            target = {"sse": APP, "api_key_env": "APP_KEY", "headers": {"x-app": "for {model}"}}
        head = SSE.replace(b"\r\n\r\n", b"\r\n" + TIMINGS + b"\r\n\r\n", 1)
        server, self.wrote = writing(TIMED[protocol], head)
        call = Call(TALK if protocol == "sse" else PLAIN, 7, **watch)
        self.facts = made(endpoint(server.url, protocol, **target), call, Book())
        self.row = self.facts["row"]
        self.request = request_of(server)


@pytest.mark.parametrize("protocol", LANDMARKS)
def test_each_landmark_is_stamped_when_its_event_came(protocol):
    call = Timed(protocol, **WATCH)
    events = {
        name: event_of(call.wrote, call.row[f"{name}_at_ns"])
        for name in {name for landmarks in LANDMARKS.values() for name in landmarks}
        if call.row[f"{name}_at_ns"] is not None
    }

    assert call.row["ended"] == "ok"
    assert events == LANDMARKS[protocol]


@BOTH
def test_a_pattern_hears_of_the_chunk_it_waits_for(protocol):
    call = Timed(protocol, **WATCH)
    events = received_events(call.facts)

    assert list(events) == ["FirstContent", "Chunks", "Ended"]
    assert events["Chunks"]["at_ns"] == call.facts["arrived"][2]
    assert events["FirstContent"]["sent_at_ns"] == call.row["sent_at_ns"]
    assert events["Ended"]["text"] == "well"


def test_nothing_is_watched_or_kept_that_was_not_asked_for():
    call = Timed("anthropic")
    events = received_events(call.facts)

    assert list(events) == ["FirstContent", "Ended"]
    assert call.row["first_field_at_ns"] is None
    assert events["Ended"]["text"] is None


def test_phases_begin_with_their_first_event_and_last_what_the_header_says():
    call = Timed("sse", **WATCH)
    phases = json.loads(call.row["phases"])
    began = {
        name: event_of(call.wrote, call.row["sent_at_ns"] + phases[name])
        for name in ("retrieval", "generation")
    }

    assert began == {"retrieval": 0, "generation": 2}
    header = {"db;dur": 53_500_000, "cache;dur": 100_000}
    assert {name: phases[name] for name in phases if name not in began} == header
    assert (call.row["citations"], call.row["input_tokens"], call.row["output_tokens"]) == (1, 4, 2)
    assert json.loads(Timed("openai").row["phases"]) == header


def test_a_template_is_filled_once():
    request = Timed("sse").request

    assert request["first"] == "POST /ask?v=1 HTTP/1.1"
    assert request["headers"]["x-app"] == "for tiny"
    assert request["headers"]["authorization"] == "Bearer key-of-the-app"
    assert request["body"]["opts"] == {"n": 7, "ids": ["run-1/65536/1/2", "tiny"]}
    assert request["body"]["q"].startswith("be kind\n\nbe brief\n\nan example")
    echo = recording()
    made(endpoint(echo.url, "sse", sse=APP), Call(Prompt.of("{call_id} {x}"), 7))
    assert request_of(echo)["body"]["q"] == "{call_id} {x}"
    assert "authorization" not in request_of(echo)["headers"]


TOKEN = event({"t": "x"}, "tok")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([TOKEN], ("truncated", "no_end_mark", None)),
        ([TOKEN, event({"error": {"type": "boom", "message": "no"}}, "error")], ("stream_error", "boom", "no")),
        ([TOKEN, event("out of luck", "error")], ("stream_error", "error", "out of luck")),
        ([event({"t": 5}, "tok"), event("", "done")],
         ("stream_error", "malformed_event", 'a field is not what the protocol says: {"t": 5}')),
        ([event({"u": 5}, "tok"), event("", "done")], ("empty", None, None)),
    ],
    ids=["cut", "failed", "failed in words", "no text", "text left out"],
)  # fmt: skip
def test_an_application_can_fail_like_any_target(pieces, expected):
    server, _ = writing(pieces)
    row = made(endpoint(server.url, "sse", sse=APP), Call(PLAIN, 7))["row"]

    assert (row["ended"], row["error_type"], row["error_body"]) == expected


def test_an_application_can_refuse_like_any_target():
    refusal = (
        b"HTTP/1.1 429 No\r\nretry-after: 3\r\nx-should-retry: false\r\ncontent-length: 2\r\n\r\n{}"
    )
    facts = made(endpoint(recording(refusal).url, "sse", sse=APP), Call(PLAIN, 7))
    row = facts["row"]

    assert (row["ended"], row["error_type"], row["error_body"]) == ("rate_limited", "error", "{}")
    assert (row["retry_after_s"], received_events(facts)["Ended"]["should_retry"]) == (3.0, False)


def test_an_application_may_stream_bare_text():
    server, _ = writing([event("hel"), event("lo"), event("[DONE]")])
    bare = SseSettings(body={"prompt": "{prompt}"})
    facts = made(endpoint(server.url, "sse", sse=bare), Call(PLAIN, 7, keep_text=True))

    assert (facts["row"]["ended"], received_events(facts)["Ended"]["text"]) == ("ok", "hello")


def test_the_cache_book_is_reported_in_order_and_its_note_is_in_the_row():
    book = Book()
    server, _ = writing(TIMED["openai"][:3], SSE)
    row = made(endpoint(server.url, "openai"), Call(PLAIN, 7), book)["row"]
    key = "(65536, 1, 2)"

    assert book.facts == [f"sent {key} chat", f"begun {key}", f"ended {key}"]
    assert (row["prefix"], row["prefix_hash"]) == (3, "abc")
    assert (row["cache_expected"], row["cache_marks"]) == ("warm", 2)


# --- whole answers ------------------------------------------------------------------------------------------------

MESSAGE = json.dumps({
    "id": "msg_1", "model": "tiny", "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 4},
    "content": [{"type": "text", "text": "well"}, {"type": "tool_use", "input": {"a": 1}}],
}).encode()  # fmt: skip
COMPLETION = json.dumps({
    "id": "c", "model": "tiny", "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    "choices": [{"message": {"content": "well"}, "finish_reason": "stop"}],
}).encode()  # fmt: skip
WHOLE = {"anthropic": MESSAGE, "openai": COMPLETION}
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ASKED = Call(PLAIN, 7, stream=False, keep_text=True)


@BOTH
def test_a_whole_answer_is_one_chunk_stamped_at_the_read_that_completed_it(protocol):
    text = WHOLE[protocol]
    third = len(text) // 3
    pieces = [text[:third], text[third : 2 * third], text[2 * third :]]
    server, wrote = writing(pieces, JSON_HEAD + b"content-length: %d\r\n\r\n" % len(text), b"")
    facts = made(endpoint(server.url, protocol), ASKED)
    row = facts["row"]

    assert (row["ended"], row["streamed"]) == ("ok", False)
    assert (row["chunks"], facts["chars"]) == (1, [4])
    assert row["first_content_at_ns"] == row["last_content_at_ns"] == facts["arrived"][0]
    assert event_of(wrote, facts["arrived"][0]) == len(wrote) - 1 == 2
    assert (row["first_content_low_at_ns"], row["reads"] >= 3) == (None, True)
    assert (row["input_tokens"], row["output_tokens"], row["model"]) == (3, 4, "tiny")
    assert list(received_events(facts)) == ["FirstContent", "Ended"]
    assert received_events(facts)["Ended"]["text"] == "well"


@BOTH
def test_a_whole_answer_may_end_with_its_connection(protocol):
    server: Server

    def once(sock: Any, _: int) -> None:
        server.request(sock)
        sock.sendall(JSON_HEAD + b"\r\n" + WHOLE[protocol])

    server = Server(once)
    facts = made(endpoint(server.url.removesuffix("/v1"), protocol), ASKED)

    assert facts["row"]["ended"] == "ok"


@BOTH
@pytest.mark.parametrize(
    ("streams", "kind"), [(False, "malformed_answer"), (True, "not_an_event_stream")]
)
def test_json_that_is_not_the_protocol_is_a_client_error(protocol, streams, kind):
    wrong = recording(JSON_HEAD + b'content-length: 9\r\n\r\n{"a": []}')
    row = made(endpoint(wrong.url, protocol), replace(ASKED, stream=streams))["row"]

    assert (row["ended"], row["error_type"]) == ("client_error", kind)
    assert row["error_body"] == '{"a": []}'


# --- two targets --------------------------------------------------------------------------------------------------


def test_a_call_goes_to_the_target_it_names():
    first = recording()
    second = recording()
    known = {
        MAIN: endpoint(first.url),
        SECOND: endpoint(second.url, "openai", model="spare", api_key_env="APP_KEY"),
    }
    row = made(known, Call(PLAIN, 7, target=SECOND))["row"]

    assert first.requests == []
    assert (row["target"], row["protocol"], row["asked_model"]) == ("second", "openai", "spare")
    assert request_of(second)["headers"]["authorization"] == "Bearer key-of-the-app"
