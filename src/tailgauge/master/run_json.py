"""run.json, written by the master from the state of a run."""

from __future__ import annotations

import os
import platform
from typing import Any, Protocol

from tailgauge.clock import boot_id, monotonic_ns
from tailgauge.master.engine_metrics import EngineMetrics
from tailgauge.master.workers import RunWorkers
from tailgauge.patterns.table import facts as pattern_facts
from tailgauge.plan.certificate import installed_versions
from tailgauge.plan.preflight import Learnt
from tailgauge.plan.resolve import Settings
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.protocols.table import Target
from tailgauge.rows.run_folder import RunFolder, write_json
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.schedule import Schedule
from tailgauge.schedule.sessions import loop


class RunRecord(Protocol):
    """The parts of a run that run.json records."""

    run_id: str
    scenario: Scenario
    settings: Settings
    schedule: Schedule | None
    folder: RunFolder
    workers: RunWorkers
    state: str
    notes: list[str]
    preflight: list[dict[str, Any]]
    not_leased: list[dict[str, float]]
    tried: dict[str, Any] | None
    targets: list[Target]
    engine_metrics: EngineMetrics
    target_urls: list[str]
    started_at: str
    start_at_ns: int | None
    admission_end_at_ns: int | None


def run_facts(run: RunRecord) -> dict[str, Any]:
    """Facts that master and workers both write, so that either record identifies the run."""
    scenario = run.scenario
    targets = [
        {"url": url, "simulated": target.url == SIMULATED, "protocol": target.protocol}
        for target, url in zip(run.targets, run.target_urls, strict=True)
    ]
    learnt = Learnt(*run.tried["learnt"]) if run.tried else Learnt()
    return {
        "run_id": run.run_id,
        "scenario": scenario.model_dump(mode="json"),
        "patterns": pattern_facts(scenario.traffic.values()),
        "scenario_file": run.settings.scenario_file,
        "overrides": list(run.settings.overrides),
        "started_at": run.started_at,
        "start_at_ns": run.start_at_ns,
        "seed": scenario.seed,
        "estimate": run.settings.estimate.facts(),
        **learnt.facts(),
        "arrival": loop(scenario.arrival, scenario.traffic.values()),
        "target": targets[0],
        "second_target": targets[1] if targets[1:] else None,
    }


def frame(
    facts: dict[str, Any], state: str, notes: list[str], preflight: list[dict[str, Any]]
) -> dict[str, Any]:
    """Keys that every run.json has; see docs/reference/data-format.md."""
    master = {
        "host": platform.node(),
        "pid": os.getpid(),
        "kernel": platform.release(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "boot_id": boot_id(),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        **facts,
        "state": state,
        "versions": installed_versions(),
        "master": master,
        "notes": list(notes),
        "preflight": list(preflight),
        "verdict": None,
    }


def write(run: RunRecord, *, ended: bool = False) -> None:
    """Replace run.json."""
    facts = frame(run_facts(run), run.state, run.notes, run.preflight)
    facts["admission_end_at_ns"] = run.admission_end_at_ns
    facts["ended_at_ns"] = monotonic_ns() if ended else None
    facts["engine_tokens"] = run.engine_metrics.facts()
    facts["certificate"] = run.settings.certificate
    facts["trace"] = run.schedule.trace if run.schedule else None
    facts["conservation"] = run.workers.conservation(_scheduled(run), run.folder, final=ended)
    facts["not_leased"] = run.not_leased
    facts["master_stalled"] = [] if run.start_at_ns is None else _spans(run.workers.stalls, run.start_at_ns)
    facts["workers"] = [worker.facts() for worker in run.workers]
    write_json(run.folder.run_json, facts)


def _spans(spans: list[tuple[int, int]], start_at_ns: int) -> list[dict[str, float]]:
    """In seconds of the run."""
    return [
        {"from_s": max(0, since - start_at_ns) / 1e9, "to_s": max(0, until - start_at_ns) / 1e9}
        for since, until in spans
    ]


def _scheduled(run: RunRecord) -> int | None:
    """Planned requests; None in a closed loop, where the run decides their number."""
    if run.schedule is None:
        return 0
    return run.schedule.requests if run.scenario.arrival.is_open else None
