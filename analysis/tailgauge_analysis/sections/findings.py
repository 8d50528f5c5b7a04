"""Findings: everything that the analysis has of one run, computed once.

The order of the computation is here; the report adds what compares parts of a run, and presents it.
"""

from __future__ import annotations

from dataclasses import replace

from tailgauge import thresholds
from tailgauge.rows import schema
from tailgauge_analysis.metrics import latency, pace, stability, streams
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.metrics.throughput import throughput
from tailgauge_analysis.metrics.timeline import Timeline
from tailgauge_analysis.objectives.goodput import goodput
from tailgauge_analysis.objectives.health import health
from tailgauge_analysis.objectives.objective import on_latency
from tailgauge_analysis.objectives.precision import level
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.sections import (
    ends,
    measurement,
    objectives,
    patterns,
    phases,
    requests,
    served,
    traffic,
    transports,
)
from tailgauge_analysis.sections.cache.section import cache
from tailgauge_analysis.sections.environment import environment
from tailgauge_analysis.sections.fan_out import section as fan_out
from tailgauge_analysis.sections.hedging import section as hedging
from tailgauge_analysis.sections.latency import groups
from tailgauge_analysis.sections.latency_under_load import diagnosis, slopes
from tailgauge_analysis.sections.rate_limits.section import rate_limits
from tailgauge_analysis.stats.quantiles import at_level
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.verdict import client_error, losses
from tailgauge_analysis.verdict.checks import CHECKS
from tailgauge_analysis.verdict.clocks import calls_between, clocks
from tailgauge_analysis.verdict.conservation import conservation
from tailgauge_analysis.verdict.explanations import explanations
from tailgauge_analysis.verdict.stalls import bad_seconds
from tailgauge_analysis.verdict.timestamps import stamps
from tailgauge_analysis.verdict.verdict import Evidence, reasons, worst
from tailgauge_analysis.verdict.workers import workers

# How requests arrive (arrival of run.json), where it changes the meaning of the numbers.
ARRIVAL = {
    "closed": "Closed loop: arrivals waited for answers; the tail is not what open traffic would see.",
    "partly open": "Partly open: sessions arrived on schedule, their later turns waited for answers.",
}


class Findings:
    """One run, analysed: each finding is named where it is computed."""

    def __init__(self, frames: Frames) -> None:
        self.evidence = evidence = evidence_of(frames)
        self.frames, self.steady, self.of_target = evidence.frames, evidence.steady, evidence.of_target
        frames, stage, of_target, scenario = self.frames, self.steady, self.of_target, frames.run["scenario"]
        self.reasons = reasons(CHECKS, evidence)
        self.verdict = worst(self.reasons)
        self.checks = measurement.check_results(evidence, self.reasons)
        lost = losses.explanations(evidence.conservation.workers)
        self.explanations = [*lost, *explanations(frames, stage)]
        self.clocks = clocks(frames)
        self.calls_between = calls_between(frames, self.clocks)
        self.environment = environment(frames, stage, evidence.conservation.workers)
        self.latency = evidence.latency
        self.by_traffic = latency.by_traffic(of_target, self.latency)
        self.groups, self.smaller_groups = groups(stage)
        self.streams = streams.streams(of_target)
        self.tpot_missing = pace.missing(of_target.requests)
        self.timeline = Timeline(frames)
        self.slopes = slopes.fitted(frames.attempts, of_target, self.calls_between)
        self.diagnosis = diagnosis.diagnosis(of_target)
        self.phases = phases.phases(frames, of_target)
        self.slos = objectives.objectives(frames, of_target, evidence.throughput)
        self.health = health(scenario, stage)
        self.goodput = goodput(scenario, of_target, evidence.warmup and evidence.warmup.of_target)
        self.outcomes = requests.outcomes(stage)
        self.ends = ends.ends(frames)
        self.served = served.served(frames, of_target)
        self.failures, self.other_failures = requests.failures(frames)
        self.traffic = traffic.traffic(frames)
        self.transports = transports.transports(of_target)
        self.patterns = patterns.answers(frames, of_target, self.transports)
        self.hedging = hedging.variants(frames, of_target)
        self.fan_out = fan_out.fan_outs(scenario, of_target)
        self.cache = cache(frames)
        slopes.keep_significant([*self.slopes, *(one.worth for one in self.cache)])
        self.rate_limits = rate_limits(frames)


def find(frames: Frames) -> Findings:
    """Analyse a loaded run."""
    with at_level(level(frames.run)):
        return Findings(frames)


def evidence_of(frames: Frames) -> Evidence:
    """What the checks judge."""
    stage = steady(frames)
    warmup = steady(frames, schema.WARMUP) if on_latency(frames.run["scenario"]) else None
    rates = throughput(frames, stage)
    frames = replace(frames, chunks=frames.chunks.without_arrivals())  # a hundred million take 800 MB
    of_target = stage.of_target
    rows = latency.table(of_target)
    wanted = on_latency(frames.run["scenario"])
    asked = [(one, (one.metric.name, one.objective.quantile)) for one in wanted if one.metric]
    used = client_error.of_headline(rows, closed=frames.run["arrival"] == "closed") | {of for _, of in asked}
    listed = {(row.metric.name, q.p) for row in rows for q in row.quantiles}
    more = [one.row(of_target) for one, of in asked if one.is_of_all and of not in listed]
    errors = client_error.client_errors(of_target, [*rows, *more], used)
    marked = client_error.marked(rows, errors)
    for one in (one for one, _ in asked if not one.is_of_all):
        part = one.part(of_target)
        found = client_error.client_errors(part, [one.row(part)], used)
        errors += [replace(error, title=f"{error.title} ({one.objective.subset})") for error in found]
    return Evidence(
        frames=frames,
        steady=stage,
        of_target=of_target,
        warmup=warmup,
        throughput=rates,
        stability=stability.stability(frames, of_target, rates),
        conservation=conservation(frames),
        stamps=stamps(frames, of_target),
        workers=workers(frames, stage),
        bad=bad_seconds(frames, stage, thresholds.STALL_NS),
        latency=marked,
        errors=errors,
    )


def remarks(findings: Findings) -> list[str]:
    """What a reader must know of the traffic before the numbers."""
    run, conservation = findings.frames.run, findings.evidence.conservation
    texts = stability.remarks(findings.evidence.stability, findings.steady.seconds)
    texts += [ARRIVAL[run["arrival"]]] if run["arrival"] in ARRIVAL else []
    if n := conservation.found:
        given = any(one.found for one in conservation.workers)
        where = "found in the other folders given" if given else "written after all"
        verb = "was" if n == 1 else "were"
        texts.insert(0, f"{plural(n, 'request')} counted as lost by the master {verb} {where}.")
    if slow := int(findings.steady.attempts["reader_paused_ns"].notna().sum()):
        read = f"{plural(slow, 'attempt')} read slowly on purpose, reported separately"
        texts.append(f"{read}: their times are those of the reader.")
    return texts
