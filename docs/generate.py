"""Writes the generated parts of the pages in this folder and of CONTRIBUTING.md; with --check, names the stale ones and fails.

    .venv/bin/python docs/generate.py [--check]

A part stands between `<!-- generated: NAME -->` and `<!-- end -->` in a page and is the result of the function of that name in
PARTS, so that a key, an option or a metric cannot be documented wrongly. The JSON Schemas are whole files.
Run it with `make docs`; `make test` runs the check.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import click
import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from tailgauge.table import Table

# Before the tables are made: what stands below a key is its meaning.
Table.model_config["use_attribute_docstrings"] = True

import tailgauge
from tailgauge import vendors
from tailgauge.cli.main import cli
from tailgauge.cli.options import MEANINGS
from tailgauge.cli.other_tools import rows as tool_flags
from tailgauge.experiments.answer import SCHEMA_VERSION as ANSWER_VERSION
from tailgauge.experiments.answer import AnswerFile
from tailgauge.live.prometheus import HELP
from tailgauge.protocol_violations import TOLERATED, VIOLATIONS
from tailgauge.rows import schema as rows
from tailgauge.scenario.figures import FIGURES, LATENCY
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.packaged import packaged
from tailgauge.simulator.engine.config import PROFILES, EngineConfig, StepTime
from tailgauge_analysis import runs
from tailgauge_analysis.comparing.run_summary import SCHEMA_VERSION as BASELINE_VERSION
from tailgauge_analysis.comparing.run_summary import RunSummary
from tailgauge_analysis.metrics.definitions import TOOLS, Formula
from tailgauge_analysis.metrics.latency import QUANTILES
from tailgauge_analysis.metrics.metrics import METRICS, REQUEST, UNIT, Metric
from tailgauge_analysis.reading.run_json import RunJson, WorkerJson
from tailgauge_analysis.report.build import SECTIONS
from tailgauge_analysis.report.model import SCHEMA_VERSION, STABLE, Facts
from tailgauge_analysis.stats.quantiles import Quantile, n_min
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.text.quantile import Percentile
from tailgauge_analysis.verdict.checks import CHECKS

DOCS = Path(__file__).parent
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
VARIANT = re.compile(r"^# variant (\w+): ", re.MULTILINE)  # of a packaged scenario
HELP_WIDTH = 80
HELP_OPTION = re.compile(r"^ +-h, --help +.*\n?", re.MULTILINE)
LONG_LIST = 12  # values of a choice; more of them are not listed in a table
HUGE = 1000  # an upper bound from here on only guards against mistakes


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    head = f"| {' | '.join(header)} |\n|{'---|' * len(header)}\n"
    return head + "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines)


def cell(text: str) -> str:
    """Text of one line, without what would end a cell."""
    return " ".join(text.split()).replace("|", "\\|")


# Commands


def commands() -> str:
    """Every command with the help that it prints, without what is the same for others."""
    return "\n".join(
        f"## {context.command_path}\n\n```text\n{_help(context)}\n```\n"
        for context in _contexts(cli, "tailgauge", None)
    )


def _help(context: click.Context) -> str:
    """The help of a command without the option --help, and without exit codes that are those of `run`."""
    command = context.command
    run = cli.commands["run"]
    note = ""
    if command is not run and command.epilog == run.epilog:
        command = copy.copy(command)
        command.epilog = None
        note = "\n\n  Exit codes: those of tailgauge run."
    text = HELP_OPTION.sub("", command.get_help(context)).rstrip()
    return text.removesuffix("Options:").rstrip() + note


def _contexts(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[click.Context]:
    settings = {**command.context_settings, "terminal_width": HELP_WIDTH, "color": False}
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield context
    if isinstance(command, click.Group):
        for child_name, child in sorted(command.commands.items()):
            if not child.hidden:
                yield from _contexts(child, child_name, context)


def exit_codes() -> str:
    """The exit codes of a run."""
    return table(("code", "meaning"), [(str(int(code)), text) for code, text in MEANINGS.items()])


def other_flags() -> str:
    """The flags of other load generators, and ours."""
    flags: dict[str, list[str]] = {}
    for row in tool_flags():
        option = f"`{row.option}`" if row.option else ""
        answers = [row.answer or option or "no effect"]
        answers += [f"`{value}`: {answer}" for value, answer in row.values.items()]
        names = flags.setdefault("; ".join(answers), [])
        names += [f"`{name}`" for name in row.names]
    lines = [(", ".join(names), text) for text, names in flags.items()]
    return table(("flag", "here"), lines)


# Scenarios


def scenario_keys() -> str:
    """Every table and key of a scenario."""
    tree = Scenario.model_json_schema()
    known: dict[str, str] = {}
    plain = {key: spec for key, spec in tree["properties"].items() if not _table_name(spec)}
    parts = ["## Keys outside any table\n", _key_table(plain, set(tree.get("required", ())))]
    for key, spec in tree["properties"].items():
        parts += _tables(tree, key, spec, known)
    return "\n".join(parts)


def packaged_scenarios() -> str:
    """The scenarios that come with the package, with the names of their commented variants."""
    lines: list[tuple[str, str, str]] = []
    for path in sorted(packaged("scenarios").glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        variants = dict.fromkeys(VARIANT.findall(text))
        names = ", ".join(f"`{name}`" for name in variants)
        lines.append((f"`{path.stem}`", tomllib.loads(text)["description"], names))
    return table(("name", "what it sends", "variants"), lines)


def _tables(
    tree: dict[str, Any], key: str, spec: dict[str, Any], known: dict[str, str]
) -> Iterator[str]:
    """A table and those within it, the keys of each once; nothing for a plain value."""
    found = _table_name(spec)
    if not found:
        return
    name = (
        f"{key}.NAME" if "additionalProperties" in spec else f"{key}[]" if "items" in spec else key
    )
    model = tree["$defs"][found]
    plain = {inner: one for inner, one in model["properties"].items() if not _table_name(one)}
    yield f"## [{name}]\n"
    if found in known:
        text = spec.get("description") or model["description"].removesuffix(".")
        yield f"{text[0].upper()}{text[1:]}. Keys as in [{known[found]}].\n"
        return
    yield model["description"] + "\n"
    known[found] = name
    repeated = _repeated(name, plain, known)
    for table_name, keys in repeated.items():
        yield f"Keys as in [{table_name}]: {', '.join(f'`{one}`' for one in keys)}.\n"
        plain = {inner: one for inner, one in plain.items() if inner not in keys}
    if plain:
        yield _key_table(plain, set(model.get("required", ())))
    for inner, one in model["properties"].items():
        yield from _tables(tree, f"{name}.{inner}", one, known)


def _repeated(
    name: str, properties: dict[str, dict[str, Any]], known: dict[str, str]
) -> dict[str, list[str]]:
    """The keys that an earlier table beside this one has alike, by that table; the others become known."""
    parent = name.rpartition(".")[0]
    keys: dict[str, list[str]] = {}
    for key, spec in properties.items():
        identity = f"{parent} {key} {json.dumps(spec, sort_keys=True)}"
        earlier = known.setdefault(identity, name)
        if earlier != name:
            keys.setdefault(earlier, []).append(key)
    return keys


def _table_name(spec: dict[str, Any]) -> str:
    """The table that a key holds, alone, optional, by name or in a list; empty for a plain value."""
    values = spec.get("additionalProperties")
    inner = [
        spec,
        *spec.get("allOf", ()),
        *spec.get("anyOf", ()),
        values,
        values.get("items") if isinstance(values, dict) else None,
        spec.get("items"),
    ]
    references = (one["$ref"] for one in inner if isinstance(one, dict) and "$ref" in one)
    return str(next(references, "")).rpartition("/")[2]


def _key_table(properties: dict[str, dict[str, Any]], required: set[str]) -> str:
    lines = [
        (f"`{key}`", _value(spec, key in required and key != "name"), spec.get("description", ""))
        for key, spec in properties.items()
    ]
    return table(("key", "value", "meaning"), lines)


def _value(spec: dict[str, Any], is_required: bool) -> str:
    """What a key can have: its default first, else its type; then its choices or bounds."""
    default = spec.get("default")
    choices = [] if _names_choices(spec) else spec.get("enum", [])
    if default is None:
        required = "required" if is_required else ""
        kind = "" if _names_choices(spec) else type_of(spec)
        one_of = "one of" if kind.startswith("`") else ""
        return " ".join(filter(None, (required, one_of, kind, _bounds(spec))))
    texts = [f"`{default}`" if "enum" in spec else f"`{json.dumps(default)}`"]
    if len(choices) <= LONG_LIST:
        texts += [f"`{choice}`" for choice in choices if choice != default]
    return " ".join(filter(None, (", ".join(texts), _bounds(spec))))


def _names_choices(spec: dict[str, Any]) -> bool:
    """Whether the meaning of a key names each of its choices, but for the default."""
    choices: list[Any] = []
    for kind in spec.get("anyOf", [spec]):
        choices += [kind["const"]] if "const" in kind else kind.get("enum", [])
    meaning = spec.get("description", "")
    others = [choice for choice in choices if choice != spec.get("default")]
    return bool(others) and all(f"`{choice}`" in meaning for choice in others)


def _bounds(spec: dict[str, Any]) -> str:
    """The bounds of a number, without those that only guard against mistakes, such as a time of 0."""
    kinds = spec.get("anyOf", [spec])
    kind: dict[str, Any] = next(
        (one for one in kinds if one.get("type") in {"integer", "number"}), {}
    )
    least, most = kind.get("minimum"), kind.get("maximum", HUGE)
    if least is not None and most < HUGE:
        return f"{_number(least)}-{_number(most)}"
    bounds = []
    if kind.get("exclusiveMinimum"):
        bounds.append(f"> {_number(kind['exclusiveMinimum'])}")
    elif least and least != 1:
        bounds.append(f">= {_number(least)}")
    if kind.get("exclusiveMaximum", HUGE) < HUGE:
        bounds.append(f"< {_number(kind['exclusiveMaximum'])}")
    if most < HUGE:
        bounds.append(f"<= {_number(most)}")
    return ", ".join(bounds)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


# JSON


def type_of(spec: Mapping[str, Any], *, nulls: bool = False) -> str:
    """The type of a value, as people call it."""
    names = {
        "string": "string", "integer": "integer", "number": "number", "boolean": "boolean", "array": "list",
        "object": "table", "null": "null",
    }  # fmt: skip
    found = []
    for one in spec.get("anyOf", [spec]):
        if "$ref" in one:
            found.append(one["$ref"].rpartition("/")[2])
        elif "const" in one:
            found.append(f"`{one['const']}`")
        elif "enum" in one and len(one["enum"]) <= LONG_LIST:
            found.append(", ".join(f"`{choice}`" for choice in one["enum"]))
        elif nulls and one.get("type") in {"array", "object"}:
            inner = one.get("items", one.get("additionalProperties", {}))
            of = type_of(inner, nulls=True) if isinstance(inner, dict) and "$ref" in inner else ""
            found.append(names[one["type"]] + (f" of {of}" if of else ""))
        elif nulls or one.get("type") != "null":
            found.append(names.get(one.get("type", ""), "value"))
    return " or ".join(found)


class _Untitled(GenerateJsonSchema):
    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        if schema["cls"] is Quantile:  # text/quantile.py writes it
            return self.generate_inner(TypeAdapter(Percentile).core_schema)
        return super().dataclass_schema(schema)

    def is_instance_schema(self, schema: Any) -> dict[str, Any]:
        if schema["cls"] is np.ndarray:
            return {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}}
        return super().is_instance_schema(schema)

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ARG002
        return True

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])  # every key is written

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def json_schema(model: Any) -> dict[str, Any]:
    """The JSON Schema of a type, without a title for each key."""
    return TypeAdapter(model).json_schema(schema_generator=_Untitled)


def answer_schema() -> dict[str, Any]:
    """The JSON Schema of report.json of an experiment, as it is written."""
    return TypeAdapter(AnswerFile).json_schema(schema_generator=_Untitled, mode="serialization")


def report_schema() -> dict[str, Any]:
    """The JSON Schema of report.json: its facts, and the result of each section under its key or as keys."""
    results = [get_type_hints(section.compute)["return"] for section in SECTIONS]
    shape: Any = tuple.__class_getitem__((Facts, *results))
    every: TypeAdapter[Any] = TypeAdapter(
        shape,
        config=ConfigDict(use_attribute_docstrings=True, arbitrary_types_allowed=True),
    )
    tree = every.json_schema(schema_generator=_Untitled, mode="serialization")
    definitions = tree["$defs"]
    facts, *of_sections = tree["prefixItems"]
    properties = dict(_definition(definitions, facts)["properties"])
    for section, spec in zip(SECTIONS, of_sections, strict=True):
        if section.KEY:
            properties[section.KEY] = {**spec, "description": _meaning(definitions, spec)}
        else:
            properties |= _definition(definitions, spec)["properties"]
    required = list(properties)
    return {"$defs": definitions, "type": "object", "properties": properties, "required": required}


def _definition(definitions: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Take out the definition of a type whose fields are keys of report.json."""
    found: dict[str, Any] = definitions.pop(spec["$ref"].rpartition("/")[2])
    return found


