"""Measurement quality: by how much the client may have moved a figure, its timestamps, its state, and every check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import pandas as pd

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.metrics.timeline import width
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import clock, count, ms, percentile, plural, share
from tailgauge_analysis.text.json_values import Json, one_of
from tailgauge_analysis.text.picture import Panel, Picture, PlotCurve
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Cell, Section, Table, Value
from tailgauge_analysis.verdict import client, timestamps
from tailgauge_analysis.verdict import conservation as losses
from tailgauge_analysis.verdict.checks import CHECKS
from tailgauge_analysis.verdict.client import BadSeconds, Worker, connections
from tailgauge_analysis.verdict.client_error import ClientError
from tailgauge_analysis.verdict.conservation import InFlight
from tailgauge_analysis.verdict.timestamps import ServerLog, Stamps
from tailgauge_analysis.verdict.verdict import Evidence, Reason, applies

KEY = ""
NOT_APPLICABLE, PASSED = "not applicable", "passed"
SPELLS = 8
COMPUTED = (
    "Several events in one read share a timestamp: the earlier ones have a time range, whose end is used. "
    "Receive lag: from the kernel’s timestamp to the read; it moves no kernel timestamp."
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of the measurement: `verdict` is passed, not applicable, DEGRADED or INVALID."""

    check: str
    passes_if: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the numbers can be trusted."""

    status: Annotated[str, one_of(VALID, DEGRADED, INVALID)]
    reasons: list[Reason]
    """worst first; empty if VALID"""
    explanations: list[str]
    """difficulties of the client that explain failed checks"""
    checks: list[CheckResult]
    """all checks"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well the client measured."""

    verdict: Verdict
    """whether the numbers can be trusted"""
    stamps: Json
    """exact and interval timestamps, kernel and user timestamps, attempts that opened a connection, receive lag"""
    client: list[Worker]
    """health of each worker in the steady stage: mean and worst second of each column"""
    in_flight: InFlight | None
    """attempts in flight, live (counted by the workers) and by Little's law on the rows; null without health rows"""
    bad_seconds: BadSeconds
    """client stalls in the steady stage"""
    client_error: list[ClientError]
    """error of each reported percentile because of the client"""
    server_log: ServerLog | None
    """delay from the server log's write to the arrival of the first content; null without the log"""
    clocks: Json
    """clock error between_ms (two workers), to_target_ms, calls_in_flight (its effect on this count), unknown (workers), sentence"""
    evidence: Evidence = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Quality:
    """Return what the measurement of a run rests on."""
    evidence = run.evidence
    return Quality(
        verdict=Verdict(
            status=run.verdict,
            reasons=run.reasons,
            explanations=explanations(run),
            checks=_checks(evidence, run.reasons),
        ),
        stamps=_stamp_counts(evidence.stamps),
        client=evidence.workers,
        in_flight=evidence.in_flight,
        bad_seconds=evidence.bad,
        client_error=evidence.errors,
        server_log=timestamps.compare_server_log(run.frames),
        clocks=timestamps.clocks_json(run.clocks, timestamps.calls_between(run.frames, run.clocks)),
        evidence=evidence,
    )


def explanations(run: Run) -> list[str]:
    """Return the difficulties of workers and client that explain failed checks."""
    lost = losses.explanations(run.evidence.conservation.workers)
    return [*lost, *client.explanations(run.frames, run.steady)]


def _checks(evidence: Evidence, reasons: Sequence[Reason]) -> list[CheckResult]:
    verdicts = {one.name: PASSED if applies(one, evidence) else NOT_APPLICABLE for one in CHECKS}
    verdicts |= {reason.check: reason.verdict for reason in reasons}
    return [CheckResult(one.name, one.passes_if, verdicts[one.name]) for one in CHECKS]


def _stamp_counts(stamps: Stamps) -> Json:
    lags = stamps.receive_lag_ms or (None, None, None)
    return {
        **{key: value for key, value in vars(stamps).items() if key != "receive_lag_ms"},
        "first_interval_share": stamps.first_interval_share,
        "chunk_interval_share": stamps.chunk_intervals / stamps.chunks if stamps.chunks else 0.0,
        **{f"receive_lag_{name}_ms": lag for name, lag in zip(("p50", "p99", "max"), lags, strict=True)},
    }


def section(found: Quality) -> Section:
    """Return by how much the client may have moved a figure, and its state."""
    evidence, checks = found.evidence, found.verdict.checks
    is_dry = evidence.frames.run["dry_run"]
    figures, bad = _figures(evidence), evidence.bad
    text = "The client moved no figure by more than its limit."
    if figures:
        text = f"The client may have moved {plural(len(figures.rows), 'figure')} by more than the limit."
    counts = ", ".join(f"{n} {name}" for name, n in Counter(one.verdict for one in checks).items())
    facts = [("Checks", counts), *_stamps(evidence, is_dry=is_dry)]
    if found.server_log is not None:
        facts.append(("Against the server log", _log(found.server_log)))
    if found.clocks["sentence"]:
        facts.append(("Clocks", found.clocks["sentence"]))
    if bad.spells:
        facts.append(("Stalls", client.sentence(bad)))
    tables = [figures] if figures else []
    tables += [_stalls(bad)] if bad.spells else []
    tables += [_workers(evidence.workers)] if evidence.workers and not is_dry else []
    is_sound = all(one.verdict in {PASSED, NOT_APPLICABLE} for one in checks)  # the page says so at its top
    return Section(
        "measurement",
        "Measurement",
        text,
        tuple(facts),
        tuple(tables),
        figures=tuple(_client_state(evidence.frames.health)),
        computed=(COMPUTED, *(f"{one.verdict}: {one.passes_if}" for one in checks)),
        is_folded=is_sound,
    )


