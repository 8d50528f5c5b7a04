"""Flags of other load generators: `other_tools.toml`, and what a command makes of them.

A flag that means the same as an option of ours is taken as that option. Any other flag of the table ends the command with
one line that names ours. Values are never repeated: one of them may be a key.
"""

from __future__ import annotations

import itertools
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click

from tailgauge.cli.options import Loads
from tailgauge.errors import UsageError
from tailgauge.live import screen

FILE = Path(__file__).parent / "other_tools.toml"
WIDTH = 80
LONG_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
DASHES = f"-{LONG_DASHES}"
ONE_DASH = re.compile("-[a-z][a-z-]")
NUMBER = re.compile(r"\d+(?:\.\d+)?,?")  # of a list with spaces
# Values that an answer may depend on. `secret` is never repeated.
FORMS = {
    "number": re.compile(r"\d{1,9}(?:\.\d{1,3})?"),
    "url": re.compile(r"https?://[\w.:/\[\]-]{1,100}"),
    "secret": re.compile(r"(?:authorization|x-api-key|api-key)\s*[:=].*", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True)
class ToolFlag:
    """A row of the table. Exactly one of `option`, `default` and `answer` has a text; see the head of the file.

    `default` is for flags without a value: why such a flag has no effect here.
    """

    names: Sequence[str]
    tools: Sequence[str]
    option: str = ""
    default: str = ""
    answer: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    forms: Mapping[str, str] = field(default_factory=dict)

    @property
    def meaning(self) -> str:
        """`that is --requests`, or the answer."""
        if self.option:
            return f"that is {self.option}"
        return self.default or self.answer

    def answer_to(self, name: str, value: str | None) -> str:
        """Return the answer; a value of a known form is carried over into it, any other is not repeated."""
        if value is None:
            return self.answer
        if value in self.values:
            return self.values[value]
        key = name.lstrip("-").replace("-", "_")
        for form, text in self.forms.items():
            if FORMS[form].fullmatch(value.strip()):
                return text.replace("{key}", key).replace("{value}", value.strip())
        return self.answer


@cache
def rows() -> tuple[ToolFlag, ...]:
    """Return the rows in the order of the file."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))["flag"]
    return tuple(ToolFlag(**table) for table in tables)


@cache
def flags() -> dict[str, ToolFlag]:
    """Return the rows by each of their names."""
    return {name: row for row in rows() for name in row.names}


# The options in the help of a run, by what they are about.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Target": ("--target", "--model", "--protocol"),
    "Load": ("--rate", "--concurrency", "--requests", "--duration", "--sweep", "--quick"),
    "Prompts and answers": ("--input-tokens", "--output-tokens", "--seed", "--keep-answers"),
    "Objectives and limits": ("--slo", "--max-requests", "--max-tokens", "--max-cost"),
    "Scenario": ("--set", "--plugin", "--allow-plugins", "--clock"),
    "Machines": ("--workers", "--expect-workers", "--bind"),
    "Output": ("--dry-run", "--out", "--json", "--open", "--web", "--metrics", "--help"),
}


class CommandWithToolFlags(click.Command):
    """A command that understands the flags of the table. Its help has sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section, in aligned columns."""
        records = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option):
                record = param.get_help_record(ctx)
                if record is not None:
                    records[param.opts[-1]] = record
        width = max(len(usage) for usage, _ in records.values())
        in_sections = set(itertools.chain(*SECTIONS.values()))
        remaining = sorted(records.keys() - in_sections)
        for title, names in {**SECTIONS, "Other": remaining}.items():
            rows = [records[name] for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(usage.ljust(width), text) for usage, text in rows])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace the flags of other tools, then parse as usual."""
        translation = Translation(self, args)
        if translation.notes:
            text = f"tailgauge: {', '.join(translation.notes)}"
            lines = textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
            screen.show("\n".join(lines), err=True)
        return super().parse_args(ctx, translation.arguments)


class Translation:
    """A command line in our options. `notes`: what was replaced. UsageError where a flag is answered with an explanation."""

    def __init__(self, command: click.Command, args: Sequence[str]) -> None:
        self._command = command
        # By the name of an option of the command: whether it takes no value.
        self._flags: dict[str, bool] = {}
        self._types: dict[str, click.ParamType[Any]] = {}
        for param in command.params:
            if isinstance(param, click.Option):
                self._flags.update(dict.fromkeys(param.opts, param.is_flag))
                self._types.update(dict.fromkeys(param.opts, param.type))
        self.arguments: list[str] = []
        self.notes: list[str] = []
        self._rest = list(args)
        while self._rest:
            self._translate(self._rest.pop(0))

    def _translate(self, word: str) -> None:
        if word == "--":
            self.arguments += [word, *self._rest]
            self._rest.clear()
            return
        self._check_dashes(word)
        name, value = _split(word)
        if name in self._flags:
            self._keep(word, takes_next=value is None and not self._flags[name])
            if not self._flags[name]:
                self._refuse_more_numbers(name)
        elif word.startswith("-") and name in flags():
            self._replace(name, value)
        else:
            self.arguments.append(word)

    def _keep(self, word: str, *, takes_next: bool) -> None:
        self.arguments.append(word)
        if takes_next and self._rest:
            self.arguments.append(self._rest.pop(0))

    def _replace(self, name: str, value: str | None) -> None:
        """Take a flag of another tool: as our option, with its value, or without effect, with a note of it.

        `value`: what is written with the name, None where it may follow as the next word. UsageError where the flag, or
        this value, is answered with an explanation, where the command has no such option, or where several numbers follow.
        The value is never repeated, unless the table says so.
        """
        flag = flags()[name]
        if flag.answer:
            if value is None and self._rest:
                value = self._rest[0]
            raise UsageError(f"{name}: {flag.answer_to(name, value)}")
        if flag.default:
            self.notes.append(f"{name} has no effect ({flag.default})")
            return
        if flag.option not in self._flags:
            text = f"that is {flag.option} of `tailgauge run`, which {self._command.name} does not take"
            raise UsageError(f"{name}: {text}")
        self.notes.append(f"{name} is taken as {flag.option}")
        self.arguments.append(flag.option)
        # The option takes no value: the next word is something else.
        if self._flags[flag.option]:
            return
        if value is None and self._rest:
            value = self._rest.pop(0)
        if value is None:
            return
        if value in flag.values:
            raise UsageError(f"{name} {value}: {flag.values[value]}")
        self.arguments.append(value)
        self._refuse_more_numbers(flag.option)

    def _check_dashes(self, word: str) -> None:
        """Refuse an option with one dash, `-dry-run`, or with a long one, as word processors write it."""
        name = f"--{word.lstrip(DASHES)}".partition("=")[0]
        is_known = name in self._flags or name in flags()
        if word[0:1] in LONG_DASHES:
            meant = f"did you mean {name}?" if is_known else "an option begins so:"
            raise UsageError(f"{word[:80]}: {meant} (two short dashes: --)")
        if is_known and ONE_DASH.match(word) and _split(word)[0] not in self._flags:
            raise UsageError(f"{word.partition('=')[0]}: did you mean {name}? (two dashes)")

    def _refuse_more_numbers(self, name: str) -> None:
        """Refuse numbers behind the value of an option, `--rate 2 4 8`: they would be taken as scenarios."""
        numbers = [self.arguments[-1].rpartition("=")[2]]
        for word in self._rest:
            if not NUMBER.fullmatch(word) or Path(word).exists():
                break
            numbers.append(word)
        if len(numbers) == 1:
            return
        numbers = [number.strip(",") for number in numbers]
        if isinstance(self._types[name], Loads):
            raise UsageError(
                f"{name}: a list of loads has commas and no spaces: write {name} {','.join(numbers)}"
            )
        raise UsageError(f"{name}: expected one value, got {' '.join(numbers)}")


def _split(word: str) -> tuple[str, str | None]:
    """Return the name of a flag, and the value that is written with it: `--name=value`, `-nvalue`."""
    if word.startswith("--"):
        name, separator, value = word.partition("=")
        return name, value if separator else None
    return word[:2], word[2:] or None
