"""A wrong command line in one line: what was typed, what was expected, what to type instead."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence

import click

from tailgauge.cli.other_tools import CommandWithToolFlags, flags
from tailgauge.suggestions import near_names, nearest

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
    """The message of a click error, without the usage in front."""
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
    """Where the options are listed."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"; see `{context.command_path} -h`" if context is not None else ""


def _bad_usage(error: click.BadOptionUsage) -> str:
    name = error.option_name
    if "does not take a value" in error.message:
        return f"{name}: expected no value{_help(error)}"
    return f"{name}: expected a value behind it{_example(name)}"


def _example(name: str) -> str:
    """`, as --rate 20`: an option with a value; empty where none is known."""
    return f", as {name} {EXAMPLES[name]}" if name in EXAMPLES else ""


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
    if error.ctx is None:
        return error.format_message()
    root = error.ctx.find_root()
    commands = root.command.commands if isinstance(root.command, click.Group) else {}
    for name, command in commands.items():
        if error.option_name in _options(command):
            return f"{error.option_name} is an option of `{root.command_path} {name}`"
    name = error.option_name
    options = _options(error.ctx.command)
    ours = _nearest_option(name, options)
    flag = ""
    if isinstance(error.ctx.command, CommandWithToolFlags):
        flag = _nearest_option(name, list(flags()))
    is_begun = bool(ours) and name.startswith(ours)
    if flag and not is_begun and _similarity(name, flag) > _similarity(name, ours):
        return f"no such option {name}; did you mean {flag} ({flags()[flag].meaning})?"
    if ours:
        return f"no such option {name}; did you mean {ours}?"
    return f"no such option {error.option_name}{_help(error)}"


def _nearest_option(name: str, options: Sequence[str]) -> str:
    """The option that may have been meant; empty where none is near.

    Dashes in front do not count. An option with which the name begins comes first.
    """
    bare = {option.lstrip("-"): option for option in options if option.startswith("--")}
    word = name.lstrip("-")
    begun = [known for known in bare if re.match(rf"{re.escape(known)}[-_]", word)]
    near = near_names(word, list(bare), cutoff=_CUTOFF)
    if near and _similarity(word, near[0]) >= _CLOSE:
        return bare[near[0]]
    if begun:
        return bare[max(begun, key=len)]
    return bare[near[0]] if near else ""


def _similarity(name: str, option: str) -> float:
    return difflib.SequenceMatcher(None, name.lstrip("-"), option.lstrip("-")).ratio()


def _options(command: click.Command) -> list[str]:
    """The long names of a command's options."""
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return [name for option in options for name in option.opts if name.startswith("--")]


def _no_such_command(name: str, context: click.Context) -> str:
    group = context.command
    names = list(group.commands) if isinstance(group, click.Group) else []
    near = near_names(name, names, cutoff=0.5)
    if name == "help":
        return f"no such command help; did you mean `{context.command_path} --help`?"
    if context.parent is None and name.lower() in _MEANT:
        return (
            f"no such command {name}; did you mean `{context.command_path} {_MEANT[name.lower()]}`?"
        )
    if context.parent is None and name.startswith(("http://", "https://")):
        url = shlex.quote(name[:200])
        return f"no such command {name[:200]}; did you mean `{context.command_path} run streaming --target {url}`?"
    if context.parent is None and _is_scenario(name):
        return f"no such command {name}; did you mean `{context.command_path} run {shlex.quote(name)}`?"
    if near:
        return f"no such command {name}; did you mean `{context.command_path} {near[0]}`?"
    return f"no such command {name}. Commands of {context.command_path}: {', '.join(names)}"


def _bad_value(error: click.BadParameter) -> str:
    message = error.message.rstrip(".")
    parameter = error.param
    if parameter is None:
        return message
    name = parameter.opts[0]
    option = _OPTION.search(message)
    if option is not None:
        return f"{name}: expected a value behind it{_example(name)}, got {option[1]}"
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
