"""The terminal in front of the user: how wide it is, and whether it shows colours.

NO_COLOR and FORCE_COLOR (no-color.org, force-color.org) and COLUMNS decide if they are set; a child whose output its parent
prints gets them by `as_environment`.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

import click

from tailgauge.sanitize import for_terminal


def columns() -> int:
    """Its width; 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def has_colours(stream: TextIO | None = None) -> bool:
    """Return whether a stream, else standard output, shows colours."""
    if os.environ.get("NO_COLOR"):
        return False
    is_terminal = (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal


def as_environment(stream: TextIO | None = None) -> dict[str, str]:
    """For a child whose output goes to this terminal through a pipe, and out of this stream."""
    return {"COLUMNS": str(columns()), "FORCE_COLOR" if has_colours(stream) else "NO_COLOR": "1"}


def show(
    text: str = "", *, err: bool = False, nl: bool = True, colours: bool | None = None
) -> None:
    """Print, whatever files and targets have put into the text: the one way from a command to the terminal."""
    click.echo(for_terminal(text), err=err, nl=nl, color=colours)
