"""What goes out is what the plain SDK would send, byte for byte, however it was built."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from itertools import product

import pytest

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
URL = "http://127.0.0.1:8123/base"
SCHEMA = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}'
IDS = ("run-1/0/0/0", "another_run/65536/3/1")


class Sender(Capture):
    """Stands where the stopwatch does: under the SDK, and for requests that are ready."""

    def __init__(self):
        super().__init__()
        self.ready = 0

    @contextlib.contextmanager
    def sent(self, origin, data):
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


CALLS = list(calls())
FEW = list(prompts())[:3]
BATCHES = [
    Call(FEW[0], 5, kind=JOB_SUBMIT, batch=tuple(FEW)),
    Call(FEW[0], 5, kind=JOB_POLL, job="b/1"),
    Call(FEW[0], 5, kind=JOB_FETCH, job="b 2"),
]
SSE = SseSettings(body={"q": "{prompt}", "id": "{call_id}"})
CASES = {  # the target, its calls, and whether they go out by templates
    "anthropic": ({"protocol": "anthropic"}, CALLS, True),
    "openai": ({"protocol": "openai"}, CALLS, True),
    "batches": ({"protocol": "anthropic"}, BATCHES, False),
    "sse": ({"protocol": "sse", "sse": SSE}, [Call(prompt, 9) for prompt in FEW], False),
}
EVERY_CASE = pytest.mark.parametrize(
    ("target", "asked", "has_templates"), CASES.values(), ids=CASES
)


def sent(endpoint, sender, call, call_id, **names):
    """The request of a call, as the endpoint sends it."""
    sender.captured = None
    with contextlib.suppress(Exception), endpoint.send(call, call_id, **names):
        pass
    return sender.captured


def by_the_sdk(endpoint, capture, call, call_id):
    """The request of a call, as the plain SDK sends it."""
    model = call.model or endpoint.model
    return capture.request_of(endpoint._wire.send(endpoint._sdk, call, model, call_id))


@pytest.mark.slow("openai")
@EVERY_CASE
def test_every_kind_of_request_is_that_of_the_plain_sdk_byte_for_byte(target, asked, has_templates):
    sender = Sender()
    plain = Capture()
    endpoint = Endpoint(URL, Target(**target), sender)
    sdk = Endpoint(URL, Target(**target), plain)
    for number, call in enumerate(asked):
        call_id = IDS[number % 2]
        expected = by_the_sdk(sdk, plain, call, call_id)

        assert expected is not None
        assert sent(endpoint, sender, call, call_id) == expected, call
    assert sender.ready == (len(asked) if has_templates else 0)


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
        is_batch = call.kind == JOB_SUBMIT
        for body in [each["params"] for each in tree["requests"]] if is_batch else [tree]:
            metadata = {"user": "user 196608", "tags": ["chat", 3], "more": "{" + model + "}"}
            stream_options = {**body.get("stream_options", {}), "extra": True}
            body |= {"temperature": 0.5, "metadata": metadata, "stream_options": stream_options}
            body |= {"least": call.max_tokens, "secret": "{secret}value"}
        text = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()
    lines = []
    for line in head.split(b"\r\n"):
        name, colon, _ = line.partition(b":")
        if name.lower() == b"content-length":
            lines.append(name + colon + b" %d" % len(text))
        elif name.lower() != b"user-agent":
            lines.append(line)
    lines += [b"x-session-id: 196608", b"X-Fixed: of the table", b"User-Agent: mine/1",
              b"x-ids: 196610 196608 chat 3 {x}", b"x-call: " + call_id.encode(), b"X-Key: {secret}value"]  # fmt: skip
    return b"\r\n".join(lines) + b"\r\n\r\n" + text


@EVERY_CASE
def test_headers_and_fields_of_a_scenario_are_sent_byte_for_byte_as_put_in_by_hand(
    target, asked, has_templates, monkeypatch
):
    """Batches: into the parameters of each. A secret is no template, and a prompt is none either."""
    monkeypatch.setenv("A_KEY", "{secret}value")
    asked = asked[::7] if has_templates else asked
    sender = Sender()
    plain = Capture()
    added = Target(**target, headers=HEADERS, body=BODY)
    endpoint = Endpoint(URL, added, sender, {"chat": TABLE})
    bare = Endpoint(URL, Target(**target), plain)
    for number, call in enumerate(asked):
        call_id = IDS[number % 2]
        request = by_the_sdk(bare, plain, call, call_id) or b""
        expected = by_hand(request, call, call_id, call.model or endpoint.model)
        names = {"request_id": REQUEST, "traffic": "chat"}

        assert sent(endpoint, sender, call, call_id, **names) == expected, call
    assert sender.ready == (len(asked) if has_templates else 0)


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


@pytest.mark.parametrize(
    ("protocol", "url"), [(protocol, url) for protocol, urls in URLS.items() for url in urls]
)
def test_base_urls_are_taken_as_users_have_them(protocol, url):
    """What the endpoint shows, and what it sends by template."""
    more = {"sse": SseSettings(path="/ask?v=1")} if protocol == "sse" else {}
    target = Target(protocol=protocol, url=url, **more)
    endpoint = Endpoint(target.url, target, Sender())
    call = Call(Prompt.of("a text"), 5)
    request = endpoint.prepared(call, IDS[0])

    assert endpoint.address(call) == URLS[protocol][url]
    assert (request is None) == (protocol == "sse")
    if request is not None:
        assert URLS[protocol][url].endswith(request.split(b" ", 2)[1].decode())
