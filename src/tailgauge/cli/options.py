"""What the commands share: options, their number type, and the exit codes that their help lists.

Click prints a paragraph that begins with \\b line by line. errors.py defines the codes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

RUN = """\b
Exit codes, the first that holds (several runs: first of 2, 130, 4, 3, 1, 0):
  2    wrong usage or scenario
  130  interrupted; recorded rows are kept and reported
  4    the target could not be used
  3    the run is INVALID, or rows were lost
  1    an objective failed
  3    an objective is inconclusive
  0    success; DEGRADED runs also exit 0"""

COMPARE = """\b
Exit codes:
  2  wrong usage, or a folder without a run
  1  B is worse by more than the threshold
  3  inconclusive, or not comparable
  0  B is not worse"""

CALIBRATE = """\b
Exit codes:
  2    wrong usage, or a run failed
  3    no rate passed, or the planned one did not
  130  interrupted; no certificate was stored
  0    the certificate states a rate"""

WORKER = """\b
Exit codes:
  0    the master ended the run
  2    wrong usage
  3    lost connection to the master; recorded rows are kept
  4    no master answered, or it refused this worker
  130  interrupted"""

EXPERIMENT = """\b
Exit codes:
  2    wrong usage or scenario
  130  interrupted; the answer is of the runs that ended
  4    the target could not be used
  1    a problem was found, or no model meets the objectives
  3    no answer: too few data, or INVALID runs
  0    success"""


def out(folders: str) -> Callable[[_Command], _Command]:
    """The option --out."""
    text = f"Folder for {folders} (default: here)."
    return click.option("--out", type=click.Path(path_type=Path), default=Path(), metavar="DIR", help=text)


def as_json(what: str = "one JSON object") -> Callable[[_Command], _Command]:
    """The option --json."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what}.")


def overrides(
    text: str = "Override a value of the scenario (repeatable).", key: str = "TABLE.KEY=VALUE"
) -> Callable[[_Command], _Command]:
    """The repeatable option --set."""
    return click.option("--set", "sets", multiple=True, metavar=key, help=text)


class Positive(click.ParamType[float]):
    """A number above 0, at most a billion."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the value."""
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number < 1e9:
            self.fail(f"expected a number above 0, got {value!r}", param, ctx)
        return number
