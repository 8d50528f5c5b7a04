"""Content blocks: which kinds exist, who may say them, what fields they need, and how many tokens each counts.

Rule: tables and the walk over them. A kind that is not in the speaker's table is refused by name; a new kind is one row.

    tokens    text: one per 4 UTF-8 bytes; pictures and files: a fixed number; any other block: its JSON without the
              `cache_control` mark, as in `cache_markers`

Sources: the SDKs' own parameter types (anthropic 2.11, openai 3.52); Anthropic's notes on version 2026-10-21, under which
a document in an assistant's message and citations on a user's text are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tailgauge.simulator import tokens
from tailgauge.simulator.ask import invalid

Fields = Mapping[str, type]
Kinds = Mapping[str, Fields]

# A picture of a megapixel, a page or two of PDF, half a minute of sound: nobody looks inside.
FIXED_TOKENS = {
    "image": 1600, "image_url": 1600, "document": 3000, "file": 3000, "container_upload": 3000, "input_audio": 300,
}  # fmt: skip

_TEXT: Kinds = {"text": {"text": str}}
_CALL: Fields = {"id": str, "name": str, "input": dict}
_SERVER_RESULTS = (
    "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
    "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
)  # fmt: skip
SYSTEM: Kinds = _TEXT
ANTHROPIC: Mapping[str, Kinds] = {
    "user": {
        **_TEXT,
        "image": {"source": dict},
        "document": {"source": dict},
        "search_result": {"source": str, "title": str, "content": list},
        "tool_result": {"tool_use_id": str},
        "container_upload": {"file_id": str},
    },
    "assistant": {
        **_TEXT,
        "thinking": {"thinking": str, "signature": str},
        "redacted_thinking": {"data": str},
        "tool_use": _CALL,
        "server_tool_use": _CALL,
        **{kind: {"tool_use_id": str} for kind in _SERVER_RESULTS},
    },
}
OPENAI: Mapping[str, Kinds] = {
    "developer": _TEXT,
    "system": _TEXT,
    "user": {
        **_TEXT,
        "image_url": {"image_url": dict},
        "input_audio": {"input_audio": dict},
        "file": {"file": dict},
    },
    "assistant": {**_TEXT, "refusal": {"refusal": str}},
    "tool": _TEXT,
    "function": _TEXT,
}

_SOURCES: Mapping[str, Mapping[str, Fields]] = {
    "image": {
        "base64": {"media_type": str, "data": str},
        "url": {"url": str},
        "file": {"file_id": str},
    },
    "document": {
        "base64": {"media_type": str, "data": str},
        "text": {"media_type": str, "data": str},
        "content": {},
        "url": {"url": str},
        "file": {"file_id": str},
    },
}
_SPOKEN: Mapping[type, str] = {str: "a text", dict: "an object", list: "a list"}


def content_tokens(content: object, param: str, kinds: Kinds) -> int:
    """Tokens of a text or of a list of blocks, all of them of these kinds."""
    if isinstance(content, str) and content:
        return tokens.count(content)
    if not isinstance(content, list) or not content:
        raise invalid(param, "a text or a list of content blocks is required, and not an empty one")
    for i, block in enumerate(content):
        _check(block, f"{param}.{i}", kinds)
    return sum(map(block_tokens, content))


def block_tokens(block: Mapping[str, Any]) -> int:
    """Tokens of a block that was checked."""
    if block["type"] == "text":
        return tokens.count(block["text"])
    fixed = FIXED_TOKENS.get(block["type"])
    return json_tokens(block) if fixed is None else fixed


def json_tokens(value: Mapping[str, Any]) -> int:
    """Tokens of what is no text: of its JSON, without its mark."""
    bare = {key: item for key, item in value.items() if key != "cache_control"}
    return tokens.count(json.dumps(bare, separators=(",", ":"), ensure_ascii=False))


def require(table: object, param: str, fields: Fields) -> None:
    """`table` is an object that has these fields, each of its type."""
    if not isinstance(table, dict):
        raise invalid(param, "must be an object")
    for name, kind in fields.items():
        if not isinstance(table.get(name), kind):
            raise invalid(f"{param}.{name}", f"{_SPOKEN[kind]} is required")


def _check(block: object, param: str, kinds: Kinds) -> None:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise invalid(param, "must be an object with a type")
    kind = block["type"]
    if kind not in kinds:
        raise invalid(
            f"{param}.type", f"{kind[:64]!r} is not allowed here; expected one of {', '.join(kinds)}"
        )
    require(block, param, kinds[kind])
    if kind == "text" and not block["text"]:
        raise invalid(f"{param}.text", "a text is required, and not an empty one")
    if kind in _SOURCES and "source" in block:
        _check_source(block["source"], f"{param}.source", _SOURCES[kind])


def _check_source(source: Mapping[str, Any], param: str, kinds: Mapping[str, Fields]) -> None:
    kind = source.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise invalid(f"{param}.type", f"must be one of {', '.join(kinds)}")
    require(source, param, kinds[kind])
