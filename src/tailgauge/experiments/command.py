"""An experiment from its scenario to the files of its answer: a dry run first, then the real runs.

Nothing is sent before the dry run has shown what it will take: time, calls, tokens, cost, and the minimum detectable
effect. The answer is that of the real runs, or of the dry run with --dry-run.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tailgauge.clock import utc_now
from tailgauge.command_line import STEP_FOLDER
from tailgauge.dry_run.command import refusal
from tailgauge.errors import InterruptedRunError, UsageError
from tailgauge.experiments.answer import AnswerFile, RunRow, caveat, exit_code, report
from tailgauge.experiments.conduct import INTERRUPTED, Conducted, StepLedger, conduct
from tailgauge.experiments.course import Base
from tailgauge.experiments.runners import DryRunner, Progress, RealRunner, RunCounter
from tailgauge.experiments.table import planner_of
from tailgauge.live import screen
from tailgauge.plan.guard import excesses
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.run_folder import new_run_id
from tailgauge_analysis import FAIL, Result, plural
from tailgauge_analysis import INTERRUPTED as INTERRUPTED_OUTCOME

if TYPE_CHECKING:  # its libraries take a second to load
    from tailgauge_analysis import FinishedReport


def command(base: Base, overrides: Sequence[str], progress: Progress, *, dry_run: bool) -> FinishedReport:
    """Conduct it and write its answer; `overrides` as they were typed."""
    kind = base.table.kind
    planner = planner_of(kind)(base)
    if dry_run and not planner.has_dry_run:
        raise UsageError(f"--dry-run: {kind} measures this machine, and a dry run sends nothing: omit it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: children are stopped
    started_at = utc_now()
    run_id = new_run_id(base.scenario.name)
    began = time.monotonic()
    planned: list[str] = []
    failures: list[str] = []
    expected = ""
    with tempfile.TemporaryDirectory(prefix=STEP_FOLDER) as name, _named_interrupt():
        folder = Path(name)
        if dry_run:
            done = conduct(planner, base, DryRunner(base.out), folder, progress)
            planned = _plan(done.ledger, base)
            failures = _excesses(done.ledger, base)
        else:
            count = 0
            if planner.has_dry_run:
                planned, expected, count = _dry_run(base, folder, progress)
            counter = RunCounter(progress, count, is_timed=True)
            runner = RealRunner(base.out, base.workers, folder / "runs.log", counter)
            done = conduct(planner, base, runner, folder, progress, began)
    runs = tuple(RunRow(one.step.name, one.run_id, one.verdict, one.reason) for one in done.steps)
    result = _result(done)
    measurement = planner.measurement(runs)
    if warning := caveat(runs, measurement):
        result = replace(result, sentence=f"{warning}: {result.sentence}")
    target = base.scenario.target.url
    if dry_run and target != SIMULATED:
        text = f"of the simulated endpoint, not of {target}: {result.sentence}"
        result = replace(result, sentence=text)
    if failures:
        details = (f"expected answer: {result.outcome}, {result.sentence}", *result.details)
        result = replace(result, outcome=FAIL, sentence="; ".join(failures), details=details)
    file = AnswerFile(
        kind=done.answer.kind,
        run_id=run_id,
        result=result,
        measurement=measurement,
        facts=done.answer.facts,
        sections=done.answer.sections,
        smallest=done.answer.smallest,
        exit_code=exit_code(result, measurement, interrupted=done.interrupted),
        runs=runs,
        dry_run=dry_run,
        expected=expected,
        planned=tuple(planned),
        took=_took(done.ledger),
        scenario=base.scenario.name,
        description="" if base.changes_load else base.scenario.description,
        target=target,
        started_at=started_at,
        command=base.command(overrides, dry_run=dry_run),
    )
    from tailgauge_analysis import write_report

    colours = screen.has_colours()
    return write_report(report(file), base.out, screen.columns(), colours=colours, more=done.answer.files)


@contextmanager
def _named_interrupt() -> Iterator[None]:
    """Name Ctrl-C that leaves nothing to answer with."""
    try:
        yield
    except KeyboardInterrupt as error:
        text = "interrupted before the first run had ended: the experiment has no answer"
        raise InterruptedRunError(text) from error


def _result(done: Conducted) -> Result:
    """The answer; after Ctrl-C that of the completed runs."""
    result = done.answer.result
    if not done.interrupted:
        return result
    details = tuple(text for text in result.details if not text.startswith(INTERRUPTED))
    text = f"after {plural(done.ledger.runs, 'run')}, which show: {result.outcome}, {result.sentence}"
    return replace(result, outcome=INTERRUPTED_OUTCOME, sentence=text, details=details, advice="")


def _dry_run(base: Base, folder: Path, progress: Progress) -> tuple[list[str], str, int]:
    """Return what it will take, the answer to expect and the number of runs, and show them.

    Without a dry run of this traffic there is none of them. UsageError if its guard does not allow what it takes.
    The expected answer is shown only where the target is the simulated endpoint: nothing is known of another one's limits.
    """
    why = refusal(base.scenario)
    if why:
        _refuse_guards(base, why)
        progress(f"no dry run before the real runs: {why}")
        return [], "", 0
    progress("dry run first: all runs in seconds, nothing is sent")
    done = conduct(planner_of(base.table.kind)(base), base, DryRunner(folder), folder, lambda _: None)
    lines = _plan(done.ledger, base)
    for line in lines:
        progress(f"plan: {line}")
    expected = done.answer.result.sentence if base.scenario.target.url == SIMULATED else ""
    if expected:
        progress(f"expected answer: {expected}")
    if done.answer.smallest:
        progress(f"minimum detectable effect: {done.answer.smallest}")
    _guarded(done.ledger, base)
    return lines, expected, done.ledger.runs


def _plan(ledger: StepLedger, base: Base) -> list[str]:
    target = base.scenario.target.url
    minutes = ledger.real_s(rests=target != SIMULATED) / 60
    text = f"about {plural(max(1, round(minutes)), 'minute')}, {plural(ledger.runs, 'run')}, {ledger.calls:,} calls, {ledger.tokens:,} tokens"
    if ledger.cost is None:
        text += "; the model has no known price"
    elif ledger.currency:
        text += f"; up to {ledger.cost:,.2f} {ledger.currency}"
    if target == SIMULATED:
        return [text]
    return [text, "from a dry run on the simulated endpoint, which says nothing of the target"]


def _excesses(ledger: StepLedger, base: Base) -> list[str]:
    """Return which limits of [guard] all runs together exceed."""
    keys = [key for key, _ in base.pairs]
    return [excess.text for excess in excesses(base.scenario.guard, ledger.used, ledger.currency, keys)]


def _guarded(ledger: StepLedger, base: Base) -> None:
    failures = _excesses(ledger, base)
    if failures:
        raise UsageError(f"{'; '.join(failures)}: raise it, or set experiment.minutes lower")


def _refuse_guards(base: Base, why: str) -> None:
    """Refuse a guard, which an experiment cannot keep without the estimate of its dry run."""
    for key in StepLedger().used:
        if getattr(base.scenario.guard, key) is not None:
            text = f"an experiment needs a dry run to keep this limit, and this traffic has none ({why})"
            raise UsageError(f"guard.{key}: {text}: remove the guard, and set experiment.minutes")


def _took(ledger: StepLedger) -> str:
    return f"{plural(ledger.runs, 'run')}, {ledger.load_s:,.0f} s of load, {ledger.calls:,} calls, {ledger.tokens:,} tokens."
