"""The files of an answer: reports/<id>/report.{html,md,json} and junit.xml, beside the reports of its runs.

The page is one HTML file that opens offline: everything passes through Jinja's autoescape, and its content security
policy forbids requests. plotly and Jinja come with this file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import FAIL, INCONCLUSIVE, AnswerReport, Picture, PlotCurve
from tailgauge.experiments.markdown import how, markdown, notes, runs_table, terminal
from tailgauge.thresholds import INVALID
from tailgauge_analysis.report.figures import BLUE, GREEN, GREY, ORANGE, Figure, _few, _figure
from tailgauge_analysis.report.junit import clean
from tailgauge_analysis.report.page import TEMPLATES, in_script, scripts
from tailgauge_analysis.report.report import whole

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


def write(report: AnswerReport, pictures: Sequence[Picture], out: Path) -> Written:
    """Write the files below `out`. Raises UsageError if that is not possible."""
    data = asdict(report)
    folder = out / "reports" / report.run_id
    page, text, values = (folder / f"report.{kind}" for kind in ("html", "md", "json"))
    cases = folder / "junit.xml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        whole(page, html(report, [figure(picture) for picture in pictures]))
        whole(text, markdown(report))
        whole(values, json.dumps(data, indent=1, allow_nan=False) + "\n")
        whole(cases, junit(report))
    except OSError as error:
        raise UsageError(
            f"{folder}: the answer cannot be written: {error.strerror or error}. Choose another folder with --out"
        ) from error
    return Written(terminal(report, page), page, text, values, cases, data)


def html(report: AnswerReport, figures: Sequence[Figure]) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    return environment.get_template("answer.html.jinja").render(
        report=report,
        notes=notes(report),
        how=how(report),
        runs_table=runs_table(report),
        figures=[(figure, in_script(figure.plot)) for figure in figures],
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        **scripts(figures),
    )


def junit(report: AnswerReport) -> str:
    """junit.xml for a build server, as that of a run: an inconclusive case is skipped, and an answer that rests on
    INVALID runs alone is an error.
    """
    outcomes = [case.outcome for case in report.cases]
    invalid = bool(report.runs) and all(run.verdict == INVALID for run in report.runs)
    name = clean(f"tailgauge: {report.scenario}")
    suite = Element("testsuite", {
        "name": name, "tests": str(1 + len(outcomes)), "failures": str(outcomes.count(FAIL)), "errors": str(int(invalid)),
        "skipped": str(outcomes.count(INCONCLUSIVE)), "timestamp": clean(report.started_at),
    })  # fmt: skip
    answer = SubElement(suite, "testcase", {"classname": name, "name": "answer"})
    if invalid:
        SubElement(answer, "error", {"type": INVALID, "message": "Every run is INVALID."})
    SubElement(answer, "system-out").text = clean(report.sentence)
    for case in report.cases:
        one = SubElement(suite, "testcase", {"classname": name, "name": clean(case.name)})
        if case.outcome == FAIL:
            SubElement(one, "failure", {"type": FAIL, "message": clean(case.reason)})
        elif case.outcome == INCONCLUSIVE:
            SubElement(one, "skipped", {"message": clean(case.reason)})
        else:
            SubElement(one, "system-out").text = clean(case.reason)
    indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suite, encoding="unicode")}\n'


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
    return _figure(picture.name, picture.title, picture.caption, HEIGHT, plot)


def _trace(curve: PlotCurve, colour: str) -> go.Scatter:
    error = None
    if curve.low and curve.high:
        y = np.array(curve.y)
        error = {
            "type": "data",
            "symmetric": False,
            "array": _few(np.array(curve.high) - y),
            "arrayminus": _few(y - np.array(curve.low)),
        }
    return go.Scatter(
        x=_few(np.array(curve.x)), y=_few(np.array(curve.y)), name=curve.name, error_y=error,
        mode="lines+markers" if curve.joined else "markers", line={"color": colour}, marker={"color": colour},
    )  # fmt: skip
