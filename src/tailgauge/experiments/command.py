"""An experiment from its scenario to the files of its answer: first a rehearsal, then in earnest.

Rule: nothing is sent before the rehearsal has said what it will take: time, calls, tokens, cost, and the smallest effect
that it detects. The answer is that of the real runs, or of the rehearsal alone where that was asked for.
"""

from __future__ import annotations

import shlex
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tailgauge.clock import utc_now
from tailgauge.errors import Exit, UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.conduct import BY_HAND, Conducted, conduct
from tailgauge.experiments.contents import About, Told
from tailgauge.experiments.ledger import Ledger
from tailgauge.experiments.runners import DryRun, Real
from tailgauge.experiments.steps import Base
from tailgauge.experiments.table import made
from tailgauge.experiments.write import Written, write
from tailgauge.protocols.api_keys import key_for
from tailgauge.protocols.settings import SIMULATED
from tailgauge.rows.run_folder import new_run_id
from tailgauge_analysis.text.formatting import plural

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """How: `dry_run`, the rehearsal alone; `overrides` as they were given."""

    dry_run: bool
    overrides: tuple[str, ...]


def command(base: Base, asked: Asked, say: Say) -> Written:
    """Conduct it and write its answer."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is stopped
    for target in filter(None, (base.scenario.target, base.scenario.second_target)):
        if not asked.dry_run:
            key_for(
                target.url, target.protocol, target.api_key_env
            )  # a missing key is told before anything starts
    started_at, run_id = utc_now(), new_run_id(base.scenario.name)
    with tempfile.TemporaryDirectory(prefix="tailgauge-experiment-") as name:
        folder = Path(name)
        if asked.dry_run:
            done = conduct(made(base), base, DryRun(base.out), folder, say)
            planned, expected = _plan(done.ledger, base), ""
        else:
            planned, expected = _rehearsed(base, folder, say)
            runner = Real(base.out, base.workers, base.certificate, folder / "runs.log", say)
            done = conduct(made(base), base, runner, folder, say)
    about = About(
        run_id=run_id,
        scenario=base.scenario.name,
        description=base.scenario.description,
        target=base.scenario.target.url,
        started_at=started_at,
        command=_line(base, asked),
        dry_run=asked.dry_run,
        planned=tuple(planned),
        took=_took(done),
        expected=expected,
        left_out=done.left_out,
    )
    return write(
        _answer(done), about, [Told(r.step.name, r.run_id, r.verdict, r.reason) for r in done.steps], base.out
    )


def _answer(done: Conducted) -> Answer:
    """The answer, or what is left of it after Ctrl-C."""
    if not done.interrupted:
        return done.answer
    remarks = [text for text in done.answer.remarks if not text.startswith(BY_HAND)]
    said = f"{BY_HAND.capitalize()} after {plural(done.ledger.runs, 'run')}: the answer is what these allow."
    return replace(done.answer, remarks=(said, *remarks), exit_code=Exit.INTERRUPTED)


def _rehearsed(base: Base, folder: Path, say: Say) -> tuple[list[str], str]:
    """Rehearse it, and say what it will take; UsageError where that is more than its guard allows."""
    say("rehearsing in virtual time")
    done = conduct(made(base), base, DryRun(folder), folder, lambda _: None)
    lines = _plan(done.ledger, base)
    for line in lines:
        say(line)
    say(f"the rehearsal's answer: {done.answer.sentence}")
    if done.answer.smallest:
        say(f"smallest effect that it detects: {done.answer.smallest}")
    _guarded(done.ledger, base)
    return lines, done.answer.sentence


def _plan(ledger: Ledger, base: Base) -> list[str]:
    target = base.scenario.target.url
    minutes = ledger.real_s(rests=target != SIMULATED) / 60
    text = f"plan: about {minutes:.0f} minutes, {ledger.runs} runs, {ledger.calls:,} calls, {ledger.tokens:,} tokens"
    if ledger.cost is None:
        text += "; no price is known for the model"
    elif ledger.currency:
        text += f"; up to {ledger.cost:,.2f} {ledger.currency}"
    if target == SIMULATED:
        return [text]
    return [text, "plan: by a rehearsal on the simulated endpoint, [simulated] standing in for the target"]


def _guarded(ledger: Ledger, base: Base) -> None:
    guard = base.scenario.guard
    for key, limit, expected in (
        ("max_requests", guard.max_requests, ledger.calls),
        ("max_tokens", guard.max_tokens, ledger.tokens),
        ("max_cost", guard.max_cost, ledger.cost),
    ):
        if limit is not None and expected is not None and expected > limit:
            raise UsageError(
                f"guard.{key}: {limit:,} is less than the {expected:,.6g} that the rehearsal took: raise it, or set "
                "experiment.minutes lower"
            )


def _took(done: Conducted) -> str:
    ledger = done.ledger
    return f"It took {ledger.runs} runs with {ledger.load_s:,.0f} s of load, {ledger.calls:,} calls and {ledger.tokens:,} tokens."


def _line(base: Base, asked: Asked) -> str:
    """The command that does the same again."""
    words = ["tailgauge", "run", base.path.name, *(["--dry-run"] if asked.dry_run else [])]
    for text in asked.overrides:
        words += ["--set", text]
    return shlex.join(words)
