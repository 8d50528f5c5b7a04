"""Tables of a report: in Markdown, and as text of so many columns for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from tailgauge_analysis.text.formatting import plain

BETWEEN = "  "


def markdown_blocks(blocks: Iterable[str]) -> str:
    """A Markdown document of the blocks that are not empty; list items stand together."""
    return "\n\n".join(block for block in blocks if block).replace("\n\n- ", "\n- ") + "\n"


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: int, prose: Sequence[int] = ()
) -> list[str]:
    """As many of the first columns as fit beside each other; numbers stand right. The header wraps between words."""
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, (*title.split(), *column))) for title, *column in zip(header, *cells, strict=True)]
    shown = max(
        i + 1 for i in range(len(widths)) if i == 0 or sum(widths[: i + 1]) + len(BETWEEN) * i <= columns
    )
    titles = zip_longest(
        *(textwrap.wrap(title, width) for title, width in zip(header[:shown], widths, strict=False)),
        fillvalue="",
    )
    return [
        BETWEEN.join(
            cell.ljust(width) if i == 0 or i in prose else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row[:shown], widths, strict=False))
        ).rstrip()
        for row in (*titles, *cells)
    ]
