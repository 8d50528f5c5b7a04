"""`tailgauge scenario`: the packaged scenarios, listed, printed and copied. Finding one is scenario/packaged.py."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tailgauge.cli.options import Commands, ScenarioName
from tailgauge.live import screen


@click.group(cls=Commands)
def scenario() -> None:
    """List, show and copy packaged scenarios."""


@scenario.command("list")
def list_scenarios() -> None:
    """List the packaged scenarios by purpose, with their length."""
    from tailgauge.scenario.packaged import GROUPS, find, minutes, read

    for number, (group, names) in enumerate(GROUPS.items()):
        if number:
            screen.show()
        screen.show(group)
        for name in names:
            screen.show(
                f"  {name:<18}{round(minutes(name), 1):>5g} min  {read(find(name))['description']}"
            )


@scenario.command()
@click.argument("name", type=ScenarioName())
def show(name: str) -> None:
    """Print the file of a packaged scenario."""
    from tailgauge.scenario.packaged import find

    screen.show(find(name).read_text(encoding="utf-8"), nl=False)


@scenario.command()
@click.argument("name", type=ScenarioName())
@click.argument("file", required=False, type=click.Path(path_type=Path), default=Path())
def copy(name: str, file: Path) -> None:
    """Copy a packaged scenario to FILE (default: into the current folder).

    Files that the scenario names, such as a trace, are copied to the same folder. Existing files are not replaced.
    """
    from tailgauge.scenario.packaged import copy as copy_files

    written = copy_files(name, file)
    for path in written:
        screen.show(f"wrote {path}")
    screen.show(f"run it with: {shlex.join(['tailgauge', 'run', str(written[0])])}")
