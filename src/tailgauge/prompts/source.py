"""The table of prompt sources: where the question of a request comes from.

A source is a class here and a row, or a plugin's; nothing else knows its name. The master plans how many tokens a request has; what it says
is made by the worker that sends it, ahead of need. Around it come what the traffic table adds: shared prefix, salt, marks.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from tailgauge.call import USER, GivenRequest, Message, Part, Prompt, Tool
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.plugins import plugin
from tailgauge.prompts.words import Vocabulary
from tailgauge.schedule.prompt_file import tool_name
from tailgauge.schedule.schedule import Planned
from tailgauge.suggestions import nearest
from tailgauge.table import add_class, by_name

BLOCK_TOKENS = 512  # of a trace's block, where the plan does not say
_KEPT_BYTES = 64_000_000  # of blocks, and of prefixes, about
_WORD_BYTES = 7


class PromptSource(ABC):
    """The questions of one traffic table. `words` turns tokens into a number of common English words; `words.text` draws them.

    `overhead_tokens` is what the target counts for an empty question. What a source makes may depend on `seed` and its
    arguments only, so that any worker makes the same.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # documents the choice in `traffic.NAME.prompts.source`

    def __init__(
        self, seed: int, traffic: TrafficSettings, words: Vocabulary, overhead_tokens: int = 0
    ) -> None:
        self.seed = seed
        self.traffic = traffic
        self.words = words
        self.overhead_tokens = overhead_tokens

    @abstractmethod
    def make(self, planned: Planned, use: str, tokens: int) -> str | Prompt:
        """Return what one call asks: text, or messages with system, tools and content blocks.

        `use` names request and leg as no other; `tokens` is the planned size; `planned.source` what the plan has besides.
        """


class Generated(PromptSource):
    """Words that no other request has."""

    name = "generated"
    summary = "words drawn from the seed"

    def make(self, planned: Planned, use: str, tokens: int) -> str | Prompt:  # noqa: ARG002 - the interface
        """As many words as the planned size takes."""
        return self.words.text(self.seed, use, self.words(tokens - self.overhead_tokens))


class TraceBlocks(Generated):
    """Blocks that requests share as they did in the trace."""

    name = "trace"
    summary = "the blocks of a trace, else words"

    @cached_property
    def _texts(self) -> dict[int, Callable[[int, int], str]]:
        """Texts of blocks by id and number of words, by the tokens of a block."""
        return {}

    def make(self, planned: Planned, use: str, tokens: int) -> str | Prompt:
        """Return the trace's blocks, and more words where they are not enough.

        Words are rounded at the end of each block, not in each, so that small blocks make the whole size too. How many
        a block has depends on its position only, and only the last block is ever cut: requests share exactly what they
        share in the trace. `tokens`: the planned size; `use` names the request, to which the added words belong.
        """
        source = planned.source or {}
        blocks: Sequence[int] = source.get("blocks", ())
        if not blocks:
            return super().make(planned, use, tokens)
        block_tokens = source.get("block_tokens", BLOCK_TOKENS)
        text_of = self._block_texts(block_tokens)
        parts = []
        used = 0
        for position, block in enumerate(blocks):
            end = min((position + 1) * block_tokens, tokens)
            count = self.words(end) - used
            if count > 0:
                parts.append(text_of(block, count))
                used += count
            if end == tokens:
                break
        missing = self.words(tokens) - used
        if missing > 0:
            parts.append(self.words.text(self.seed, use, missing))
        return " ".join(parts)

    def _block_texts(self, block_tokens: int) -> Callable[[int, int], str]:
        """Return what makes the text of a block, and keeps those that were made last."""
        if block_tokens not in self._texts:
            limit = cache_size(self.words(block_tokens))
            self._texts[block_tokens] = lru_cache(limit)(self._block_text)
        return self._texts[block_tokens]

    def _block_text(self, block: int, count: int) -> str:
        return self.words.text(self.seed, f"block/{block}", count)


class FileRows(Generated):
    """Rows of `prompts.file`, which the master has read."""

    name = "file"
    summary = "the rows of `file`, else words of the size that a row states"

    def make(self, planned: Planned, use: str, tokens: int) -> str | Prompt:
        """Return what the row says."""
        row = planned.source or {}
        if "given" in row:
            return _given_prompt(row["given"])
        if "text" not in row and "messages" not in row:
            return super().make(planned, use, tokens)
        if not row.keys() & {"messages", "system", "tools"}:
            return str(row["text"])
        messages = row.get("messages") or [{"role": USER, "content": row["text"]}]
        tools = []
        for tool in row.get("tools", ()):
            tools.append(Tool(tool_name(tool), "", "", given=json.dumps(tool)))
        system = _parts(row.get("system"))
        size = row["prompt_tokens"]
        return Prompt(tuple(map(_message, messages)), system, tuple(tools), tokens=size)


def _given_prompt(request: GivenRequest) -> Prompt:
    """Return a request that is sent as it is: as many tokens as its body may have, in one block."""
    part = Part(request.body, block=request.body)
    return Prompt((Message(USER, (part,)),), given=request)


def _message(message: dict[str, Any]) -> Message:
    extra = dict(message)
    role = extra.pop("role")
    content = extra.pop("content", None)
    extra_json = None
    if extra:
        extra_json = json.dumps(extra)
    return Message(role, _parts(content), more=extra_json)


def _parts(content: Any) -> tuple[Part, ...]:
    """Return a text, or blocks that are sent as they are."""
    if isinstance(content, str):
        return (Part(content),)
    parts = []
    for block in content or ():
        parts.append(Part(block.get("text") or "", block=json.dumps(block)))
    return tuple(parts)


ROWS: tuple[type[PromptSource], ...] = (Generated, TraceBlocks, FileRows)
SOURCES = by_name(ROWS)
plugin.subscribe(plugin.PROMPT_SOURCES, lambda row: add_class(SOURCES, row, PromptSource))


def source_of(traffic: TrafficSettings, planned: Planned) -> str:
    """Name of the source of a request: the one that the traffic table chose, else the one that fits what the plan has."""
    if traffic.prompts.source is not None:
        return traffic.prompts.source
    if not planned.source:
        return Generated.name
    return TraceBlocks.name if "blocks" in planned.source else FileRows.name


def check(traffic: TrafficSettings) -> None:
    """Raise ValueError for a source that does not exist, or that lacks its file."""
    name = traffic.prompts.source
    if name is not None and name not in SOURCES:
        names = ", ".join(SOURCES)
        raise ValueError(f"source: expected one of {names}, got {name!r}{nearest(name, SOURCES)}")
    if name == FileRows.name and traffic.prompts.file is None:
        raise ValueError('file: expected a file, for source = "file"')


def cache_size(words: int) -> int:
    """Return how many texts of so many words are kept."""
    return max(8, min(4096, _KEPT_BYTES // (_WORD_BYTES * words)))