def _stamps(evidence: Evidence, *, is_dry: bool) -> list[tuple[str, str]]:
    of = evidence.stamps

    def exact(n: int, ranges: int) -> str:
        return f"{count(n - ranges)} exact, {count(ranges)} with a time range ({share(ranges / n if n else 0.0)})"

    facts = [
        ("First chunks", exact(of.first_chunks, of.first_intervals)),
        ("All chunks", exact(of.chunks, of.chunk_intervals)),
    ]
    if is_dry:
        return facts
    by_user = f"user space in {plural(of.user_attempts, 'attempt')}, " if of.user_attempts else ""
    facts.append(("Timestamps", f"{by_user}kernel in {plural(of.kernel_attempts, 'attempt')}"))
    if of.connected:
        opened = f"{count(of.new_connections)} of {plural(of.connected, 'attempt')} ({share(of.new_connections / of.connected)}) opened one; their times since scheduled include it"
        opened += f"; {connections(evidence.frames)}" if of.new_connections else ""
        facts.append(("Connections", opened))
    if of.receive_lag_ms:
        p50, p99, worst = map(ms, of.receive_lag_ms)
        facts.append(("Receive lag", f"p50 {p50} ms, p99 {p99} ms, maximum {worst} ms"))
    return facts


def _log(log: ServerLog) -> str:
    within = f", within ± {ms(log.within_ms)} ms by the workers’ clocks" if log.within_ms else ""
    unknown = f"; {plural(log.unknown_to_target, 'call')} not in its log" if log.unknown_to_target else ""
    added = f"p50 {ms(log.added_p50_ms)} ms, p99 {ms(log.added_p99_ms)} ms, at most {ms(log.added_max_ms)} ms"
    wrote = f"after the endpoint wrote it{within}, over {plural(log.joined, 'call')}{unknown}"
    return f"first content arrived {added} {wrote}"


def _figures(evidence: Evidence) -> Table | None:
    """A row for each figure whose error is above its limit, the worst first."""
    above = [one for one in evidence.errors if one.verdict != VALID]
    rows: list[tuple[Cell, ...]] = []
    for one in sorted(above, key=lambda one: -one.error_ms / one.limit_ms):
        numbers = (one.lows_value, one.highs_value, one.late_shift, one.error_ms, one.limit_ms)
        verdict = Value(one.verdict, outcome=one.verdict)
        rows.append((one.title, one.view, percentile(one.quantile), *map(ms, numbers), verdict))
    header = ("figure, ms", "view", "percentile", "from lows", "from highs", "late sending", "error", "limit", "verdict")  # fmt: skip
    return Table("Client error above the limit", header, tuple(rows), prose=(1,)) if rows else None


def _stalls(bad: client.BadSeconds) -> Table:
    rows = tuple(
        (f"{clock(one.from_s)} to {clock(one.to_s)}", str(one.worker), one.cause, ms(one.worst_ms))
        for one in bad.spells[:SPELLS]
    )
    more = f"{len(bad.spells) - SPELLS:,} more in report.json." if len(bad.spells) > SPELLS else ""
    return Table("Stalls", ("when", "worker", "cause", "by up to (ms)"), rows, more, (2,))


def _workers(workers: Sequence[Worker]) -> Table:
    header = (
        "worker", "CPU mean (of a core)", "CPU (of a core)", "loop lag (ms)", "receive lag p99 (ms)", "receive lag (ms)",
        "dispatch late (ms)", "time ranges (of first chunks)", "waits for a connection", "TCP losses", "GC (ms)", "memory (MB)", "in flight",
    )  # fmt: skip
    rows = tuple(
        (str(w.worker), share(w.cpu_mean), share(w.cpu_max), ms(w.loop_lag_max_ms), ms(w.receive_lag_p99_ms), ms(w.receive_lag_max_ms),
         ms(w.dispatch_late_max_ms), share(w.first_interval_share), count(w.pool_waits),
         "–" if w.retransmits is None else count(w.retransmits + (w.out_of_order or 0)), ms(w.gc_max_ms), count(w.rss_max_bytes / 1e6),
         count(w.in_flight_max))
        for w in workers
    )  # fmt: skip
    return Table("Workers in the steady stage, worst second", header, rows)


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
            at = values.index.get_level_values(1).to_numpy(np.float64)
            curves.append(PlotCurve(at, values.to_numpy() * factor, f"worker {worker}", hover=hover))
        panels.append(Panel(title, curves))
    yield Picture(
        name="client",
        title="Client state",
        caption="Receive lag: from the kernel's timestamp of the bytes to the read. It distorts no kernel timestamp.",
        panels=panels,
        height=480,
    )
