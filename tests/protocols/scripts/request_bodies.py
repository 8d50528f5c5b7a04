"""Script: the requests that an endpoint sends are, byte for byte, those of the plain SDK."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from itertools import product
from typing import Any

from tailgauge.call import (
    ASSISTANT,
    JOB_FETCH,
    JOB_POLL,
    JOB_SUBMIT,
    USER,
    Call,
    Message,
    Part,
    Prompt,
    Tool,
)
from tailgauge.protocols.additions import TableAdds
from tailgauge.protocols.custom_sse import SseSettings
from tailgauge.protocols.table import Target
from tailgauge.protocols.target import Capture, Endpoint

PIECES = (
    "plain words",
    'quotes " and \\ and \n',
    "Zürich \u65e5\u672c \U0001f600",
    "",
    "\u2028\x7f\x00",
    "a/0/0/0 <&>",
)
SCHEMA = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}'
IDS = ("run-1/0/0/0", "another_run/65536/3/1")


class Sender(Capture):
    """Stands where the stopwatch does: under the SDK, and for requests that are ready."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = 0

    @contextlib.contextmanager
    def sent(self, origin: Any, data: bytes) -> Iterator[None]:
        assert origin == ("http", "127.0.0.1", 8123)
        self.ready += 1
        self.captured = data
        yield


def prompts() -> Iterator[Prompt]:
    """Prompts of every form: with and without system, tools, several turns, marks, and those of the request itself."""
    for number, (system, tools, turns, ttl) in enumerate(
        product((0, 1, 2), (0, 2), (1, 3), (None, "5m", "1h"))
    ):
        pieces = [PIECES[(number + k) % len(PIECES)] for k in range(turns)]
        yield Prompt(
            tuple(
                Message(
                    (USER, ASSISTANT)[k % 2],
                    (Part(text), Part(text, ttl)) if k else (Part(text, ttl),),
                )
                for k, text in enumerate(pieces)
            ),
            tuple(Part(f"system {number}", ttl if k else None) for k in range(system)),
            tuple(
                Tool(f"tool_{k}", f"use {number}", SCHEMA, ttl if k else None) for k in range(tools)
            ),
            automatic=ttl if number % 5 == 0 else None,
            cache_key=f"key {number}" if number % 3 == 0 else None,
        )


def calls() -> Iterator[Call]:
    """Every kind of message, each form several times with other words and sizes."""
    for number, prompt in enumerate(prompts()):
        for stream, thinking, schema, model in product(
            (True, False), ("off", "adaptive", "enabled"), (None, SCHEMA), (None, "other")
        ):
            yield Call(prompt, 7 + len(prompt.messages), model=model, stream=stream, thinking=thinking,
                       thinking_tokens=2048 * (thinking == "enabled"), use_tool=bool(prompt.tools), schema=schema,
                       previous_message_id=(None, "", "msg_1")[number % 3])  # fmt: skip


def compared(target: Target, asked: list[Call]) -> dict[str, Any]:
    """Each call as the endpoint sends it, and as the plain SDK does."""
    sender, plain = Sender(), Capture()
    endpoint = Endpoint("http://127.0.0.1:8123/base", target, sender)  # type: ignore[arg-type]
    sdk = Endpoint("http://127.0.0.1:8123/base", target, plain)  # type: ignore[arg-type]
    different, one = [], 0
    for number, call in enumerate(asked):
        call_id, model = IDS[number % 2], call.model or endpoint.model
        sender.captured = None
        with contextlib.suppress(Exception), endpoint.send(call, call_id):
            one += 1
        expected = plain.request_of(sdk._wire.send(sdk._sdk, call, model, call_id))
        if expected is None or sender.captured != expected:
            different.append([number, str(sender.captured)[-400:], str(expected)[-400:]])
    return {"calls": len(asked), "ready": sender.ready, "entered": one, "different": different[:2]}


HEADERS = {"x-fixed": "of the target", "User-Agent": "mine/1", "x-ids": "{request_id} {session_id} {traffic} {arrival} {{x}}",
           "x-call": "{call_id}", "X-Key": {"env": "A_KEY"}}  # fmt: skip
BODY = {"temperature": 0.5, "metadata": {"user": "user {session_id}", "tags": ["{traffic}", 3]},
        "stream_options": {"extra": True}, "least": "{max_tokens}", "secret": {"env": "A_KEY"}}  # fmt: skip
TABLE = TableAdds(
    {"X-Fixed": "of the table"}, {"metadata": {"more": "{{{model}}}"}}, has_sessions=True
)
REQUEST = 3 * 65536 + 2


def by_hand(plain: bytes, call: Call, call_id: str, model: str) -> bytes:
    """The request of the plain SDK with what the scenario adds, put in without the code under test."""
    head, _, text = plain.partition(b"\r\n\r\n")
    if text:
        tree = json.loads(text)
        for one in (
            [each["params"] for each in tree["requests"]] if call.kind == JOB_SUBMIT else [tree]
        ):
            one["temperature"] = 0.5
            one["metadata"] = {
                "user": "user 196608",
                "tags": ["chat", 3],
                "more": "{" + model + "}",
            }
            one["stream_options"] = {**one.get("stream_options", {}), "extra": True}
            one["least"], one["secret"] = call.max_tokens, "{secret}value"
        text = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"user-agent:")]
    lines = [
        line.split(b":")[0] + b": %d" % len(text)
        if line.lower().startswith(b"content-length:")
        else line
        for line in lines
    ]
    lines += [b"x-session-id: 196608", b"X-Fixed: of the table", b"User-Agent: mine/1",
              b"x-ids: 196610 196608 chat 3 {x}", b"x-call: " + call_id.encode(), b"X-Key: {secret}value"]  # fmt: skip
    return b"\r\n".join(lines) + b"\r\n\r\n" + text


