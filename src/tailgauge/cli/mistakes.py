"""A wrong command line in one line: what was typed, what was expected, what to type instead."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence

import click

from tailgauge.cli.other_tools import CommandWithToolFlags, flags
from tailgauge.suggestions import near_names, nearest, url_argument

_CUTOFF = 0.7  # similarity of names that may have been meant
_CLOSE = 0.85  # of a slip
_OPTION = re.compile(r"got '(--?[a-z][a-z-]*)'")  # where a value was expected
# What a word means that other programs have as a command.
_MEANT = {
    **dict.fromkeys(("benchmark", "bench", "start", "test", "load", "attack", "exec"), "run"),
    **dict.fromkeys(("init", "new", "create"), "scenario copy streaming"),
    **dict.fromkeys(("list", "ls"), "scenario list"),
    **dict.fromkeys(("results", "history"), "runs"),
    "version": "--version",
}
# Values of options in messages; others are shown by the placeholder of the help.
EXAMPLES = {
    "--rate": "20",
    "--concurrency": "8",
    "--requests": "100",
    "--duration": "60s",
    "--input-tokens": "500",
    "--output-tokens": "100",
    "--target": "http://127.0.0.1:8000",
    "--slo": "'ttft p95 < 800ms'",
    "--max-requests": "1000",
    "--max-tokens": "100000",
    "--max-cost": "5",
    "--workers": "2",
    "--expect-workers": "2",
    "--web": "8089",
    "--port": "8000",
    "--protocol": "openai",
    "--clock": "kernel",
    "--set": "arrival.rate_per_s=20",
    "--seed": "1",
    "--older-than": "24h",
    "--planned": "50",
    "--threshold": "5",
    "--master": "127.0.0.1:5557",
    "--profile": "haiku",
    "--as": "vllm",
    "--metric": "ttft_sched",
    "--keep-answers": "10",
    "--model": "NAME",
    "--out": "DIR",
    "--plugin": "my_plugin.py",
    "--baseline": "DIR",
    "--bind": "192.168.0.1:5557",
    "--allow": "target",
}


def text_of(error: click.ClickException) -> str:
    """Return the message of a click error, without the usage in front."""
    if isinstance(error, click.MissingParameter):
        return _missing(error)
    if isinstance(error, click.NoSuchOption):
        return _no_such_option(error)
    if isinstance(error, click.BadOptionUsage):
        return _bad_usage(error)
    if isinstance(error, click.BadParameter):
        return _bad_value(error)
    command = getattr(error, "command_name", None)
    if isinstance(error, click.UsageError) and isinstance(command, str) and error.ctx is not None:
        return _no_such_command(command, error.ctx)
    message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}{_help(error)}"


def _help(error: click.ClickException) -> str:
    """Return where the options are listed."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    return f"; see `{error.ctx.command_path} -h`"


def _bad_usage(error: click.BadOptionUsage) -> str:
    name = error.option_name
    if "does not take a value" in error.message:
        return f"{name}: expected no value{_help(error)}"
    return f"{name}: expected a value after it{_example(name)}"


def _example(name: str) -> str:
    """`, such as --rate 20`: an option with a value; empty where none is known."""
    if name not in EXAMPLES:
        return ""
    return f", such as {name} {EXAMPLES[name]}"


def _missing(error: click.MissingParameter) -> str:
    if error.ctx is None or error.param is None:
        return error.format_message()
    metavar = error.param.make_metavar(error.ctx)
    if not isinstance(error.param, click.Argument):
        name = error.param.opts[0]
        return f"{name} is missing: add {name} {metavar}{_help(error)}"
    usage = " ".join(error.ctx.command.collect_usage_pieces(error.ctx))
    return f"{metavar.removesuffix('...')} is missing: {error.ctx.command_path} {usage}"


