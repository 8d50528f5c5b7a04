"""Prompts from a file: JSONL, one object a line, used in turn.

    {"prompt": "Why is the sky blue?", "output_tokens": 80, "name": "sky", "tags": {"tenant": "a"}}
    {"prompt_tokens": 1200}

Rule: the whole file is read and checked before any traffic; what is wrong is told with file, line and key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.schedule.text_file import MAX_TOKENS, json_object, text_lines

CHARACTERS_PER_TOKEN = 4  # of ordinary English; only the size that the schedule states rests on it
AT_LEAST = 8  # lines of a user of a closed loop, where there are more users than lines
_KEYS = ("prompt", "prompt_tokens", "output_tokens", "name", "tags")
Line = dict[str, Any]  # text?, prompt_tokens, output_tokens?, name?, tags?


def read_prompts(path: Path) -> tuple[Line, ...]:
    """Every line of a prompt file, checked; raises ScenarioError with file and line."""
    found = tuple(
        _line(f"{path}:{number}", json_object(path, number, text)) for number, text in text_lines(path)
    )
    if not found:
        raise ScenarioError(f"{path}: is empty: expected one JSON object a line")
    return found


def _line(where: str, given: dict[str, Any]) -> Line:
    unknown = sorted(set(given) - set(_KEYS))
    if unknown:
        raise ScenarioError(f"{where}: unknown key {unknown[0]!r}. Expected one of: {', '.join(_KEYS)}")
    if ("prompt" in given) == ("prompt_tokens" in given):
        raise ScenarioError(f"{where}: expected either prompt (text) or prompt_tokens (a size)")
    line: Line = {}
    if "prompt" in given:
        line["text"] = _text(where, "prompt", given["prompt"])
        line["prompt_tokens"] = min(MAX_TOKENS, math.ceil(len(line["text"]) / CHARACTERS_PER_TOKEN))
    else:
        line["prompt_tokens"] = _tokens(where, "prompt_tokens", given["prompt_tokens"])
    if "output_tokens" in given:
        line["output_tokens"] = _tokens(where, "output_tokens", given["output_tokens"])
    if "name" in given:
        line["name"] = _text(where, "name", given["name"])
    if "tags" in given:
        tags = given["tags"]
        if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
            raise ScenarioError(f"{where}: tags: expected an object of texts, got {str(tags)[:80]!r}")
        line["tags"] = tags
    return line


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ScenarioError(f"{where}: {key}: expected some text, got {str(value)[:80]!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ScenarioError(f"{where}: {key}: half of a surrogate pair is no text") from None
    return value


def _tokens(where: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ScenarioError(
            f"{where}: {key}: expected a whole number from 1 to {MAX_TOKENS:,}, got {str(value)[:80]!r}"
        )
    return value


@dataclass(frozen=True, slots=True)
class Lines:
    """Which lines of a file each arrival of one traffic table gets."""

    lines: tuple[Line, ...]
    first: Any  # by arrival: its first line
    stride: int  # from one turn to the next
    share: int  # lines of a user of a closed loop, whose turns have no end; then from its first again

    def source(self, arrival: int, turns: int) -> Line:
        """The line of the first turn; under `later` those of the turns after it, where there are any."""
        count = len(self.lines)
        start = int(self.first[arrival])
        different = count // math.gcd(self.stride, count)  # lines until the first comes round again
        turns = min(different, turns or self.share)
        mine = [self.lines[(start + turn * self.stride) % count] for turn in range(turns)]
        return {**mine[0], "later": mine[1:]} if turns > 1 else mine[0]


def deal(lines: tuple[Line, ...], mine: Any, turns: Any) -> Lines:
    """Deal a file's lines to the arrivals that `mine` marks: a line a turn, in order, from the top again at the end.

    Users of a closed loop (no turns) begin with a line each and go on with those that the others leave; what is sent
    with a user stays small, however many users and lines there are.
    """
    count, arrivals = len(lines), int(mine.sum())
    closed = not turns.any()
    taken = mine.astype(np.int64) * (1 if closed else turns)
    stride = arrivals if closed and arrivals < count else 1
    share = max(math.ceil(count / max(1, arrivals)), AT_LEAST)
    return Lines(lines, (np.cumsum(taken) - taken) % count, stride, share)