def _meaning(definitions: dict[str, Any], spec: dict[str, Any]) -> str:
    """Return the description of the first type that a key holds."""
    name = re.search(r"#/\$defs/(\w+)", json.dumps(spec))
    return definitions[name[1]].get("description", "") if name else ""


def schema_file(tree: dict[str, Any], name: str, version: int, title: str) -> str:
    """A JSON Schema as a file."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tailgauge:{name}:{version}",
    }
    return json.dumps({**head, **tree, "title": title}, indent=2, ensure_ascii=False) + "\n"


def report_keys() -> str:
    """The keys of report.json that may be relied on."""
    properties = report_schema()["properties"]
    lines = [(f"`{key}`", properties[key].get("description", "")) for key in STABLE]
    return table(("key", "meaning"), lines)


def _model_keys(model: type[BaseModel]) -> Callable[[], str]:
    fields = model.model_fields.items()
    return lambda: table(
        ("key", "meaning"), [(f"`{name}`", field.description or "") for name, field in fields]
    )


def profiles() -> str:
    """The engines of the simulated endpoint."""
    header = (
        "profile", "step ms", "sequence ms", "context ms", "prefill ms per token", "overhead ms, sigma",
        "replicas x slots", "KV tokens",
    )  # fmt: skip
    return table(header, [_profile(name, one) for name, one in PROFILES.items()])


def _profile(name: str, engine: EngineConfig) -> tuple[str, ...]:
    timing = engine.timing
    assert isinstance(timing, StepTime)
    prefill = timing.prefill
    knee = (
        f"; beyond {prefill.knee_tokens:,}: {prefill.ms_per_token_beyond:g}"
        if prefill.ms_per_token_beyond
        else ""
    )
    base = f"{prefill.base_ms:g} per step + " if prefill.base_ms else ""
    return (
        f"`{name}`",
        *(f"{ms:g}" for ms in (timing.step_ms, timing.sequence_ms, timing.context_ms)),
        f"{base}{prefill.ms_per_token:g}{knee}",
        f"{engine.overhead_ms:g}, {engine.overhead_sigma:g}" if engine.overhead_ms else "-",
        f"{engine.replicas} x {engine.slots}",
        f"{engine.kv_blocks * engine.block_tokens:,}" if engine.kv_blocks else "-",
    )


# Python

SIGNATURE_WIDTH = 90
ALIASES = {"Folder": runs.Folder, "Since": runs.Since, "Population": runs.Population}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "tailgauge.run": tailgauge.run,
    "tg.load": runs.load,
    "tg.list_runs": runs.list_runs,
    "tg.compare": runs.compare,
    "run.percentile": runs.Run.percentile,
    "run.report": runs.Run.report,
}


def python_signatures() -> str:
    """Every public function and method with its arguments."""
    texts = [_signature(name, function) for name, function in FUNCTIONS.items()]
    return "```python\n" + "\n".join(texts) + "\n```\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    """A call with its arguments, a line for each where they do not fit one."""
    signature = inspect.signature(function)
    arguments: list[str] = []
    is_by_keyword = False
    for argument in signature.parameters.values():
        if argument.name == "self":
            continue
        begins_keywords = argument.kind is argument.KEYWORD_ONLY and not is_by_keyword
        is_by_keyword = is_by_keyword or argument.kind in {
            argument.KEYWORD_ONLY,
            argument.VAR_POSITIONAL,
        }
        if begins_keywords:
            arguments.append("*")
        star = "*" if argument.kind is argument.VAR_POSITIONAL else ""
        default = "" if argument.default is argument.empty else f" = {_source(argument.default)}"
        arguments.append(f"{star}{argument.name}: {_type_text(argument.annotation)}{default}")
    result = _type_text(signature.return_annotation)
    line = f"{name}({', '.join(arguments)}) -> {result}"
    if len(line) <= SIGNATURE_WIDTH:
        return line
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"{name}(\n{lines}) -> {result}"


def _source(value: object) -> str:
    """A default value as it is written."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _type_text(annotation: str) -> str:
    """An annotation without aliases."""
    for alias, type_of_alias in ALIASES.items():
        text = str(type_of_alias).removeprefix("typing.").replace("'", '"')
        annotation = re.sub(rf"\b{alias}\b", text, annotation)
    return annotation


