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
from tailgauge.experiments.course import Base, Effort, Planner, Step, StepResult
from tailgauge.experiments.runners import DryRunner, Progress, RealRunner, RunCounter
from tailgauge.experiments.table import planner_of
from tailgauge.live import screen
from tailgauge.master.listening import await_targets
from tailgauge.plan.estimate import Estimate
from tailgauge.plan.guard import Excess, amount, excesses
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.run_folder import new_run_id
from tailgauge.scenario.simulated import LimitsTable
from tailgauge_analysis import FAIL, Result, figures, plural
from tailgauge_analysis import INTERRUPTED as INTERRUPTED_OUTCOME

if TYPE_CHECKING:  # its libraries take a second to load
    from tailgauge_analysis import FinishedReport

ESTIMATED_S = 60.0  # of a run at today's rate whose tokens and cost a search multiplies,
ESTIMATED_ARRIVALS = 200  # at least


def command(
    base: Base, overrides: Sequence[str], progress: Progress, *, dry_run: bool
) -> FinishedReport:
    """Conduct an experiment, write its answer into `base.out`, and return the written report.

    `overrides`: as they were typed, for the command that repeats it. Real runs come after a dry run that shows what they
    take. From here on SIGTERM ends it as Ctrl-C does. Raises UsageError where it cannot be run as it is, and
    InterruptedRunError for an interruption before the first run had ended; a later one answers with the runs that ended.
    """
    kind = base.table.kind
    planner = planner_of(kind)(base)
    if dry_run and not planner.has_dry_run:
        raise UsageError(
            f"--dry-run: {kind} measures this machine, and a dry run sends nothing: omit it"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: children are stopped
    if not dry_run:
        with _named_interrupt():
            await_targets(base.scenario, progress)
    started_at = utc_now()
    run_id = new_run_id(base.scenario.name)
    began = time.monotonic()
    planned: list[str] = []
    failures: list[str] = []
    expected = ""
    with tempfile.TemporaryDirectory(prefix=STEP_FOLDER) as name, _named_interrupt():
        folder = Path(name)
        if dry_run:
            conducted = conduct(planner, base, DryRunner(base.out), folder, progress)
            # A search at an unknown target takes what that target decides: a range in place of the dry run's own figures.
            planned = search_lines(planner, base, folder)
            if not planned:
                planned = plan_lines(conducted, base)
                failures = [excess.text for excess in _excesses(conducted.ledger, base)]
        else:
            count = 0
            if planner.has_dry_run:
                planned, expected, count = _plan_by_dry_run(base, folder, progress)
            counter = RunCounter(
                progress, count, is_timed=True, shown_limit_s=base.table.minutes * 60
            )
            runner = RealRunner(base.out, base.workers, folder / "runs.log", counter)
            conducted = conduct(planner, base, runner, folder, progress, began=began)
    runs = tuple(map(_run_row, conducted.steps))
    result = _result(conducted)
    measurement = planner.measurement(runs)
    if warning := caveat(runs, measurement):
        result = replace(result, sentence=f"{warning}: {result.sentence}")
    target = base.scenario.target.url
    if dry_run and target != SIMULATED:
        result = replace(result, advice="")  # it would be about the simulated endpoint
    # The plan exceeds a limit of [guard], whatever the simulated endpoint answered.
    if failures:
        details = (f"the simulated endpoint: {result.outcome}, {result.sentence}", *result.details)
        result = replace(result, outcome=FAIL, sentence="; ".join(failures), details=details)
    file = AnswerFile(
        kind=conducted.answer.kind,
        run_id=run_id,
        result=result,
        measurement=measurement,
        facts=conducted.answer.facts,
        sections=conducted.answer.sections,
        smallest=conducted.answer.smallest,
        exit_code=exit_code(result, measurement, interrupted=conducted.interrupted),
        runs=runs,
        dry_run=dry_run,
        expected=expected,
        planned=tuple(planned),
        exceeded=tuple(failures),
        took=_took(conducted.ledger),
        scenario=base.scenario.name,
        description="" if base.changes_load else base.scenario.description,
        target=target,
        started_at=started_at,
        command=base.command(overrides, dry_run=dry_run),
    )
    from tailgauge_analysis import write_report

    colours = screen.has_colours()
    return write_report(
        report(file), base.out, screen.columns(), colours=colours, text_files=conducted.answer.files
    )


@contextmanager
def _named_interrupt() -> Iterator[None]:
    """Name Ctrl-C that leaves nothing to answer with."""
    try:
        yield
    except KeyboardInterrupt as error:
        text = "interrupted before the first run had ended: the experiment has no answer"
        raise InterruptedRunError(text) from error


def _run_row(result: StepResult) -> RunRow:
    return RunRow(
        name=result.step.name,
        run_id=result.run_id,
        verdict=result.verdict,
        reason=result.reason,
        spoils=result.spoils,
    )


def _result(conducted: Conducted) -> Result:
    """Return the answer; after Ctrl-C that of the completed runs."""
    result = conducted.answer.result
    if not conducted.interrupted:
        return result
    details = tuple(text for text in result.details if not text.startswith(INTERRUPTED))
    text = f"after {plural(conducted.ledger.runs, 'run')}, which show: {result.outcome}, {result.sentence}"
    return replace(result, outcome=INTERRUPTED_OUTCOME, sentence=text, details=details, advice="")


def _plan_by_dry_run(base: Base, folder: Path, progress: Progress) -> tuple[list[str], str, int]:
    """Show by a dry run what the real runs take; return these lines, the answer to expect and the number of runs.

    Nothing but lines is known of a search at another target than the simulated endpoint, and nothing at all of traffic
    that has no dry run. The expected answer is empty unless the target is the simulated endpoint: nothing is known of
    another one's limits. UsageError if [guard] does not allow what it takes.
    """
    reason = refusal(base.scenario)
    if reason:
        _refuse_guards(base, reason)
        progress(f"no dry run before the real runs: {reason}")
        return [], "", 0
    lines = search_lines(planner_of(base.table.kind)(base), base, folder)
    if lines:
        for line in lines:
            progress(f"plan: {line}")
        return lines, "", 0
    progress("dry run first: all runs in seconds, nothing is sent")
    conducted = conduct(
        planner_of(base.table.kind)(base), base, DryRunner(folder), folder, lambda _: None
    )
    lines = plan_lines(conducted, base)
    for line in lines:
        progress(f"plan: {line}")
    expected = conducted.answer.result.sentence if base.scenario.target.url == SIMULATED else ""
    if expected:
        progress(f"expected answer: {expected}")
    if conducted.answer.smallest:
        progress(f"minimum detectable effect: {conducted.answer.smallest}")
    check_guard(conducted, base, progress)
    return lines, expected, conducted.ledger.runs


def plan_lines(conducted: Conducted, base: Base) -> list[str]:
    """Return what the experiment takes by its dry run, where the target may differ from that, and how to make it shorter.

    Time, runs, calls, tokens and cost of the real runs, one line each subject. Rests between runs are counted only at a
    target that keeps state.
    """
    ledger = conducted.ledger
    planner = conducted.experiment
    is_simulated = base.scenario.target.url == SIMULATED
    is_open_end = _is_open_end(planner, base)
    minutes = max(1, round(ledger.real_s(rests=not is_simulated) / 60))
    length = f"about {plural(minutes, 'minute')}"
    if is_open_end:  # a target with limits is searched for longer than one without
        length = f"up to {figures(base.table.minutes)} minutes"
    text = (
        f"{length}, {plural(ledger.runs, 'run')}, {ledger.calls:,} calls, {ledger.tokens:,} tokens"
    )
    if not is_simulated:  # nobody pays for the simulated endpoint
        text += _cost(ledger)
    lines = [text]
    if is_open_end:
        lines.append(_unlike(base))
    elif not is_simulated:
        lines.append("counted at a simulated endpoint: your target may differ")
    if planner.order:
        lines.append(planner.order)
    return [*lines, *planner.needs, *planner.shorter]


def search_lines(planner: Planner, base: Base, folder: Path) -> list[str]:
    """Return what a search takes at a target of which nothing is known, from the least to the most; empty where a dry run
    tells.

    The efforts of the search at several assumed targets are multiplied by the calls, tokens and cost of one planned run
    at today's rate. `folder` gets the file of that run; it is not sent.
    """
    efforts: Sequence[Effort] = ()
    if _is_open_end(planner, base):
        efforts = planner.efforts()
    if not efforts:
        return []
    seconds = max(ESTIMATED_S, ESTIMATED_ARRIVALS / base.today())
    step = Step("plan", (), seconds, base.scenario.seed)
    estimate = base.prepare(step, 0, folder, sends=False).settings.estimate
    ledgers = []
    minutes = []
    runs = []
    for effort in efforts:
        ledgers.append(_ledger(effort, estimate))
        minutes.append(max(1, round(effort.seconds / 60)))
        runs.append(effort.runs)
    smallest = min(ledgers, key=lambda ledger: ledger.calls)
    largest = max(ledgers, key=lambda ledger: ledger.calls)
    calls = _span([smallest.calls, largest.calls])
    tokens = _span([smallest.tokens, largest.tokens])
    length = f"{_span(minutes)} minutes, {_span(runs)} runs"
    text = f"{length}, {calls} calls, {tokens} tokens{_cost(largest)}"
    limit = "the target's limits decide: few calls where it refuses today's rate, most where it refuses much later"
    ends = map(_search_end, _excesses(largest, base))
    return [text, limit, *ends, *planner.shorter]


def _search_end(excess: Excess) -> str:
    return f"{excess.name} ends the search at {amount(excess.allowed)} {excess.unit}"


def _ledger(effort: Effort, estimate: Estimate) -> StepLedger:
    """Return what an effort takes in calls, tokens and cost, by the estimate of a run."""
    runs = effort.arrivals / max(1, estimate.arrivals)
    tokens = (estimate.input_tokens or 0) + (estimate.output_tokens or 0)
    cost = None
    if estimate.cost is not None:
        cost = runs * estimate.cost
    return StepLedger(
        runs=effort.runs,
        calls=_rounded(runs * (estimate.calls or 0)),
        tokens=_rounded(runs * tokens),
        cost=cost,
        currency=estimate.currency,
    )


def _rounded(value: float) -> int:
    """Two digits: an estimate has no more."""
    return int(float(f"{value:.2g}"))


def _span(values: Sequence[int]) -> str:
    low = min(values)
    high = max(values)
    if low == high:
        return f"{low:,}"
    return f"{low:,} to {high:,}"


def _is_open_end(planner: Planner, base: Base) -> bool:
    """Return whether another target than the simulated one decides how many calls there are."""
    return planner.is_search and base.scenario.target.url != SIMULATED


def _cost(ledger: StepLedger) -> str:
    if ledger.cost is None:
        return "; the model has no known price"
    if not ledger.currency:
        return ""
    return f"; up to {ledger.cost:,.2f} {ledger.currency}"


def _unlike(base: Base) -> str:
    """Say how the calls of a search depend on the target."""
    has_limits = base.scenario.simulated.limits != LimitsTable()
    limits = "the limits of [simulated.limits]" if has_limits else "no limit"
    return f"counted at a simulated endpoint with {limits}: fewer calls where your target refuses earlier"


def _excesses(ledger: StepLedger, base: Base) -> list[Excess]:
    """Return which limits of [guard] all runs together exceed."""
    return list(excesses(base.scenario.guard, ledger.used, ledger.currency, base.keys))


def check_guard(conducted: Conducted, base: Base, progress: Progress) -> None:
    """Refuse a plan that exceeds a guard; a search at another target may need less, and ends where the guard is reached."""
    failures = _excesses(conducted.ledger, base)
    if not failures:
        return
    text = "; ".join(excess.text for excess in failures)
    if not _is_open_end(conducted.experiment, base):
        raise UsageError(f"{text}: raise it, or set experiment.minutes lower")
    progress(f"{text}: the search may end early")


def _refuse_guards(base: Base, reason: str) -> None:
    """Refuse a guard, which an experiment cannot keep without the estimate of its dry run."""
    for key in StepLedger().used:
        if getattr(base.scenario.guard, key) is not None:
            text = f"an experiment needs a dry run to keep this limit, and this traffic has none ({reason})"
            raise UsageError(f"guard.{key}: {text}: remove the guard, and set experiment.minutes")


def _took(ledger: StepLedger) -> str:
    return f"{plural(ledger.runs, 'run')}, {ledger.load_s:,.0f} s of load, {ledger.calls:,} calls, {ledger.tokens:,} tokens."
