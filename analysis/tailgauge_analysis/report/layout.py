"""Where the tables and figures of a section stand on the page: in two columns as far as they fit, else as wide as the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge_analysis.report.plot import Figure
from tailgauge_analysis.text.section import Cell, Section, Table

COLUMN = 600  # pixels of one of two columns
LETTER, SMALL, PADDING, NAME, PROSE = 7.2, 6.4, 14, 150, 230


@dataclass(frozen=True, slots=True)
class Block:
    """The facts, a table or a figure."""

    kind: str
    content: Table | Figure | None
    label: str = ""
    is_wide: bool = False


def blocks(section: Section, figures: Sequence[Figure]) -> list[Block]:
    """Facts, tables and figures; those in columns first."""
    out = [Block("facts", None)] if section.facts else []
    for table in section.tables:
        label = f"{section.title}: {table.title or 'table'}"
        out.append(Block("table", table, label, _width(table) > COLUMN))
    out += [Block("figure", figure) for figure in figures]
    return sorted(out, key=lambda block: block.is_wide)


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
