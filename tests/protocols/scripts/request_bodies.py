"""Script: the requests that an endpoint sends are, byte for byte, those of the plain SDK."""

from __future__ import annotations

import contextlib
import json
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
    """Prompts of every form: with and without system, tools, several turns, marks of both lives."""
    for number, (system, tools, turns, ttl) in enumerate(
        product((0, 1, 2), (0, 2), (1, 3), (None, "5m", "1h"))
    ):
        pieces = [PIECES[(number + k) % len(PIECES)] for k in range(turns)]
        yield Prompt(
            tuple(
                Message((USER, ASSISTANT)[k % 2], (Part(text), Part(text, ttl)) if k else (Part(text, ttl),))
                for k, text in enumerate(pieces)
            ),
            tuple(Part(f"system {number}", ttl if k else None) for k in range(system)),
            tuple(Tool(f"tool_{k}", f"use {number}", SCHEMA, ttl if k else None) for k in range(tools)),
        )


def calls() -> Iterator[Call]:
    """Every kind of message, each form several times with other words and sizes."""
    for prompt in prompts():
        for stream, thinking, schema, model in product(
            (True, False), ("off", "adaptive", "enabled"), (None, SCHEMA), (None, "other")
        ):
            yield Call(prompt, 7 + len(prompt.messages), model=model, stream=stream, thinking=thinking,
                       thinking_tokens=2048 * (thinking == "enabled"), use_tool=bool(prompt.tools), schema=schema)  # fmt: skip


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
        expected = plain.of(sdk._wire.send(sdk._sdk, call, model, call_id))
        if expected is None or sender.captured != expected:
            different.append([number, str(sender.captured)[-400:], str(expected)[-400:]])
    return {"calls": len(asked), "ready": sender.ready, "entered": one, "different": different[:2]}


FEW = list(prompts())[:3]
BATCHES = [Call(FEW[0], 5, kind=JOB_SUBMIT, batch=tuple(FEW)), Call(FEW[0], 5, kind=JOB_POLL, job="b/1"),
           Call(FEW[0], 5, kind=JOB_FETCH, job="b 2")]  # fmt: skip
APP = Target(
    protocol="sse", sse=SseSettings(headers={"x-model": "{model}"}, body={"q": "{prompt}", "id": "{call_id}"})
)
print(
    json.dumps(
        {
            "anthropic": compared(Target(protocol="anthropic"), list(calls())),
            "openai": compared(Target(protocol="openai"), list(calls())),
            "batches": compared(Target(protocol="anthropic"), BATCHES),
            "sse": compared(APP, [Call(prompt, 9) for prompt in FEW]),
        }
    )
)
