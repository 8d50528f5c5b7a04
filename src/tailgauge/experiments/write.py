"""The files of an answer: reports/<id>/report.{html,md,json} and junit.xml, beside those of its runs.

Rule: `write` puts the pieces in order and computes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.contents import About, Told, contents
from tailgauge.experiments.figures import figure
from tailgauge.experiments.junit import junit
from tailgauge.experiments.markdown import markdown, terminal
from tailgauge.experiments.page import html
from tailgauge_analysis.report.report import whole
from tailgauge_analysis.text.json_values import Json


@dataclass(frozen=True, slots=True)
class Written:
    """What was written; `data` is what report.json holds."""

    summary: str
    html: Path
    markdown: Path
    json: Path
    junit: Path
    data: Json


def write(answer: Answer, about: About, runs: Sequence[Told], out: Path) -> Written:
    """Write the files below `out`. Raises UsageError where that is not possible."""
    data = contents(answer, about, runs)
    folder = out / "reports" / about.run_id
    page, text, values = (folder / f"report.{kind}" for kind in ("html", "md", "json"))
    cases = folder / "junit.xml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        whole(page, html(data, [figure(picture) for picture in answer.pictures]))
        whole(text, markdown(data))
        whole(values, json.dumps(data, indent=1, allow_nan=False) + "\n")
        whole(cases, junit(data))
    except OSError as error:
        raise UsageError(
            f"{folder}: the answer cannot be written: {error.strerror or error}. Choose another folder with --out"
        ) from error
    return Written(terminal(data, page), page, text, values, cases, data)
