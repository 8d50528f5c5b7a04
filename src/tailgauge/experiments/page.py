"""The page of an answer: one HTML file that opens anywhere, offline, and asks nobody for anything.

Rule: as a run's page: everything passes through Jinja's autoescape, and the page forbids itself every request.
"""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tailgauge.experiments.markdown import how, notes, runs_table
from tailgauge_analysis.report.figures import Figure
from tailgauge_analysis.report.page import TEMPLATES, in_script, scripts
from tailgauge_analysis.text.json_values import Json


def html(contents: Json, figures: Sequence[Figure]) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    return environment.get_template("answer.html.jinja").render(
        **contents,
        notes=notes(contents),
        how=how(contents),
        runs_table=runs_table(contents),
        figures=[(figure, in_script(figure.plot)) for figure in figures],
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        **scripts(figures),
    )
