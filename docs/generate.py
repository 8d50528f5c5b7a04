"""Writes the pages of this folder that are read off the code; with --check, names the stale ones and fails.

    .venv/bin/python docs/generate.py [--check]

Rule: a page is a function from the code to Markdown, so that a key, an option or a metric cannot be documented wrongly.
Run it from `make docs`; `make test` runs the check.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tailgauge.cli.main import cli
from tailgauge.experiments import schema as answer
from tailgauge.scenario.model import Scenario, packaged
from tailgauge_analysis.report.pages import data_format_page, metrics_page
from tailgauge_analysis.report.report_schema import schema

DOCS = Path(__file__).parent
NOTICE = "<!-- Written by docs/generate.py: change the code, then run `make docs`. -->"
HELP_WIDTH = 96
SCENARIOS_INTRO = """\
A scenario says what traffic to send, as TOML.
`tailgauge run` takes the path of one, or the name of a packaged one.
A scenario states only what differs from the defaults below; `--set table.key=value` changes a key for one run.
Unknown keys and impossible values are refused with the file, the key and what was expected.
"""


def cli_page() -> str:
    """Every command with the help that it prints."""
    parts = [f"# Commands\n\n{NOTICE}\n\nEach command with what its `--help` prints.\n"]
    parts += [
        f"## {context.command_path}\n\n```text\n{context.get_help().rstrip()}\n```\n"
        for context in _contexts(cli, "tailgauge", None)
    ]
    return "\n".join(parts)


def _contexts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    settings = {**command.context_settings, "terminal_width": HELP_WIDTH, "color": False}
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield context
    if isinstance(command, click.Group):
        for child_name, child in sorted(command.commands.items()):
            if not child.hidden:
                yield from _contexts(child, child_name, context)


def scenarios_page() -> str:
    """Every table and key of a scenario, then the scenarios that come with the package."""
    schema = Scenario.model_json_schema()
    plain = {key: spec for key, spec in schema["properties"].items() if not _table_name(spec)}
    parts = [
        f"# Scenarios\n\n{NOTICE}\n\n{SCENARIOS_INTRO}",
        "## Keys outside any table\n",
        _key_table(plain, set(schema.get("required", ()))),
    ]
    for key, spec in schema["properties"].items():
        parts += _tables(schema, key, spec)
    parts += ["## Packaged scenarios\n", "| name | what it sends |\n|---|---|"]
    for path in sorted(packaged("scenarios").glob("*.toml")):
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        parts.append(f"| `{path.stem}` | {_cell(tree['description'])} |")
    return "\n".join(parts) + "\n"


def _tables(schema: dict[str, Any], key: str, spec: dict[str, Any]) -> Iterator[str]:
    """A table and those within it; nothing for a plain value."""
    table = _table_name(spec)
    if not table:
        return
    name = f"{key}.NAME" if "additionalProperties" in spec else f"{key}[]" if "items" in spec else key
    model = schema["$defs"][table]
    plain = {inner: one for inner, one in model["properties"].items() if not _table_name(one)}
    yield f"## [{name}]\n"
    yield model["description"] + "\n"
    yield _key_table(plain, set(model.get("required", ())))
    for inner, one in model["properties"].items():
        yield from _tables(schema, f"{name}.{inner}", one)


def _table_name(spec: dict[str, Any]) -> str:
    """The table that a key holds, alone, optional, by name or in a list; empty for a plain value."""
    inner = [
        spec,
        *spec.get("allOf", ()),
        *spec.get("anyOf", ()),
        spec.get("additionalProperties"),
        spec.get("items"),
    ]
    references = (one["$ref"] for one in inner if isinstance(one, dict) and "$ref" in one)
    return str(next(references, "")).rpartition("/")[2]


def _key_table(properties: dict[str, dict[str, Any]], required: set[str]) -> str:
    lines = ["| key | type | default | bounds | meaning |", "|---|---|---|---|---|"]
    for key, spec in properties.items():
        default = "required" if key in required and key != "name" else _default(spec)
        lines.append(
            f"| `{key}` | {_kind(spec)} | {default} | {_bounds(spec)} | {_cell(spec.get('description', ''))} |"
        )
    return "\n".join(lines) + "\n"


def _variants(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [s for s in spec.get("anyOf", [spec]) if s.get("type") != "null"]


def _kind(spec: dict[str, Any]) -> str:
    names = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "array": "list",
    }
    return " or ".join(
        ", ".join(f"`{choice}`" for choice in s["enum"])
        if "enum" in s
        else names.get(s.get("type", ""), "value")
        for s in _variants(spec)
    )


def _default(spec: dict[str, Any]) -> str:
    if spec.get("default") is None:
        return "-"
    return f"`{json.dumps(spec['default'])}`"


def _bounds(spec: dict[str, Any]) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    found = [f"{sign} {_number(s[key])}" for s in _variants(spec) for key, sign in signs.items() if key in s]
    found += ["not empty" for s in _variants(spec) if s.get("minLength") == 1]
    found += [f"at most {s['maxLength']} characters" for s in _variants(spec) if "maxLength" in s]
    return ", ".join(found) or "-"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def schema_page() -> str:
    """The JSON Schema of report.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def answer_schema_page() -> str:
    """The JSON Schema of an experiment's report.json."""
    return json.dumps(answer.schema(), indent=2, ensure_ascii=False) + "\n"


PAGES = {
    "answer.schema.json": answer_schema_page,
    "cli.md": cli_page,
    "data-format.md": data_format_page,
    "metrics.md": metrics_page,
    "report.schema.json": schema_page,
    "scenarios.md": scenarios_page,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; the exit code says whether all is well."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {Path(__file__).name} [--check]", file=sys.stderr)
        return 2
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if arguments and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(f"docs/{name}")
        elif not arguments:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{name}")
    if stale:
        print(f"stale: {', '.join(stale)}; run `make docs`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
