"""The line that repeats a run is one that a shell and `tailgauge run` read back."""

import shlex

import pytest

from tailgauge.command_line import run_line


@pytest.mark.parametrize(
    "scenario", ["streaming", "my runs/chat.toml", "it's; rm -rf ~.toml", "$HOME/`x`.toml"]
)
@pytest.mark.parametrize("value", ["a=b c", 'x={y = "z"}', "target.url=http://h:1/v1?a=1&b=$c"])
def test_a_shell_reads_every_word_back(scenario, value):
    line = run_line(scenario, [value], plugins=["my plugin.py"], options=["--duration", "600s"])

    expected = [
        "tailgauge",
        "run",
        scenario,
        "--plugin",
        "my plugin.py",
        "--set",
        value,
        "--duration",
        "600s",
    ]
    assert shlex.split(line) == expected


def test_workers_and_dry_runs():
    assert run_line("a", workers=4) == "tailgauge run a --workers 4"
    assert run_line("a", workers=1) == "tailgauge run a"
    assert run_line("a", workers=4, dry_run=True) == "tailgauge run a --dry-run"