# Rows


def columns() -> str:
    """Every table of rows with its columns, those that most tables have once."""
    parts = []
    for name, row in rows.TABLES.items():
        recorded = [column for column in rows.columns(name) if column.name not in rows.ORIGIN]
        text = (row.__doc__ or "").strip()
        parts.append(f"## {name}\n\n{text}\n\n{_column_table(recorded)}")
    shared = [column for column in rows.columns("requests") if column.name in rows.ORIGIN]
    parts.append(f"## Columns of every table but target\n\n{_column_table(shared)}")
    return "\n".join(parts)


def _column_table(columns: Iterable[rows.Column]) -> str:
    """Columns with their types; neighbours of one type and meaning share a line."""
    lines = []
    alike = itertools.groupby(columns, key=lambda column: (_type_of_column(column), column.meaning))
    for (kind, meaning), group in alike:
        names = ", ".join(f"`{column.name}`" for column in group)
        lines.append((f"{names} {kind}", meaning))
    return table(("column and type", "meaning"), lines)


def _type_of_column(column: rows.Column) -> str:
    return column.kind.replace("<", "&lt;") + ("?" if column.nullable else "")


SENTENCE = re.compile(r"(?<=[.]) ")
REPEATED = 3  # formulas that share a sentence, from which it is printed once
FORMULA_HEADER = ("metric", "ours", "formula", "difference")


