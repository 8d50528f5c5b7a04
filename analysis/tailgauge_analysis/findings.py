"""Findings: everything that the analysis says of one run, computed once.

Rule: the order of the computation stands here and nowhere else; contents.py, figures.py and the pages only present it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge.errors import Exit
from tailgauge_analysis import client, failures, latency, slo, truth, verdict
from tailgauge_analysis.conservation import conservation
from tailgauge_analysis.frames import Frames
from tailgauge_analysis.stamps import stamps
from tailgauge_analysis.steady import Steady, steady
from tailgauge_analysis.timeline import Timeline, timeline


@dataclass(frozen=True, slots=True)
class Findings:
    """One run, analysed."""

    frames: Frames
    steady: Steady
    evidence: verdict.Evidence
    verdict: str
    reasons: list[verdict.Reason]
    explanations: list[str]
    latency: list[latency.Row]
    beyond: str
    slos: list[slo.Outcome]
    failures: list[failures.Failure]
    other_failures: int
    truth: truth.Truth | None
    timeline: Timeline
    exit_code: Exit


def find(frames: Frames) -> Findings:
    """Analyse a loaded run."""
    stage = steady(frames)
    evidence = verdict.Evidence(frames, stage, conservation(frames), stamps(frames, stage), client.workers(frames, stage))
    reasons = verdict.reasons(evidence)
    word = verdict.verdict(reasons)
    decided = slo.outcomes(frames.run["scenario"], stage)
    worst, others = failures.failures(frames)
    return Findings(
        frames=frames,
        steady=stage,
        evidence=evidence,
        verdict=word,
        reasons=reasons,
        explanations=client.explanations(frames, stage),
        latency=latency.table(stage),
        beyond=latency.beyond(stage),
        slos=decided,
        failures=worst,
        other_failures=others,
        truth=truth.truth(frames),
        timeline=timeline(frames),
        exit_code=slo.exit_code(word, evidence.conservation.lost, decided),
    )
