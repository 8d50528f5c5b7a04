"""The report is made by a child process without gevent's patches; pandas is never loaded into a process of a run."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailgauge.errors import Exit, failure
from tailgauge.master.looks import reader
from tailgauge.plugins import plugin
from tailgauge.rows.run_folder import RunFolder

if TYPE_CHECKING:  # it imports Locust, which patches the process
    from tailgauge.master.run import Run


@dataclass(frozen=True, slots=True)
class ReportOutput:
    """Output of the report process: summary for the terminal, exit code, the rest as JSON."""

    summary: str
    exit_code: Exit
    data: dict[str, Any]


def _ending(code: int) -> str:
    """How a process ended that left no message."""
    if code == -signal.SIGKILL:
        return "its process was killed (SIGKILL); was memory short?"
    if code < 0:
        return f"its process was stopped by {signal.Signals(-code).name}"
    return (
        "it was interrupted" if code == Exit.INTERRUPTED else f"its process ended with code {code}"
    )


class ReportProcess:
    """Makes the report of a run folder. It begins to load pandas at once, and to read the folder with `output`."""

    def __init__(
        self, folder: RunFolder, out: Path, shown: Mapping[str, str] | None = None
    ) -> None:
        """`shown`: what it shall know of the terminal."""
        self._folder = folder
        self._start = partial(reader, folder, "--out", str(out), "--json", "--wait", shown=shown)
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError):  # no process can be started now; `output` tries again
            self._process = self._start()

    def output(self) -> ReportOutput:
        """The report of the complete folder; if it fails, the summary and the exit code say why."""
        try:
            process = self._process = self._process or self._start()
            output, error_text = process.communicate("complete\n")
        except OSError as error:
            self._kill()
            return ReportOutput(self._without_report(str(failure(error))), Exit.INTERNAL, {})
        except BaseException:
            self._kill()
            raise
        try:
            data = json.loads(output)
        except ValueError:
            code = process.returncode
            text = self._without_report(
                " | ".join(error_text.strip().splitlines()[-3:]) or _ending(code)
            )
            if code in {-signal.SIGTERM, -signal.SIGINT}:
                return ReportOutput(text, Exit.INTERRUPTED, {})
            failed = code in set(Exit) - {Exit.OK}
            return ReportOutput(text, Exit(code) if failed else Exit.INTERNAL, {})
        return ReportOutput(data.pop("summary"), Exit(data["exit_code"]), data)

    def _without_report(self, reason: str) -> str:
        """Say why there is no report, and how to make it."""
        text = f"the report could not be made: {reason}"
        return f"{text}\nthe rows are in {self._folder.path}; run: {self._command()}"

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _command(self) -> str:
        """The command that makes the same report."""
        return shlex.join(["tailgauge", "report", str(self._folder.path), *plugin.options()])

    def interrupt(self) -> None:
        """As Ctrl-C does: no report is made."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)


def output_of(run: Run, process: ReportProcess) -> ReportOutput:
    """The report of a run that has ended. Where it cannot be made, run.json says why: INVALID if rows are lost, else INTERNAL."""
    report = process.output()
    if report.data or report.exit_code == Exit.INTERRUPTED:
        return report
    run.note_at_end(report.summary.splitlines()[0])
    return replace(report, exit_code=Exit.INVALID if run.has_lost_rows else Exit.INTERNAL)