def _no_such_option(error: click.NoSuchOption) -> str:
    """Return the message about an option that a command does not have, with the one that was probably meant.

    An option of `tailgauge` before its command is looked for in all commands. An option of another tool is proposed where
    it is nearer than one of ours, unless the name begins with ours.
    """
    if error.ctx is None:
        return error.format_message()
    name = error.option_name
    root = error.ctx.find_root()
    if isinstance(root.command, click.Group):
        for command in root.command.commands.values():
            if name in _options(command):
                return f"{name} is an option of `{root.command_path} {command.name}`"
    options = _options(error.ctx.command)
    option = _nearest_option(name, options)
    tool_flag = ""
    if isinstance(error.ctx.command, CommandWithToolFlags):
        tool_flag = _nearest_option(name, list(flags()))
    begins_with_option = bool(option) and name.startswith(option)
    if (
        tool_flag
        and not begins_with_option
        and _similarity(name, tool_flag) > _similarity(name, option)
    ):
        return f"no such option {name}; did you mean {tool_flag} ({flags()[tool_flag].meaning})?"
    if option:
        return f"no such option {name}; did you mean {option}?"
    return f"no such option {name}{_help(error)}"


def _nearest_option(name: str, options: Sequence[str]) -> str:
    """Return the option that may have been meant; empty where none is near.

    Dashes in front do not count. An option with which the name begins comes first.
    """
    bare = {option.lstrip("-"): option for option in options if option.startswith("--")}
    word = name.lstrip("-")
    begun = [option for option in bare if re.match(rf"{re.escape(option)}[-_]", word)]
    near = near_names(word, list(bare), cutoff=_CUTOFF)
    if near and _similarity(word, near[0]) >= _CLOSE:
        return bare[near[0]]
    if begun:
        return bare[max(begun, key=len)]
    if near:
        return bare[near[0]]
    return ""


def _similarity(name: str, option: str) -> float:
    return difflib.SequenceMatcher(None, name.lstrip("-"), option.lstrip("-")).ratio()


def _options(command: click.Command) -> list[str]:
    """Return the long names of a command's options."""
    names = []
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            names += [name for name in param.opts if name.startswith("--")]
    return names


def _no_such_command(name: str, context: click.Context) -> str:
    """Return the message about a word that is no command of its group, with what was probably meant.

    At the top a word may be a command of other tools, the address of a target, or a scenario; then the whole command is
    proposed.
    """
    group = context.command
    is_root = context.parent is None
    names: list[str] = []
    if isinstance(group, click.Group):
        names = list(group.commands)
    near = near_names(name, names, cutoff=0.5)
    is_url = name.startswith(("http://", "https://"))
    if name == "help":
        proposal = "--help"
    elif is_root and name.lower() in _MEANT:
        proposal = _MEANT[name.lower()]
    elif is_root and is_url:
        name = url_argument(name)
        proposal = f"run streaming --target {name}"
    elif is_root and _is_scenario(name):
        proposal = f"run {shlex.quote(name)}"
    elif near:
        proposal = near[0]
    else:
        return f"no such command {name}. Commands of {context.command_path}: {', '.join(names)}"
    return f"no such command {name}; did you mean `{context.command_path} {proposal}`?"


def _bad_value(error: click.BadParameter) -> str:
    """Return the message about a value that an option or an argument does not take, with its name in front.

    Where a value is missing, click takes the next option for it: the message says so. Choices are listed, with the
    nearest.
    """
    message = error.message.rstrip(".")
    parameter = error.param
    if parameter is None:
        return message
    name = parameter.opts[0]
    option = _OPTION.search(message)
    if option is not None:
        return f"{name}: expected a value after it{_example(name)}, got {option[1]}"
    if isinstance(parameter, click.Argument) and error.ctx is not None:
        name = parameter.make_metavar(error.ctx)
    if isinstance(parameter.type, click.Choice):
        choices = [str(choice) for choice in parameter.type.choices]
        value = message.partition(" is not one of ")[0]
        near = nearest(value.strip("'"), choices)
        message = f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {value}{near}"
    return f"{name}: {message}"


def _is_scenario(name: str) -> bool:
    from tailgauge.scenario.packaged import names

    return name.endswith(".toml") or name in names()
