"""Text of others, made harmless: what a target wrote, on its way to a terminal, a page or a file for people.

Rule: rows keep what came; whoever shows it to a person passes it through `plain`. Escaping for HTML, Markdown or XML is
the business of those that write it.
"""

from __future__ import annotations

import re

# C0 but tab and line feed, DEL, C1, and what turns the direction of writing or hides between letters.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def harmless(text: str) -> str:
    """Text without control and direction characters; tabs and line ends stay."""
    return _CONTROL.sub("", text)


def plain(text: str, most: int = 2000) -> str:
    """Foreign text without control and direction characters, on one line, cut to `most` characters."""
    line = " ".join(harmless(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
