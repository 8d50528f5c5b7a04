"""Builds the report of a run, as plain values: its result, its sections in the order of the page, and report.json.

Sections of plugins follow those about the target. What a section says is made in sections/; report.py calls this and writes
the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

from tailgauge.plugins import plugin
from tailgauge_analysis.comparing import comparison, gateway
from tailgauge_analysis.comparing.alternating import in_blocks
from tailgauge_analysis.metrics import definitions
from tailgauge_analysis.report.model import SCHEMA_VERSION, Facts, run_facts
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import (
    ends,
    environment,
    errors,
    latency,
    load_steps,
    measurement,
    objectives,
    over_time,
    patterns,
    phases,
    plugins,
    requests,
    result,
    served,
    streaming,
    throughput,
    traffic,
    transports,
)
from tailgauge_analysis.sections.answers import structured, thinking, tools, turns
from tailgauge_analysis.sections.cache import section as cache
from tailgauge_analysis.sections.environment import SIMULATED
from tailgauge_analysis.sections.fan_out import section as fan_out
from tailgauge_analysis.sections.hedging import section as hedging
from tailgauge_analysis.sections.latency_under_load import section as latency_under_load
from tailgauge_analysis.sections.rate_limits import section as rate_limits
from tailgauge_analysis.text.formatting import figures, plain, plural
from tailgauge_analysis.text.json_values import Json, number, table, text
from tailgauge_analysis.text.picture import Picture
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import (
    Report,
    Result,
    Section,
    Table,
    cards_of,
    most_important,
    nothing_sent,
)


class SectionModule(Protocol):
    """What a module of a section has. Without a KEY, the fields of its result are keys of report.json themselves."""

    KEY: str

    def compute(self, run: Run, /) -> Any:
        """Return the result of a run, a dataclass with its docstrings, or None."""

    def section(self, result: Any, /) -> Section | None:
        """Return the section of a result; None where the run has nothing for it."""


# The order of the page.
SECTIONS: tuple[SectionModule, ...] = (
    objectives,
    load_steps,
    patterns,
    requests,
    ends,
    served,
    latency,
    throughput,
    latency_under_load,
    phases,
    rate_limits,
    cache,
    fan_out,
    transports,
    hedging,
    structured,
    tools,
    thinking,
    turns,
    streaming,
    traffic,
    errors,
    plugins,
    measurement,
    environment,
)
_of_plugins: list[Callable[[Run], Section | None]] = []


def build(run: Run, tool: str | None = None) -> Report:
    """Build the whole report of a run. `tool`: an entry of definitions.TOOLS, whose figures are added.

    In a run of alternating blocks their comparison is the result and the first section. Of blocks direct and through a
    gateway its figure replaces that of the run over time. Functions of plugins run here; an error of one becomes a section.
    """
    record = run.record
    answer = result.result(run)
    sections = tuple(_sections(run))
    figure = over_time.picture(run)
    blocks = in_blocks(run.frames, run.without_slow_readers)
    is_gateway = blocks is not None and blocks.method is gateway.METHOD
    # Two variants ran in alternating blocks.
    if blocks is not None:
        answer = comparison.headline(blocks, answer)
        gateway_pictures: tuple[Picture, ...] = ()
        if is_gateway:
            gateway_pictures = gateway.pictures(blocks)
        comparison_figures: list[Picture] = []
        if gateway_pictures and figure is not None:
            comparison_figures = [*gateway_pictures, figure]
        sections = (comparison.section(blocks, comparison_figures), *sections)
        figure = next(iter(gateway_pictures), figure)
    tool_metrics = None
    appendix: tuple[Table, ...] = ()
    if tool:
        evidence = run.evidence
        tool_metrics = definitions.translate(
            tool, run.without_slow_readers, evidence.latency, evidence.throughput
        )
        sections = (*sections, definitions.section(tool_metrics))
        if tool_metrics.metrics:
            appendix = (definitions.printed(tool, tool_metrics),)
    exit_code = result.exit_code(run, answer)
    facts = Facts(
        schema_version=SCHEMA_VERSION,
        run=run_facts(run),
        result=answer,
        exit_code=cast("Any", int(exit_code)),
        findings=tuple(_findings(run, sections, answer)),
        remarks=result.remarks(run),
        crossover=None if is_gateway else blocks,
        gateway=blocks if is_gateway else None,
        definitions=tool_metrics,
        cards=cards_of(sections),
    )
    section_lines: list[tuple[str, str]] = []
    # The lines of a section for the terminal: only the first has the label.
    for section in sections:
        label = section.name
        for line in section.brief:
            section_lines.append((label, line))
            label = ""
    return Report(
        run_id=record["run_id"],
        title=facts.run.scenario,
        about=tuple(_about(run)),
        started_at=record["started_at"] or "",
        dry_run=record["dry_run"],
        result=answer,
        measurement=result.measurement(run),
        summary=tuple(result.summary(run)),
        sections=sections,
        exit_code=exit_code,
        figure=figure,
        data=_contents(run, facts),
        remarks=_unstated((*result.labelled_remarks(run), *section_lines), facts.findings),
        appendix=appendix,
        instead_of=_target_not_called(run),
    )


def _findings(run: Run, sections: Sequence[Section], answer: Result) -> Iterator[str]:
    """Yield what changes the meaning of the figures: first that they are those of a dry run."""
    if run.record["dry_run"]:
        yield nothing_sent(_target_not_called(run))
    yield from most_important(sections, answer)


def _target_not_called(run: Run) -> str:
    """Return the target of the scenario that a dry run did not call; empty where it is the simulated endpoint."""
    url = text(table(run.record["scenario"], "target").get("url"))
    if not run.record["dry_run"] or url in {"", SIMULATED}:
        return ""
    return plain(url, 80)


def _unstated(
    lines: Sequence[tuple[str, str]], findings: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Return the lines of the summary that are no finding below the result."""
    stated = {text.removesuffix(".") for text in findings}
    unstated = []
    for label, line in lines:
        if line.removesuffix(".") not in stated:
            unstated.append((label, line))
    return tuple(unstated)


