"""Child processes of the master: new interpreters in separate sessions that end with the master.

Ctrl-C reaches the master only; a child ends with its standard input (the lifeline).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import gevent

from tailgauge.errors import TailgaugeError
from tailgauge.redaction import environment
from tailgauge.sanitize import plain


class Child:
    """One child process; its standard error goes to `log`. `more`: variables for its environment."""

    def __init__(
        self, arguments: Sequence[str], log: Path, *, with_keys: bool, more: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailgauge", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**environment(with_keys=with_keys), **(more or {})},
            )

    def first_line(self, timeout_s: float) -> str:
        """The first line of its output; raises with the end of its log if it ends or prints nothing."""
        with gevent.Timeout(timeout_s, False):
            assert self.process.stdout is not None
            line = self.process.stdout.readline().decode("utf-8", "replace").strip()
            if line:
                return line
        raise TailgaugeError(f"a child process did not start: {self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of its log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return (
            plain(" | ".join(text.strip().splitlines()[-3:]))
            or f"no output (exit code {self.process.poll()})"
        )

    def running(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def stop(self, patience_s: float) -> None:
        """Close the lifeline, wait, terminate, kill."""
        for act in (self._cut, self.process.terminate, self.process.kill):
            if not self.running():
                break
            act()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
                break
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _cut(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
