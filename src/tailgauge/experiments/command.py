"""An experiment from its scenario to the files of its answer: a dry run first, then the real runs.

Nothing is sent before the dry run has shown what it will take: time, calls, tokens, cost, and the minimum detectable
effect. The answer is that of the real runs, or of the dry run with --dry-run.
"""

from __future__ import annotations

import shlex
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tailgauge.clock import utc_now
from tailgauge.errors import Exit, UsageError
from tailgauge.experiments.answer import SCHEMA_VERSION, Answer, AnswerReport, RunRow
from tailgauge.experiments.conduct import INTERRUPTED, Conducted, Progress, StepLedger, conduct
from tailgauge.experiments.course import Base, Planner
from tailgauge.experiments.runners import DryRunner, RealRunner
from tailgauge.experiments.table import EXPERIMENTS
from tailgauge.protocols.api_keys import key_for
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.run_folder import new_run_id
from tailgauge.thresholds import VALID, WORST_FIRST
from tailgauge_analysis.text.formatting import plural

if TYPE_CHECKING:
    from tailgauge.experiments.write import Written


def command(base: Base, overrides: Sequence[str], progress: Progress, *, dry_run: bool) -> Written:
    """Conduct it and write its answer; `overrides` as they were typed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: children are stopped
    for target in filter(None, (base.scenario.target, base.scenario.second_target)):
        if not dry_run:
            key_for(
                target.url, target.protocol, target.api_key_env
            )  # a missing key is an error before anything starts
    started_at, run_id = utc_now(), new_run_id(base.scenario.name)
    with tempfile.TemporaryDirectory(prefix="tailgauge-experiment-") as name:
        folder = Path(name)
        if dry_run:
            done = conduct(_experiment(base), base, DryRunner(base.out), folder, progress)
            planned, expected = _plan(done.ledger, base), ""
        else:
            planned, expected = _dry_run(base, folder, progress)
            runner = RealRunner(base.out, base.workers, base.certificate, folder / "runs.log", progress)
            done = conduct(_experiment(base), base, runner, folder, progress)
    answer = _answer(done)
    report = AnswerReport(
        **{field.name: getattr(answer, field.name) for field in fields(answer)}, schema_version=SCHEMA_VERSION, run_id=run_id,
        verdict=min((one.verdict for one in done.steps), key=WORST_FIRST.index, default=VALID),
        runs=tuple(RunRow(one.step.name, one.run_id, one.verdict, one.reason) for one in done.steps),
        dry_run=dry_run, expected=expected, planned=tuple(planned), took=_took(done.ledger),
        scenario=base.scenario.name, description=base.scenario.description,
        target=base.scenario.target.url, started_at=started_at, command=_line(base, overrides, dry_run=dry_run),
    )  # fmt: skip
    from tailgauge.experiments.write import write

    return write(report, base.out)


def _experiment(base: Base) -> Planner:
    return EXPERIMENTS[base.table.kind](base)


def _answer(done: Conducted) -> Answer:
    """The answer, or what is left of it after Ctrl-C or without a valid run."""
    if not done.interrupted:
        unusable = (
            done.answer.exit_code == Exit.INCONCLUSIVE
            and done.steps
            and not any(one.valid for one in done.steps)
        )
        return replace(done.answer, exit_code=Exit.INVALID) if unusable else done.answer
    remarks = [text for text in done.answer.remarks if not text.startswith(INTERRUPTED)]
    text = f"Interrupted after {plural(done.ledger.runs, 'run')}: the answer is based on these."
    return replace(done.answer, remarks=(text, *remarks), exit_code=Exit.INTERRUPTED)


def _dry_run(base: Base, folder: Path, progress: Progress) -> tuple[list[str], str]:
    """Show what the experiment will take, and its expected answer; UsageError if that is more than its guard allows."""
    progress("dry run first")
    done = conduct(_experiment(base), base, DryRunner(folder), folder, lambda _: None)
    lines = _plan(done.ledger, base)
    for line in lines:
        progress(line)
    progress(f"expected answer: {done.answer.sentence}")
    if done.answer.smallest:
        progress(f"minimum detectable effect: {done.answer.smallest}")
    _guarded(done.ledger, base)
    return lines, done.answer.sentence


def _plan(ledger: StepLedger, base: Base) -> list[str]:
    target = base.scenario.target.url
    minutes = ledger.real_s(rests=target != SIMULATED) / 60
    text = f"plan: about {minutes:.0f} minutes, {plural(ledger.runs, 'run')}, {ledger.calls:,} calls, {ledger.tokens:,} tokens"
    if ledger.cost is None:
        text += "; the model has no known price"
    elif ledger.currency:
        text += f"; up to {ledger.cost:,.2f} {ledger.currency}"
    if target == SIMULATED:
        return [text]
    return [text, "plan: from a dry run on the simulated endpoint; [simulated] stands in for the target"]


def _guarded(ledger: StepLedger, base: Base) -> None:
    guard = base.scenario.guard
    for key, limit, expected in (
        ("max_requests", guard.max_requests, ledger.calls),
        ("max_tokens", guard.max_tokens, ledger.tokens),
        ("max_cost", guard.max_cost, ledger.cost),
    ):
        if limit is not None and expected is not None and expected > limit:
            raise UsageError(
                f"guard.{key}: {limit:,} is less than the {expected:,.6g} of the dry run: raise it, or set "
                "experiment.minutes lower"
            )


def _took(ledger: StepLedger) -> str:
    return f"{plural(ledger.runs, 'run')}, {ledger.load_s:,.0f} s of load, {ledger.calls:,} calls, {ledger.tokens:,} tokens."


def _line(base: Base, overrides: Sequence[str], *, dry_run: bool) -> str:
    """The command that repeats the experiment."""
    sets = [part for text in overrides for part in ("--set", text)]
    return shlex.join(["tailgauge", "run", base.path.name, *(["--dry-run"] if dry_run else []), *sets])
