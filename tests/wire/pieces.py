"""Pieces of streams: events of both protocols, as bytes."""

from __future__ import annotations

import json
from typing import Any

Tree = dict[str, Any]


def data(tree: Tree | list[Tree] | str, name: str = "") -> bytes:
    text = tree if isinstance(tree, str) else json.dumps(tree, ensure_ascii=False)
    event = f"event: {name}\n" if name else ""
    return f"{event}data: {text}\n\n".encode()


# --- chat completions -------------------------------------------------------------------------------------------


def piece(choices: list[Tree], **more: Any) -> bytes:
    return data(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}
    )  # fmt: skip


def chunk(delta: Tree, reason: str | None = None, **more: Any) -> bytes:
    return piece([{"index": 0, "delta": delta, "finish_reason": reason}], **more)


def pieces_of_text(count: int = 8) -> list[bytes]:
    return [chunk({"content": f"w{number} "}) for number in range(count)]


def counts(prompt: int = 30, output: int = 8, **more: Any) -> Tree:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        **more,
    }


def usage(output: int = 8, prompt: int = 30, **more: Any) -> bytes:
    return piece([], usage=counts(prompt, output, **more))


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk({}, "stop")
DONE = data("[DONE]")
TEXT_PIECES = (chunk({"content": "The "}), chunk({"content": "answer "}))
THOUGHTS = (chunk({"reasoning_content": "Hm, "}), chunk({"reasoning_content": "so "}))


# --- messages ---------------------------------------------------------------------------------------------------


def message(kind: str, **fields: Any) -> bytes:
    return data({"type": kind, **fields}, kind)


def start(usage_counts: Tree | None = None, **more: Any) -> bytes:
    """Return a message_start."""
    body = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": usage_counts or {"input_tokens": 30, "output_tokens": 1},
    }  # fmt: skip
    return message("message_start", message={**body, **more})


def block(kind: Tree, index: int = 0) -> bytes:
    return message("content_block_start", index=index, content_block=kind)


def text_delta(text: str, index: int = 0) -> bytes:
    return message("content_block_delta", index=index, delta={"type": "text_delta", "text": text})


def block_end(index: int = 0) -> bytes:
    return message("content_block_stop", index=index)


def text_block(index: int = 0, count: int = 8) -> list[bytes]:
    deltas = [text_delta(f"w{number} ", index) for number in range(count)]
    return [block({"type": "text", "text": ""}, index), *deltas, block_end(index)]


def message_delta(usage_counts: Tree | None, reason: str = "end_turn", **more: Any) -> bytes:
    """Return a message_delta; None: without a usage."""
    fields = {} if usage_counts is None else {"usage": usage_counts}
    delta = {"stop_reason": reason, "stop_sequence": None, **more}
    return message("message_delta", delta=delta, **fields)


START = start()
MESSAGE_STOP = message("message_stop")
BLOCK = (block({"type": "text", "text": ""}), text_delta("The answer "))
BLOCK_END = block_end()


def good(protocol: str) -> list[bytes]:
    """Return a complete answer without anything unusual."""
    if protocol == "openai":
        return [ROLE, *pieces_of_text(), STOP, usage(), DONE]
    return [START, *text_block(), message_delta({"output_tokens": 8}), MESSAGE_STOP]
