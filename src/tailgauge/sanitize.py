"""Sanitizing of untrusted text, such as a target's, before it is shown on a terminal, in a page or in a file.

Rows keep the original. Escaping for HTML, Markdown or XML happens where these are written.
"""

from __future__ import annotations

import re

# C0 except tab and line feed, DEL, C1, direction marks and invisible characters.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


def harmless(text: str) -> str:
    """Text without control and direction characters; tabs and line ends stay."""
    return _CONTROL.sub("", text)


def plain(text: str, most: int = 2000) -> str:
    """Untrusted text without control and direction characters, on one line, cut to `most` characters."""
    line = " ".join(harmless(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def is_one_line(text: str) -> bool:
    """Return whether a text is shown as it is: one line, without control and direction characters."""
    return harmless(text) == text and "\n" not in text and "\t" not in text
