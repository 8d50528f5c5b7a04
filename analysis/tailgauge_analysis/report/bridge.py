"""The sections that do not return a `Section` yet: their old templates and Markdown. Goes away with the last of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tailgauge_analysis.compare import alternating
from tailgauge_analysis.report.figures import Figure, library
from tailgauge_analysis.report.page import _hash, _in_script
from tailgauge_analysis.text import formatting
from tailgauge_analysis.text.formatting import markdown_safe
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import between, bound, mark_text
from tailgauge_analysis.text.tables import markdown_table

TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    """The templates, compiled once, with what they may call."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ms=formatting.ms,
        count=formatting.count,
        share=formatting.share,
        clock=formatting.clock,
        plain=formatting.plain,
    )
    environment.globals.update(
        between=between, bound=bound, mark_text=mark_text, plural=formatting.plural,
        crossover_sentence=alternating.sentence, crossover_rows=alternating.rows,
    )  # fmt: skip
    return environment


def old_html(contents: Json, figures: Sequence[Figure]) -> Markup:
    """The old sections of a page."""
    drawn = [(figure, _in_script(figure.plot)) for figure in figures]
    page = _environment().get_template("bridge.html.jinja").render(**{**contents, "figures": drawn})
    return Markup(page)  # noqa: S704 - escaped by the template


def render(template: str, figures: Sequence[Figure], **values: Any) -> str:
    """A page: two scripts if it has figures, and the policy that allows only these."""
    sources = (library(), (TEMPLATES / "report.js").read_text(encoding="utf-8")) if figures else ("", "")
    return _environment().get_template(template).render(
        figures=[(figure, _in_script(figure.plot)) for figure in figures],
        style=Markup((TEMPLATES / "bridge.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        plotly_js=Markup(sources[0]),  # noqa: S704 - the library's own file
        script=Markup(sources[1]),  # noqa: S704 - our own file
        script_hashes=Markup(" ".join(map(_hash, sources)) if figures else "'none'"),  # noqa: S704 - base64
        **values,
    )  # fmt: skip


def old_markdown(contents: Json) -> list[str]:
    """The old sections of report.md."""
    return [
        *_crossover(contents["crossover"]),
    ]


def _crossover(found: Json | None) -> list[str]:
    if found is None:
        return []
    table = markdown_table(("offered requests, ms", *alternating.HEADER), alternating.rows(found))
    return ["## A/B comparison in alternating blocks", markdown_safe(alternating.sentence(found)), table]
