"""The report is made by a child process without gevent's patches; pandas is never loaded into a process of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailgauge.errors import Exit
from tailgauge.redaction import environment
from tailgauge.rows.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class ReportOutput:
    """Output of the report process: summary for the terminal, exit code, the rest as JSON."""

    summary: str
    exit_code: Exit
    data: dict[str, Any]


def make_report(folder: RunFolder, out: Path, shown: Mapping[str, str] | None = None) -> ReportOutput:
    """Make the report of a run folder; if that fails, the summary and the exit code say why. `shown`: of the terminal."""
    command = [sys.executable, "-m", "tailgauge", "report", str(folder.path), "--out", str(out), "--json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**environment(with_keys=False), **(shown or {"NO_COLOR": "1"})},
        check=False,
        stdin=subprocess.DEVNULL,
    )
    try:
        data = json.loads(done.stdout)
    except ValueError:
        errors = " | ".join(done.stderr.strip().splitlines()[-3:])
        text = f"the report could not be made: {errors}\nthe rows are in {folder.path}; run: tailgauge report {folder.path}"
        failed = done.returncode in set(Exit) - {Exit.OK}
        return ReportOutput(text, Exit(done.returncode) if failed else Exit.INTERNAL, {})
    return ReportOutput(data.pop("summary"), Exit(data["exit_code"]), data)
