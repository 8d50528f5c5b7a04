"""Sanitizing of untrusted text, such as a target's, before it is shown on a terminal, in a page or in a file.

Rows keep the original. Escaping for HTML, Markdown or XML happens where these are written.
"""

from __future__ import annotations

import re

# C0 except tab, line feed and ESC, DEL, C1, line separators, direction marks and invisible characters.
_OTHERS = r"\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_CONTROL = re.compile(rf"[\x1b{_OTHERS}]")
# The escapes that `click.style` writes.
_CONTROL_BUT_COLOURS = re.compile(rf"[{_OTHERS}]|\x1b(?!\[(?:[0-2]|[39][0-7])m)")


def harmless(text: str) -> str:
    """Text without control and direction characters; tabs and line ends stay."""
    return _CONTROL.sub("", text)


def for_terminal(text: str) -> str:
    """Text as a terminal may get it: nothing in it but our colours moves the cursor, makes a sound, or writes from right to left."""
    return _CONTROL_BUT_COLOURS.sub("", text)


def plain(text: str, length: int = 2000) -> str:
    """Untrusted text without control and direction characters, on one line, cut to `most` characters."""
    line = " ".join(harmless(text).split())
    return line if len(line) <= length else line[: length - 1] + "…"


def is_one_line(text: str) -> bool:
    """Return whether a text is shown as it is: one line, without control and direction characters."""
    return harmless(text) == text and "\n" not in text and "\t" not in text