def added(protocol: str, asked: list[Call], **more: Any) -> dict[str, Any]:
    """Each call with headers and fields of the scenario, as sent and as put together by hand."""
    url, sender, plain = "http://127.0.0.1:8123/base", Sender(), Capture()
    target = Target(protocol=protocol, headers=HEADERS, body=BODY, **more)
    endpoint = Endpoint(url, target, sender, {"chat": TABLE})  # type: ignore[arg-type]
    bare = Endpoint(url, Target(protocol=protocol, **more), plain)  # type: ignore[arg-type]
    different = []
    for number, call in enumerate(asked):
        call_id, model = IDS[number % 2], call.model or endpoint.model
        sender.captured = None
        with (
            contextlib.suppress(Exception),
            endpoint.send(call, call_id, request_id=REQUEST, traffic="chat"),
        ):
            pass
        expected = by_hand(
            plain.request_of(bare._wire.send(bare._sdk, call, model, call_id)) or b"",
            call,
            call_id,
            model,
        )
        if sender.captured != expected:
            different.append([number, str(sender.captured), str(expected)])
    return {"calls": len(asked), "ready": sender.ready, "different": different[:2]}


# Base URLs as users have them, and what is called.
URLS = {
    "anthropic": {
        "http://h": "http://h/v1/messages",
        "http://h:81/": "http://h:81/v1/messages",
        "https://h/v1": "https://h/v1/messages",
        "https://h/v1/": "https://h/v1/messages",
        "https://h/v1/messages": "https://h/v1/messages",
        "https://h/gate/anthropic": "https://h/gate/anthropic/v1/messages",
        "https://h/gate?tenant=a&x=b%20c": "https://h/gate/v1/messages?tenant=a&x=b%20c",
    },
    "openai": {
        "http://h": "http://h/v1/chat/completions",
        "http://[::1]:8000": "http://[::1]:8000/v1/chat/completions",
        "http://h/v1": "http://h/v1/chat/completions",
        "http://h/v1/": "http://h/v1/chat/completions",
        "http://h/v1/chat/completions": "http://h/v1/chat/completions",
        "http://h/gate/openai": "http://h/gate/openai/v1/chat/completions",
        "http://h/v1beta/openai": "http://h/v1beta/openai/chat/completions",
        "http://h/api/v3": "http://h/api/v3/chat/completions",
        "http://h/openai/v1/?api-version=preview": "http://h/openai/v1/chat/completions?api-version=preview",
        "http://h/openai/deployments/gpt?api-version=2024-10-21":
            "http://h/openai/deployments/gpt/chat/completions?api-version=2024-10-21",
        "http://h/vllm": "http://h/vllm/v1/chat/completions",
        "http://v1.h": "http://v1.h/v1/chat/completions",
        "http://h?tenant=a": "http://h/v1/chat/completions?tenant=a",
    },
    "sse": {
        "http://h": "http://h/ask?v=1",
        "http://h/app/": "http://h/app/ask?v=1",
        "http://h/app?key=x": "http://h/app/ask?v=1&key=x",
    },
}  # fmt: skip


def addresses() -> dict[str, list[str | None]]:
    """What is called, for each base URL: what is expected, what the endpoint shows, and what it sends by template."""
    found = {}
    for protocol, urls in URLS.items():
        for url, expected in urls.items():
            more = {"sse": SseSettings(path="/ask?v=1")} if protocol == "sse" else {}
            target = Target(protocol=protocol, url=url, **more)
            sender = Sender()
            endpoint = Endpoint(target.url, target, sender)  # type: ignore[arg-type]
            request = endpoint.prepared(Call(PLAIN, 5), IDS[0])
            path = None if request is None else request.split(b" ", 2)[1].decode()
            found[f"{protocol} {url}"] = [expected, endpoint.address(Call(PLAIN, 5)), path]
    return found


PLAIN = Prompt.of("a text")
FEW = list(prompts())[:3]
BATCHES = [Call(FEW[0], 5, kind=JOB_SUBMIT, batch=tuple(FEW)), Call(FEW[0], 5, kind=JOB_POLL, job="b/1"),
           Call(FEW[0], 5, kind=JOB_FETCH, job="b 2")]  # fmt: skip
APP = Target(protocol="sse", sse=SseSettings(body={"q": "{prompt}", "id": "{call_id}"}))
os.environ["A_KEY"] = "{secret}value"
print(
    json.dumps(
        {
            "anthropic": compared(Target(protocol="anthropic"), list(calls())),
            "openai": compared(Target(protocol="openai"), list(calls())),
            "batches": compared(Target(protocol="anthropic"), BATCHES),
            "sse": compared(APP, [Call(prompt, 9) for prompt in FEW]),
            "anthropic, added to": added("anthropic", list(calls())[::7]),
            "openai, added to": added("openai", list(calls())[::7]),
            "batches, added to": added("anthropic", BATCHES),
            "addresses": addresses(),
            "sse, added to": added("sse", [Call(prompt, 9) for prompt in FEW], sse=APP.sse),
        }
    )
)
