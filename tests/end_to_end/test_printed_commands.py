"""Commands that are printed are copied into a shell, as they stand there, and keep what their line promises.

What is long is short in the scenario before the command is printed. tests/project/test_printed_commands.py finds the places
that print commands; here each kind of them is run, the longer ones in test_printed_commands_of_runs.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from starting.shell import MINE, Shell

from tailgauge.errors import Exit


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# --- without a run ------------------------------------------------------------------------------------------------


def test_the_first_steps_that_run_nothing(shell):
    first = shell.type("tailgauge").ended(Exit.OK)
    searched = shell.type("tailgauge docs retries").ended(Exit.OK)

    assert {"tailgauge docs", "tailgauge scenario list", "tailgauge -h"} <= set(
        beginnings(first.text)
    )
    assert "  prompts " in shell.type("tailgauge docs").ended(Exit.OK).text
    assert "  compare " in shell.type("tailgauge -h").ended(Exit.OK).text
    assert "quickstart" in shell.type("tailgauge scenario list").ended(Exit.OK).text
    assert shell.type(searched.command).ended(Exit.OK).text.startswith("# ")


def beginnings(text: str) -> list[str]:
    """The commands in the first column."""
    return [line.partition("  ")[0] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("line", "command", "text"),
    [
        ("tailgauge docs promts", "tailgauge docs prompts", "# "),
        ("tailgauge docs zqxj", "tailgauge docs", "how-to"),
        ("tailgauge run zqxj", "tailgauge scenario list", "quickstart"),
        ("tailgauge run quickstart --zqxj", "tailgauge run -h", "--target"),
        ("tailgauge run chat.py", "tailgauge docs locustfile", "StreamingUser"),
    ],
)
def test_a_mistake_names_a_command_that_helps(line, command, text, shell):
    (shell.folder / "chat.py").write_text("from locust import task\n", encoding="utf-8")
    wrong = shell.type(line).ended(Exit.USAGE)

    assert command in wrong.commands, wrong.shown
    assert text in shell.type(command).ended(Exit.OK).text


# --- after a run --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dry_run_that_is_too_short_prints_one_that_decides(shell):
    shell.write(rate=10)
    short = shell.type(f"tailgauge run {MINE} --dry-run --slo 'ttft p90 < 5s'").ended(
        Exit.INCONCLUSIVE
    )
    longer = shell.type(short.command).ended(Exit.OK)

    assert "--duration" in short.command
    assert longer.text.count("PASS") == 1


@pytest.mark.slow
def test_the_command_of_a_report_makes_the_same_run_again(shell):
    shell.write(more="[simulated]\nttft_sigma = 0.3")
    shell.type(f"tailgauge run {MINE} --dry-run --seed 7 --concurrency 2 --requests 30").ended(
        Exit.OK
    )
    (first,) = shell.reports()
    shell.type(first["run"]["reproduce"]).ended(Exit.OK)
    _, second = shell.reports()

    assert second["run"]["reproduce"] == first["run"]["reproduce"]
    assert second["latency"] == first["latency"]
