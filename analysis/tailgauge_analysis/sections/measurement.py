"""The section on measurement quality: by how much the client may have moved a figure, its timestamps, its state, and every check.

The checks and the verdict are computed in verdict/; here they are shown.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pandas as pd

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.metrics.steady import is_of_tasks
from tailgauge_analysis.metrics.timeline import width
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import clock_range, count, ms, percentile, plural, share
from tailgauge_analysis.text.json_values import Json, one_of
from tailgauge_analysis.text.picture import Panel, Picture, PlotCurve
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import (
    INEXACT,
    OF_SOMETHING_ELSE,
    Finding,
    Section,
    Table,
    Value,
)
from tailgauge_analysis.verdict import losses, slow_users
from tailgauge_analysis.verdict.checks import CHECKS, CLIENT_ERROR
from tailgauge_analysis.verdict.client_error import SHARE, ClientError, effect
from tailgauge_analysis.verdict.clocks import clocks_json
from tailgauge_analysis.verdict.explanations import explanations as of_client
from tailgauge_analysis.verdict.late_client import connections
from tailgauge_analysis.verdict.stalls import BadSeconds
from tailgauge_analysis.verdict.timestamps import Stamps
from tailgauge_analysis.verdict.verdict import Evidence, Reason
from tailgauge_analysis.verdict.workers import Worker

KEY = ""
NOT_APPLICABLE = "not applicable"
PASSED = "passed"
SPELLS = 8
LINE = 100  # columns of a list
COMPUTED = (
    "Chunks that are read together share a timestamp, which is exact for the last of them. Each earlier chunk of the same read arrived between "
    "two known times: its time range. The end of this range counts. "
    "Receive lag: time from the kernel’s timestamp to the read. The receive lag does not change kernel timestamps."
)

Facts = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of the measurement: `verdict` is passed, not applicable, DEGRADED or INVALID."""

    check: str
    passes_if: str
    verdict: str


def check_results(evidence: Evidence, reasons: Sequence[Reason]) -> list[CheckResult]:
    """Return every check."""
    verdicts = {reason.check: reason.verdict for reason in reasons}
    results = []
    for check in CHECKS:
        otherwise = PASSED if check.applies(evidence) else NOT_APPLICABLE
        results.append(
            CheckResult(check.name, check.passes_if, verdicts.get(check.name, otherwise))
        )
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the numbers can be trusted."""

    status: Annotated[str, one_of(VALID, DEGRADED, INVALID)]
    reasons: list[Reason]
    """worst first; empty if VALID"""
    explanations: list[str]
    """which figures the client moved and by how much at most, then its difficulties; empty without any"""
    checks: list[CheckResult]
    """all checks"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well the client measured."""

    verdict: Verdict
    """whether the numbers can be trusted"""
    stamps: Stamps
    """exact and interval timestamps, kernel and user timestamps, attempts that opened a connection"""
    client: list[Worker]
    """health of each worker in the steady stage: mean and worst second of each column"""
    bad_seconds: BadSeconds
    """client stalls in the steady stage"""
    client_error: list[ClientError]
    """error of each reported percentile because of the client"""
    clocks: Json
    """clock error between_ms (two workers), calls_in_flight (its effect on this count), unknown (workers), sentence"""
    evidence: Evidence = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Quality:
    """Return what the measurement of a run rests on."""
    evidence = run.evidence
    verdict = Verdict(
        status=run.verdict,
        reasons=run.reasons,
        explanations=run.result(explanations),
        checks=check_results(evidence, run.reasons),
    )
    return Quality(
        verdict=verdict,
        stamps=evidence.stamps,
        client=evidence.workers,
        bad_seconds=evidence.bad,
        client_error=evidence.errors,
        clocks=clocks_json(run.clocks, run.calls_between),
        evidence=evidence,
    )


def explanations(run: Run) -> list[str]:
    """Return the difficulties of workers and client; before those of the client what they mean for the figures."""
    lost = losses.explanations(run.evidence.conservation.workers)
    delays = [explanation.text for explanation in of_client(run.frames, run.steady)]
    moved = ""
    if delays:
        moved = effect(run.evidence.errors)
    part = run.evidence.users_share or 0.0
    # A larger part of slow users is a reason of its own.
    slowed = ""
    if slow_users.NAMED < part <= SHARE:
        slowed = slow_users.effect(part)
    return [*lost, *filter(None, [moved, slowed]), *delays]


