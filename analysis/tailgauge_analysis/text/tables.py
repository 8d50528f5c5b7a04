"""Tables of a report: in Markdown, and as text of so many columns for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest

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
    ends = accumulate(len(BETWEEN) + width for width in widths)
    shown = max(1, sum(end - len(BETWEEN) <= columns for end in ends))
    titles = zip_longest(*map(textwrap.wrap, header[:shown], widths), fillvalue="")
    left = {0, *prose}

    def line(row: Sequence[str]) -> str:
        placed = enumerate(zip(row[:shown], widths, strict=False))
        texts = (cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in placed)
        return BETWEEN.join(texts).rstrip()

    return [line(row) for row in (*titles, *cells)]
