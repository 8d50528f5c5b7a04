"""The command line that repeats a run of tasks: Locust's options that set its load and its target, and ours.

All others are left out: a password of the web page, and what a locustfile adds, whose values may be secrets.
"""

from __future__ import annotations

from typing import Any

from tailgauge.redaction import known
from tailgauge.sanitize import plain

LONGEST = 2000  # characters of a word


def command_words(environment: Any) -> list[str]:
    """Return the words of `locust -f FILE ...` without the web page, as a shell reads them."""
    options = environment.parsed_options
    words = ["locust", "-f", str(options.locustfile).partition("?")[0], *_classes(environment), "--headless"]
    if environment.shape_class is None:
        words += ["-u", str(options.num_users or 1), "-r", f"{options.spawn_rate or 1:g}"]
    if options.run_time:
        words += ["-t", f"{options.run_time}s"]
    words += _processes(options)
    if environment.host:
        words += ["--host", environment.host]
    for option, values in (("-T", options.tags), ("-E", options.exclude_tags)):
        words += [option, *values] if values else []
    if options.stop_timeout:
        words += ["-s", f"{options.stop_timeout:g}"]
    words += _of_tailgauge(options)
    return [known()(plain(word, LONGEST)) for word in words]


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


def _of_tailgauge(options: Any) -> list[str]:
    words: list[str] = []
    if options.scenario:
        words += ["--scenario", options.scenario]
    for text in options.tailgauge_set:
        words += ["--set", text]
    for name in options.tailgauge_plugins:
        words += ["--plugin", name]
    if options.tailgauge_allow_plugins:
        words.append("--allow-plugins")
    return words