def section(quality: Quality) -> Section:
    """Return the section: by how much the client may have moved a figure, its timestamps, its state, and every check.

    It is folded where every check passed.
    """
    evidence = quality.evidence
    checks = quality.verdict.checks
    verdict_counts = Counter(result.verdict for result in checks)
    facts = [("Checks", ", ".join(f"{n} {verdict}" for verdict, n in verdict_counts.items()))]
    facts += _stamps(evidence)
    if quality.clocks["sentence"]:
        facts.append(("Clocks", quality.clocks["sentence"]))
    answer = "The measurement error of every figure is within its limit."
    tables = _not_met(quality.verdict)
    moved_figures = [error for error in evidence.errors if error.verdict != VALID]
    if moved_figures:
        answer = f"The client may have moved {plural(len(moved_figures), 'figure')} by more than the limit."
        tables.append(_figures(moved_figures))
    # Stalls of the client: what they mean for the figures stands beside them.
    if evidence.bad.spells:
        facts.append(("Stalls", f"{evidence.bad.sentence} {effect(evidence.errors)}".rstrip()))
        tables.append(_stalls(evidence.bad))
    if evidence.workers and not evidence.frames.run["dry_run"]:
        tables.append(_workers(evidence.workers))
    return Section(
        name="measurement",
        title="Measurement",
        answer=answer,
        facts=tuple(facts),
        tables=tuple(tables),
        figures=tuple(_client_state(evidence.frames.health)),
        computed=(COMPUTED,),
        listing=_passed_checks(checks),
        # A check that is not met stands at the top of the page, too.
        is_folded=verdict_counts.keys() <= {PASSED, NOT_APPLICABLE},
        findings=tuple(_findings(quality.verdict)),
    )


def _not_met(verdict: Verdict) -> list[Table]:
    """Return a table of the checks that are not met; none where all are."""
    conditions = {result.check: result.passes_if for result in verdict.checks}
    columns = (
        ("check", lambda reason: reason.check),
        ("passes if", lambda reason: conditions[reason.check]),
        ("found", lambda reason: reason.text),
        ("verdict", lambda reason: Value(reason.verdict, outcome=reason.verdict)),
    )
    if not verdict.reasons:
        return []
    return [Table.of("Checks that are not met", verdict.reasons, columns, prose=(1, 2))]


def _passed_checks(checks: Sequence[CheckResult]) -> tuple[str, str]:
    """Return a title and a line for each check that passed; those that do not apply to the run are not named."""
    passes = [result for result in checks if result.verdict == PASSED]
    width = max((len(result.check) for result in passes), default=0) + 2
    lines: list[str] = []
    for result in passes:
        name = result.check.ljust(width)
        lines += textwrap.wrap(name + result.passes_if, LINE, subsequent_indent=" " * width)
    return f"{plural(len(passes), 'check')} passed", "\n".join(lines)


def _findings(verdict: Verdict) -> Iterator[Finding]:
    """Yield a cache that was not cold, and a client that moved a figure; an INVALID measurement comes first anyway."""
    weights = {"cold_cache": OF_SOMETHING_ELSE, CLIENT_ERROR: INEXACT}
    for reason in verdict.reasons:
        if reason.verdict == DEGRADED and reason.check in weights:
            yield Finding(reason.text, weights[reason.check])


def _stamps(evidence: Evidence) -> Facts:
    """Return facts about the timestamps of chunks and the connections of attempts, as names and texts.

    A chunk that shared a read with others has a time range instead of an exact time. A dry run has no real timestamps or
    connections.
    """
    stamps = evidence.stamps
    facts = [
        ("First chunks of calls", _exact(stamps.first_chunks, stamps.first_intervals)),
        ("All chunks of calls", _exact(stamps.chunks, stamps.chunk_intervals)),
    ]
    if evidence.frames.run["dry_run"]:
        return facts
    user_space = ""
    if stamps.user_attempts:
        user_space = f"user space in {plural(stamps.user_attempts, 'attempt')}, "
    facts.append(
        ("Timestamps", f"{user_space}kernel in {plural(stamps.kernel_attempts, 'attempt')}")
    )
    if stamps.connected:
        new_share = share(stamps.new_connections / stamps.connected)
        start = "requested" if is_of_tasks(evidence.frames.run["scenario"]) else "scheduled"
        attempts = f"{count(stamps.new_connections)} of {plural(stamps.connected, 'attempt')} ({new_share})"
        opened = f"{attempts} opened a connection"
        if stamps.new_connections:
            opened += f", which their times since {start} include; {connections(evidence.frames)}"
        facts.append(("Connections", opened))
    return facts


