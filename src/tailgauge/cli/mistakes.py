"""A wrong command line in one line: what was typed, what was expected, what to type instead."""

from __future__ import annotations

import click

from tailgauge.suggestions import near_names, nearest


def text_of(error: click.ClickException) -> str:
    """The message of a click error, without the usage in front."""
    if isinstance(error, click.MissingParameter):
        return _missing(error)
    if isinstance(error, click.NoSuchOption):
        return _no_such_option(error)
    if isinstance(error, click.BadOptionUsage):
        takes_none = "does not take a value" in error.message
        return (
            f"{error.option_name}: expected {'no value' if takes_none else 'a value behind it'}{_help(error)}"
        )
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
    others = root.command.commands if isinstance(root.command, click.Group) else {}
    for name, command in others.items():
        if error.option_name in _options(command):
            return f"{error.option_name} is an option of `{root.command_path} {name}`"
    near = near_names(error.option_name, _options(error.ctx.command), cutoff=0.65)
    if near:
        return f"no such option {error.option_name}; did you mean {near[0]}?"
    return f"no such option {error.option_name}{_help(error)}"


def _options(command: click.Command) -> list[str]:
    """The long names of a command's options."""
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return [name for option in options for name in option.opts if name.startswith("--")]


def _no_such_command(name: str, context: click.Context) -> str:
    group = context.command
    names = list(group.commands) if isinstance(group, click.Group) else []
    near = near_names(name, names, cutoff=0.5)
    if context.parent is None and _is_scenario(name):
        return f"no such command {name}; did you mean `{context.command_path} run {name}`?"
    if near:
        return f"no such command {name}; did you mean `{context.command_path} {near[0]}`?"
    return f"no such command {name}. Commands of {context.command_path}: {', '.join(names)}"


def _bad_value(error: click.BadParameter) -> str:
    message = error.message.rstrip(".")
    parameter = error.param
    if parameter is None:
        return message
    name = parameter.opts[0]
    if isinstance(parameter, click.Argument) and error.ctx is not None:
        name = parameter.make_metavar(error.ctx)
    if isinstance(parameter.type, click.Choice):
        choices = [str(choice) for choice in parameter.type.choices]
        given = message.partition(" is not one of ")[0]
        near = nearest(given.strip("'"), choices)
        message = f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {given}{near}"
    return f"{name}: {message}"


def _is_scenario(name: str) -> bool:
    from tailgauge.scenario.packaged import names

    return name.endswith(".toml") or name in names()
