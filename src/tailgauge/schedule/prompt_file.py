"""Prompts from a file: JSONL, one object per line, used in order.

    {"prompt": "Why is the sky blue?", "output_tokens": 80, "name": "sky", "tags": {"tenant": "a"}}
    {"prompt_tokens": 1200}

The whole file is read and checked before any traffic; errors name file, line and key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, ValidationError

from tailgauge.errors import ScenarioError
from tailgauge.rows.text_file import json_object, text_lines
from tailgauge.schedule.settings import MAX_TOKENS
from tailgauge.table import Table, Tokens

CHARACTERS_PER_TOKEN = 4  # of ordinary English; only the size in the schedule rests on it
AT_LEAST = 8  # lines of a user of a closed loop, where there are more users than lines
PromptLine = dict[str, Any]  # text?, prompt_tokens, output_tokens?, name?, tags?


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError
    value.encode()  # JSON can hold lone surrogates, UTF-8 cannot
    return value


_Text = Annotated[str, AfterValidator(_not_blank)]
_TOKENS = f"a whole number from 1 to {MAX_TOKENS:,}"
_EXPECTED = {"prompt": "some text", "name": "some text", "tags": "an object of texts"}


class _Given(Table):
    prompt: _Text | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    name: _Text | None = None
    tags: Mapping[str, str] | None = None


def read_prompts(path: Path) -> tuple[PromptLine, ...]:
    """Every line of a prompt file, checked; raises ScenarioError with file and line."""
    found = tuple(
        _line(f"{path}:{number}", json_object(path, number, text)) for number, text in text_lines(path)
    )
    if not found:
        raise ScenarioError(f"{path}: is empty: expected one JSON object per line")
    return found


def _line(where: str, tree: dict[str, Any]) -> PromptLine:
    try:
        given = _Given.model_validate(tree).model_dump(exclude_none=True)
    except ValidationError as error:
        raise ScenarioError(f"{where}: {_explain(error.errors()[0])}") from None
    if ("prompt" in given) == ("prompt_tokens" in given):
        raise ScenarioError(f"{where}: expected either prompt (text) or prompt_tokens (a size)")
    if "prompt" in given:
        text = given.pop("prompt")
        size = min(MAX_TOKENS, math.ceil(len(text) / CHARACTERS_PER_TOKEN))
        return {"text": text, "prompt_tokens": size, **given}
    return given


def _explain(error: Any) -> str:
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"unknown key {key!r}. Expected one of: {', '.join(_Given.model_fields)}"
    if isinstance(error.get("ctx", {}).get("error"), UnicodeEncodeError):
        return f"{key}: half of a surrogate pair is not text"
    return f"{key}: expected {_EXPECTED.get(key, _TOKENS)}, got {str(error['input'])[:80]!r}"


@dataclass(frozen=True, slots=True)
class DealtLines:
    """Which lines of a file each arrival of one traffic table gets."""

    lines: tuple[PromptLine, ...]
    first: Any  # by arrival: its first line
    stride: int  # from one turn to the next
    share: int  # lines of a user of a closed loop, whose turns have no end; then from its first again

    def source(self, arrival: int, turns: int) -> PromptLine:
        """The line of the first turn; under `later` those of the turns after it, where there are any."""
        count = len(self.lines)
        start = int(self.first[arrival])
        different = count // math.gcd(self.stride, count)  # lines until the first comes round again
        turns = min(different, turns or self.share)
        mine = [self.lines[(start + turn * self.stride) % count] for turn in range(turns)]
        return {**mine[0], "later": mine[1:]} if turns > 1 else mine[0]


def deal(lines: tuple[PromptLine, ...], mine: Any, turns: Any) -> DealtLines:
    """Deal a file's lines to the arrivals that `mine` marks: a line a turn, in order, from the top again at the end.

    Users of a closed loop (no turns) begin with a line each and go on with those that the others leave; what is sent
    with a user stays small, however many users and lines there are.
    """
    count, arrivals = len(lines), int(mine.sum())
    closed = not turns.any()
    taken = mine.astype(np.int64) * (1 if closed else turns)
    stride = arrivals if closed and arrivals < count else 1
    share = max(math.ceil(count / max(1, arrivals)), AT_LEAST)
    return DealtLines(lines, (np.cumsum(taken) - taken) % count, stride, share)
