"""The report: from run folders to the files a person reads.

`make` is the one entry. Bad data is shown in the report; RunDataError is raised without a run, UsageError if the report
cannot be written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailgauge.errors import Exit, UsageError
from tailgauge_analysis.load import run_files
from tailgauge_analysis.load.frames import load
from tailgauge_analysis.report.contents import contents, published
from tailgauge_analysis.report.figures import figures
from tailgauge_analysis.report.junit import junit
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.page import html
from tailgauge_analysis.report.terminal import summary
from tailgauge_analysis.sections.findings import find
from tailgauge_analysis.text.json_values import Json


@dataclass(frozen=True, slots=True)
class FinishedReport:
    """Its files; `data` is what the page was written from, `published` what report.json holds."""

    run_id: str
    verdict: str
    exit_code: Exit
    summary: str
    html: Path
    markdown: Path
    json: Path
    junit: Path
    data: dict[str, Any]
    published: dict[str, Any]


def make(run_dirs: Sequence[Path], out: Path) -> FinishedReport:
    """Analyse one run and write `out`/reports/<run_id>/report.{html,md,json} and junit.xml."""
    findings = find(load(run_dirs))
    data = contents(findings)
    folder = Path(out) / "reports" / data["run_id"]
    tree = published(data)
    files = save(folder, html(data, figures(findings)), markdown(data), tree, junit(data))
    text_summary = summary(data, files[0])
    verdict = {key: data[key] for key in ("verdict", "reasons", "exit_code")}
    for run_dir in run_dirs:
        try:
            run_files.record_verdict(Path(run_dir), verdict)
        except OSError as error:
            text_summary += f"\nthe verdict could not be written into {run_dir}: {error.strerror or error}"
    return FinishedReport(
        data["run_id"], findings.verdict, findings.exit_code, text_summary, *files, data, tree
    )


def save(folder: Path, page: str, text: str, data: Json, cases: str) -> tuple[Path, Path, Path, Path]:
    """Write report.{html,md,json} and junit.xml, each wholly or not at all."""
    values = json.dumps(data, indent=1, allow_nan=False) + "\n"
    files = (
        folder / "report.html", folder / "report.md", folder / "report.json", folder / "junit.xml",
    )  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(files, (page, text, values, cases), strict=True):
            fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            try:  # text of others may hold surrogates, which no file can
                fresh.write_text(content, encoding="utf-8", errors="replace")
                fresh.replace(path)
            finally:
                fresh.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder}: the report cannot be written: {error.strerror or error}. Choose another folder with --out"
        ) from error
    return files
