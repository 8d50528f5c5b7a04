"""The words that users read: reports of all packaged scenarios in every format, and every help text.

A scenario is run dry at its own length with its own seed; an experiment by its command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
from project.words import in_document
from run_folders.dry_runs import dry_run_of

from tailgauge.cli.main import cli
from tailgauge.scenario.model import load
from tailgauge.scenario.packaged import packaged
from tailgauge_analysis.load.frames import load as load_rows
from tailgauge_analysis.report.figures import figures
from tailgauge_analysis.report.report import render
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.sections.findings import find

NAMES = sorted(path.stem for path in packaged("scenarios").glob("*.toml"))
EXPERIMENTS = [name for name in NAMES if load(name).experiment]
SCRIPT = re.compile(r"<(script|style)\b([^>]*)>(.*?)</\1>", re.DOTALL)


def contexts(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """A command and all below it."""
    context = click.Context(command, parent=parent, info_name=name)
    yield context
    for below, child in command.commands.items() if isinstance(command, click.Group) else ():
        yield from contexts(child, below, context)


def strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


def found(page: str, text: str, shown: str, data: dict[str, Any]) -> list[str]:
    """Banned words in the formats of one report: page with its figures, Markdown, terminal, report.json."""
    of_figures = [json.loads(one[3]) for one in SCRIPT.finditer(page) if "application/json" in one[2]]
    documents = {
        "report.html": SCRIPT.sub("", page),
        "figures.txt": "\n".join(strings(of_figures)),
        "report.md": text,
        "terminal.txt": shown,
        "report.json": "\n".join(strings(data)),
    }
    assert all(len(one) > 100 for one in documents.values()), {
        name: len(one) for name, one in documents.items()
    }
    return sorted({str(one) for name, content in documents.items() for one in in_document(name, content)})


@pytest.mark.parametrize("name", [name for name in NAMES if name not in EXPERIMENTS])
def test_no_report_of_a_packaged_scenario_uses_a_word_of_the_table(name, tmp_path):
    findings = find(load_rows([dry_run_of(name, [], tmp_path)]))
    rendered = render(findings, figures(findings))

    shown = terminal(rendered.report, tmp_path / "report.html", 80)
    assert found(rendered.html, rendered.markdown, shown, rendered.report.data) == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_answer_of_a_packaged_experiment_uses_a_word_of_the_table(name, tmp_path, command):
    shown = command(["tailgauge", "run", name, "--dry-run", "--out", tmp_path], timeout_s=300)
    (folder,) = tmp_path.glob(f"reports/*-{name}-*")
    page, text, data = (
        (folder / f"report.{suffix}").read_text(encoding="utf-8") for suffix in ("html", "md", "json")
    )

    assert found(page, text, shown.stdout + shown.stderr, json.loads(data)) == []


@pytest.mark.parametrize(
    "context", list(contexts(cli, "tailgauge")), ids=lambda context: context.command_path
)
def test_no_help_text_uses_a_word_of_the_table(context):
    assert [str(one) for one in in_document("help.txt", context.get_help())] == []
