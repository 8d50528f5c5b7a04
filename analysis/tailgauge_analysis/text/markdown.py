"""Untrusted text as Markdown that shows it, and does nothing else.

Rules of CommonMark, and of GitHub's tables, task lists and strikethrough. A character is escaped only where it would have
an effect, because people read the file as text too: `error_rate`, `>= 99%` and `[DONE]` stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tailgauge.sanitize import plain

_ACTIVE = re.compile(
    r"""
    `                                    # code
    | \\(?=[!-/:-@\[-`{-~]|$)            # an escape, or a hard line break
    | (?<!\s)[*~] | [*~](?!\s)           # emphasis; not between spaces
    | (?<!\w)_+ | _+(?!\w)               # emphasis; not within a word
    | \](?=[(\[:])                       # ends the text of a link, or the name of a definition
    | <(?=[A-Za-z/!?])                   # HTML, or a link
    | &(?=\#?\w+;)                       # a character reference
    """,
    re.VERBOSE,
)
_REFERENCES = {"<": "&lt;", "&": "&amp;"}
_BEGINS_BLOCK = re.compile(
    r"""
    ^(
      \d{1,9}(?=[.)](?:\s|$))            # an ordered list
      | (?=\#{1,6}(?:\s|$)|>|[-+](?:\s|$)|-[-\s]*$)   # a heading, a quote, a list, a rule
      | (?=\[[\sxX]\])                   # a task
    )
    """,
    re.VERBOSE,
)
_NOT_IN_CODE = re.compile("[`|]|<(?=[A-Za-z/!?])|^$")
ITEM = "- "


def markdown_inline(text: object) -> str:
    """Text within a line, behind other text."""
    return _ACTIVE.sub(_escaped, plain(str(text)))


def markdown_line(text: object) -> str:
    """Text at the beginning of a line."""
    return _BEGINS_BLOCK.sub(r"\1\\", markdown_inline(text))


def markdown_cell(text: object) -> str:
    """Text of a table's cell."""
    return markdown_inline(text).replace("|", "\\|")


def markdown_code(text: str) -> str:
    """Text to copy; escaped instead of code where it has a mark of code, a table or HTML."""
    line = plain(text)
    if _NOT_IN_CODE.search(line):
        return markdown_cell(line)
    return f"`{line}`"


def markdown_blocks(blocks: Iterable[str]) -> str:
    """Return a document of the blocks that are not empty; items of a list follow each other."""
    document = ""
    previous = ""
    for block in filter(None, blocks):
        is_next_item = previous.startswith(ITEM) and block.startswith(ITEM)
        if previous:
            document += "\n" if is_next_item else "\n\n"
        document += block
        previous = block
    return document + "\n"


def _escaped(match: re.Match[str]) -> str:
    """Return the characters as they are shown."""
    characters = match[0]
    return _REFERENCES.get(characters) or "".join(f"\\{character}" for character in characters)
