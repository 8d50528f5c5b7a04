"""`tailgauge scenario`: the packaged scenarios, listed, printed and copied.

`tailgauge docs`: the pages of the documentation that come with the package.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from tailgauge.cli.options import Commands, ScenarioName
from tailgauge.errors import UsageError


@click.group(cls=Commands)
def scenario() -> None:
    """List, show and copy packaged scenarios."""


@scenario.command("list")
@click.pass_context
def list_scenarios(context: click.Context) -> None:
    """List the packaged scenarios."""
    from tailgauge.scenario.packaged import find, names, read

    page = context.make_formatter()
    page.write_dl([(name, read(find(name))["description"]) for name in names()])
    click.echo(page.getvalue(), nl=False)


@scenario.command()
@click.argument("name", type=ScenarioName())
def show(name: str) -> None:
    """Print a scenario."""
    from tailgauge.scenario.packaged import find

    click.echo(find(name).read_text(encoding="utf-8"), nl=False)


@scenario.command()
@click.argument("name", type=ScenarioName())
@click.argument("file", required=False, type=click.Path(path_type=Path), default=Path())
def copy(name: str, file: Path) -> None:
    """Copy a scenario into FILE or this folder.

    Files that it names, such as a trace, are copied beside it. Nothing is replaced.
    """
    from tailgauge.scenario.packaged import copy as copy_files

    written = copy_files(name, file)
    for path in written:
        click.echo(f"wrote {path}")
    click.echo(f"run it with: {shlex.join(['tailgauge', 'run', str(written[0])])}")


# --- documentation ------------------------------------------------------------------------------------------------

FOLDERS = ("tutorials", "how-to", "reference", "explanation")


@click.command("docs")
@click.argument("page", required=False)
def docs(page: str | None) -> None:
    """List the documentation or print a PAGE."""
    from tailgauge.scenario.packaged import packaged

    root = packaged("docs")
    pages = {path.stem: path for folder in FOLDERS for path in sorted((root / folder).glob("*.md"))}
    if page is None:
        click.echo(f"{root}\n" + "\n".join(_list(pages)))
    elif page in pages:
        click.echo(pages[page].read_text(encoding="utf-8"), nl=False)
    else:
        raise UsageError(f"{page}: no such page. There are: {', '.join(pages)}")


def _list(pages: dict[str, Path]) -> Iterator[str]:
    """A line for each page, under the name of its folder: its name and its title."""
    width = max(map(len, pages), default=0)
    for folder in FOLDERS:
        yield from ("", folder)
        for name, path in pages.items():
            if path.parent.name == folder:
                title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
                yield f"  {name:<{width}}  {title}"
