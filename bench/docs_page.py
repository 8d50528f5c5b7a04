"""A page of the documentation, of which a script writes what stands between two marks."""

from __future__ import annotations

from pathlib import Path


def replace_between(begin: str, end: str, text: str, page: Path) -> None:
    """Put the text between the marks; SystemExit where they are not there."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
    _, end_mark, after = rest.partition(end)
    if not mark or not end_mark:
        raise SystemExit(f"{page}: the marks {begin} and {end} are not there")
    page.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")
