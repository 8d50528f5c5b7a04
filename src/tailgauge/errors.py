"""Errors that are shown to the user as one line, and the exit codes.

    TailgaugeError              shown as one line, never as a traceback
    ├── UsageError              wrong arguments, missing file, unwritable folder        exit 2
    │   └── ScenarioError       a scenario that cannot be: file, key, what was expected exit 2
    ├── TargetError             the target could not be used (preflight, missing key)   exit 4
    ├── RunDataError            a run folder that cannot be analysed                    exit 2
    ├── NotComparableError      a run that does not belong to a baseline                exit 3
    ├── LostError              no worker is left                                        exit 3
    ├── InterruptedRunError    Ctrl-C before the start                                  exit 130
    ├── MachineError           this machine lacks or refuses something                  exit 2
    └── InternalError           a fault of Tailgauge; its traceback is in a file        exit 70

A failed request is none of these: it is a row with an outcome. Exit codes of results: `analysis/tailgauge_analysis/text/section.py`
(`EXITS`), by what `sections/result.py`, `comparing/` and `experiments/answer.py` decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from tailgauge.machine import shortage
from tailgauge.redaction import known, printable


class Exit(IntEnum):
    """Exit codes of every command. If several apply, the first in this order."""

    INTERNAL = 70
    USAGE = 2
    INTERRUPTED = 130
    TARGET = 4  # could not be used, or answered nothing
    INVALID = 3  # the measurement, or rows lost
    FAILED = 1
    INCONCLUSIVE = 5
    OK = 0

    @classmethod
    def worst(cls, codes: Iterable[Exit]) -> Exit:
        """Return the exit code of several runs; INTERRUPTED without any."""
        return min(codes, key=list(cls).index, default=cls.INTERRUPTED)


class TailgaugeError(Exception):
    """A user's mistake or an unusable environment, in one sentence, without secrets and control characters."""

    exit_code = Exit.USAGE

    def __str__(self) -> str:
        return printable(super().__str__())


class UsageError(TailgaugeError):
    """Wrong arguments, a missing file, a folder that cannot be written."""


class ScenarioError(UsageError):
    """A scenario that cannot be run: file, key, expectation, nearest valid name."""


class TargetError(TailgaugeError):
    """The target could not be used: unreachable, wrong protocol, key missing or refused, certificate not trusted."""

    exit_code = Exit.TARGET


class RunDataError(TailgaugeError):
    """A run folder that is missing, empty, or of a newer schema than this version reads."""


class NotComparableError(TailgaugeError):
    """A run that is INVALID, or unlike the runs of a baseline."""

    exit_code = Exit.INVALID


class LostError(TailgaugeError):
    """No worker of a run is left; what they recorded stays."""

    exit_code = Exit.INVALID


class InterruptedRunError(TailgaugeError):
    """The user ended a run before its start."""

    exit_code = Exit.INTERRUPTED


class MachineError(TailgaugeError):
    """This machine lacks or refuses something: descriptors, space, memory, threads, permission."""


class InternalError(TailgaugeError):
    """A fault of Tailgauge, in one line; its traceback is in a file, without secrets."""

    exit_code = Exit.INTERNAL

    @classmethod
    def of(cls, error: BaseException) -> InternalError:
        """Write the traceback of an unexpected error."""
        import os
        import tempfile
        import traceback

        lines = "".join(traceback.format_exception(error))
        try:
            handle, path = tempfile.mkstemp(prefix="tailgauge-error-", suffix=".txt")
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(known()(lines))
        except OSError as unwritten:  # the fault is reported all the same
            path = f"none: {unwritten.strerror}"
        text = known()(f"{type(error).__name__}: {error}").splitlines()[0][:200]
        return cls(f"internal error: {text} (traceback: {path})")


def failure(error: BaseException) -> TailgaugeError:
    """Return an error in one line: as it is, of the machine, or a fault of ours."""
    if isinstance(error, TailgaugeError):
        return error
    text = shortage(error)
    if text:
        return MachineError(text)
    return InternalError.of(error)
