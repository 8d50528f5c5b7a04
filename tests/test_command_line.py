"""The line that repeats a run is one that a shell and `tailgauge run` read back."""

import shlex

import pytest

from tailgauge.command_line import options_of, run_line, with_command


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


@pytest.mark.parametrize(
    ("text", "before", "command"),
    [
        (
            "run longer: tailgauge run a.toml --duration 60s",
            "run longer:",
            "tailgauge run a.toml --duration 60s",
        ),
        (
            "find it: tailgauge run 'my x.toml' --set 'a=b c'",
            "find it:",
            "tailgauge run 'my x.toml' --set 'a=b c'",
        ),
        ("look at its log", "look at its log", ""),
        (
            'it says "tailgauge run \'x": look at its log',
            'it says "tailgauge run \'x": look at its log',
            "",
        ),
        (
            'it says "tailgauge run x", so use: tailgauge run y',
            'it says "tailgauge run x", so use:',
            "tailgauge run y",
        ),
        ("", "", ""),
    ],
)
def test_the_command_at_the_end_of_a_text_is_found(text, before, command):
    assert with_command(text) == (before, command)


def test_options_of_a_command_keep_their_values():
    line = run_line("my x.toml", ["a=b c"], options=["--duration", "60s"])

    assert options_of(line) == ["tailgauge run 'my x.toml'", "--set 'a=b c'", "--duration 60s"]
