"""An answer as Markdown, for a pull request, and as text for the terminal."""

from __future__ import annotations

import re
from pathlib import Path

from tailgauge.experiments.answer import AnswerReport, AnswerTable
from tailgauge.thresholds import INVALID
from tailgauge_analysis.text.formatting import markdown_safe as safe
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.tables import markdown_blocks, markdown_table, wrapped, wrapped_table

LABEL = 10  # width of the left column
SENTENCES = re.compile(r"(?<=\.) ")
DRY_RUN = "Dry run on the simulated endpoint: nothing was sent."


def markdown(report: AnswerReport) -> str:
    """The whole answer."""
    blocks = [
        f"# {safe(report.scenario)}",
        f"**{safe(report.sentence)}**",
        *[f"- {safe(text)}" for text in notes(report)],
        *[block for table in (report.table, *report.more) for block in _blocks(table)],
        "## Method",
        *[f"- {safe(text)}" for text in how(report)],
        *_blocks(runs_table(report)),
    ]
    return markdown_blocks(blocks)


def _blocks(table: AnswerTable) -> tuple[str, ...]:
    """A table under its caption."""
    return safe(table.caption), markdown_table(table.header, table.rows, numbers=False)


def terminal(report: AnswerReport, page: Path) -> str:
    """What a user reads first: the answer, a sentence per line, then the remarks and the table."""
    sentences = [*SENTENCES.split(report.sentence), *report.remarks]
    measured = f"{report.verdict} (dry run: nothing was sent)" if report.dry_run else report.verdict
    table = wrapped_table(report.table.header, report.table.rows)
    return "\n".join([
        *_labelled(report.kind, *sentences), "", *table, "", *_labelled("measured", measured), f"report    {page}",
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


def runs_table(report: AnswerReport) -> AnswerTable:
    """The runs of the experiment as a table."""
    rows = tuple((run.name, run.run_id, run.verdict, run.reason) for run in report.runs)
    return AnswerTable(
        "Each run has its folder and its report.",
        ("run", "folder and report", "verdict", "first reason"),
        rows,
    )


def _labelled(label: str, *texts: str) -> list[str]:
    """Each text wrapped in a column right of the label."""
    lines = [line for text in texts for line in wrapped(" " * LABEL + text, hanging=LABEL)]
    return [label.ljust(LABEL) + lines[0][LABEL:], *lines[1:]] if lines else [label]
