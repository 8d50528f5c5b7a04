"""`tailgauge docs`: the pages of the documentation that come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tailgauge.errors import UsageError

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