def other_tools() -> str:
    """Every formula of each tool that `--as` takes; a sentence or a formula of several of them is printed once."""
    formulas = [formula for tool in TOOLS.values() for formula in tool.formulas]
    counts = Counter(sentence for formula in formulas for sentence in SENTENCE.split(formula.why))
    notes = [sentence for sentence, times in counts.items() if times >= REPEATED]
    parts = [f"{number}. {sentence}" for number, sentence in enumerate(notes, 1)]
    parts.append("")
    names: dict[tuple[str, str, str], list[str]] = {}
    for tool in TOOLS.values():
        for formula in tool.formulas:
            names.setdefault(_formula_cells(formula, notes), []).append(
                f"{formula.name} ({tool.name})"
            )
    shared = [(", ".join(those), *cells) for cells, those in names.items() if len(those) > 1]
    parts.append("### Several tools\n")
    parts.append(table(FORMULA_HEADER, shared))
    for name, tool in TOOLS.items():
        parts.append(f"### {tool.name}: `--as {name}`\n")
        parts.append(f"Read in {tool.source}. A percentile is {tool.rule}.\n")
        lines = [(formula.name, *_formula_cells(formula, notes)) for formula in tool.formulas]
        parts.append(table(FORMULA_HEADER, [line for line in lines if len(names[line[1:]]) == 1]))
    return "\n".join(parts)


