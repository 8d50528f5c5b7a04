"""The report: from run folders to the files a person reads.

`make` is the one entry. Bad data is shown in the report; RunDataError is raised without a run, UsageError if the report
cannot be written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailgauge.errors import Exit, UsageError
from tailgauge_analysis.load import run_files
from tailgauge_analysis.load.frames import load
from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.contents import ALL, contents
from tailgauge_analysis.report.figures import Figure, figures
from tailgauge_analysis.report.junit import junit
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.page import html
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.sections.findings import Findings, find
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.section import Report


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
    report: Report

    def facts(self) -> dict[str, Any]:
        """What --json prints: result, measurement, percentiles with their intervals, counts."""
        return {
            "run_id": self.run_id, "dry_run": self.report.dry_run, "state": self.data["run"]["state"],
            "exit_code": int(self.exit_code), "verdict": self.verdict,
            "result": asdict(self.report.result), "measurement": asdict(self.report.measurement),
            "latency": [row for row in self.published["latency"] if row["group"] == ALL],
            "conservation": self.data["conservation"], "certificate": self.data["certificate"],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rendered:
    """A report and the texts of its files."""

    report: Report
    data: Json
    html: str
    markdown: str
    junit: str


def make(run_dirs: Sequence[Path], out: Path, width: int = 80, *, colours: bool = False) -> FinishedReport:
    """Analyse one run and write `out`/reports/<run_id>/report.{html,md,json} and junit.xml; `width`: of the summary."""
    findings = find(load(run_dirs))
    rendered = render(findings, figures(findings))
    data, tree = rendered.data, rendered.report.data
    folder = Path(out) / "reports" / rendered.report.run_id
    files = save(folder, rendered.html, rendered.markdown, tree, rendered.junit)
    text_summary = terminal(rendered.report, files[0], width, colours=colours)
    verdict = {key: data[key] for key in ("verdict", "reasons", "exit_code")}
    for run_dir in run_dirs:
        try:
            run_files.record_verdict(Path(run_dir), verdict)
        except OSError as error:
            text_summary += f"\nthe verdict could not be written into {run_dir}: {error.strerror or error}"
    return FinishedReport(
        data["run_id"],
        findings.verdict,
        rendered.report.exit_code,
        text_summary,
        *files,
        data,
        tree,
        rendered.report,
    )


def render(findings: Findings, drawn: Sequence[Figure] = ()) -> Rendered:
    """The texts of the files."""
    data = contents(findings)
    report = build(findings, data)
    return Rendered(report, data, html(report, drawn), markdown(report), junit(report))


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
