"""The words that users read: reports of the packaged scenarios in every format, and every help text.

A scenario is run dry with its own seed. Those that cannot be are read in tests/end_to_end/test_every_scenario.py, and in
tests/experiments/test_calibrate.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from project.words import in_document, in_report
from run_folders.dry_runs import NOT_DRY, dry_run_of

from tailgauge.cli.main import cli
from tailgauge.scenario.model import load
from tailgauge.scenario.packaged import packaged
from tailgauge_analysis.report.report import make

pytestmark = pytest.mark.slow

SCENARIOS = {path.stem: load(str(path)) for path in sorted(packaged("scenarios").glob("*.toml"))}
EXPERIMENTS = {name for name, scenario in SCENARIOS.items() if scenario.experiment}


def contexts(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """A command and all below it."""
    context = click.Context(command, parent=parent, info_name=name)
    yield context
    for below, child in command.commands.items() if isinstance(command, click.Group) else ():
        yield from contexts(child, below, context)


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - EXPERIMENTS - set(NOT_DRY)))
def test_no_report_of_a_packaged_scenario_uses_a_word_of_the_table(name, tmp_path):
    made = make([dry_run_of(name, [], tmp_path)], tmp_path)

    assert in_report(made.html.parent, made.summary) == []


@pytest.mark.parametrize("name", sorted(EXPERIMENTS - {"calibrate"}))
def test_no_answer_of_a_packaged_experiment_uses_a_word_of_the_table(name, tmp_path, command):
    done = command(["tailgauge", "run", name, "--dry-run", "--out", tmp_path], timeout_s=300)
    reports = list(tmp_path.glob("reports/*"))
    assert len(reports) == 1, done.stderr

    assert in_report(reports[0], done.stdout + done.stderr) == []


@pytest.mark.parametrize(
    "context", list(contexts(cli, "tailgauge")), ids=lambda one: one.command_path
)
def test_no_help_text_uses_a_word_of_the_table(context):
    assert [str(one) for one in in_document("help", context.get_help())] == []
