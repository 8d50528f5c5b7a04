"""The token counts of an answer, from all its usage objects, by the table of vendors.

Counts are cumulative. Of each field the largest that came counts, because gateways send zeros after it. A missing count is
unknown. If one value is impossible, no count is used; a count that contradicts the prompt or the answer is dropped.
A count beyond what was requested is kept and marked.
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
_MAX_COUNT = 1 << 40  # tokens
_DIGITS = re.compile(r"[0-9]{1,12}")
_SHOWN = 200  # characters of an impossible value
_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_BYTES_PER_TOKEN = 100  # of text, at most
_NOT_COUNTS = frozenset({"places", "known"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Sizes of a request that counts can contradict. None: no bound is known."""

    prompt_bytes: int = 0  # of text
    most_input_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of an answer."""

    tokens: Mapping[str, int]  # by column
    marks: tuple[str, ...] = ()  # sides, INPUT or OUTPUT, whose counts are beyond the request
    problem: str | None = None  # why a count was dropped

    def trusted(self) -> Mapping[str, int]:
        """Return the counts that are not beyond the request."""
        if not self.marks:
            return self.tokens
        return {name: count for name, count in self.tokens.items() if _side(name) not in self.marks}


class Usage:
    """Collects the counts of one answer, by the part of the table of vendors for its protocol."""

    def __init__(self, protocol: str) -> None:
        self.table = _table(protocol)
        self.largest: dict[str, int] = {}
        self.problem: str | None = None  # an impossible value
        self.unknown: set[str] = set()
        # Tokens beyond the request have a cause: server tools, compaction, a fallback.
        self.explained = False

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
        if number is None or not 0 <= number < _MAX_COUNT:
            self._note_impossible(name, value)
        elif number >= self.largest.get(name, 0):
            self.largest[name] = number

    def forget(self, name: str) -> None:
        """Drop a count that does not cover the whole answer."""
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
        """Return the counts by column, and why those of the input were dropped, if so; a column without a count is missing.

        `input_tokens` is the part of the prompt that was neither read from the cache nor written to it.
        Providers that report `prompt_tokens` count the cached ones in it, some beside it, which their total
        shows.
        """
        tokens = dict(self.largest)
        total = tokens.pop("total_tokens", None)
        prompt = tokens.pop("prompt_tokens", None)
        if prompt is None:
            return tokens, None
        # Some count the thinking beside the output, which their total shows: it is added to the output.
        _add_thinking(tokens, prompt, total)
        cache_read = tokens.get("cache_read_input_tokens", 0)
        cached = cache_read + tokens.get("cache_creation_input_tokens", 0)
        is_cached_beside_prompt = total == prompt + cached + tokens.get("output_tokens", 0)
        if cached and is_cached_beside_prompt:
            tokens["input_tokens"] = prompt
            return tokens, None
        if cached > prompt:
            _drop(tokens, INPUT)
            return tokens, f"{cached:,} cached tokens of a prompt of {prompt:,}"
        tokens["input_tokens"] = prompt - cached
        return tokens, None

    def _note_impossible(self, name: str, value: Any) -> None:
        text = type(value).__name__
        if isinstance(value, str | int | float):
            text = str(value)
        # A number may have thousands of digits.
        self.problem = self.problem or f"{name} = {shown(text, _SHOWN)}"

    def _note_unknown(self, usage: Mapping[str, Any]) -> None:
        """Note the names of fields that the table of vendors does not have, ten of each object."""
        names = self.table.names
        if not usage.keys() <= names:
            for name in sorted(usage.keys() - names)[:10]:
                self.unknown.add(f"usage.{shown(str(name), 60)}")
        for place, details in usage.items():
            if not place.endswith("_details") or not isinstance(details, dict):
                continue
            counts = [name for name in details.keys() - names if name.endswith("_tokens")]
            for name in sorted(counts)[:10]:
                self.unknown.add(f"usage.{place}.{shown(name, 60)}")


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
    """Yield the sides whose counts are beyond the request."""
    total = sum(tokens.get(name, 0) for name in _INPUTS)
    if request.most_input_tokens is not None and total > request.most_input_tokens:
        yield INPUT
    # Some targets limit the answer without its thinking.
    visible = tokens.get("output_tokens", 0) - tokens.get("thinking_tokens", 0)
    if request.max_tokens is not None and visible > request.max_tokens:
        yield OUTPUT


@dataclass(frozen=True, slots=True)
class UsageTable:
    """Where the counts are in a protocol's usage objects, and the names of all known fields."""

    counts: Mapping[str, tuple[Path, ...]]
    names: frozenset[str]


@cache
def _table(protocol: str) -> UsageTable:
    rows = vendors.TABLE["usage"].get(protocol, {})
    counts = {
        name: tuple(map(steps, pointers))
        for name, pointers in rows.items()
        if name not in _NOT_COUNTS
    }
    names = set(vendors.TABLE["usage"]["known"].get(protocol, ()))
    for paths in counts.values():
        names.update(*paths)
    return UsageTable(counts, frozenset(names))
