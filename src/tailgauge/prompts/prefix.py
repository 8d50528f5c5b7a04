"""The part of a prompt that requests share: tools, system prompt, examples, and the cache marks after them.

A prefix depends on the run's seed, the traffic table's name and the prefix's number only. It is made once and then
referred to; what a request changes in it is a copy with that one block replaced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from tailgauge.call import ASSISTANT, USER, Message, Part, Tool
from tailgauge.patterns.settings import Cache
from tailgauge.prompts.words import WORDS, Vocabulary

_FRAME_WORDS = 30  # what a tool's JSON takes besides its description, in words
_OFFERED_WORDS = 20  # description of a tool that is there to be used, not for its size


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tools, system prompt and example exchanges; any of them may be empty."""

    tools: tuple[Tool, ...] = ()
    system: tuple[Part, ...] = ()
    messages: tuple[Message, ...] = ()

    def opening(self, phrase: str) -> Prefix:
        """This prefix with `phrase`, a valid tool name, in front of every section that an engine may put first.

        Where templates put tools differs by model: each section that can come first begins with them.
        """
        tools, system, messages = self.tools, self.system, self.messages
        if tools:
            tools = (replace(tools[0], name=f"{phrase}_{tools[0].name}"), *tools[1:])
        if system:
            system = _opened(system, phrase)
        elif messages:
            messages = (opened(messages[0], phrase), *messages[1:])
        return Prefix(tools, system, messages)

    def closing(self, phrase: str, place: str) -> Prefix:
        """This prefix with `phrase` at the end of the block with the mark at `place`: tools, system or few_shot."""
        if place == "tools":
            *tools, tool = self.tools
            return replace(self, tools=(*tools, replace(tool, description=f"{tool.description} {phrase}")))
        if place == "system":
            return replace(self, system=closed(self.system, phrase))
        *messages, last = self.messages
        return replace(self, messages=(*messages, replace(last, parts=closed(last.parts, phrase))))


def closed(parts: tuple[Part, ...], phrase: str) -> tuple[Part, ...]:
    """The parts with `phrase` at the end of the last."""
    *before, end = parts
    return (*before, replace(end, text=f"{end.text} {phrase}"))


def opened(message: Message, phrase: str) -> Message:
    """The message with `phrase` in front."""
    return replace(message, parts=_opened(message.parts, phrase))


def _opened(parts: tuple[Part, ...], phrase: str) -> tuple[Part, ...]:
    """The parts with `phrase` in front; a block of the user's own stays as it is."""
    if not parts or parts[0].block is not None:
        return (Part(phrase), *parts)
    first, *rest = parts
    return (replace(first, text=f"{phrase} {first.text}"), *rest)


def marked(message: Message, ttl: str | None) -> Message:
    """The message with a mark at its end."""
    *parts, end = message.parts
    return replace(message, parts=(*parts, replace(end, ttl=ttl)))


def prefix(
    seed: int, name: str, number: int, cache: Cache | None, offered: int, size: Vocabulary, marks: bool
) -> Prefix:
    """Prefix `number` of the traffic table `name`.

    `offered` tools come after those of the table; `size` turns tokens into words; without `marks` none is set.
    """
    use = f"prefix/{name}/{number}"
    in_prefix = cache.tools if cache else 0
    count = size(cache.tools_tokens) // cache.tools - _FRAME_WORDS if cache and cache.tools else 0
    tools = [_tool(seed, f"{use}/tool/{i}", i, max(1, count), size) for i in range(in_prefix)]
    tools += [_tool(seed, f"offered/{name}/{i}", in_prefix + i, _OFFERED_WORDS, size) for i in range(offered)]
    if cache is None:
        return Prefix(tuple(tools))
    sizes = [size(cache.system_tokens)] if cache.system_tokens else []
    system = tuple(Part(size.text(seed, f"{use}/system", count)) for count in sizes)
    messages = [
        Message(role, (Part(size.text(seed, f"{use}/{role}/{i}", max(1, size(cache.few_shot_tokens) // 2))),))
        for i in range(cache.few_shot)
        for role in (USER, ASSISTANT)
    ]
    wanted = set(cache.breakpoints) if marks else set()
    if "tools" in wanted and tools:
        tools[-1] = replace(tools[-1], ttl=cache.ttl)
    if "system" in wanted and system:
        system = (replace(system[0], ttl=cache.ttl),)
    if "few_shot" in wanted and messages:
        messages[-1] = marked(messages[-1], cache.ttl)
    return Prefix(tuple(tools), system, tuple(messages))


def _tool(seed: int, use: str, number: int, count: int, words: Vocabulary) -> Tool:
    """One definition with two texts as its input; its name is like no other's of the prompt."""
    verb, noun, first, second, *_ = words.text(seed, f"{use}/names", 4).split()
    second = second if second != first else WORDS[WORDS.index(first) - 1]
    inputs = {one: {"type": "string", "description": f"the {one}"} for one in (first, second)}
    schema = {"type": "object", "properties": inputs, "required": [first]}
    return Tool(f"{verb}_{noun}_{number}", words.text(seed, use, count), json.dumps(schema))
