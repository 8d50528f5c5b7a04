"""The files of an answer: reports/<id>/report.{html,md,json} and junit.xml, beside the reports of its runs.

The page is one HTML file that opens offline: everything passes through Jinja's autoescape, and its content security
policy forbids requests. plotly and Jinja come with this file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tailgauge.experiments.answer import PASS, AnswerReport, Picture, PlotCurve
from tailgauge.experiments.markdown import how, markdown, notes, runs_table, terminal
from tailgauge.thresholds import INVALID
from tailgauge_analysis.report.figures import BLUE, GREEN, GREY, ORANGE, Figure, finish, numbers
from tailgauge_analysis.report.junit import SuiteCase, suite
from tailgauge_analysis.report.page import render
from tailgauge_analysis.report.report import save

_COLOURS = (BLUE, ORANGE, GREEN, GREY)
HEIGHT = 360


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
