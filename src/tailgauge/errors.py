"""Errors that are shown to the user as one line, and the exit codes.

    TailgaugeError              shown as one line, never as a traceback
    ├── UsageError              wrong arguments, missing file, unwritable folder        exit 2
    │   └── ScenarioError       a scenario that cannot be: file, key, what was expected exit 2
    ├── TargetError             the target could not be used (preflight, missing key)   exit 4
    └── RunDataError            a run folder that cannot be analysed                    exit 2

A failed request is none of these: it is a row with an outcome. Only the cli package prints and exits.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    SLO_FAILED = 1
    USAGE = 2
    INVALID = 3  # verdict INVALID, rows lost, or an SLO inconclusive
    TARGET = 4
    INTERRUPTED = 130

    @classmethod
    def worst(cls, codes: Iterable[Exit]) -> Exit:
        """The exit code of several runs; INTERRUPTED without any."""
        order = (cls.USAGE, cls.INTERRUPTED, cls.TARGET, cls.INVALID, cls.SLO_FAILED, cls.OK)
        return min(codes, key=order.index, default=cls.INTERRUPTED)


class TailgaugeError(Exception):
    """A user's mistake or an unusable environment, in one sentence."""

    exit_code = Exit.USAGE


class UsageError(TailgaugeError):
    """Wrong arguments, a missing file, a folder that cannot be written."""


class ScenarioError(UsageError):
    """A scenario that cannot be run: file, key, expectation, nearest valid name."""


class TargetError(TailgaugeError):
    """The target could not be used: unreachable, wrong protocol, key missing or refused, certificate not trusted."""

    exit_code = Exit.TARGET


class RunDataError(TailgaugeError):
    """A run folder that is missing, empty, or of a newer schema than this version reads."""
