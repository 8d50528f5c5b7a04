"""Child processes of the master: new interpreters, or copies of the master, in separate sessions that end with the master.

Ctrl-C reaches the master only; a child ends with its standard input (the lifeline).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import gevent

from tailgauge import interpreter
from tailgauge.errors import TailgaugeError
from tailgauge.machine import shortage
from tailgauge.redaction import environment, printable
from tailgauge.sanitize import plain


class Child:
    """One child process; its standard error goes to `log`."""

    def __init__(self, arguments: Sequence[str], log: Path, *, with_keys: bool) -> None:
        self.log = log
        pipe = subprocess.PIPE
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                interpreter.tailgauge(*arguments),
                stdin=pipe,
                stdout=pipe,
                stderr=errors,
                start_new_session=True,
                env=environment(with_keys=with_keys),
            )

    def first_line(self, timeout_s: float) -> str:
        """Return the first line of its output; TailgaugeError with the end of its log if it prints nothing."""
        with gevent.Timeout(timeout_s, False):
            assert self.process.stdout is not None
            line = self.process.stdout.readline().decode("utf-8", "replace").strip()
            if line:
                return line
        raise TailgaugeError(f"a child process did not start: {self.log_tail()}")

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        text = ""
        if self.log.exists():
            text = self.log.read_text(encoding="utf-8", errors="replace")
        tail = plain(" | ".join(text.strip().splitlines()[-3:]))
        return tail or f"no output (exit code {self.process.poll()})"

    def running(self) -> bool:
        """Return whether the process runs."""
        return self.process.poll() is None

    def stop(self, patience_s: float) -> None:
        """Close the lifeline, wait, terminate, kill."""
        for act in (self.cut, self.process.terminate, self.process.kill):
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

    def write(self, text: str) -> None:
        """Write to its standard input, at most what a pipe takes at once."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: see `running`
            self.process.stdin.write(text.encode())

    def cut(self) -> None:
        """Close the lifeline."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


class Copy(Child):
    """A copy of this process, with all that it has imported: it ends with the exit code of `work`, called in it.

    Only a process without other threads and without running greenlets may be copied: in the copy those never run again,
    and keep their locks.
    """

    def __init__(
        self, name: str, work: Callable[[], int], log: Path, siblings: Sequence[Child]
    ) -> None:
        """Fork this process; in the copy call `work`, and exit with the code that it returns.

        `name` is what `ps` and `top` show on Linux; `log` gets the copy's standard error; its output goes nowhere.
        `siblings` were copied before. No other thread may run, see the class.
        """
        self.log = log
        child_end, lifeline = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(child_end)
            os.close(lifeline)
            raise
        if pid == 0:
            code = 1
            try:
                # Else the copy would keep the lifelines of its siblings open.
                for copy in siblings:
                    copy.cut()
                os.close(lifeline)
                _detach(name, child_end, log)
                code = work()
            except BaseException as error:  # noqa: BLE001 - the log is all that is left of it
                sys.stderr.write(printable(shortage(error) or traceback.format_exc()))
            finally:
                # The interpreter's end would take apart all that was imported: 0.13 s of CPU.
                os._exit(code)
        os.close(child_end)
        # As much of a Popen as `Child` uses.
        self.process = cast("Any", _Forked(pid, os.fdopen(lifeline, "wb", buffering=0)))


class _Forked:
    """What `Child` uses of a Popen, for a process that was forked."""

    stdout = None

    def __init__(self, pid: int, stdin: Any) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is not None:
            return self.returncode
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # gevent forgets how it ended after a minute
            pid = self.pid
            status = 0
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
            gevent.sleep(0.01)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _detach(name: str, lifeline: int, log: Path) -> None:
    """Give a copy a session, a name, and its own standard streams."""
    os.setsid()
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/comm").write_text(name)
    errors = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream, number in ((lifeline, 0), (nowhere, 1), (errors, 2)):
        os.dup2(stream, number)
        if stream > 2:  # else the master was started with its input closed
            os.close(stream)
