"""Flags of other load generators: every row of the table works, or is answered in one line that names what exists."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tailgauge.cli.docs import FOLDERS
from tailgauge.cli.main import cli
from tailgauge.cli.other_tools import Translation, rows
from tailgauge.errors import UsageError
from tailgauge.scenario.model import override, parse, put
from tailgauge.scenario.packaged import names, packaged

WIDTH = 80
RUN = cli.commands["run"]
VALUES = {"number": "7", "url": "http://127.0.0.1:8731", "secret": "Authorization: Bearer K"}
OPTIONS = {
    name: param for param in RUN.params if isinstance(param, click.Option) for name in param.opts
}
FLAGS = [(name, row) for row in rows() for name in row.names]
TEXTS = [(name, row.answer) for name, row in FLAGS if row.answer]
TEXTS += [(f"{name} {value}", text) for name, row in FLAGS for value, text in row.values.items()]
TEXTS += [
    (f"{name} {form}", row.answer_to(name, VALUES[form]))
    for name, row in FLAGS
    for form in row.forms
]


def translate(*arguments: str) -> Translation:
    return Translation(RUN, arguments)


def test_the_table_has_what_users_of_other_tools_type():
    flags = [name for name, _ in FLAGS]

    assert len(flags) >= 100
    assert len(set(flags)) == len(flags)
    assert {tool for _, row in FLAGS for tool in row.tools} >= {
        "vllm", "guidellm", "aiperf", "genai-perf", "k6", "oha", "hey", "wrk", "locust",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "row"), FLAGS, ids=[name for name, _ in FLAGS])
def test_a_row_is_an_option_of_ours_or_one_line(name, row):
    assert name not in OPTIONS
    assert [bool(row.option), bool(row.default), bool(row.answer)].count(True) == 1
    if row.answer:
        done = CliRunner().invoke(cli, ["run", "quickstart", name, "SECRET"])
        line = f"tailgauge: {done.exception}"
        assert isinstance(done.exception, UsageError)
        assert line == f"tailgauge: {name}: {row.answer}"
        assert "SECRET" not in line
        assert len(line) <= WIDTH
    elif row.default:
        assert translate(name, "quickstart").arguments == ["quickstart"]
    elif OPTIONS[row.option].is_flag:
        assert translate(name, "quickstart").arguments == [row.option, "quickstart"]
    else:
        arguments = [row.option, "7", "quickstart"]
        assert translate(name, "7", "quickstart").arguments == arguments
        attached = f"{name}=7" if name.startswith("--") else f"{name}7"
        assert translate(attached, "quickstart").arguments == arguments


@pytest.mark.parametrize(("name", "text"), TEXTS, ids=[name for name, _ in TEXTS])
def test_an_answer_names_options_keys_pages_and_scenarios_that_exist(name, text):
    pages = {path.stem for folder in FOLDERS for path in (packaged("docs") / folder).glob("*.md")}
    commands = set(cli.commands)
    options = set(re.findall(r"(?<!\S)--[a-z-]+", text)) - {"--master"}

    assert options <= set(OPTIONS)
    assert set(re.findall(r"`tailgauge docs ([a-z-]+)`", text)) <= pages
    assert set(re.findall(r"`tailgauge run ([a-z_]+)", text)) <= set(names())
    assert set(re.findall(r"`tailgauge ([a-z]+)", text)) <= commands
    tree: dict[str, Any] = {"name": "x", "target": {"protocol": "openai"}, "traffic": {"chat": {}}}
    for pair in re.findall(r"--set (?:'([^']+)'|(\S+))", text):
        key, value = override("".join(pair).replace("CA.pem", "/dev/null").rstrip(",;"))
        put(tree, key, value)
    parse(tree, name)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("quickstart --slo -n --isl 5", "quickstart --slo -n --input-tokens 5"),
        ("quickstart -- -n", "quickstart -- -n"),
        ("-c8 quickstart -n=3", "--concurrency 8 quickstart --requests =3"),
        ("--set=a=1 --vus=2", "--set=a=1 --concurrency 2"),
        ("--unknown 3 -Q", "--unknown 3 -Q"),
        ("quickstart --num-prompts", "quickstart --requests"),
        ("--metrics --osl 3", "--metrics --output-tokens 3"),
    ],
)
def test_values_and_unknown_words_are_left_to_the_parser(line, arguments):
    assert translate(*line.split()).arguments == arguments.split()


def test_one_line_says_what_was_replaced(tmp_path):
    line = "run quickstart --dry-run --num-prompts 30 --isl 20 --headless --run-time 5 --out"

    done = CliRunner().invoke(cli, [*line.split(), str(tmp_path)])

    assert str(done.exception).startswith("--duration and --requests: ")
    assert " ".join(done.stderr.split()) == (
        "tailgauge: --num-prompts is taken as --requests, --isl is taken as --input-tokens, --headless has no effect "
        "(a run starts at once; --web PORT adds a page), --run-time is taken as --duration"
    )


def test_a_command_without_the_option_says_whose_it_is():
    done = CliRunner().invoke(cli, ["checkup", "--num-prompts", "4"])

    text = "--num-prompts: that is --requests of `tailgauge run`, which checkup does not take"
    assert str(done.exception) == text


@pytest.mark.parametrize("name", ["run", "checkup"])
def test_the_help_has_every_option_in_a_section(name):
    command = cli.commands[name]
    shown = [
        param.opts[0]
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
    ]

    text = CliRunner().invoke(cli, [name, "--help"], terminal_width=WIDTH).output

    assert [
        option for option in shown if not re.search(rf"^  {option}\b", text, re.MULTILINE)
    ] == []
    assert text.index("\nLoad:") < text.index("\nOutput:")


# --- the first words ------------------------------------------------------------------------------------------------


def test_the_command_alone_names_the_first_steps():
    done = CliRunner().invoke(cli, [])

    assert done.exit_code == 0
    assert done.output.startswith("tailgauge run quickstart ")
    assert "tailgauge -h" in done.output
    assert [line for line in done.output.splitlines() if len(line) > WIDTH] == []


def test_run_without_a_scenario_names_one():
    done = CliRunner().invoke(cli, ["run"])

    assert isinstance(done.exception, UsageError)
    assert "`tailgauge run quickstart`" in str(done.exception)
    assert "`tailgauge scenario list`" in str(done.exception)
