"""The command that repeats a run, as a shell accepts it. Reports, experiments and messages print no other one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from tailgauge.sanitize import is_one_line

# Begins the name of the folder with the files of an experiment's steps.
STEP_FOLDER = "tailgauge-experiment-"
# Begins a command at the end of an advice.
COMMAND = re.compile(r"(?<!\S)(?:tailgauge run|locust -f) ")
OPTION = re.compile(r"--?[a-zA-Z]")
# The options of `tailgauge run` that set a key of the scenario to a value as it stands.
OPTION_OF = {
    "target.url": "--target",
    "target.model": "--model",
    "target.protocol": "--protocol",
    "traffic.*.prompt_tokens": "--input-tokens",
    "traffic.*.output_tokens": "--output-tokens",
    "seed": "--seed",
    "guard.max_requests": "--max-requests",
    "guard.max_tokens": "--max-tokens",
    "guard.max_cost": "--max-cost",
}
LONGEST = 2000  # characters of a word in a line that somebody reads


def run_line(
    scenario: str,
    overrides: Sequence[str] = (),
    *,
    plugins: Sequence[str] = (),
    workers: int = 1,
    dry_run: bool = False,
    options: Sequence[str] = (),
) -> str:
    """Return `tailgauge run SCENARIO ...` with these overrides; `options` are words behind them, as they are typed.

    Keys are named by their variables in the scenario, so that none of them is in the line.
    """
    line = ["tailgauge", "run", scenario]
    if dry_run:
        line.append("--dry-run")
    elif workers > 1:
        line += ["--workers", str(workers)]
    for plugin in plugins:
        line += ["--plugin", plugin]
    for text in overrides:
        line += ["--set", text]
    line += options
    return shell_line(line)


def shell_line(line: Sequence[str]) -> str:
    """Return a command as a shell accepts it.

    Empty where a word is too long to be printed, or has control characters: cut or cleaned, it would run something else.
    """
    if not all(len(word) <= LONGEST and is_one_line(word) for word in line):
        return ""
    return shlex.join(line)


def with_command(text: str) -> tuple[str, str]:
    """Return a text without the command at its end, and the command; empty where no shell could read one there.

    The text may quote a target, which can name commands too.
    """
    begins = [match.start() for match in COMMAND.finditer(text)]
    if not begins:
        return text, ""
    command = text[begins[-1] :]
    try:
        shlex.split(command)
    except ValueError:
        return text, ""
    return text[: begins[-1]].rstrip(), command


def options_of(command: str) -> list[str]:
    """Return the command's name and scenario, then each option with its value, quoted for a shell."""
    options: list[str] = []
    for word in shlex.split(command):
        quoted = shlex.quote(word)
        if options and not OPTION.match(word):
            options[-1] += f" {quoted}"
        else:
            options.append(quoted)
    return options
