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
Exit codes of a run:
  0    success; DEGRADED runs also exit 0
  1    an objective or the target's health failed
  2    wrong usage or scenario
  3    INVALID, rows lost, or an objective inconclusive
  4    the target could not be used
  130  interrupted; recorded rows are kept and reported
If several apply, the first of 2, 130, 4, 3, 1. Within one run, a failed objective precedes
an inconclusive one.

\b
Experiments (checkup, headroom, hedging, models) use three codes differently:
  0    answered; no problem found
  1    checkup: a problem was found; headroom: not the needed growth;
       models: no model meets every objective
  3    no answer: too few data, or INVALID runs"""

COMPARE = """\b
Exit codes:
  0  B is not worse
  1  B is worse by more than the threshold
  2  wrong usage, or a folder without a run
  3  inconclusive, or not comparable"""

CALIBRATE = """\b
Exit codes:
  0    the certificate states a rate
  2    wrong usage, or a run failed
  3    no rate passed, or the one of --planned did not
  130  interrupted; no certificate was stored"""

ENDPOINT = """\b
Exit codes:
  0  stopped by Ctrl-C or SIGTERM
  2  wrong usage, or the address cannot be used"""

WORKER = """\b
Exit codes:
  0    the master ended the run
  2    wrong usage
  3    lost connection to the master; recorded rows are kept
  4    no master answered, or it refused this worker
  130  interrupted"""

CHECKUP = """\b
Exit codes:
  0    every probe ran, no problem found
  1    a problem was found
  2    wrong usage or scenario
  3    no problem found, but a probe has no valid run
  4    the target could not be used
  130  interrupted; the answer uses the completed runs
A problem (1) precedes a probe without a valid run (3)."""


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
