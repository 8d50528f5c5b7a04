"""`tailgauge run --dry-run`: from a scenario to a run folder like any other.

What a dry run cannot show is refused before anything is written; what it leaves out stands in the notes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailgauge.clock import utc_now
from tailgauge.dry_run.attempts import STAMPS
from tailgauge.dry_run.requests import DryRun
from tailgauge.dry_run.store import Store
from tailgauge.errors import UsageError
from tailgauge.master import run_json
from tailgauge.master.conservation import Share, conserve
from tailgauge.master.looks import KNOWN, InterimLooks
from tailgauge.patterns.table import PATTERNS
from tailgauge.plan.precision import looks
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.run_folder import RunFolder, new_run_id, write_json
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.simulated import ProxyTable
from tailgauge.schedule.schedule import Schedule

MAX_CHUNKS = 20_000_000  # about a gigabyte of memory for the report

NOTE = "a dry run on the simulated endpoint: nothing was sent, and no client was measured"


def dry_run(
    scenario: Scenario, schedule: Schedule, scenario_file: str, overrides: tuple[str, ...], out: Path
) -> RunFolder:
    """Run the scenario on a simulated clock; returns the run folder, ready for its report."""
    _possible(scenario, schedule)
    run_id = new_run_id(scenario.name)
    folder = RunFolder((out / "runs" / run_id).resolve())
    folder.create()
    urls = [SIMULATED] * len(scenario.targets)
    about = {
        "dry_run": True, "run_id": run_id, "started_at": utc_now(), "start_at_ns": None, "trace": schedule.trace,
    }  # fmt: skip
    facts = about | run_json.scenario_facts(scenario, scenario_file, overrides, urls)
    notes = [*_notes(scenario), *schedule.notes]
    write_json(folder.run_json, run_json.frame(facts, "running", notes, []))
    store = Store(folder)
    known = InterimLooks(looks(scenario, schedule), folder)
    run = DryRun(scenario, schedule, store)
    try:
        run.run(known)
        store.close()
    except OSError as error:
        raise UsageError(f"{folder.path}: cannot be written: {error.strerror}") from error
    finally:
        known.stop(is_whole=True)
    state = KNOWN if known.is_known else "complete"
    _conclude(folder, state, facts | {"precision": known.facts}, notes, run, store)
    return folder


def _conclude(
    folder: RunFolder, state: str, facts: dict[str, Any], notes: list[str], run: DryRun, store: Store
) -> None:
    counts, leased = run.counters.as_message(), run.counters.leased
    facts = facts | {"start_at_ns": run.start_at_ns}
    worker = {
        "worker": 0, "name": STAMPS, "host": platform.node(), "pid": os.getpid(), "state": "drained", "why": None,
        "clock": {"offset_ns": 0, "error_ns": 0, "drift_ppb": None}, "stamps": STAMPS, "counts": counts,
        "rows": dict(store.written),
    }  # fmt: skip
    notes = [*notes, *(f"plugin {text}" for text in run.faults.texts.values())]
    whole = run_json.frame(facts, state, notes, []) | {
        "admission_end_at_ns": run.end_ns, "ended_at_ns": max(run.last_ns, run.end_ns),
        "conservation": conserve(leased, [Share(leased, counts)]), "workers": [{**worker, "leased": leased}],
    }  # fmt: skip
    write_json(folder.worker_json(0), {"schema_version": SCHEMA_VERSION, **worker, "run": facts})
    write_json(folder.run_json, whole)


def _possible(scenario: Scenario, schedule: Schedule) -> None:
    """Refuse what a dry run cannot show."""
    for name, traffic in scenario.traffic.items():
        if why := PATTERNS[traffic.pattern].no_dry_run:
            raise UsageError(f"--dry-run: traffic.{name}: {why}: leave out --dry-run")
        if traffic.reader.bytes_per_s is not None:
            text = "a slow reader needs real sockets: leave out --dry-run"
            raise UsageError(f"--dry-run: traffic.{name}.reader: {text}")
    if scenario.simulated.proxy != ProxyTable():
        raise UsageError("--dry-run: simulated.proxy: a proxy holds real bytes back: leave out --dry-run")
    outputs = float((schedule.output_tokens * schedule.turns).sum())
    per_chunk = scenario.simulated.tokens_per_chunk
    if outputs / per_chunk > MAX_CHUNKS:
        raise UsageError(
            f"--dry-run: some {outputs / per_chunk:,.0f} chunks are planned, and a report reads at most {MAX_CHUNKS:,}: "
            "plan shorter answers, or more tokens in a chunk (simulated.tokens_per_chunk)"
        )


def _notes(scenario: Scenario) -> Iterator[str]:
    """What a reader of the report must know."""
    yield NOTE
    for table, target in scenario.targets.items():
        if target.url != SIMULATED:
            yield f"{table}.url is {target.url}, and was not called: the table [simulated] replaced it"
    if scenario.guard.model_dump(exclude_none=True):
        yield "the table [guard] was not in force: a dry run costs nothing"
    for name, traffic in scenario.traffic.items():
        if note := PATTERNS[traffic.pattern].dry_run_note:
            yield f"traffic.{name}: {note}"
