"""`tailgauge calibrate`: this machine's own error, measured through the real worker path, and a certificate of it.

Rule: plan, run, look, decide; the pieces lie beside it. It never takes longer than its budget: what there is no time for
is left out, and the certificate says so.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailgauge.clock import monotonic_ns
from tailgauge.errors import Exit, UsageError
from tailgauge.experiments.calibrate import judge
from tailgauge.experiments.calibrate.calibration_run import trial
from tailgauge.experiments.calibrate.loopback_certificate import authority
from tailgauge.experiments.calibrate.plan import CHUNKS, LAWS, SETTLE_S, Steps
from tailgauge.plan import certificate
from tailgauge.plan.certificate import PLAIN, TLS

if TYPE_CHECKING:
    from tailgauge.experiments.calibrate.client_error import Level

OVERHEAD_S = 14.0  # of a trial, beside its load: processes, drain, report
RATES: tuple[float, ...] = (500.0, 1000.0, 2000.0, 4000.0, 8000.0, 16000.0)  # chunks a second
SHARES = (0.5, 1.0, 1.5)  # of a planned rate
PLANNED = (250.0, 200_000.0)  # chunks a second
ENOUGH = 40  # requests that the lowest step of a planned rate should have
QUICK = ("lognormal",)
BUSY = 0.5  # of the cores
WHAT = {PLAIN: "without TLS", TLS: "under TLS"}

Levels = dict[tuple[str, str], "list[Level]"]  # by transport and law


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried, in this order, within `budget_s` seconds."""

    mode: str
    steps: Steps
    laws: tuple[str, ...]
    clock: str
    budget_s: float
    transports: tuple[str, ...] = (PLAIN, TLS)
    planned_per_s: float | None = None


def plan(planned_per_s: float | None, clock: str, *, quick: bool) -> Plan:
    """The default plan, or the short one; around a planned rate if it is given."""
    rates, step_s = (RATES[1:-1], 3.0) if quick else (RATES, 5.0)
    if planned_per_s is not None:
        if not PLANNED[0] <= planned_per_s <= PLANNED[1]:
            least, most = PLANNED
            raise UsageError(
                f"--planned: expected {least:,.0f} to {most:,.0f} chunks/s, got {planned_per_s:,.0f}"
            )
        rates = tuple(share * planned_per_s for share in SHARES)
        step_s = max(step_s, SETTLE_S + ENOUGH * CHUNKS / rates[0])
    steps = Steps(rates, step_s)
    mode = "planned" if planned_per_s is not None else "quick" if quick else "full"
    laws = QUICK if quick else tuple(LAWS)
    return Plan(mode, steps, laws, clock, 60.0 if quick else 300.0, planned_per_s=planned_per_s)


def store(named: Path | None) -> Path:
    """Where the certificate goes. Raises UsageError, before minutes are spent, where nothing can be written."""
    path = named or certificate.default_path()
    certificate.writable(path)
    return path


