"""The report is made by a child process: unpatched, and pandas never enters a process that keeps time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailgauge.errors import Exit
from tailgauge.redaction import environment
from tailgauge.rows.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class ReportOutput:
    """What the child said: summary for the terminal, exit code, and the rest as JSON."""

    summary: str
    exit_code: Exit
    data: dict[str, Any]


def analyse(folder: RunFolder, out: Path) -> ReportOutput:
    """Make the report of a run folder; its failure is told, the rows stay."""
    command = [sys.executable, "-m", "tailgauge", "report", str(folder.path), "--out", str(out), "--json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment(with_keys=False),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    try:
        data = json.loads(done.stdout)
    except ValueError:
        words = " | ".join(done.stderr.strip().splitlines()[-3:])
        text = f"the report could not be made: {words}\nthe rows are in {folder.path}; try: tailgauge report {folder.path}"
        return ReportOutput(text, Exit.INVALID, {})
    return ReportOutput(data.pop("summary"), Exit(data["exit_code"]), data)
