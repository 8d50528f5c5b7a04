"""What the commands share: options, their number type, and the exit codes that their help lists.

Click prints a paragraph that begins with \\b line by line. errors.py defines the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from tailgauge.errors import Exit

_Command = TypeVar("_Command", bound=Callable[..., Any])

_MEANS = {
    Exit.INTERNAL: "internal error; its traceback is in a file",
    Exit.USAGE: "wrong usage or scenario",
    Exit.INTERRUPTED: "interrupted; recorded rows are kept and reported",
    Exit.TARGET: "the target could not be used, or answered nothing",
    Exit.INVALID: "INVALID measurement, or rows lost",
    Exit.FAILED: "an objective failed, or the target does not sustain the rate",
    Exit.INCONCLUSIVE: "inconclusive: too few data",
    Exit.OK: "success; DEGRADED runs also exit 0",
}


def exit_codes(texts: Mapping[Exit, str], *without: Exit) -> str:
    """The paragraph of a help; `texts` replace those of a run."""
    rows = [f"  {code:<3}  {text}" for code, text in {**_MEANS, **texts}.items() if code not in without]
    return "\n".join(["\b", "Exit codes; if several apply, the first:", *rows])


RUN = f"""{exit_codes({})}

\b
Experiments use two codes differently:
  1    checkup: a problem was found; headroom: not the needed growth;
       models: no model meets every objective
  3    every run was INVALID"""
COMPARE = exit_codes(
    {
        Exit.USAGE: "wrong usage, or a folder without a run",
        Exit.INTERRUPTED: "interrupted",
        Exit.INVALID: "not comparable, or an INVALID run",
        Exit.FAILED: "B is worse by more than the threshold",
        Exit.OK: "B is not worse",
    },
    Exit.TARGET,
)
CALIBRATE = exit_codes(
    {
        Exit.USAGE: "wrong usage, or a run failed",
        Exit.INTERRUPTED: "interrupted; no certificate was stored",
        Exit.INVALID: "no rate passed",
        Exit.FAILED: "the rate of --planned did not pass",
        Exit.OK: "the certificate states a rate",
    },
    Exit.TARGET,
    Exit.INCONCLUSIVE,
)
ENDPOINT = exit_codes(
    {Exit.USAGE: "wrong usage, or the address cannot be used", Exit.OK: "stopped by Ctrl-C or SIGTERM"},
    *(Exit.INTERRUPTED, Exit.TARGET, Exit.INVALID, Exit.FAILED, Exit.INCONCLUSIVE),
)
WORKER = exit_codes(
    {
        Exit.INTERRUPTED: "interrupted",
        Exit.TARGET: "no master answered, or it refused this worker",
        Exit.INVALID: "lost connection to the master; recorded rows are kept",
        Exit.OK: "the master ended the run",
    },
    *(Exit.FAILED, Exit.INCONCLUSIVE),
)
CHECKUP = exit_codes(
    {
        Exit.INTERRUPTED: "interrupted; the answer uses the completed runs",
        Exit.TARGET: "the target could not be used",
        Exit.INVALID: "every run was INVALID",
        Exit.FAILED: "a problem was found",
        Exit.INCONCLUSIVE: "no problem found, but a probe has no valid run",
        Exit.OK: "every probe ran, no problem found",
    }
)


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
