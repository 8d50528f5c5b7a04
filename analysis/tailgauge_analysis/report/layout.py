"""Where the tables and figures of a section stand on the page: beside each other, as far as they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailgauge_analysis.report.figures import Figure
from tailgauge_analysis.text.section import Cell, Section, Table

COLUMN = 600  # pixels of one of two columns
ROW, LINE, LETTER, SMALL, PADDING, NAME, PROSE = 30, 19, 7.2, 6.4, 14, 150, 230


@dataclass(frozen=True, slots=True)
class Block:
    """The facts, a table or a figure, and about how many pixels it is high."""

    kind: str
    content: Table | Figure | None
    height: float
    label: str = ""


@dataclass(slots=True)
class Columns:
    """The blocks of a section: of two columns of about the same height, and those as wide as the page."""

    left: list[Block] = field(default_factory=list)
    right: list[Block] = field(default_factory=list)
    wide: list[Block] = field(default_factory=list)


def columns(section: Section, figures: Sequence[Figure]) -> Columns:
    """Facts and tables left and figures right; what is left goes to the shorter column, in its order."""
    out = Columns()
    blocks = [Block("facts", None, LINE * sum(1 + len(text) // 75 for _, text in section.facts))]
    blocks = blocks if section.facts else []
    for table in section.tables:
        label = f"{section.title}: {table.title}" if table.title else section.title
        block = Block("table", table, _height(table), label)
        (out.wide if _width(table) > COLUMN else blocks).append(block)
    drawn = [Block("figure", figure, figure.height + 90.0) for figure in figures]
    if not drawn:
        for block in blocks:
            _shorter(out, first=out.left).append(block)
        return out
    if not blocks and len(drawn) == 1:
        out.wide = drawn + out.wide
        return out
    out.left, out.right = blocks, drawn[:1]
    for block in drawn[1:]:
        _shorter(out, first=out.left).append(block)
    return out


def _shorter(out: Columns, first: list[Block]) -> list[Block]:
    heights = [sum(block.height for block in column) for column in (out.left, out.right)]
    return first if heights[0] <= heights[1] else out.right


def _height(table: Table) -> float:
    tall = [
        ROW + LINE * any(not isinstance(cell, str) and cell.interval for cell in row) for row in table.rows
    ]
    return 3.0 * ROW + sum(tall)


def _width(table: Table) -> float:
    """About how wide it must be; the names of the rows wrap, as prose does."""
    each = []
    for i, title in enumerate(table.header):
        widest = max((_pixels(row[i]) for row in table.rows), default=0.0)
        wraps = PROSE if i in table.prose else NAME if i == 0 else None
        each.append(max(widest, len(title) * SMALL) if wraps is None else min(wraps, widest))
    return sum(each) + PADDING * len(each)


def _pixels(cell: Cell) -> float:
    return (
        len(cell) * LETTER
        if isinstance(cell, str)
        else max(len(cell.text) * LETTER, len(cell.interval) * SMALL)
    )
