"""An answer as Markdown, for a pull request, and as text for the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from tailgauge.experiments.answer import AnswerReport, AnswerTable
from tailgauge.thresholds import INVALID
from tailgauge_analysis.text.formatting import markdown_safe as safe
from tailgauge_analysis.text.formatting import plain, plural

COLUMNS = 100
LABEL = 10  # width of the left column
SENTENCES = re.compile(r"(?<=\.) ")
BETWEEN = "  "
LONGEST_WORD = 40  # that is not broken
DRY_RUN = "Dry run on the simulated endpoint: nothing was sent."


def markdown(report: AnswerReport) -> str:
    """The whole answer."""
    blocks = [
        f"# {safe(report.scenario)}",
        f"**{safe(report.sentence)}**",
        *[f"- {safe(text)}" for text in notes(report)],
        *[_table(table) for table in (report.table, *report.more)],
        "## Method",
        *[f"- {safe(text)}" for text in how(report)],
        _table(runs_table(report)),
    ]
    return "\n\n".join(block for block in blocks if block).replace("\n\n- ", "\n- ") + "\n"


def terminal(report: AnswerReport, page: Path) -> str:
    """What a user reads first: the answer, a sentence per line, then the remarks and the table."""
    sentences = [*SENTENCES.split(report.sentence), *report.remarks]
    measured = f"{report.verdict} (dry run: nothing was sent)" if report.dry_run else report.verdict
    return "\n".join([
        *_labelled(report.kind, *sentences), "", *_columns(report.table), "", *_labelled("measured", measured), f"report    {page}",
    ])  # fmt: skip


def how(report: AnswerReport) -> list[str]:
    """How the answer came about."""
    lines = [report.took, *report.planned]
    if report.smallest:
        lines.append(f"Minimum detectable effect: {report.smallest}.")
    if report.expected:
        lines.append(f"Expected answer, by the dry run: {report.expected}")
    return [*lines, f"Command: {report.command}"]


def notes(report: AnswerReport) -> list[str]:
    """What the reader needs before the table."""
    bad = [run for run in report.runs if run.verdict == INVALID]
    lines = [DRY_RUN] if report.dry_run else []
    if bad:
        lines.append(f"{plural(len(bad), 'run')} INVALID and not used: {bad[0].name}: {bad[0].reason}")
    return [*lines, *report.remarks]


def _table(table: AnswerTable) -> str:
    lines = [f"| {' | '.join(safe(cell) for cell in table.header)} |", f"|{'---|' * len(table.header)}"]
    lines += [f"| {' | '.join(safe(cell) for cell in row)} |" for row in table.rows]
    return f"{safe(table.caption)}\n\n" + "\n".join(lines)


def runs_table(report: AnswerReport) -> AnswerTable:
    """The runs of the experiment as a table."""
    rows = tuple((run.name, run.run_id, run.verdict, run.reason) for run in report.runs)
    return AnswerTable(
        "Each run has its folder and its report.",
        ("run", "folder and report", "verdict", "first reason"),
        rows,
    )


def _columns(table: AnswerTable) -> list[str]:
    """The table in lines of at most 100 characters: cells wrap between words; columns that do not fit follow below the
    others, after the first one again.
    """
    rows = [[plain(cell) for cell in row] for row in (table.header, *table.rows)]
    least = [
        max(len(word) for cell in column for word in (*cell.split(), ""))
        for column in zip(*rows, strict=True)
    ]
    whole = [max(map(len, column)) for column in zip(*rows[1:] or rows, strict=True)]
    least, wanted = [min(n, LONGEST_WORD) for n in least], list(map(max, least, whole))
    parts = [_part(rows, group, least, wanted) for group in _groups(least)]
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


def _labelled(label: str, *texts: str) -> list[str]:
    """Each text wrapped in a column right of the label."""
    indent = " " * LABEL
    lines = [
        line
        for text in texts
        for line in textwrap.wrap(
            plain(text), COLUMNS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False,
            break_long_words=False,
        )
    ]  # fmt: skip
    return [label.ljust(LABEL) + lines[0][LABEL:], *lines[1:]] if lines else [label]