def calibrate(plan: Plan, path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, and store the certificate at `path`; returns it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is stopped
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY * cores:
        say(f"note: this machine is busy (load {load:.1f} on {cores} cores): a quiet one measures better")
    with tempfile.TemporaryDirectory(prefix="tailgauge-calibrate-") as folder:
        found, left_out = _measure(plan, Path(folder), say)
    transports: dict[str, Any] = {}
    for name in plan.transports:
        by_law = {law: levels for (transport, law), levels in found.items() if transport == name}
        transports[name] = judge.transport(by_law) if by_law else None
    facts = {
        "clock": plan.clock,
        "mode": plan.mode,
        "planned_per_s": plan.planned_per_s,
        "transports": transports,
        "load_average": load,
        "left_out": left_out,
        "levels": [judge.told(*key, level) for key, levels in found.items() for level in levels],
    }
    made = certificate.make(facts)
    certificate.write(path, made)
    return made


def _measure(plan: Plan, folder: Path, say: Callable[[str], None]) -> tuple[Levels, dict[str, str]]:
    began = monotonic_ns()
    found: Levels = {}
    left_out: dict[str, str] = {}
    authorities = {PLAIN: None, TLS: authority(folder)} if TLS in plan.transports else {PLAIN: None}
    wanted = dict.fromkeys(plan.transports, plan.steps)
    for law in plan.laws:
        for name in plan.transports:
            key, trusted, steps = f"{name}, {law} TTFT", authorities[name], wanted[name]
            passed_s = (monotonic_ns() - began) / 1e9
            if isinstance(trusted, str):
                left_out[key] = trusted
            elif passed_s + steps.duration_s + OVERHEAD_S > plan.budget_s:
                left_out[key] = f"no time was left of {plan.budget_s:.0f} s"
            else:
                ends = dict.fromkeys(f"{rate:,.0f}" for rate in (steps.rates[0], steps.rates[-1]))
                say(f"{WHAT[name]}, {law} TTFT: {' to '.join(ends)} chunks/s over {steps.duration_s:.0f} s")
                patience_s = plan.budget_s - passed_s
                try:
                    levels = trial(steps, law, plan.clock, trusted, folder / f"{name}-{law}", patience_s)
                except TimeoutError as error:
                    left_out[key] = str(error)
                    continue
                found[name, law] = levels
                if plan.planned_per_s is None:
                    wanted[name] = judge.less(steps, levels)
    return found, left_out


def exit_code(made: Mapping[str, Any]) -> Exit:
    """OK where every transport that was tried holds to a rate, and to the planned one if there is one; else INVALID."""
    entries = [entry for entry in made["transports"].values() if entry is not None]
    if not entries or any(entry["holds_to_per_s"] is None for entry in entries):
        return Exit.INVALID
    planned = made["planned_per_s"] is not None
    return Exit.INVALID if planned and any(level["failed"] for level in made["levels"]) else Exit.OK


def lines(made: Mapping[str, Any], path: Path) -> list[str]:
    """The certificate for a reader."""
    machine = made["machine"]
    of = f"{machine['host']}, {machine['cpu_model']}, {machine['cpu_count']} cores"
    out = [
        f"certificate {made['id']}: {of}, {made['clock']} clock, one worker",
        f"{'':22}{'chunks/s':>9}{'requests':>9}{'TTFT off, ms':>20}{'gaps off, ms':>20}{'exact':>7}{'CPU':>8}",
        f"{'':22}{'sent':>9}{'':>9}{'median':>11}{'p99':>9}{'median':>11}{'p99':>9}{'first':>7}{'us/chunk':>9}",
    ]
    for level in made["levels"]:
        out.append(_row(level))
        out += [f"    {why}" for why in level["failed"]]
    for name, entry in made["transports"].items():
        out.append(f"{WHAT[name]}: {_holds(entry)}")
    out += [f"left out: {what}: {why}" for what, why in made["left_out"].items()]
    return [*out, f"stored in {path}: later runs on this machine cite it, for 30 days"]


def _row(level: Mapping[str, Any]) -> str:
    ttft, gap, cpu = level["ttft"], level["gap"], level["cpu_us_per_chunk"]
    cells = "".join(
        f"{error['bias_ms']:>11.3f}{error['spread_ms']:>9.3f}" if error else f"{'-':>11}{'-':>9}"
        for error in (ttft, gap)
    )
    name = f"{level['transport']}, {level['law']}"
    end = " failed" if level["failed"] else ""
    end += " (endpoint at its limit)" if level["strained"] else ""
    end += f" (short of a core {level['core_wait']:.0%} of the time)" if level["crowded"] else ""
    return (
        f"{name:<22}{level['sent_per_s']:>9,.0f}{ttft['n'] if ttft else 0:>9,}{cells}{level['exact_first']:>7.0%}"
        f"{'-' if cpu is None else f'{cpu:.1f}':>9}{end}"
    )


def _holds(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "not measured"
    if entry["holds_to_per_s"] is None:
        return "no rate passed: this machine was too busy, or is too slow, to measure with"
    text = (
        f"holds up to {entry['holds_to_per_s']:,.0f} chunks/s a worker; until there TTFT is off by at most "
        f"{entry['ttft_spread_ms']:.3g} ms and gaps by {entry['gap_spread_ms']:.3g} ms at p99"
    )
    if entry["disturbed"]:
        text += f" (lower steps that failed beside higher ones that passed, disturbed: {entry['disturbed']})"
    if entry["failed_at_per_s"] is not None:
        return f"{text}; at {entry['failed_at_per_s']:,.0f} they no longer hold: use more workers"
    if entry["limited_by"] == judge.ENDPOINT:
        return f"{text}. The simulated endpoint sends no faster here: what the client does above that is not known"
    if entry["limited_by"] == judge.OTHERS:
        return f"{text}. Other processes had the worker's core above that: calibrate again without them"
    return text
