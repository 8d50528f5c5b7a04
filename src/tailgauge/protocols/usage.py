"""The counts of an answer, from whatever usages it has, by the table of vendors.

Counts are cumulative: the largest that came is the count, field by field, because gateways repeat them as zero. What is
missing is unknown. A usage with a value that cannot be feeds nothing, nor does a count that contradicts the prompt or the
answer. A count beyond what was requested is kept and marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tailgauge import vendors
from tailgauge.protocols.pointers import Path, steps, value_at
from tailgauge.redaction import shown

# Marks of token counts beyond what was requested.
INPUT = "input"
OUTPUT = "output"
_MOST = 1 << 40  # tokens
_DIGITS = re.compile(r"[0-9]{1,12}")
_SHOWN = 200  # characters of a value that cannot be
_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_BYTES_PER_TOKEN = 100  # of text, at most: a prompt has at least so many tokens
_NOT_COUNTS = frozenset({"places", "known"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a call asked for, as far as counts can contradict it. None: no bound is known."""

    prompt_bytes: int = 0  # of text
    most_input_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of an answer: tokens by column; marks of those beyond the request; why one was dropped."""

    tokens: Mapping[str, int]
    marks: tuple[str, ...] = ()
    problem: str | None = None

    def trusted(self) -> Mapping[str, int]:
        """Return the counts that are not beyond the request."""
        if not self.marks:
            return self.tokens
        return {name: count for name, count in self.tokens.items() if _side(name) not in self.marks}


class Usage:
    """Collects the counts of one answer. `protocol`: whose part of the table holds."""

    def __init__(self, protocol: str) -> None:
        self.table = _table(protocol)
        self.largest: dict[str, int] = {}
        self.problem: str | None = None  # a value that cannot be
        self.unknown: set[str] = set()
        self.explained = False  # tokens beyond the request: server tools, compaction, a fallback

    def read(self, usage: Any) -> None:
        """Take one usage object."""
        if not isinstance(usage, dict):
            self._note_impossible("usage", usage)
            return
        for name, paths in self.table.counts.items():
            for path in paths:
                self.count(name, value_at(usage, path))
        self._note_unknown(usage)

    def count(self, name: str, value: Any) -> None:
        """Take one count; null is no count."""
        if value is None:
            return
        number = _whole_number(value)
        if number is None or not 0 <= number < _MOST:
            self._note_impossible(name, value)
        elif number >= self.largest.get(name, 0):
            self.largest[name] = number

    def forget(self, name: str) -> None:
        """Drop a count that is not that of the whole answer."""
        self.largest.pop(name, None)

    def live(self) -> dict[str, int]:
        """Return the counts as far as they came, of an answer that may not be over."""
        if self.problem is not None:
            return {}
        tokens, _ = self._by_column()
        return tokens

    def counts(self, request: Request, *, has_content: bool) -> Counts:
        """Return the counts of an answer that is over."""
        if self.problem is not None:
            return Counts({}, (), self.problem)
        tokens, problem = self._by_column()
        if has_content:
            problem = _drop_output(tokens) or problem
        problem = _drop_input(tokens, request.prompt_bytes) or problem
        marks = () if self.explained else tuple(_marks(tokens, request))
        return Counts(tokens, marks, problem)

    def _by_column(self) -> tuple[dict[str, int], str | None]:
        """Return the counts as columns have them, and why the input is not among them."""
        tokens = dict(self.largest)
        total = tokens.pop("total_tokens", None)
        prompt = tokens.pop("prompt_tokens", None)
        if prompt is None:
            return tokens, None
        _add_thinking(tokens, prompt, total)
        cached = tokens.get("cache_read_input_tokens", 0) + tokens.get(
            "cache_creation_input_tokens", 0
        )
        if cached and total == prompt + cached + tokens.get("output_tokens", 0):
            tokens["input_tokens"] = prompt  # what was cached is counted beside the prompt
            return tokens, None
        if cached > prompt:
            _drop(tokens, "input")
            return tokens, f"{cached:,} cached tokens of a prompt of {prompt:,}"
        tokens["input_tokens"] = prompt - cached
        return tokens, None

    def _note_impossible(self, name: str, value: Any) -> None:
        # A number may have thousands of digits.
        text = str(value) if isinstance(value, str | int | float) else type(value).__name__
        self.problem = self.problem or f"{name} = {shown(text, _SHOWN)}"

    def _note_unknown(self, usage: Mapping[str, Any]) -> None:
        if not usage.keys() <= self.table.known:
            fresh = usage.keys() - self.table.known
            self.unknown.update(f"usage.{shown(str(name), 60)}" for name in sorted(fresh)[:10])
        for place, details in usage.items():
            if place.endswith("_details") and isinstance(details, dict):
                fresh = {
                    name for name in details.keys() - self.table.known if name.endswith("_tokens")
                }
                self.unknown.update(
                    f"usage.{place}.{shown(name, 60)}" for name in sorted(fresh)[:10]
                )


def _whole_number(value: Any) -> int | None:
    """Return a count as a number. Gateways in Lua and JavaScript send 100.0 and "100", which the SDKs pass on."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _side(name: str) -> str:
    return INPUT if "input" in name else OUTPUT