def _exact(n: int, ranges: int) -> str:
    part = 0.0
    if n:
        part = ranges / n
    return (
        f"{count(n - ranges)} with an exact time, {count(ranges)} with a time range ({share(part)})"
    )


def _figures(errors: Sequence[ClientError]) -> Table:
    """Return a row for each figure whose error is above its limit, the worst first."""
    rows = sorted(errors, key=lambda error: -error.excess)
    columns = (
        ("figure, ms", lambda error: error.title),
        ("view", lambda error: error.view),
        ("percentile", lambda error: percentile(error.quantile)),
        ("earliest", lambda error: ms(error.lows_value)),
        ("latest", lambda error: ms(error.highs_value)),
        ("sent late", lambda error: ms(error.late_shift)),
        ("error", lambda error: ms(error.error_ms)),
        ("limit", lambda error: ms(error.limit_ms)),
        ("verdict", lambda error: Value(error.verdict, outcome=error.verdict)),
    )
    note = "Earliest, latest: the percentile from the beginnings and from the ends of the time ranges. Sent late: what late sending adds."
    return Table.of("Measurement error above the limit", rows, columns, note, prose=(1,))


def _stalls(bad: BadSeconds) -> Table:
    columns = (
        ("when", lambda spell: clock_range(spell.from_s, spell.to_s)),
        ("worker", lambda spell: str(spell.worker)),
        ("cause", lambda spell: spell.cause),
        ("by up to (ms)", lambda spell: ms(spell.worst_ms)),
    )
    remainder = ""
    if len(bad.spells) > SPELLS:
        remainder = f"{len(bad.spells) - SPELLS:,} more in report.json."
    return Table.of("Stalls", bad.spells[:SPELLS], columns, remainder, prose=(2,))


def _workers(workers: Sequence[Worker]) -> Table:
    columns = (
        ("worker", lambda worker: str(worker.worker)),
        ("CPU mean (of a core)", lambda worker: share(worker.cpu_mean)),
        ("CPU (of a core)", lambda worker: share(worker.cpu_max)),
        ("loop lag (ms)", lambda worker: ms(worker.loop_lag_max_ms)),
        ("receive lag (ms)", lambda worker: ms(worker.receive_lag_max_ms)),
        ("dispatch late (ms)", lambda worker: ms(worker.dispatch_late_max_ms)),
        ("waits for a connection", lambda worker: count(worker.pool_waits)),
        ("TCP losses", lambda worker: count(worker.tcp_losses)),
        ("GC (ms)", lambda worker: ms(worker.gc_max_ms)),
        ("memory (MB)", lambda worker: count(worker.rss_max_bytes / 1e6)),
        ("in flight", lambda worker: count(worker.in_flight_max)),
    )
    return Table.of("Workers in the steady stage, worst second", workers, columns)


# --- figure -------------------------------------------------------------------------------------------------------

STATES = (
    ("cpu_share", 100, "CPU<br>(% of a core)", "%{y:.3~g}%"),
    ("loop_lag_max_ns", 1e-6, "loop lag,<br>worst (ms)", "%{y:,.4~g} ms"),
    ("receive_lag_max_ns", 1e-6, "receive lag,<br>worst (ms)", "%{y:,.4~g} ms"),
)


def _client_state(health: pd.DataFrame) -> Iterator[Picture]:
    """Draw the worst of each worker and stretch of time."""
    if health.empty:
        return
    at_s = health["at_ns"] / 1e9
    step = width(at_s.max())
    worst = health.groupby(["worker", at_s // step * step]).max()
    panels = []
    for column, factor, title, hover in STATES:
        curves = []
        for worker, values in worst[column].groupby(level=0):
            times_s = values.index.get_level_values(1).to_numpy(np.float64)
            curves.append(
                PlotCurve(times_s, values.to_numpy() * factor, f"worker {worker}", hover=hover)
            )
        panels.append(Panel(title, curves))
    yield Picture(
        name="client",
        title="Client state",
        caption="Receive lag: time from the kernel's timestamp of the bytes to the read. The receive lag does not change kernel timestamps.",
        panels=panels,
        height=480,
    )
