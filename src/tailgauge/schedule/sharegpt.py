"""Conversations in ShareGPT's form: `[{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]`.

Such files are scraped, and some rows cannot be asked: strings between the entries, no entries at all, values that are
null, results of tools. These rows are left out whole, because a conversation without one of its parts is another
conversation, and are counted under a reason. What is not asked is not looked at: without sessions, everything behind the
answer to the first question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailgauge.call import ASSISTANT, SYSTEM, USER

SPEAKERS = {
    "human": USER,
    "user": USER,
    "system": SYSTEM,
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), ASSISTANT),
}
# Results and calls of tools belong to an answer of the recorded model; the target's own answer has others.
TOOL_SPEAKERS = (
    "tool",
    "tools",
    "function",
    "function_call",
    "function_response",
    "observation",
    "tool_call",
)
NO_OBJECT = "not an object"
NO_CONVERSATIONS = "without conversations"
NO_QUESTION = "without a question"
_ROWS_NAMED = 10  # of each reason


class OddRowError(ValueError):
    """A row of a ShareGPT file that cannot be asked; the text is the reason, without anything of the row."""


@dataclass
class DroppedRows:
    """Rows of a file that are left out, by reason; rows count from 1."""

    counts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)  # the first ones of each reason

    def add(self, reason: str, row: int) -> None:
        """Count a row."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        first_rows = self.rows.setdefault(reason, [])
        if len(first_rows) < _ROWS_NAMED:
            first_rows.append(row)

    @property
    def total(self) -> int:
        """Return how many rows are left out."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        """Return `2 without a question (rows 3, 9), 1 not an object (row 5)`."""
        return ", ".join(self._text(reason) for reason in self.counts)

    def _text(self, reason: str) -> str:
        count = self.counts[reason]
        numbers = ", ".join(f"{row:,}" for row in self.rows[reason])
        rest = ", ..." if count > _ROWS_NAMED else ""
        noun = "row" if count == 1 else "rows"
        return f"{count:,} {reason} ({noun} {numbers}{rest})"


@dataclass
class Question:
    """A question, and the recorded answer if there is one."""

    text: str
    answer: str | None = None


@dataclass
class Conversation:
    """What a row asks."""

    system: str | None = None
    questions: list[Question] = field(default_factory=list)


def conversation(entries: Any, *, whole: bool) -> Conversation:
    """Return the questions of a row with their recorded answers; OddRowError where the row cannot be sent.

    `whole`: all questions, else the first alone. Of several answers to a question, and of several system
    entries before it, the first counts.
    """
    recorded = Conversation()
    questions = recorded.questions
    for role, text in _entries(entries):
        if role == USER and questions and not whole:
            break
        if role == USER:
            questions.append(Question(text))
        elif role == SYSTEM and questions:
            raise OddRowError("with a system entry after a question")
        elif role == SYSTEM:
            recorded.system = recorded.system or text
        elif questions:
            questions[-1].answer = questions[-1].answer or text
            if not whole:
                break
    if not questions:
        raise OddRowError(NO_QUESTION)
    return recorded


def _entries(entries: Any) -> Iterator[tuple[str, str]]:
    """Yield role and text of each entry that is not blank; OddRowError at one that is none."""
    if not isinstance(entries, list):
        raise OddRowError("whose conversations are not a list")
    for entry in entries:
        role = _role(entry)
        text = _text(entry)
        if text.strip():
            yield role, text


def _role(entry: Any) -> str:
    if not isinstance(entry, dict):
        raise OddRowError("with an entry that is not an object")
    speaker = entry.get("from", entry.get("role"))
    name = ""
    if isinstance(speaker, str):
        name = speaker.strip().lower()
    if name in TOOL_SPEAKERS:
        raise OddRowError(f"with an entry from {name}")
    if name not in SPEAKERS:
        raise OddRowError("with an entry from an unknown role")
    return SPEAKERS[name]


def _text(entry: Mapping[str, Any]) -> str:
    text = entry.get("value", entry.get("content"))
    if not isinstance(text, str):
        raise OddRowError("with an entry without text")
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can hold lone surrogates, UTF-8 cannot
        raise OddRowError("with half of a surrogate pair") from None
    return text
