"""Pages and code agree: generated parts fresh, every name documented, every link and command real."""

import itertools
import re
import runpy
from typing import get_args

import click
import pytest
from pydantic import BaseModel

from tailgauge.cli.main import cli
from tailgauge.scenario.model import Scenario

PROSE = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "reports/README.md",
    "docs/**/*.md",
)


@pytest.fixture(scope="module")
def pages(checkout) -> dict[str, str]:
    """Every page meant for readers, by its path from the root."""
    paths = [path for pattern in PROSE for path in sorted(checkout.glob(pattern))]
    return {
        path.relative_to(checkout).as_posix(): path.read_text(encoding="utf-8") for path in paths
    }


def command_paths(command: click.Command, path: str = "tailgauge") -> list[str]:
    children = command.commands.items() if isinstance(command, click.Group) else ()
    shown = [(child, f"{path} {name}") for name, child in children if not child.hidden]
    return [path, *itertools.chain.from_iterable(command_paths(*pair) for pair in shown)]


@pytest.mark.slow
def test_every_generated_page_is_fresh(checkout, command):
    result = command(["python", checkout / "docs" / "generate.py", "--check"])

    assert result.returncode == 0, result.stderr


def test_every_generated_part_stands_in_one_page(checkout, pages):
    parts = runpy.run_path(str(checkout / "docs" / "generate.py"))["PARTS"]

    assert sorted(re.findall(r"<!-- generated: ([a-z-]+) -->", "".join(pages.values()))) == sorted(
        parts
    )


def test_every_command_is_documented(pages):
    headings = re.findall(r"^## (tailgauge.*)$", pages["docs/reference/cli.md"], re.MULTILINE)

    assert set(command_paths(cli)) <= set(headings)


def scenario_keys(model) -> set[str]:
    """Every key of a table and of those within it."""
    inner = {one for field in model.model_fields.values() for one in models(field.annotation)}
    return {*model.model_fields, *itertools.chain.from_iterable(map(scenario_keys, inner))}


def models(annotation) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return set(itertools.chain.from_iterable(map(models, get_args(annotation))))


def test_every_key_of_a_scenario_is_documented(pages):
    page = pages["docs/reference/scenarios.md"]
    tables = {key for key, field in Scenario.model_fields.items() if models(field.annotation)}

    assert [key for key in tables if f"## [{key}" not in page] == []
    named = set(re.findall(r"^\| `(\w+)` \||^## \[.*?(\w+)(?:\.NAME|\[\])?\]$", page, re.MULTILINE))
    assert scenario_keys(Scenario) - set(itertools.chain.from_iterable(named)) == set()


def test_every_link_to_a_file_of_the_project_leads_somewhere(pages, checkout):
    links = [
        (name, link)
        for name, text in pages.items()
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    ]
    inside = [(name, link) for name, link in links if "://" not in link]

    assert [pair for pair in inside if not ((checkout / pair[0]).parent / pair[1]).exists()] == []


def anchors(text: str) -> set[str]:
    """Where a page can be linked to: its headings, spelt as GitHub does."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"&\w+;", "", h)).strip().lower().replace(" ", "-")
        for h in headings
    }


def test_every_link_to_a_heading_leads_somewhere(pages, checkout):
    lost = []
    for name, text in pages.items():
        for path, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
            target = (checkout / name).parent / path if path else checkout / name
            if anchor not in anchors(target.read_text(encoding="utf-8")):
                lost.append((name, f"{path}#{anchor}"))

    assert lost == []


def test_every_make_target_named_in_a_page_exists(pages, checkout):
    targets = set(
        re.findall(
            r"^([a-z-]+):", (checkout / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    named = {
        word
        for text in pages.values()
        for word in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)
    }

    assert named - targets == set()
    assert {"quickstart", "test"} <= named


def test_every_tailgauge_command_named_in_a_page_exists(pages):
    """A changelog may name a command of the past; the other pages may not."""
    named = {
        (name, word)
        for name, text in pages.items()
        if name != "CHANGELOG.md"
        for word in re.findall(r"(?:^|`|bin/)tailgauge ([a-z][a-z-]+)\b", text, re.MULTILINE)
    }

    assert {pair for pair in named if pair[1] not in cli.commands} == set()


def test_every_path_of_how_to_add_exists(pages, checkout):
    """`<name>` stands for what is added; its folder is there."""
    text = pages["CONTRIBUTING.md"].partition("## How to add")[2].partition("## Style")[0]
    paths = re.findall(r"`((?:src|analysis|scenarios|locustfiles)/[\w.<>/-]*)`", text)

    assert len(paths) > 20
    assert [path for path in paths if not (checkout / path.partition("<")[0]).exists()] == []


def test_a_list_follows_a_blank_line(pages):
    """Markdown of the site needs one; GitHub does not."""
    item = re.compile(r"^(?!\s*[-*|>]|\s*\d+\.|  )\S.*\n(?:- |1\. )", re.MULTILINE)
    text = {name: re.sub(r"```.*?```", "", page, flags=re.DOTALL) for name, page in pages.items()}

    assert {name: item.findall(page) for name, page in text.items() if item.search(page)} == {}


def test_the_site_lists_every_page(pages, checkout):
    """`make site` fails where a page is missing or a link is broken; it runs in `make verify` only."""
    listed = re.findall(
        r"[\w/-]+\.md$", (checkout / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )

    notebooks = [path.relative_to(checkout / "docs") for path in checkout.glob("docs/**/*.ipynb")]
    written = [name.removeprefix("docs/") for name in pages if name.startswith("docs/")]

    assert sorted(listed) == sorted(
        written + [path.with_suffix(".md").as_posix() for path in notebooks]
    )
