"""Extracts from a body the parts that a prefix cache uses: ordered positions, their sizes, and the marks on them.

A position's key hashes everything before it and itself, so that two prompts share a key exactly when they share the prefix.
The marks are not hashed, because a moved mark must not change the prefix; the order of JSON keys is.

    order     tools, system, messages; a string is one block
    tokens    one per 4 UTF-8 bytes of a block: of its text, or of its JSON if it is not text
    key       model first; before a section's first block the parameters whose change invalidates from there on:
              `speed` before system; `tool_choice`, `thinking` and `output_config` before messages

Chat completions: content blocks have breakpoints. The latest four are written; one of them is that of the provider at the
end of the prompt, unless the mode is `explicit`. A call without breakpoints and options has no cache. All blocks before a
breakpoint are searched.

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
    """One block of the body."""

    name: str  # its place, as in an error
    section: str
    role: str
    content: dict[str, Any]

    @property
    def text(self) -> str:
        """Return the text that counts and is hashed; for other blocks, their JSON."""
        if self.content.get("type") == "text" and isinstance(self.content.get("text"), str):
            return str(self.content["text"])
        return bare_json(self.content)

    @property
    def fixed_tokens(self) -> int | None:
        """Return the tokens of a block whose content is not read; None: its text counts."""
        return FIXED_TOKENS.get(str(self.content.get("type")))


def marked_prompt(body: dict[str, Any]) -> Prompt:
    """Return the prompt of a body that its protocol's file accepted; raise `Refused` where the marks are wrong.

    The marks are those of Messages, or the breakpoints of chat completions.
    """
    blocks = list(_blocks(body))
    positions, sections = _positions(body, blocks)
    marks, chat_points = _marks(blocks)
    last_position = len(positions) - 1
    _mark_last(body, marks, last_position)
    _check(marks)
    points = tuple(point for _, point in marks)
    is_chat = bool(chat_points) or body.get(_CHAT_OPTIONS) is not None
    if is_chat:
        points = _chat_points(body, chat_points, last_position)
    return Prompt(
        positions=tuple(positions),
        total_tokens=positions[-1].tokens if positions else 0,
        breakpoints=points,
        model=body["model"],
        searches_all=is_chat,
        sections=tuple(sections.items()),
    )


def _positions(
    body: dict[str, Any], blocks: list[_Block]
) -> tuple[list[Position], dict[str, bytes]]:
    """Return a position for each block, and the keys at the ends of the sections before the messages.

    A key hashes the model, and all blocks and parameters up to its block. At the first block of a section the parameters
    are hashed whose change invalidates the cache from there on; the key behind those of the messages is named
    `parameters`.
    """
    positions: list[Position] = []
    section_keys: dict[str, bytes] = {}
    key = _hash(b"", body["model"])
    total_tokens = 0
    section = ""
    for block in blocks:
        if block.section != section:
            section = block.section
            key = _hash(key, *_parameters(body, section))
            if section == "messages":
                section_keys["parameters"] = key
        text = block.text
        key = _hash(key, block.role, text)
        fixed_tokens = block.fixed_tokens
        total_tokens += tokens.count(text) if fixed_tokens is None else fixed_tokens
        positions.append(Position(key, total_tokens))
        if section != "messages":
            section_keys[section] = key
    return positions, section_keys


def _marks(blocks: list[_Block]) -> tuple[list[tuple[str, Breakpoint]], list[Breakpoint]]:
    """Return the marks of Messages, each with its place, and the breakpoints of chat completions."""
    marks: list[tuple[str, Breakpoint]] = []
    chat_points: list[Breakpoint] = []
    for position, block in enumerate(blocks):
        mark = block.content.get(_MARK)
        if mark is not None:
            param = f"{block.name}.{_MARK}"
            marks.append((param, Breakpoint(position, _ttl(mark, param))))
        chat_mark = block.content.get(_CHAT_MARK)
        if chat_mark is not None:
            ttl = _chat_ttl(chat_mark, f"{block.name}.{_CHAT_MARK}")
            chat_points.append(Breakpoint(position, ttl))
    return marks, chat_points


def block_prompt(body: dict[str, Any], block_tokens: int) -> Prompt:
    """Return the prompt of either protocol's body in whole blocks of `block_tokens` tokens.

    A last, partial block has no position. Where content blocks begin, and their roles and lengths, goes into the key of
    the cache block that they begin in: equal bytes of other messages are another prefix.
    """
    prompt_bytes = bytearray()
    starts: list[tuple[int, str]] = []  # of each content block: its offset, role and length
    for block in _blocks(body):
        raw = _sized_bytes(block)
        starts.append((len(prompt_bytes), f"{block.role} {len(raw)}"))
        # Each text begins on a token.
        prompt_bytes += raw + b"\0" * (-len(raw) % tokens.BYTES_PER_TOKEN)
    size = block_tokens * tokens.BYTES_PER_TOKEN
    positions: list[Position] = []
    key = _hash(b"", body["model"], *_parameters(body, "system"))
    next_start = 0
    for end in range(size, len(prompt_bytes) + 1, size):
        first_start = next_start
        while next_start < len(starts) and starts[next_start][0] < end:
            next_start += 1
        starts_within = str(starts[first_start:next_start])
        key = _hash(key, starts_within, bytes(prompt_bytes[end - size : end]))
        positions.append(Position(key, end // tokens.BYTES_PER_TOKEN))
    total_tokens = len(prompt_bytes) // tokens.BYTES_PER_TOKEN
    return Prompt(tuple(positions), total_tokens, model=body["model"])


def _sized_bytes(block: _Block) -> bytes:
    """Return bytes that stand for a block: as many as its tokens take, and others for any other block."""
    raw = _bytes(block.text)
    fixed_tokens = block.fixed_tokens
    if fixed_tokens is None:
        return raw
    size = fixed_tokens * tokens.BYTES_PER_TOKEN
    digest = _hash(b"", raw)
    return (digest * (size // len(digest) + 1))[:size]


def _blocks(body: dict[str, Any]) -> Iterator[_Block]:
    """Yield the blocks of a body in the order of the cache: tools, system, messages."""
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
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise invalid(param, "must be a list of objects")
    return value


def _ttl(mark: object, param: str) -> str:
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
        raise invalid(f"{param}.type", "must be 'ephemeral'")
    ttl = mark.get("ttl") or DEFAULT_TTL
    if ttl not in TTLS:
        raise invalid(f"{param}.ttl", f"must be one of {', '.join(TTLS)}")
    return str(ttl)


def _mark_last(
    body: dict[str, Any], marks: list[tuple[str, Breakpoint]], last_position: int
) -> None:
    """Add the mark of the whole body, which is on its last block and counts as one of the marks."""
    if body.get(_MARK) is None:
        return
    automatic = Breakpoint(last_position, _ttl(body[_MARK], _MARK))
    if not marks or marks[-1][1].position != last_position:
        marks.append((_MARK, automatic))
    elif marks[-1][1].ttl != automatic.ttl:
        raise invalid(f"{_MARK}.ttl", "differs from that of the last block, which is marked too")


def _chat_ttl(mark: object, param: str) -> str:
    table = require(mark, param, {"mode": str})
    one_of(table, "mode", f"{param}.mode", (_EXPLICIT,))
    return one_of(table, "ttl", f"{param}.ttl", _CHAT_TTLS) or _CHAT_DEFAULT_TTL


def _chat_points(
    body: dict[str, Any], points: list[Breakpoint], last_position: int
) -> tuple[Breakpoint, ...]:
    """Return the latest breakpoints; unless the mode is explicit, the provider sets the last one at the end."""
    options = require(body.get(_CHAT_OPTIONS) or {}, _CHAT_OPTIONS, {})
    mode = one_of(options, "mode", f"{_CHAT_OPTIONS}.mode", ("implicit", _EXPLICIT))
    one_of(options, "ttl", f"{_CHAT_OPTIONS}.ttl", (_CHAT_DEFAULT_TTL,))
    if mode == _EXPLICIT:
        return tuple(points[-MAX_BREAKPOINTS:])
    earlier = [point for point in points if point.position < last_position]
    return (*earlier[-(MAX_BREAKPOINTS - 1) :], Breakpoint(last_position, _CHAT_DEFAULT_TTL))


def _check(marks: list[tuple[str, Breakpoint]]) -> None:
    """Raise `Refused` for too many marks, and for a 1h mark behind a 5m mark."""
    if len(marks) > MAX_BREAKPOINTS:
        message = f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided."
        raise Refused(400, f"{message} Found {len(marks)}.", _MARK)
    has_5m = False
    for param, point in marks:
        if has_5m and point.ttl == "1h":
            raise invalid(f"{param}.ttl", _LATE_1H)
        has_5m = has_5m or point.ttl == "5m"


def _parameters(body: dict[str, Any], section: str) -> list[str]:
    """Return the parameters whose change invalidates the cache from a section on, as JSON."""
    return [compact(body.get(parameter)) for parameter in _PARAMETERS[section]]


def _hash(key: bytes, *parts: str | bytes) -> bytes:
    """Return a key that depends on another key and on these parts."""
    digest = blake2b(key, digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else _bytes(part)
        digest.update(b"%d:" % len(raw) + raw)
    return digest.digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
