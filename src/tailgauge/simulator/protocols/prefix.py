"""Extracts what a prefix cache uses from a body: ordered positions, their sizes, and the marks on them.

A position's key hashes everything before it and itself, so that two prompts share a key exactly when they
share the prefix. The marks are no content, or moving one would change the prefix; the order of JSON keys is.

    order     tools, system, messages; a string is one block
    tokens    one per 4 UTF-8 bytes of a block: of its text, or of its JSON if it is not text
    key       model first; before a section's first block the parameters whose change invalidates from there on:
              `speed` before system; `tool_choice`, `thinking` and `output_config` before messages

Chat completions: content blocks have breakpoints. Four are written, the latest, one of them by the provider itself at the
end of the prompt unless the mode is `explicit`; a call without breakpoints and options has no cache. All blocks before one
are searched.

Sources: Anthropic's prompt-caching page (2026-08) and the wording of its 400s; the types of the openai SDK (3.57) on
`prompt_cache_breakpoint` and `prompt_cache_options`; vLLM for the blocks without marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.prefix_cache import Breakpoint, Position, Prompt
from tailgauge.simulator.protocols.request import (
    FIXED_TOKENS,
    Refused,
    bare_json,
    compact,
    invalid,
    one_of,
    require,
)

MAX_BREAKPOINTS = 4
TTLS = ("5m", "1h")
DEFAULT_TTL = "5m"

_MARK = "cache_control"
_CHAT_MARK = "prompt_cache_breakpoint"
_CHAT_OPTIONS = "prompt_cache_options"
_CHAT_TTLS = ("30m", "12h")
_CHAT_DEFAULT_TTL = "30m"
_EXPLICIT = "explicit"
_PARAMETERS = {
    "tools": (),
    "system": ("speed",),
    "messages": ("tool_choice", "thinking", "output_config"),
}
_LATE_1H = (
    "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
    "Note that blocks are processed in the following order: `tools`, `system`, `messages`."
)


@dataclass(frozen=True, slots=True)
class _Block:
    """One block of the body, by where it stands."""

    name: str
    section: str
    role: str
    content: dict[str, Any]

    @property
    def text(self) -> str:
        """What counts and is hashed: the text, or the JSON of what is no text."""
        if self.content.get("type") == "text" and isinstance(self.content.get("text"), str):
            return str(self.content["text"])
        return bare_json(self.content)


def marked_prompt(body: dict[str, Any]) -> Prompt:
    """The prompt of a body that its protocol's file accepted; raises `Refused` where the marks are wrong.

    The marks are those of Messages, or the breakpoints of chat completions.
    """
    positions: list[Position] = []
    marks: list[tuple[str, Breakpoint]] = []
    breakpoints: list[Breakpoint] = []
    sections: dict[str, bytes] = {}
    key = _hash(b"", body["model"])
    total = 0
    section = ""
    for block in _blocks(body):
        if block.section != section:
            section = block.section
            key = _hash(key, *_parameters(body, section))
            if section == "messages":
                sections["parameters"] = key
        text = block.text
        fixed = FIXED_TOKENS.get(str(block.content.get("type")))
        key = _hash(key, block.role, text)
        total = total + (tokens.count(text) if fixed is None else fixed)
        mark = block.content.get(_MARK)
        if mark is not None:
            param = f"{block.name}.{_MARK}"
            marks.append((param, Breakpoint(len(positions), _ttl(mark, param))))
        mark = block.content.get(_CHAT_MARK)
        if mark is not None:
            breakpoints.append(
                Breakpoint(len(positions), _chat_ttl(mark, f"{block.name}.{_CHAT_MARK}"))
            )
        positions.append(Position(key, total))
        if section != "messages":
            sections[section] = key
    _mark_last(body, marks, len(positions) - 1)
    _check(marks)
    points = tuple(point for _, point in marks)
    is_chat = bool(breakpoints) or body.get(_CHAT_OPTIONS) is not None
    if is_chat:
        points = _chat_points(body, breakpoints, len(positions) - 1)
    return Prompt(
        tuple(positions),
        total,
        points,
        body["model"],
        searches_all=is_chat,
        sections=tuple(sections.items()),
    )


def block_prompt(body: dict[str, Any], block_tokens: int) -> Prompt:
    """The prompt of either protocol's body in whole blocks of `block_tokens` tokens; a last, partial one has no position."""
    counted = bytearray()
    starts: list[tuple[int, str]] = []
    for block in _blocks(body):
        raw = _counted(block)
        starts.append((len(counted), f"{block.role} {len(raw)}"))
        counted += raw + b"\0" * (-len(raw) % tokens.BYTES_PER_TOKEN)  # each text begins on a token
    size = block_tokens * tokens.BYTES_PER_TOKEN
    positions: list[Position] = []
    key = _hash(b"", body["model"], *_parameters(body, "system"))
    next_start = 0
    for end in range(size, len(counted) + 1, size):
        first = next_start
        while next_start < len(starts) and starts[next_start][0] < end:
            next_start += 1
        key = _hash(key, str(starts[first:next_start]), bytes(counted[end - size : end]))
        positions.append(Position(key, end // tokens.BYTES_PER_TOKEN))
    return Prompt(tuple(positions), len(counted) // tokens.BYTES_PER_TOKEN, model=body["model"])


def _counted(block: _Block) -> bytes:
    """Bytes that stand for a block: as many as its tokens take, different where the block differs."""
    raw = _bytes(block.text)
    fixed = FIXED_TOKENS.get(str(block.content.get("type")))
    if fixed is None:
        return raw
    size = fixed * tokens.BYTES_PER_TOKEN
    digest = _hash(b"", raw)
    return (digest * (size // len(digest) + 1))[:size]


def _blocks(body: dict[str, Any]) -> Iterator[_Block]:
    for i, tool in enumerate(_list(body.get("tools"), "tools")):
        yield _Block(f"tools.{i}", "tools", "tool", tool)
    for name, content in _contents(body.get("system"), "system"):
        yield _Block(name, "system", "system", content)
    for i, message in enumerate(body["messages"]):
        for name, content in _contents(message.get("content"), f"messages.{i}.content"):
            yield _Block(name, "messages", str(message.get("role")), content)


def _contents(value: object, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, str):
        if value:
            yield name, {"type": "text", "text": value}
        return
    for i, content in enumerate(_list(value, name)):
        yield f"{name}.{i}", content


def _list(value: object, param: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise invalid(param, "must be a list of objects")
    return value


def _ttl(mark: object, param: str) -> str:
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
        raise invalid(f"{param}.type", "must be 'ephemeral'")
    ttl = mark.get("ttl") or DEFAULT_TTL
    if ttl not in TTLS:
        raise invalid(f"{param}.ttl", f"must be one of {', '.join(TTLS)}")
    return str(ttl)


def _mark_last(body: dict[str, Any], marks: list[tuple[str, Breakpoint]], last: int) -> None:
    """The mark of the whole body stands on its last block and takes one of the places."""
    if body.get(_MARK) is None:
        return
    automatic = Breakpoint(last, _ttl(body[_MARK], _MARK))
    if not marks or marks[-1][1].position != last:
        marks.append((_MARK, automatic))
    elif marks[-1][1].ttl != automatic.ttl:
        raise invalid(f"{_MARK}.ttl", "differs from that of the last block, which is marked too")


def _chat_ttl(mark: object, param: str) -> str:
    table = require(mark, param, {"mode": str})
    one_of(table, "mode", f"{param}.mode", (_EXPLICIT,))
    return one_of(table, "ttl", f"{param}.ttl", _CHAT_TTLS) or _CHAT_DEFAULT_TTL


def _chat_points(
    body: dict[str, Any], marked: list[Breakpoint], last: int
) -> tuple[Breakpoint, ...]:
    """The latest breakpoints, of which the provider sets one itself, at the end, where it is not told otherwise."""
    options = require(body.get(_CHAT_OPTIONS) or {}, _CHAT_OPTIONS, {})
    mode = one_of(options, "mode", f"{_CHAT_OPTIONS}.mode", ("implicit", _EXPLICIT))
    one_of(options, "ttl", f"{_CHAT_OPTIONS}.ttl", (_CHAT_DEFAULT_TTL,))
    if mode == _EXPLICIT:
        return tuple(marked[-MAX_BREAKPOINTS:])
    earlier = [point for point in marked if point.position < last]
    return (*earlier[-(MAX_BREAKPOINTS - 1) :], Breakpoint(last, _CHAT_DEFAULT_TTL))


def _check(marks: list[tuple[str, Breakpoint]]) -> None:
    if len(marks) > MAX_BREAKPOINTS:
        most = f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided."
        raise Refused(400, f"{most} Found {len(marks)}.", _MARK)
    short = False
    for param, point in marks:
        if short and point.ttl == "1h":
            raise invalid(f"{param}.ttl", _LATE_1H)
        short = short or point.ttl == "5m"


def _parameters(body: dict[str, Any], section: str) -> list[str]:
    return [compact(body.get(parameter)) for parameter in _PARAMETERS[section]]


def _hash(key: bytes, *parts: str | bytes) -> bytes:
    digest = blake2b(key, digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else _bytes(part)
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
