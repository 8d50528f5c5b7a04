"""Options of `tailgauge run` and the help of every command, as a user meets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tailgauge.cli.main import cli
from tailgauge.cli.options import TOOLS, Duration, Whole
from tailgauge.cli.run import settings_of
from tailgauge.errors import UsageError
from tailgauge.plan.resolve import Settings

WIDTH = 80


def commands(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[click.Context]:
    context = click.Context(command, parent=parent, info_name=name, terminal_width=WIDTH)
    yield context
    if isinstance(command, click.Group):
        for child, inner in command.commands.items():
            yield from commands(inner, child, context)


@pytest.mark.parametrize(
    "context", list(commands(cli, "tailgauge")), ids=lambda context: context.command_path
)
def test_help_fits_eighty_columns_and_nothing_is_cut(context):
    text = context.get_help()

    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    if isinstance(context.command, click.Group):
        listed = " ".join(text.split())
        for name, command in context.command.commands.items():
            assert (
                f"{name} {' '.join((command.help or '').partition(chr(10))[0].split())}" in listed
            )


@pytest.mark.parametrize(
    "context", list(commands(cli, "tailgauge")), ids=lambda context: context.command_path
)
def test_every_option_has_a_help_of_ten_words_at_most(context):
    texts = {
        one.opts[0]: one.help or ""
        for one in context.command.params
        if isinstance(one, click.Option) and not one.hidden
    }

    assert {
        name: text for name, text in texts.items() if not 0 < len(text.split("(")[0].split()) <= 10
    } == {}


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("60s", 60),
        ("1.5s", 1.5),
        ("5m", 300),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1m30s", 90),
    ],
)
def test_a_length_of_time(text, seconds):
    assert Duration()(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-5", "5x", "s", "30s1m", "1.5m", "nan", "inf", "5 m"]
)
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(
        click.BadParameter, match="expected a length of time above 0, for example 60s or 5m, got"
    ):
        Duration()(text)


@pytest.mark.parametrize("text", ["0", "6", "-1", "2.0", "two", "9" * 5000])
def test_a_whole_number_out_of_bounds_is_refused(text):
    with pytest.raises(click.BadParameter, match="expected a whole number from 1 to 5, got"):
        Whole(1, 5)(text)


# --- what they set --------------------------------------------------------------------------------------------------


def settings(tmp_path: Path, scenario: str, *sets: str, **given: Any) -> Settings:
    return settings_of(scenario, given, sets, out=tmp_path)


def test_each_option_sets_its_key(tmp_path):
    found = settings(
        tmp_path, "mix", target="http://127.0.0.1:1", model="m", protocol="openai", rate=3.0, input_tokens=70,
        output_tokens=20, seed=9, max_requests=500,
    ).scenario  # fmt: skip

    assert (found.target.url, found.target.model, found.target.protocol) == (
        "http://127.0.0.1:1",
        "m",
        "openai",
    )
    assert (found.arrival.rate_per_s, found.seed, found.guard.max_requests) == (3.0, 9, 500)
    assert {(table.prompt_tokens, table.output_tokens) for table in found.traffic.values()} == {
        (70, 20)
    }
    assert len(found.traffic) > 1


def test_concurrency_replaces_the_arrivals_by_users_who_do_not_pause(tmp_path):
    arrival = settings(tmp_path, "trace", concurrency=12).scenario.arrival

    assert (arrival.process, arrival.closed.users, arrival.closed.think_s) == ("closed", 12, 0)
    assert arrival.rate_per_s is None


def test_concurrency_beside_a_rate_is_a_queue_and_the_rate_stays(tmp_path):
    arrival = settings(tmp_path, "streaming", rate=3.0, concurrency=2).scenario.arrival

    assert (arrival.process, arrival.rate_per_s, arrival.max_concurrency) == ("poisson", 3.0, 2)


def test_an_override_goes_over_the_options(tmp_path):
    thinking = settings(
        tmp_path, "streaming", "arrival.closed.think_s=2", concurrency=3
    ).scenario.arrival.closed

    assert (thinking.users, thinking.think_s) == (3, 2)


@pytest.mark.parametrize(
    ("scenario", "given", "message"),
    [
        ("streaming traffic.chat.model=special", {"model": "m"}, "--model: every traffic table names its model: use --set traffic.*.model=NAME"),
        ("streaming traffic.chat.prompts.file=prompts.jsonl", {"output_tokens": 7}, "--output-tokens: sizes come from traffic.chat.prompts.file: change them there"),
        ("closed", {"rate": 3.0}, "--rate: a closed loop has no rate: set closed.users and closed.think_s"),
        ("sessions", {"concurrency": 2}, "traffic.chat.session: a closed loop has no sessions"),
        ("trace", {"input_tokens": 9}, "--input-tokens: sizes come from the trace: add --set arrival.trace.sizes=false"),
        ("streaming", {"protocol": "openia"}, "--protocol: expected 'anthropic', 'openai' or 'sse', got 'openia'; did you mean openai?"),
        ("cached", {"protocol": "sse"}, "expected target.protocol 'anthropic' or 'openai', got 'sse'"),
    ],
)  # fmt: skip
def test_an_option_without_effect_or_that_contradicts_is_refused(
    tmp_path, monkeypatch, scenario, given, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt_tokens": 5}\n')
    with pytest.raises(UsageError) as raised:
        settings(tmp_path, *scenario.split(), **given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "line", ["headroom --requests 50", "headroom --duration 5m", "headroom hedging"]
)
def test_an_experiment_plans_its_runs(tmp_path, line):
    done = CliRunner().invoke(cli, ["run", *line.split(), "--out", str(tmp_path), "--dry-run"])

    assert isinstance(done.exception, UsageError)
    assert "an experiment plans its runs" in str(done.exception)


# --- what a shell completes and a typing error gets -----------------------------------------------------------------


def completed(*line: str) -> list[str]:
    found = ShellComplete(cli, {}, "tailgauge", "_TAILGAUGE_COMPLETE").get_completions(
        list(line[:-1]), line[-1]
    )
    return [one.value for one in found if one.type == "plain"]


def test_the_shell_completes_commands_options_and_scenarios():
    assert completed("ru") == ["run", "runs"]
    assert completed("run", "quick") == completed("scenario", "show", "quick") == ["quickstart"]
    assert completed("run", "--conc") == ["--concurrency"]
    assert completed("scenario", "") == ["list", "show", "copy"]


def test_the_tools_of_a_report_are_those_that_have_formulas():
    from tailgauge_analysis.metrics import definitions

    assert tuple(definitions.TOOLS) == TOOLS
