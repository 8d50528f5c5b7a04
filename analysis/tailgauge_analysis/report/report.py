"""From run folders to the files a person reads: makes a report (build.py), renders it and writes its files.

`make` is the one entry for a run; `write_report` also takes the answer of an experiment. Bad data is shown in the report;
RunDataError is raised without a run, UsageError if the report cannot be written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tailgauge.errors import Exit, UsageError
from tailgauge.rows.run_folder import replace_text
from tailgauge_analysis.reading import run_record
from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.junit import junit
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.page import html
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.latency import ALL
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import Report, TextFiles


@dataclass(frozen=True, slots=True)
class FinishedReport:
    """A report, its text for the terminal, and its files."""

    report: Report
    summary: str
    html: Path
    markdown: Path
    json: Path
    junit: Path

    @property
    def paths(self) -> dict[str, str]:
        """The paths of its files by their formats."""
        return {kind: str(getattr(self, kind)) for kind in ("html", "markdown", "json", "junit")}

    @property
    def data(self) -> Json:
        """What report.json holds."""
        return self.report.data

    @property
    def verdict(self) -> str:
        """Of the measurement."""
        return self.report.measurement.verdict

    @property
    def exit_code(self) -> Exit:
        """Of the run."""
        return self.report.exit_code

    def facts(self) -> Json:
        """Return what --json prints: result, measurement, percentiles with their intervals, counts."""
        data = self.data
        run = data["run"]
        latency = []
        for row in data["latency"]:
            if row["group"] == ALL:
                latency.append(_in_short(row))
        return {
            "run_id": run["run_id"],
            "dry_run": run["dry_run"],
            "state": run["state"],
            "exit_code": data["exit_code"],
            "result": data["result"],
            "findings": data["findings"],
            "conservation": data["conservation"],
            "verdict": self.verdict,
            "measurement": plain_values(self.report.measurement),
            "latency": latency,
        }


def _in_short(row: Json) -> Json:
    """Return a row of latencies without how each percentile was found; report.json has that."""
    short = {}
    for name, percentile in row["percentiles"].items():
        short[name] = {key: percentile[key] for key in ("value", "low", "high", "mark")}
    return {**row, "percentiles": short}


def make(
    run_dirs: Sequence[Path],
    out: Path,
    width: int = 80,
    *,
    colours: bool = False,
    tool: str | None = None,
) -> FinishedReport:
    """Analyse one run, write its report, and note its verdict in its folders.

    `width`: of the summary. `tool`: an entry of definitions.TOOLS whose figures are added.
    """
    run = Run(run_dirs)
    rows = _shown_folder(Path(run_dirs[0]), Path(out))
    finished = write_report(build(run, tool), out, width, colours=colours, rows=rows)
    reasons = finished.data["verdict"]["reasons"]
    verdict = {
        "verdict": run.verdict,
        "reasons": reasons,
        "outcome": finished.report.result.outcome,
        "exit_code": int(finished.exit_code),
    }
    unwritten = []
    for run_dir in run_dirs:
        try:
            run_record.record_verdict(Path(run_dir), verdict)
        except OSError as error:
            unwritten.append(
                f"the verdict could not be written into {run_dir}: {error.strerror or error}"
            )
    return replace(finished, summary="\n".join([finished.summary, *unwritten]))


def _shown_folder(run_dir: Path, out: Path) -> Path:
    """Return the run folder as the user knows it: below `out`, where it is there."""
    below_out = out / "runs" / run_dir.name
    return below_out if below_out.is_dir() and below_out.samefile(run_dir) else run_dir


def write_report(
    report: Report,
    out: Path,
    width: int,
    *,
    colours: bool,
    text_files: TextFiles = (),
    rows: Path | None = None,
) -> FinishedReport:
    """Write `out`/reports/<run_id>/report.{html,md,json} and junit.xml, each wholly or not at all; also `text_files`.

    `rows`: the run folder, for the summary.
    """
    folder = Path(out) / "reports" / report.run_id
    tree = json.dumps(report.data, indent=1, allow_nan=False) + "\n"
    texts = {"report.html": html(report), "report.md": markdown(report), "report.json": tree}
    texts |= {"junit.xml": junit(report), **dict(text_files)}
    try:
        for name, text in texts.items():
            replace_text(folder / name, text)
    except OSError as error:
        problem = f"the report cannot be written: {error.strerror or error}"
        raise UsageError(f"{folder}: {problem}. Choose another folder with --out") from error
    files = [folder / name for name in texts][:4]
    summary = terminal(report, files[0], width, colours=colours, rows=rows)
    return FinishedReport(report, summary, *files)
