"""The files of an answer: reports/<id>/report.{html,md,json} and junit.xml, beside the reports of its runs.

The page is one HTML file that opens offline: everything passes through Jinja's autoescape, and its content security
policy forbids requests. plotly and Jinja come with this file.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tailgauge.experiments.answer import PASS, AnswerReport, AnswerTable, Picture, PlotCurve
from tailgauge.thresholds import INVALID
from tailgauge_analysis.report.bridge import render
from tailgauge_analysis.report.figures import BLUE, GREEN, GREY, ORANGE, Figure, finish, numbers
from tailgauge_analysis.report.junit import SuiteCase, suite
from tailgauge_analysis.report.report import save
from tailgauge_analysis.text.formatting import markdown_safe as safe
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.tables import markdown_blocks, markdown_table, wrapped, wrapped_table

LABEL = 10  # width of the left column
SENTENCES = re.compile(r"(?<=\.) ")
DRY_RUN = "Dry run on the simulated endpoint: nothing was sent."
_COLOURS = (BLUE, ORANGE, GREEN, GREY)
HEIGHT = 360


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


@dataclass(frozen=True, slots=True)
class Written:
    """The files, and `data`, the contents of report.json."""

    summary: str
    html: Path
    markdown: Path
    json: Path
    junit: Path
    data: dict[str, Any]


def write(report: AnswerReport, out: Path) -> Written:
    """Write the files below `out`. Raises UsageError if that is not possible."""
    data = asdict(report)
    del data["pictures"]
    files = save(out / "reports" / report.run_id, html(report), markdown(report), data, junit(report))
    return Written(terminal(report, files[0]), *files, data)


def html(report: AnswerReport) -> str:
    """The page."""
    return render(
        "answer.html.jinja",
        [figure(picture) for picture in report.pictures],
        report=report,
        notes=notes(report),
        how=how(report),
        runs_table=runs_table(report),
    )


def junit(report: AnswerReport) -> str:
    """The cases of an answer; an answer that rests on INVALID runs alone is an error."""
    invalid = bool(report.runs) and all(run.verdict == INVALID for run in report.runs)
    text = f"Every run is INVALID. {report.sentence}" if invalid else report.sentence
    cases = [("answer", INVALID if invalid else PASS, text)]
    cases += [(case.name, case.outcome, case.reason) for case in report.cases]
    facts = {"run_id": report.run_id, "target": report.target, "verdict": report.verdict}
    return suite(report.scenario, report.started_at, facts, [SuiteCase(*case) for case in cases])


def figure(picture: Picture) -> Figure:
    """One picture."""
    plot = go.Figure([_trace(curve, _COLOURS[i % len(_COLOURS)]) for i, curve in enumerate(picture.curves)])
    for mark in picture.marks:
        if mark.high > mark.low:
            plot.add_vrect(x0=mark.low, x1=mark.high, fillcolor=GREY, opacity=0.18, line_width=0)
        else:
            plot.add_vline(x=mark.low, line={"color": GREY, "dash": "dot"})
        plot.add_annotation(
            x=mark.low, y=1, yref="paper", text=mark.name, showarrow=False, xanchor="left", yanchor="bottom"
        )
    plot.update_xaxes(title_text=picture.x)
    plot.update_yaxes(title_text=picture.y)
    plot.update_layout(hovermode="closest")
    return finish(picture.name, picture.title, picture.caption, HEIGHT, plot)


def _trace(curve: PlotCurve, colour: str) -> go.Scatter:
    error = None
    if curve.low and curve.high:
        y = np.array(curve.y)
        error = {
            "type": "data",
            "symmetric": False,
            "array": numbers(np.array(curve.high) - y),
            "arrayminus": numbers(y - np.array(curve.low)),
        }
    return go.Scatter(
        x=numbers(np.array(curve.x)), y=numbers(np.array(curve.y)), name=curve.name, error_y=error,
        mode="lines+markers" if curve.joined else "markers", line={"color": colour}, marker={"color": colour},
    )  # fmt: skip