def _formula_cells(formula: Formula, notes: Sequence[str]) -> tuple[str, str, str]:
    """Our metric, the formula, and the difference."""
    ours = f"`{formula.ours}`" if formula.ours else ""
    return ours, formula.formula, _difference(formula.why, notes)


def _difference(text: str, notes: Sequence[str]) -> str:
    """A text with the numbers of notes in place of their sentences."""
    sentences = [
        f"({notes.index(sentence) + 1})" if sentence in notes else sentence
        for sentence in SENTENCE.split(text)
    ]
    return " ".join(sentences)


def make_targets() -> str:
    """Every target of the Makefile that has a description."""
    text = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    found = re.findall(r"^([a-z-]+):.*?## (.+)$", text, re.MULTILINE)
    return table(("command", "what it does"), [(f"`make {name}`", does) for name, does in found])


# Metrics


def metrics() -> str:
    """Each metric: title, formula, meaning; unit, level and views where they are not the usual ones."""
    return "\n".join(
        f"### `{metric.name}`\n\n{metric.title}{_level(metric)} = {metric.formula}.\n{metric.meaning}\n"
        + ("" if metric.offered else "Successes only.\n")
        for metric in METRICS
    )


def _level(metric: Metric) -> str:
    """The unit of a metric and what has one value; empty for ms per request."""
    is_usual = (metric.unit, metric.level) == (UNIT, REQUEST)
    return "" if is_usual else f" ({metric.unit}, per {metric.level})"


