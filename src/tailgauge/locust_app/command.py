"""The command line that repeats a run of tasks: Locust's options that set its load and its target, and ours.

All others are left out: a password of the web page, and what a locustfile adds, whose values may be secrets.
"""

from __future__ import annotations

from typing import Any

from tailgauge.command_line import LONGEST
from tailgauge.redaction import known
from tailgauge.sanitize import plain


def command_arguments(environment: Any) -> list[str]:
    """Return the arguments of `locust -f FILE ...` that repeat this run without the web page, one word each, without
    secrets.

    A load shape decides on users by itself. Options with their default are left out.
    """
    options = environment.parsed_options
    file = str(options.locustfile).partition("?")[0]
    arguments = ["locust", "-f", file, *_classes(environment), "--headless"]
    if environment.shape_class is None:
        arguments += ["-u", str(options.num_users or 1), "-r", f"{options.spawn_rate or 1:g}"]
    if options.run_time:
        arguments += ["-t", f"{options.run_time}s"]
    arguments += _processes(options)
    if environment.host:
        arguments += ["--host", environment.host]
    for option, values in (("-T", options.tags), ("-E", options.exclude_tags)):
        if values:
            arguments += [option, *values]
    if options.stop_timeout:
        arguments += ["-s", f"{options.stop_timeout:g}"]
    arguments += _tailgauge_arguments(options)
    return [known()(plain(word, LONGEST)) for word in arguments]


def _classes(environment: Any) -> list[str]:
    """Return the user classes that were named, on the command line or in the start form."""
    if environment.parsed_options.class_picker:
        return [user_class.__name__ for user_class in environment.user_classes]
    return list(environment.parsed_options.user_classes)


def _processes(options: Any) -> list[str]:
    """Return how the load is spread: over processes here, or over workers that are started by hand."""
    if options.processes:
        return ["--processes", str(options.processes)]
    if options.master:
        return ["--master", "--expect-workers", str(options.expect_workers)]
    return []


def _tailgauge_arguments(options: Any) -> list[str]:
    arguments: list[str] = []
    if options.scenario:
        arguments += ["--scenario", options.scenario]
    for text in options.tailgauge_set:
        arguments += ["--set", text]
    for name in options.tailgauge_plugins:
        arguments += ["--plugin", name]
    if options.tailgauge_allow_plugins:
        arguments.append("--allow-plugins")
    return arguments
