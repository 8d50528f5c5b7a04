"""Messages: compiled code decodes what Python decodes, and a complete answer has the text and usage of the SDK's."""

from __future__ import annotations

import json

from fuzz.targets.openai_events import compare, streams
from wire.grammar import Plan, Stream
from wire.oracle import COUNTS
from wire.product import plain_events, read
from wire.sdk import Readers

from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.sse_parser import EventSizeError, Splitter

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
PLAN = Plan(max_tokens=1 << 30, ends_naturally=True)
PLAIN = plain_events("anthropic")
READERS = Readers()


def corpus() -> list[bytes]:
    return streams("anthropic", "messages")


def check(data: bytes) -> None:
    compare(Anthropic, data)
    if is_regular(data):
        compare_with_sdk(data)


def is_regular(data: bytes) -> bool:
    """Whether each event is named as its JSON says, and each delta belongs to a block of its kind that was started in turn.

    The SDK drops an event with an unknown name, and finds a block by its place; ours reads the JSON alone.
    """
    try:
        trees = [(name, json.loads(text)) for name, text in Splitter().feed(data)]
    except (ValueError, RecursionError, EventSizeError):
        return False
    blocks: list[str] = []
    for name, tree in trees:
        if not isinstance(tree, dict) or tree.get("type") != name.decode("utf-8", "replace"):
            return False
        index = tree.get("index")
        if name == b"content_block_start":
            if (
                index != len(blocks)
                or not isinstance(index, int)
                or not isinstance(tree.get("content_block"), dict)
            ):
                return False
            blocks.append(str(tree["content_block"].get("type")))
        elif name == b"content_block_delta":
            delta = tree.get("delta")
            if (
                not isinstance(index, int)
                or not 0 <= index < len(blocks)
                or not isinstance(delta, dict)
            ):
                return False
            if (delta.get("type") == "text_delta") != (blocks[index] == "text"):
                return False
    return True


def compare_with_sdk(data: bytes) -> None:
    """Of a complete answer that the SDK reads, too. A count that fell, or cannot be, is none of ours."""
    reads = (HEAD, data) if data else (HEAD,)
    stream = Stream(
        protocol="anthropic", seed="", plan=PLAN, events=(), reads=reads, is_reset=False, is_whole=True, arrived=0,
        notes=frozenset(), tokens={}, marks=frozenset(), tool_inputs=[],
    )  # fmt: skip
    reading = read(stream, PLAIN)
    if reading.row.ended != "ok":
        return
    answer = READERS.read("anthropic", reads)
    if answer is None:
        return
    assert answer.text.encode("utf-8", "replace").decode() == reading.text, (
        f"text {reading.text!r}, by the SDK {answer.text!r}"
    )
    assert answer.stop_reason == reading.row.stop_reason, (
        f"{reading.row.stop_reason!r}, by the SDK {answer.stop_reason!r}"
    )
    for name in COUNTS:
        ours = getattr(reading.row, name)
        theirs = answer.usage[name]
        if ours is not None and isinstance(theirs, int):
            assert ours >= theirs, f"{name}: {ours}, by the SDK {theirs}"