def objectives() -> str:
    """What an objective can bound."""
    latencies = ", ".join(f"`{one.name}`" for one in FIGURES if one.unit == LATENCY)
    others = [(f"`{one.name} {one.sign}`", one.meaning) for one in FIGURES if one.unit != LATENCY]
    return table(("figure", "meaning"), [(latencies, "a percentile in ms"), *others])


def fewest_samples() -> str:
    """How many samples each percentile needs."""
    return table(("percentile", "samples"), [(percentile(p), f"{n_min(p):,}") for p in QUANTILES])


def checks() -> str:
    """The table of trust."""
    header = ("check", "figures", "passes if", "usual cause")
    rows = [(f"`{row.name}`", row.figures, row.passes_if, row.cause) for row in CHECKS]
    return table(header, rows)


def vendor_ends() -> str:
    """What each stop reason means, by protocol."""
    lines = [
        (
            protocol,
            meaning,
            ", ".join(f"`{name}`" for name, value in reasons.items() if value == meaning),
        )
        for protocol, reasons in vendors.TABLE["ends"].items()
        for meaning in dict.fromkeys(reasons.values())
    ]
    return table(("protocol", "meaning", "stop reasons"), lines)


def vendor_errors() -> str:
    """The names of errors, by class."""
    lines = [
        (f"`{error_class}`", ", ".join(f"`{name}`" for name in names))
        for error_class, names in vendors.TABLE["errors"].items()
    ]
    return table(("class", "types and codes"), lines)


def vendor_usage() -> str:
    """Where each count stands, by protocol."""
    usage = vendors.TABLE["usage"]
    lines = [
        (protocol, f"`{count}`", ", ".join(f"`{pointer}`" for pointer in pointers))
        for protocol in vendors.TABLE["ends"]
        for count, pointers in usage[protocol].items()
        if count != "places"
    ]
    return table(("protocol", "count", "fields of a usage"), lines)


def vendor_cache() -> str:
    """The lifetimes of marks, and the shortest prefix that each model caches."""
    cache = vendors.TABLE["cache"]
    lines = []
    for protocol in vendors.TABLE["ends"]:
        lives = ", ".join(f"`{mark}`" for mark in cache[protocol]["lives_s"])
        lines.append((protocol, f"lifetimes {lives}"))
        lookback = cache[protocol].get("lookback")
        lines.append(
            (protocol, f"looks back {lookback} blocks" if lookback else "looks at all blocks")
        )
    for row in cache["minimums"]:
        models = ", ".join(f"`{name}`" for name in row["models"])
        lines.append((models, f"from {row['tokens']:,} tokens"))
    return table(("protocol or models", "cache"), lines)