def _sections(run: Run) -> Iterator[Section]:
    for module in SECTIONS:
        of_plugins = _of_plugins if module is plugins else ()
        sections = [section(run) for section in of_plugins]
        sections.append(module.section(run.result(module.compute)))
        yield from (section for section in sections if section is not None)


def _contents(run: Run, facts: Facts) -> Json:
    """Return report.json: the facts, then the result of each section."""
    tree: Json = plain_values(facts)
    for module in SECTIONS:
        values = plain_values(run.result(module.compute))
        if module.KEY:
            values = {module.KEY: values}
        tree |= values
    return tree


def _about(run: Run) -> Iterator[str]:
    """Yield which target, when, how long and how much."""
    record = run.record
    offered = run.evidence.throughput.offered_per_s
    target = record["target"]
    url = plain(str(target.get("url") or "unknown target"), 80)
    yield "simulated endpoint" if target.get("simulated") else url
    if record["started_at"]:
        yield f"{record['started_at'][:10]}, {record['started_at'][11:16]} UTC"
    if offered is not None:
        yield f"{figures(run.steady.seconds)} s measured, {_loop(record)}{figures(offered)} requests/s offered"
    has_other_load = any(key.startswith("arrival") for key in record["overrides"])
    if not has_other_load:
        yield plain(text(record["scenario"].get("description")), 200)


def _loop(record: Json) -> str:
    """`closed loop of 8 users, `; empty for an open loop."""
    arrival = table(record["scenario"], "arrival")
    users = number(table(arrival, "closed").get("users"))
    if arrival.get("process") != "closed" or users is None:
        return ""
    return f"closed loop of {plural(int(users), 'user')}, "


def _add(section: Any) -> None:
    """A section of a plugin."""
    if not callable(section):
        raise TypeError(f"expected functions of one argument, a Run, got {section!r}")

    def guarded(run: Run) -> Section | None:
        try:
            return _section(section(run))
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises
            name = plain(getattr(section, "__name__", "section"), 40)
            text = plugin.NOTED.note(plugin.blamed(section, error), f"section {name}: ")
            return Section(f"plugin-{name}", f"Section {name}", f"Not made. {text}")

    _of_plugins.append(guarded)


def _section(section: Any) -> Section | None:
    if section is None or isinstance(section, Section):
        return section
    raise TypeError(f"expected a Section or None, got {section!r}")


plugin.subscribe(plugin.SECTIONS, _add)
