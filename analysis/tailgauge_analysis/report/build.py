"""The report of a run: its sections in their order; those of plugins after those about the target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tailgauge.plugins import plugin
from tailgauge_analysis.comparing import comparison
from tailgauge_analysis.comparing.alternating import in_blocks
from tailgauge_analysis.metrics import definitions
from tailgauge_analysis.report.model import contents
from tailgauge_analysis.sections import (
    ends,
    environment,
    latency,
    measurement,
    objectives,
    patterns,
    phases,
    requests,
    result,
    served,
    throughput,
    traffic,
    transports,
)
from tailgauge_analysis.sections.cache import section as cache
from tailgauge_analysis.sections.fan_out import section as fan_out
from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.sections.hedging import section as hedging
from tailgauge_analysis.sections.latency_under_load import section as latency_under_load
from tailgauge_analysis.sections.rate_limits import section as rate_limits
from tailgauge_analysis.text.formatting import figures, plain
from tailgauge_analysis.text.json_values import table, text
from tailgauge_analysis.text.section import Report, Section

# The order of the page. A section is None where the run has nothing for it.
SECTIONS: tuple[Callable[[Findings], Section | None], ...] = (
    lambda of: objectives.section(of.slos, of.goodput),
    lambda of: patterns.section(of.patterns),
    lambda of: requests.section(
        of.evidence.conservation, of.outcomes, of.steady, of.frames.problems, of.frames.run["preflight"]
    ),
    lambda of: ends.section(of.ends),
    lambda of: served.section(of.served),
    lambda of: latency.section(
        of.latency, of.groups, of.smaller_groups, of.streams.tokens_per_chunk_p50, first_token=of.steady.first_token,
        cut_share=ends.cut_share(of.steady.requests),
    ),
    lambda of: throughput.section(of.evidence.throughput, of.evidence.stability, of.goodput),
    lambda of: latency_under_load.section(of.diagnosis, of.slopes),
    lambda of: phases.section(of.phases),
    lambda of: rate_limits.section(of.rate_limits),
    lambda of: cache.section(of.cache, of.frames.run),
    lambda of: fan_out.section(of.fan_out),
    lambda of: transports.section(of.transports),
    lambda of: hedging.section(of.hedging, in_blocks=bool(table(of.frames.run["scenario"], "crossover"))),
    lambda of: throughput.streaming(of.streams, of.tpot_missing),
    lambda of: traffic.section(of.traffic, of.frames.run["estimate"]),
    lambda of: requests.errors(of.failures, of.other_failures),
)  # fmt: skip
Makes = Callable[[Findings], Section | None]
LAST: tuple[Makes, ...] = (  # of the measurement, not of the target
    lambda of: environment.of_plugins(of.frames.run),
    lambda of: measurement.section(of.evidence, of.checks, of.clocks, of.calls_between),
    lambda of: environment.section(of.environment, of.frames.run),
)

_of_plugins: list[Makes] = []


def build(findings: Findings, tool: str | None = None) -> Report:
    """The whole report. `tool`: an entry of TOOLS whose figures are added."""
    run, answer = findings.frames.run, result.result(findings)
    blocks = in_blocks(findings.frames, findings.of_target)
    made = (section(findings) for section in (*SECTIONS, *_of_plugins, *LAST))
    sections = tuple(one for one in made if one is not None)
    if blocks is not None:
        answer = comparison.headline(blocks, answer)
        sections = (comparison.section(blocks), *sections)
    translated = None
    if tool:
        rates = findings.evidence.throughput
        translated = definitions.translate(tool, findings.of_target, findings.latency, rates)
        sections = (*sections, definitions.section(translated))
    data = contents(findings, answer, blocks, translated)
    lines = [("" if i else one.name, line) for one in sections for i, line in enumerate(one.brief)]
    return Report(
        run["run_id"], data["run"]["scenario"], tuple(_about(findings)), run["started_at"] or "", run["dry_run"], answer,
        result.measurement(findings), (*result.summary(findings), *lines), sections, result.exit_code(findings, answer),
        figure="timeline", data=data,
    )  # fmt: skip


def _about(findings: Findings) -> Iterator[str]:
    """Which target, when, how long and how much."""
    run, offered = findings.frames.run, findings.evidence.throughput.offered_per_s
    target = run["target"]
    url = plain(str(target.get("url") or "unknown target"), 80)
    yield "simulated endpoint" if target.get("simulated") else url
    if run["started_at"]:
        yield f"{run['started_at'][:10]}, {run['started_at'][11:16]} UTC"
    if offered is not None:
        yield f"{figures(findings.steady.seconds)} s at {figures(offered)} requests/s"
    yield plain(text(run["scenario"].get("description")), 200)


def _add(section: Any) -> None:
    """A section of a plugin."""
    if not callable(section):
        raise TypeError(f"expected functions of one argument, Findings, got {section!r}")

    def guarded(findings: Findings) -> Section | None:
        try:
            return _section(section(findings))
        except Exception as error:  # noqa: BLE001 - whatever a user's code raises
            name = plain(getattr(section, "__name__", "section"), 40)
            text = plugin.NOTED.note(plugin.blamed(section, error), f"section {name}: ")
            return Section(f"plugin-{name}", f"Section {name}", f"Not made. {text}")

    _of_plugins.append(guarded)


def _section(made: Any) -> Section | None:
    if made is None or isinstance(made, Section):
        return made
    raise TypeError(f"expected a Section or None, got {made!r}")


plugin.subscribe(plugin.SECTIONS, _add)
