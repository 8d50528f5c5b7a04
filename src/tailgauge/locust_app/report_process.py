"""Makes the report of a run in a child process: pandas and gevent's patches do not share one.

The report itself is the analysis'; looks at a run in progress are in master/looks.py.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
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


def _describe_end(code: int) -> str:
    """Return how a process ended that left no message."""
    if code == -signal.SIGKILL:
        return "its process was killed (SIGKILL); was memory short?"
    if code < 0:
        return f"its process was stopped by {signal.Signals(-code).name}"
    if code == Exit.INTERRUPTED:
        return "it was interrupted"
    return f"its process ended with code {code}"


class ReportProcess:
    """Makes the report of a run folder. It begins to load pandas at once, and to read the folder with `output`."""

    def __init__(
        self, folder: RunFolder, out: Path, terminal: Mapping[str, str] | None = None
    ) -> None:
        """`terminal`: the environment variables that describe the terminal."""
        self._folder = folder
        self._out = out
        self._terminal = terminal
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError):  # no process can be started now; `output` tries again
            self._start()

    def _start(self) -> subprocess.Popen[str]:
        """Return the process; it is started if it does not run yet."""
        if self._process is None:
            options = ("--out", str(self._out), "--json", "--wait")
            self._process = reader(self._folder, *options, terminal=self._terminal)
        return self._process

    def output(self) -> ReportOutput:
        """Return the report of the complete folder; if it fails, the summary and the exit code say why."""
        try:
            process = self._start()
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
            return self._failure(process.returncode, error_text)
        return ReportOutput(data.pop("summary"), Exit(data["exit_code"]), data)

    def _failure(self, code: int, error_text: str) -> ReportOutput:
        """Return the output of a process that has made no report."""
        error = " | ".join(error_text.strip().splitlines()[-3:])
        text = self._without_report(error or _describe_end(code))
        exit_code = Exit.INTERNAL
        if code in {-signal.SIGTERM, -signal.SIGINT}:
            exit_code = Exit.INTERRUPTED
        elif code in set(Exit) - {Exit.OK}:
            exit_code = Exit(code)
        return ReportOutput(text, exit_code, {})

    def _without_report(self, reason: str) -> str:
        """Say why there is no report, and how to make it."""
        text = f"the report could not be made: {reason}"
        return f"{text}\nthe rows are in {self._folder.path}; run: {self._command()}"

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _command(self) -> str:
        """Return the command that makes the same report."""
        return shlex.join(["tailgauge", "report", str(self._folder.path), *plugin.options()])

    def interrupt(self) -> None:
        """End the process as Ctrl-C does: no report is made."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)


def output_of(run: Run, process: ReportProcess) -> ReportOutput:
    """Return the report of a run that has ended.

    If it cannot be made, run.json says why, and the exit code is INVALID if rows are lost, else INTERNAL.
    """
    report = process.output()
    if report.data or report.exit_code == Exit.INTERRUPTED:
        return report
    run.note_at_end(report.summary.splitlines()[0])
    exit_code = Exit.INVALID if run.has_lost_rows else Exit.INTERNAL
    return replace(report, exit_code=exit_code)
