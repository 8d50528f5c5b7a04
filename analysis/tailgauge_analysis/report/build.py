"""The report of a run: its sections in their order."""

from __future__ import annotations

from collections.abc import Callable

from tailgauge_analysis.report.contents import contents, published
from tailgauge_analysis.report.views import healthy, meaning
from tailgauge_analysis.sections import phases, streaming, throughput, traffic
from tailgauge_analysis.sections.fan_out import section as fan_out
from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.sections.hedging import section as hedging
from tailgauge_analysis.sections.latency_under_load import section as latency_under_load
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.section import FAIL, PASS, Measurement, Report, Result, Section

# The order of the page. A section is None where the run has nothing for it.
SECTIONS: tuple[Callable[[Findings], Section | None], ...] = (
    lambda of: throughput.section(of.evidence.throughput, of.evidence.stability, of.goodput),
    lambda of: streaming.section(of.streams, of.tpot_missing),
    lambda of: latency_under_load.section(of.diagnosis, of.slopes),
    lambda of: phases.section(of.phases),
    lambda of: fan_out.section(of.fan_out),
    lambda of: hedging.section(of.hedging),
    lambda of: traffic.section(of.traffic, of.frames.run["estimate"]),
)


def build(findings: Findings, data: Json | None = None) -> Report:
    """The whole report."""
    data = data or contents(findings)
    run = data["run"]
    return Report(
        run_id=data["run_id"],
        title=data["scenario"],
        about=tuple(text for text in (run["target"]["url"], run["started_at"]) if text),
        started_at=run["started_at"] or "",
        dry_run=data["dry_run"],
        result=_result(data),
        measurement=_measurement(data),
        summary=(),
        sections=tuple(one for section in SECTIONS if (one := section(findings)) is not None),
        exit_code=data["exit_code"],
        figure="timeline",
        data=published(data),
    )


def _result(data: Json) -> Result:
    """Until sections/result.py has it."""
    return Result(
        FAIL if data["exit_code"] == 1 else PASS, data["headline"], (), tuple(filter(None, [healthy(data)]))
    )


def _measurement(data: Json) -> Measurement:
    """Until sections/result.py has it."""
    reasons = tuple((one["text"], one["advice"]) for one in data["reasons"])
    return Measurement(data["verdict"], meaning(data), reasons, tuple(data["remarks"]))
