"""Tables and paragraphs of a report: Markdown tables, and text of at most 100 columns for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from tailgauge_analysis.text.formatting import markdown_safe, plain

COLUMNS = 100
BETWEEN = "  "
LONGEST_WORD = 40  # that is not broken


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool = True) -> str:
    """A Markdown table of untrusted text, empty without rows; with `numbers`, columns after the first stand right."""
    lines = [f"| {' | '.join(map(markdown_safe, row))} |" for row in (header, *rows)]
    rest = "---:|" if numbers else "---|"
    return "\n".join([lines[0], f"|---|{rest * (len(header) - 1)}", *lines[1:]]) if lines[1:] else ""


def markdown_blocks(blocks: Iterable[str]) -> str:
    """A Markdown document of the blocks that are not empty; list items stand together."""
    return "\n\n".join(block for block in blocks if block).replace("\n\n- ", "\n- ") + "\n"


def wrapped(text: str, most: int | None = None, hanging: int = 4) -> list[str]:
    """Untrusted text in lines; its leading spaces stay. With `most`, long words are broken and further lines left out."""
    return textwrap.wrap(
        plain(text), COLUMNS, initial_indent=" " * (len(text) - len(text.lstrip(" "))), subsequent_indent=" " * hanging,
        max_lines=most, placeholder=" …", break_on_hyphens=False, break_long_words=most is not None,
    )  # fmt: skip


def fixed_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of cells with the format of their column: `>9` stands right in nine characters."""
    formats = [BETWEEN * (i > 0 and each.startswith("<")) + f"{{:{each}}}" for i, each in enumerate(columns)]
    return ["".join(formats).format(*row) for row in rows]


def wrapped_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table whose cells wrap between words; columns that do not fit follow below the others, after the first one
    again.
    """
    cells = [[plain(cell) for cell in row] for row in (header, *rows)]
    least = [
        max(len(word) for cell in column for word in (*cell.split(), ""))
        for column in zip(*cells, strict=True)
    ]
    whole = [max(map(len, column)) for column in zip(*cells[1:] or cells, strict=True)]
    least, wanted = [min(n, LONGEST_WORD) for n in least], list(map(max, least, whole))
    parts = [_part(cells, group, least, wanted) for group in _groups(least)]
    return [line for part in parts for line in (*part, "")][:-1]


def _groups(widths: Sequence[int]) -> list[list[int]]:
    """The columns that fit beside each other, the first one in each group."""
    groups = [[0]]
    for i in range(1, len(widths)):
        if len(groups[-1]) > 1 and _line(widths[j] for j in (*groups[-1], i)) > COLUMNS:
            groups.append([0])
        groups[-1].append(i)
    return groups


def _part(
    rows: Sequence[Sequence[str]], of: Sequence[int], least: Sequence[int], wanted: Sequence[int]
) -> list[str]:
    widths = {i: wanted[i] for i in of}
    while _line(widths.values()) > COLUMNS and any(widths[i] > least[i] for i in of):
        widths[max((i for i in of if widths[i] > least[i]), key=widths.__getitem__)] -= 1
    header, *body = (_row(row, widths) for row in rows)
    apart = [""] if any(len(lines) > 1 for lines in body) else []
    return [*header, *(line for lines in body for line in (*apart, *lines))]


def _row(row: Sequence[str], widths: Mapping[int, int]) -> list[str]:
    cells = [textwrap.wrap(row[i], width) for i, width in widths.items()]
    return [
        BETWEEN.join(cell.ljust(width) for cell, width in zip(line, widths.values(), strict=True)).rstrip()
        for line in zip_longest(*cells, fillvalue="")
    ]


def _line(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + len(BETWEEN) * (len(each) - 1)