def vendor_limits() -> str:
    """The names of headers that tell limits."""
    limits = vendors.TABLE["limits"]
    names_of_kinds: dict[str, list[str]] = {}
    for name, kind in limits["names_of_one_kind"].items():
        names_of_kinds.setdefault(kind, []).append(f"`{name}`")
    lines = [
        ("names", ", ".join(f"`{name}`" for name in (*limits["names"], *limits["structured"]))),
        *((f"names of {kind}", ", ".join(names)) for kind, names in names_of_kinds.items()),
        *(
            (f"`{{kind}}`: {kind}", ", ".join(f"`{text}`" for text in texts))
            for kind, texts in limits["kinds"].items()
        ),
        ("`{window}`", ", ".join(f"`{text}`" for text in limits["windows"])),
        ("before each name", ", ".join(f"`{prefix}`" for prefix in limits["prefixes"] if prefix)),
        ("known, and no limit", ", ".join(f"`{name}`" for name in limits["without_a_limit"])),
    ]
    return table(("part", "texts"), lines)


def _names(what: str, meanings: Mapping[str, str]) -> Callable[[], str]:
    return lambda: table(
        (what, "meaning"), [(f"`{name}`", text) for name, text in meanings.items()]
    )


PARTS: Mapping[str, Callable[[], str]] = {
    "commands": commands,
    "exit-codes": exit_codes,
    "other-flags": other_flags,
    "scenario-keys": scenario_keys,
    "packaged-scenarios": packaged_scenarios,
    "schema-version": lambda: f"Schema version {rows.SCHEMA_VERSION}.\n",
    "columns": columns,
    "run-json": _model_keys(RunJson),
    "worker-json": _model_keys(WorkerJson),
    "report-stable": report_keys,
    "metrics": metrics,
    "python-signatures": python_signatures,
    "objectives": objectives,
    "fewest-samples": fewest_samples,
    "checks": checks,
    "profiles": profiles,
    "make-targets": make_targets,
    "other-tools": other_tools,
    "prometheus": _names("metric", HELP),
    "vendor-ends": vendor_ends,
    "vendor-errors": vendor_errors,
    "vendor-usage": vendor_usage,
    "vendor-cache": vendor_cache,
    "vendor-limits": vendor_limits,
    "tolerated": lambda: ", ".join(f"`{name}`" for name in TOLERATED) + ".\n",
    "protocol-violations": _names("`error_type`", VIOLATIONS),
}
FILES: Mapping[str, Callable[[], str]] = {
    "reference/report.schema.json": lambda: schema_file(
        report_schema(), "report", SCHEMA_VERSION, "Tailgauge report.json"
    ),
    "reference/answer.schema.json": lambda: schema_file(
        answer_schema(), "answer", ANSWER_VERSION, "report.json of a Tailgauge experiment"
    ),
    "reference/baseline.schema.json": lambda: schema_file(
        json_schema(RunSummary), "baseline", BASELINE_VERSION, "A run of a Tailgauge baseline"
    ),
}


def fresh() -> Iterator[tuple[Path, str]]:
    """Every file with generated parts, and the text that it should have."""
    for path in (DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if PART.search(text):
            yield path, PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", text)
    for name, text_of in FILES.items():
        yield DOCS / name, text_of()


def main(arguments: list[str]) -> int:
    """Write the generated parts, or check them; returns the exit code."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {Path(__file__).name} [--check]", file=sys.stderr)
        return 2
    stale = []
    for path, text in fresh():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            name = path.relative_to(DOCS.parent).as_posix()
            stale.append(name)
            if not arguments:
                path.write_text(text, encoding="utf-8")
                print(f"wrote {name}")
    if arguments and stale:
        print(f"stale: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