def _add_thinking(tokens: dict[str, int], prompt: int, total: int | None) -> None:
    """Add thinking to the output where the total shows that it is counted beside it (xAI)."""
    thinking = tokens.get("thinking_tokens", 0)
    output = tokens.get("output_tokens")
    if output is not None and thinking and total == prompt + output + thinking:
        tokens["output_tokens"] = output + thinking


def _drop_output(tokens: dict[str, int]) -> str | None:
    """Drop counts of output that contradict the content that came; return why."""
    output = tokens.get("output_tokens")
    thinking = tokens.get("thinking_tokens", 0)
    if output is None or (output >= 1 and output >= thinking):
        return None
    _drop(tokens, OUTPUT)
    tokens.pop("thinking_tokens", None)
    thought = f", thinking_tokens = {thinking:,}" if thinking else ""
    return f"output_tokens = {output:,}{thought} beside content"


def _drop_input(tokens: dict[str, int], prompt_bytes: int) -> str | None:
    """Drop counts of input that contradict the prompt that was sent; return why."""
    if "input_tokens" not in tokens:
        return None
    total = sum(tokens.get(name, 0) for name in _INPUTS)
    if total * _BYTES_PER_TOKEN >= prompt_bytes:
        return None
    _drop(tokens, INPUT)
    return f"{total:,} input tokens for {prompt_bytes:,} bytes of text"


def _drop(tokens: dict[str, int], side: str) -> None:
    for name in list(tokens):
        if _side(name) == side:
            tokens.pop(name)


def _marks(tokens: Mapping[str, int], request: Request) -> Iterator[str]:
    total = sum(tokens.get(name, 0) for name in _INPUTS)
    if request.most_input_tokens is not None and total > request.most_input_tokens:
        yield INPUT
    # Some targets limit the answer without its thinking.
    visible = tokens.get("output_tokens", 0) - tokens.get("thinking_tokens", 0)
    if request.max_tokens is not None and visible > request.max_tokens:
        yield OUTPUT


@dataclass(frozen=True, slots=True)
class UsageTable:
    """Where the counts of a protocol's usages stand, and the fields that are known."""

    counts: Mapping[str, tuple[Path, ...]]
    known: frozenset[str]


@cache
def _table(protocol: str) -> UsageTable:
    rows = vendors.TABLE["usage"].get(protocol, {})
    counts = {
        name: tuple(steps(pointer) for pointer in pointers)
        for name, pointers in rows.items()
        if name not in _NOT_COUNTS
    }
    names = {step for paths in counts.values() for path in paths for step in path}
    known = frozenset(names | set(vendors.TABLE["usage"]["known"].get(protocol, ())))
    return UsageTable(counts, known)
