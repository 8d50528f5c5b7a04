"""Findings: everything that the analysis has of one run, computed once.

The order of the computation is here and nowhere else; model.py, figures.py and the pages only present it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailgauge import thresholds
from tailgauge.rows import schema
from tailgauge_analysis.metrics import latency, pace, slo, stability, streams
from tailgauge_analysis.metrics.definitions import ToolMetrics, definitions
from tailgauge_analysis.metrics.slo import Goodput
from tailgauge_analysis.metrics.stability import throughput
from tailgauge_analysis.metrics.steady import Steady, steady
from tailgauge_analysis.metrics.timeline import Timeline, timeline
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.sections import (
    measurement,
    objectives,
    patterns,
    phases,
    requests,
    traffic,
    transports,
)
from tailgauge_analysis.sections.cache.section import Cache, cache
from tailgauge_analysis.sections.environment import Environment, environment
from tailgauge_analysis.sections.fan_out import section as fan_out
from tailgauge_analysis.sections.hedging import section as hedging
from tailgauge_analysis.sections.latency import Group, groups
from tailgauge_analysis.sections.latency_under_load import diagnosis, slopes
from tailgauge_analysis.sections.rate_limits.section import RateLimits, rate_limits
from tailgauge_analysis.stats.quantiles import at_level
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict import certificate, client, client_error, timestamps
from tailgauge_analysis.verdict import conservation as losses
from tailgauge_analysis.verdict.checks import CHECKS
from tailgauge_analysis.verdict.client import explanations
from tailgauge_analysis.verdict.conservation import conservation, in_flight
from tailgauge_analysis.verdict.timestamps import Clocks, calls_between, clocks
from tailgauge_analysis.verdict.verdict import Evidence, Reason, reasons, worst

# How requests arrive (arrival of run.json), where it changes the meaning of the numbers.
ARRIVAL = {
    "closed": "Closed loop: arrivals waited for answers; the tail is not what open traffic would see.",
    "partly open": "Partly open: sessions arrived on schedule, their later turns waited for answers.",
}


@dataclass(frozen=True, slots=True)
class Findings:
    """One run, analysed."""

    frames: Frames
    steady: Steady
    of_target: Steady
    evidence: Evidence
    verdict: str
    reasons: list[Reason]
    explanations: list[str]
    by_traffic: dict[str, list[latency.Row]]
    latency: list[latency.Row]
    groups: list[Group]
    smaller_groups: int
    traffic: dict[str, traffic.Traffic]
    streams: streams.Streams
    tpot_missing: Json
    phases: phases.Phases | None
    definitions: list[ToolMetrics]
    goodput: Goodput | None
    health: slo.Health | None
    slos: list[slo.ObjectiveResult]
    use_cases: list[objectives.UseCase]
    failures: list[requests.Failure]
    other_failures: int
    server_log: timestamps.ServerLog | None
    certified: certificate.Certified
    timeline: Timeline
    rate_limits: RateLimits | None
    fan_out: list[fan_out.FanOut]
    transports: list[transports.Transport]
    patterns: list[patterns.Answer]
    hedging: list[hedging.Variant]
    cache: list[Cache]
    slopes: list[slopes.Regression]
    diagnosis: diagnosis.Diagnosis
    outcomes: list[requests.Outcome]
    checks: list[measurement.CheckResult]
    environment: Environment
    clocks: Clocks
    calls_between: float


def find(frames: Frames) -> Findings:
    """Analyse a loaded run."""
    with at_level(slo.level(frames.run)):
        return _found(frames)


def _found(frames: Frames) -> Findings:
    evidence = evidence_of(frames)
    frames = evidence.frames
    stage, of_target = evidence.steady, evidence.of_target
    scenario, against, whole = frames.run["scenario"], reasons(CHECKS, evidence), evidence.latency
    judged = objectives.Run(frames, of_target, evidence.throughput, slo.criteria(scenario))
    kinds, others = requests.failures(frames)
    by_group, smaller = groups(stage)
    cited, apart = certificate.certified(frames, stage), clocks(frames)
    unsure, moved = calls_between(frames, apart), transports.transports(of_target)
    explained = [*losses.explanations(evidence.conservation.workers), *explanations(frames, stage)]
    return Findings(
        frames=frames,
        steady=stage,
        of_target=of_target,
        evidence=evidence,
        verdict=worst(against),
        reasons=against,
        explanations=[*explained, *certificate.explanations(cited)],
        latency=whole,
        by_traffic=latency.by_traffic(of_target, whole),
        groups=by_group,
        smaller_groups=smaller,
        traffic=traffic.traffic(frames),
        streams=streams.streams(of_target),
        tpot_missing=pace.missing(of_target.requests),
        phases=phases.phases(frames, of_target),
        definitions=definitions(of_target, whole, evidence.throughput),
        health=slo.health(scenario, stage),
        goodput=slo.goodput_of(scenario, of_target, evidence.warmup.of_target),
        slos=objectives.objectives(judged),
        use_cases=objectives.use_cases(judged),
        failures=kinds,
        other_failures=others,
        server_log=timestamps.compare_server_log(frames),
        certified=cited,
        timeline=timeline(frames),
        rate_limits=rate_limits(frames),
        fan_out=fan_out.fan_outs(scenario, of_target),
        transports=moved,
        patterns=patterns.answers(frames, of_target, moved),
        hedging=hedging.variants(frames, of_target),
        cache=cache(frames),
        slopes=slopes.fitted(frames.attempts, of_target, unsure),
        diagnosis=diagnosis.diagnosis(of_target),
        outcomes=requests.outcomes(stage),
        checks=measurement.check_results(evidence, against),
        environment=environment(frames, stage, evidence.conservation.workers),
        clocks=apart,
        calls_between=unsure,
    )


def evidence_of(frames: Frames) -> Evidence:
    """What the checks judge."""
    stage = steady(frames)
    warmup, rates = steady(frames, schema.WARMUP), throughput(frames, stage)
    frames = replace(frames, chunks=frames.chunks.without_arrivals())  # a hundred million take 800 MB
    of_target, counted = stage.of_target, conservation(frames)
    rows = latency.table(of_target)
    criteria = slo.criteria(frames.run["scenario"])
    asked = [(one, (one.metric.name, one.objective.quantile)) for one in criteria if one.metric]
    used = client_error.of_headline(rows, closed=frames.run["arrival"] == "closed") | {of for _, of in asked}
    listed = {(row.metric.name, q.p) for row in rows for q in row.quantiles}
    more = [one.row(of_target) for one, of in asked if one.is_of_all and of not in listed]
    errors = client_error.client_errors(of_target, [*rows, *more], used)
    marked = client_error.marked(rows, errors)
    for one in (one for one, _ in asked if not one.is_of_all):
        part = one.part(of_target)
        found = client_error.client_errors(part, [one.row(part)], used)
        errors += [replace(error, title=f"{error.title} ({one.objective.of})") for error in found]
    return Evidence(
        frames, stage, of_target, warmup, rates, stability.stability(frames, of_target, rates), counted,
        timestamps.stamps(frames, of_target), client.workers(frames, stage), in_flight(frames, counted.workers),
        client.bad_seconds(frames, stage, thresholds.STALL_NS), marked, errors,
    )  # fmt: skip


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
