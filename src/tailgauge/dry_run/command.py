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
from tailgauge.dry_run.attempt_rows import STAMPS
from tailgauge.dry_run.run import DryRun
from tailgauge.dry_run.store import Store
from tailgauge.errors import UsageError
from tailgauge.master import run_json
from tailgauge.master.conservation import Share, conserve
from tailgauge.master.looks import KNOWN, InterimLooks
from tailgauge.patterns.table import PATTERNS
from tailgauge.plan.guard import Spending
from tailgauge.plan.looks import looks
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.run_folder import RunFolder, new_run_id, write_json
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.schedule import Schedule

MAX_CHUNKS = 20_000_000  # about a gigabyte of memory for the report

NOTE = "a dry run on the simulated endpoint: nothing was sent, and no client was measured"


def dry_run(
    scenario: Scenario,
    schedule: Schedule,
    scenario_file: str,
    overrides: tuple[str, ...],
    out: Path,
    *,
    spending: Spending | None = None,
) -> RunFolder:
    """Run the scenario on a simulated clock and return the run folder, below `out`/runs, ready for its report.

    `scenario_file`, `overrides`: as the user gave them, for run.json. `spending`: counts the calls. UsageError for
    traffic that a dry run cannot show, before anything is written, and where the folder cannot be written. run.json is
    written before the run and once more after it.
    """
    _refuse(scenario, schedule)
    run_id = new_run_id(scenario.name)
    folder = RunFolder((out / "runs" / run_id).resolve())
    folder.create()
    urls = [SIMULATED] * len(scenario.targets)
    facts = {
        "dry_run": True,
        "run_id": run_id,
        "started_at": utc_now(),
        "start_at_ns": None,
        "trace": schedule.trace,
        "prompt_files": schedule.prompt_files,
        **run_json.scenario_facts(scenario, scenario_file, overrides, urls),
    }
    notes = [*_notes(scenario), *schedule.notes]
    write_json(folder.run_json, run_json.frame(facts, "running", notes, []))
    store = Store(folder, spending)
    interim_looks = InterimLooks(looks(scenario, schedule), folder)
    run = DryRun(scenario, schedule, store)
    try:
        run.run(interim_looks)
        store.close()
    except OSError as error:
        raise UsageError(f"{folder.path}: cannot be written: {error.strerror}") from error
    finally:
        interim_looks.stop(is_whole=True)
    facts |= {"precision": interim_looks.facts, "start_at_ns": run.start_at_ns}
    notes.extend(f"plugin {text}" for text in run.faults.texts.values())
    state = KNOWN if interim_looks.is_known else "complete"
    worker = _worker_facts(run, store)
    write_json(folder.worker_json(0), {"schema_version": SCHEMA_VERSION, **worker, "run": facts})
    leased = run.counters.leased
    run_facts = run_json.frame(facts, state, notes, []) | {
        "admission_end_at_ns": run.end_ns,
        "ended_at_ns": max(run.last_ns, run.end_ns),
        "conservation": conserve(leased, [Share(leased, worker["counts"])]),
        "workers": [{**worker, "leased": leased}],
    }
    write_json(folder.run_json, run_facts)
    return folder


def _worker_facts(run: DryRun, store: Store) -> dict[str, Any]:
    """Return the record of the one worker that a dry run is."""
    return {
        "worker": 0,
        "name": STAMPS,
        "host": platform.node(),
        "pid": os.getpid(),
        "state": "drained",
        "why": None,
        "clock": {"offset_ns": 0, "error_ns": 0, "drift_ppb": None},
        "stamps": STAMPS,
        "counts": run.counters.as_message(),
        "rows": dict(store.written),
    }


def refusal(scenario: Scenario) -> str:
    """Return which traffic a dry run cannot show, and why; empty where it shows all."""
    for name, traffic in scenario.traffic.items():
        obstacle = PATTERNS[traffic.pattern].no_dry_run
        if obstacle:
            return f"traffic.{name}: {obstacle}"
        if traffic.reader.bytes_per_s is not None:
            return f"traffic.{name}.reader: a slow reader needs real sockets"
    return ""


def _refuse(scenario: Scenario, schedule: Schedule) -> None:
    """Raise UsageError for what a dry run cannot show, or no report can read."""
    obstacle = refusal(scenario)
    if obstacle:
        raise UsageError(f"--dry-run: {obstacle}: leave out --dry-run")
    output_tokens = float((schedule.output_tokens * schedule.turns).sum())
    chunks = output_tokens / scenario.simulated.tokens_per_chunk
    if chunks > MAX_CHUNKS:
        raise UsageError(
            f"--dry-run: about {chunks:,.0f} chunks are planned, and a report reads at most {MAX_CHUNKS:,}: "
            "plan shorter answers, or more tokens in a chunk (simulated.tokens_per_chunk)"
        )


def _notes(scenario: Scenario) -> Iterator[str]:
    """Yield what a reader of the report must know."""
    yield NOTE
    for table, target in scenario.targets.items():
        if target.url != SIMULATED:
            yield f"{table}.url is {target.url}, and was not called: the table [simulated] replaced it"
    for name, traffic in scenario.traffic.items():
        note = PATTERNS[traffic.pattern].dry_run_note
        if note:
            yield f"traffic.{name}: {note}"
