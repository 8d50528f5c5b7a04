"""run.json: what the master of a run says of it, as things stand.

Rule: reads the run and changes nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

from tailgauge.clock import monotonic_ns
from tailgauge.master import progress
from tailgauge.master.engine_metrics import EnginePage
from tailgauge.master.workers import Crew
from tailgauge.patterns.table import facts as pattern_facts
from tailgauge.plan.preflight import Learnt
from tailgauge.plan.resolve import Settings
from tailgauge.protocols.settings import SIMULATED
from tailgauge.protocols.table import Target
from tailgauge.rows.run_folder import RunFolder, write_json
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.schedule import Schedule
from tailgauge.schedule.sessions import loop


class Told(Protocol):
    """What is told of a run."""

    run_id: str
    scenario: Scenario
    settings: Settings
    schedule: Schedule | None
    folder: RunFolder
    crew: Crew
    state: str
    notes: list[str]
    preflight: list[dict[str, Any]]
    tried: dict[str, Any] | None
    targets: list[Target]
    engine_page: EnginePage
    target_urls: list[str]
    started_at: str
    start_at_ns: int | None
    admission_end_at_ns: int | None


def run_facts(run: Told) -> dict[str, Any]:
    """What master and workers write alike, so that either's record tells which run it was."""
    scenario = run.scenario
    told = [
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
        "target": told[0],
        "second_target": told[1] if told[1:] else None,
    }


def write(run: Told, *, ended: bool = False) -> None:
    """run.json, replaced whole."""
    facts = progress.run_json(run_facts(run), run.state, run.notes, run.preflight)
    facts["admission_end_at_ns"] = run.admission_end_at_ns
    facts["ended_at_ns"] = monotonic_ns() if ended else None
    facts["engine_tokens"] = run.engine_page.facts()
    facts["certificate"] = run.settings.certificate
    facts["trace"] = run.schedule.trace if run.schedule else None
    facts["conservation"] = run.crew.conservation(_scheduled(run), run.folder, final=ended)
    facts["workers"] = [member.facts() for member in run.crew]
    write_json(run.folder.run_json, facts)


def _scheduled(run: Told) -> int | None:
    """Requests that the plan has; None where their number comes out of the run (closed loop)."""
    if run.schedule is None:
        return 0
    return run.schedule.requests if run.scenario.arrival.is_open else None
