"""Script: every kind of call, to a server that records it, to one that writes at known times, and to the simulated
endpoint, which refuses a body that is not the protocol."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gevent
from starting.endpoint import endpoint as simulated_endpoint
from starting.script import case, print_facts
from transport.scripts.scripted_server import SSE, Server
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


# --- bodies -------------------------------------------------------------------------------------------------------


@case
def bodies() -> Any:
    server, out = recording(), {}
    for protocol in ("anthropic", "openai"):
        requested_from = endpoint(server.url, protocol)
        for name, call in (OF_OPENAI if protocol == "openai" else CALLS).items():
            made(requested_from, call)
            out[f"{protocol} {name}"] = seen(server)
    requested_from = endpoint(server.url)
    for name, call in {"pre-warm": PRE_WARM, **batch_calls("msgbatch_1")}.items():
        made(requested_from, call)
        out[f"anthropic {name}"] = seen(server)
    return out


def batch_calls(batch_id: str) -> dict[str, Call]:
    submit = Call(PLAIN, 5, kind=JOB_SUBMIT, batch=(PLAIN, Prompt.of("more"), TALK))
    return {
        "submit": submit,
        "poll": replace(submit, kind=JOB_POLL, batch=(), job=batch_id),
        "fetch": replace(submit, kind=JOB_FETCH, batch=(), job=batch_id),
    }


# --- the simulated endpoint, which checks what it is asked ---------------------------------------------------------


SETTINGS = (
    "ttft_ms=2", "chunk_gap_ms=0.05", "content.thinking_share=0.4", "content.tool_share=0.4",
    "cache.mode=marked", "cache.minimum_tokens=1",
)  # fmt: skip


@case
def accepted() -> Any:
    with simulated_endpoint(*(f"--set=simulated.{one}" for one in SETTINGS)) as started:
        url, out = started.url, {}
        for protocol in ("anthropic", "openai"):
            requested_from = endpoint(url, protocol)
            for name, call in (OF_OPENAI if protocol == "openai" else CALLS).items():
                out[f"{protocol} {name}"] = made(
                    requested_from, replace(call, keep_text=True, watch_field=True)
                )
        requested_from = endpoint(url)
        out["pre-warm"] = made(requested_from, PRE_WARM)
        out["batch"] = batch(requested_from)
        out["own stream"] = made(custom_stream(url), Call(TALK, 9))
    return out


def batch(requested_from: Endpoint) -> list[Any]:
    steps = [made(requested_from, batch_calls("")["submit"])]
    batch_id = json.loads(steps[0]["received"][-1][1]["text"])["id"]
    calls = batch_calls(batch_id)
    while '"ended"' not in (steps[-1]["received"][-1][1]["text"] or ""):
        gevent.sleep(0.2)
        steps.append(made(requested_from, calls["poll"]))
    return [
        *steps,
        made(requested_from, calls["fetch"]),
        made(requested_from, replace(calls["fetch"], job="none")),
    ]


def custom_stream(url: str) -> Endpoint:
    """The simulated endpoint's chat completions, told as if they were an application's own."""
    sse = SseSettings(
        path="/v1/chat/completions",
        body={"model": "{model}", "stream": True, "max_tokens": "{max_tokens}", "stream_options": {"include_usage": True},
              "messages": [{"role": "user", "content": "{prompt}"}]},
        content={"text": "/choices/0/delta/content"},
        input_tokens="/usage/prompt_tokens", output_tokens="/usage/completion_tokens",
    )  # fmt: skip
    return endpoint(url, "sse", sse=sse)


# --- events at known times -----------------------------------------------------------------------------------------


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


def timed(protocol: str, **watch: Any) -> Any:
    target = (
        {"sse": APP, "api_key_env": "APP_KEY", "headers": {"x-app": "for {model}"}}
        if protocol == "sse"
        else {}
    )
    head = SSE.replace(
        b"\r\n\r\n", b'\r\nserver-timing: db;desc="a, b";dur=53.5, cache;dur=0.1, miss\r\n\r\n', 1
    )
    server, wrote = writing(TIMED[protocol], head)
    requested_from = endpoint(server.url, protocol, **target)
    facts = made(requested_from, Call(TALK if protocol == "sse" else PLAIN, 7, **watch), Book())
    return {**facts, "wrote": wrote, "request": seen(server)}


@case
def stamps() -> Any:
    watch = {"watch_field": True, "watch_chunks": 3, "keep_text": True}
    return {protocol: timed(protocol, **watch) for protocol in TIMED} | {
        "unwatched": timed("anthropic")
    }


@case
def book() -> Any:
    kept = Book()
    server, _ = writing(TIMED["openai"][:3], SSE)
    row = made(endpoint(server.url, "openai"), Call(PLAIN, 7), kept)["row"]
    return {"reported": kept.facts, "row": row}


# --- whole answers --------------------------------------------------------------------------------------------------

MESSAGE = json.dumps({
    "id": "msg_1", "model": "tiny", "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 4},
    "content": [{"type": "text", "text": "well"}, {"type": "tool_use", "input": {"a": 1}}],
}).encode()  # fmt: skip
COMPLETION = json.dumps({
    "id": "c", "model": "tiny", "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    "choices": [{"message": {"content": "well"}, "finish_reason": "stop"}],
}).encode()  # fmt: skip


@case
def whole() -> Any:
    out = {}
    for protocol, body in (("anthropic", MESSAGE), ("openai", COMPLETION)):
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % len(body)
        )
        third = len(body) // 3
        server, wrote = writing(
            [body[:third], body[third : 2 * third], body[2 * third :]], head, b""
        )
        requested_from, asked = (
            endpoint(server.url, protocol),
            Call(PLAIN, 7, stream=False, keep_text=True),
        )
        out[protocol] = {**made(requested_from, asked), "wrote": wrote}
        wrong = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"a": []}'
        out[f"{protocol} wrong"] = made(endpoint(recording(wrong).url, protocol), asked)
        out[f"{protocol} not streamed"] = made(
            endpoint(recording(wrong).url, protocol), replace(asked, stream=True)
        )
        closing = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + body
        server = recording(closing)

        def once(sock: Any, _: int, server: Server = server, closing: bytes = closing) -> None:
            server.request(sock)
            sock.sendall(closing)

        ending = Server(once)
        out[f"{protocol} until close"] = made(
            endpoint(ending.url.removesuffix("/v1"), protocol), asked
        )
    return out


# --- an application's own stream, when it goes wrong -----------------------------------------------------------------


@case
def app() -> Any:
    def answered(pieces: list[bytes], head: bytes = SSE) -> Any:
        server, _ = writing(pieces, head)
        facts = made(endpoint(server.url, "sse", sse=APP), Call(PLAIN, 7))
        return {**facts, "request": seen(server)}

    token = event({"t": "x"}, "tok")
    refusal = (
        b"HTTP/1.1 429 No\r\nretry-after: 3\r\nx-should-retry: false\r\ncontent-length: 2\r\n\r\n{}"
    )
    plain = SseSettings(body={"prompt": "{prompt}"})
    server, _ = writing([event("hel"), event("lo"), event("[DONE]")])
    return {
        "cut": answered([token]),
        "failed": answered([token, event({"error": {"type": "boom", "message": "no"}}, "error")]),
        "failed in words": answered([token, event("out of luck", "error")]),
        "no text": answered([event({"t": 5}, "tok"), event("", "done")]),
        "text left out": answered([event({"u": 5}, "tok"), event("", "done")]),
        "refused": made(endpoint(recording(refusal).url, "sse", sse=APP), Call(PLAIN, 7)),
        "plain": made(endpoint(server.url, "sse", sse=plain), Call(PLAIN, 7, keep_text=True)),
        "braces": {**made(endpoint((echo := recording()).url, "sse", sse=APP), Call(Prompt.of("{call_id} {x}"), 7)),
                   "request": seen(echo)},
    }  # fmt: skip


# --- two targets ------------------------------------------------------------------------------------------------------


@case
def two_targets() -> Any:
    first, second = recording(), recording()
    known = {
        MAIN: endpoint(first.url),
        SECOND: endpoint(second.url, "openai", model="spare", api_key_env="APP_KEY"),
    }
    facts = made(known, Call(PLAIN, 7, target=SECOND))
    return {"row": facts["row"], "first": len(first.requests), "second": seen(second)}


print_facts()
