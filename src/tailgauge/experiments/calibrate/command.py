"""`tailgauge calibrate`: measures this machine's error through the real worker path, and stores a certificate of it.

It never takes longer than its budget: what does not fit is left out, and the certificate lists it.

Also here: a certificate from steps, up to which rate the criteria hold, and how large the errors are up to there.

The highest rate that passed holds, under the latency model for which it is lowest. A lower rate that failed was disturbed
by something other than the rate, and is listed; if more than one step in four below a rate failed, it does not hold.
A failure while the endpoint was at its limit, or other processes used the worker's core, does not count against the
client: its own limit is then unknown.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from tailgauge.clock import monotonic_ns
from tailgauge.errors import Exit
from tailgauge.experiments.calibrate.measure import StepError, authority, calibration_run
from tailgauge.experiments.calibrate.plan import CalibrationPlan, Steps
from tailgauge.experiments.runners import Progress
from tailgauge.plan import certificate
from tailgauge.plan.certificate import PLAIN, TLS
from tailgauge.thresholds import INVALID, VALID
from tailgauge_analysis.text import section
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.section import FAIL, PASS, Column, Measurement, Report, Result, Section, Table

OVERHEAD_S = 14.0  # of a run, beside its load: processes, drain, report
BUSY = 0.5  # of the cores
WHAT = {PLAIN: "without TLS", TLS: "under TLS"}
FAILED, PASSED = section.Value("failed", outcome=FAIL), section.Value("passed", outcome=PASS)
CITED = "later runs on this machine cite it for 30 days"
Measured = dict[tuple[str, str], list[StepError]]  # by transport and latency model


def store(named: Path | None) -> Path:
    """Where the certificate goes. Raises UsageError at once if nothing can be written there."""
    path = named or certificate.default_path()
    certificate.check_writable(path)
    return path


def calibrate(plan: CalibrationPlan, path: Path, progress: Progress) -> dict[str, Any]:
    """Measure, and store the certificate at `path`; returns it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: children are stopped
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY * cores:
        progress(f"note: this machine is busy (load {load:.1f} on {cores} cores): use an idle one")
    with tempfile.TemporaryDirectory(prefix="tailgauge-calibrate-") as folder:
        found, left_out = _measure(plan, Path(folder), progress)
    found_of = {
        name: {model: of for (by, model), of in found.items() if by == name} for name in plan.transports
    }
    transports = {name: transport(of) if of else None for name, of in found_of.items()}
    result = certificate.make({
        "clock": plan.clock, "mode": plan.mode, "planned_per_s": plan.planned_per_s, "transports": transports,
        "load_average": load, "left_out": left_out,
        "steps": [step_facts(*key, step) for key, steps in found.items() for step in steps],
    })  # fmt: skip
    certificate.write(path, result)
    return result


def _measure(plan: CalibrationPlan, folder: Path, progress: Progress) -> tuple[Measured, dict[str, str]]:
    began = monotonic_ns()
    found: Measured = {}
    left_out: dict[str, str] = {}
    authorities = {PLAIN: None, TLS: authority(folder) if TLS in plan.transports else None}
    wanted = dict.fromkeys(plan.transports, plan.steps)
    for model, name in product(plan.latency_models, plan.transports):
        what, trusted, steps = f"{model} TTFT", authorities[name], wanted[name]
        left_s = plan.budget_s - (monotonic_ns() - began) / 1e9
        if isinstance(trusted, str):
            left_out[f"{name}, {what}"] = trusted
        elif steps.duration_s + OVERHEAD_S > left_s:
            left_out[f"{name}, {what}"] = f"no time left of {plan.budget_s:.0f} s"
        else:
            ends = " to ".join(dict.fromkeys(f"{rate:,.0f}" for rate in (steps.rates[0], steps.rates[-1])))
            progress(f"{WHAT[name]}, {what}: {ends} chunks/s over {steps.duration_s:.0f} s")
            runs = folder / f"{name}-{model}"
            try:
                measured = calibration_run(steps, model, plan.clock, trusted, runs, left_s)
            except TimeoutError as error:
                left_out[f"{name}, {what}"] = str(error)
                continue
            found[name, model] = measured
            if plan.planned_per_s is None:
                wanted[name] = less(steps, measured)
    return found, left_out


def exit_code(result: Mapping[str, Any]) -> Exit:
    """INVALID if a tried transport holds at no rate, FAILED if not at the planned one, else OK."""
    entries = [entry for entry in result["transports"].values() if entry is not None]
    if not entries or any(entry["holds_to_per_s"] is None for entry in entries):
        return Exit.INVALID
    planned = result["planned_per_s"] is not None
    return Exit.FAILED if planned and any(step["failed"] for step in result["steps"]) else Exit.OK


def report(result: Mapping[str, Any], path: Path) -> Report:
    """The certificate as a report."""
    machine, code = result["machine"], exit_code(result)
    of = f"{machine['host']}, {machine['cpu_model']}, {machine['cpu_count']} cores, {result['clock']} clock"
    found = [f"{WHAT[name]}: {_holds(entry)}" for name, entry in result["transports"].items()]
    found += [f"left out: {what}: {why}" for what, why in result["left_out"].items()]
    found += [f"{_name(step)}: {why}" for step in result["steps"] for why in step["failed"]]
    sentence = f"certificate {result['id']} of one worker: {of}"
    measurement = Measurement(VALID, plural(len(result["steps"]), "step"))
    if code == Exit.INVALID:
        measurement = Measurement(INVALID, "no rate passed", tuple((text, "") for text in found))
    table = Table.of("Steps", result["steps"], COLUMNS, prose=(1,))
    return Report(
        result["id"], "Calibration", (of,), result["made_at"], dry_run=False,
        result=Result(FAIL if code == Exit.FAILED else PASS, sentence, details=tuple(found), advice=f"{CITED}: {path}"),
        measurement=measurement, summary=(), sections=(Section("steps", "Steps", tables=(table,)),), exit_code=code,
    )  # fmt: skip


def _name(step: Mapping[str, Any]) -> str:
    return f"{step['transport']}, {step['latency_model']}, {step['sent_per_s']:,.0f}/s"


def _notes(step: Mapping[str, Any]) -> str:
    notes = ["endpoint at its limit"] if step["strained"] else []
    notes += [f"waited for a core {step['core_wait']:.0%} of the time"] if step["crowded"] else []
    return "; ".join(notes)


def _off(times: str, key: str) -> Callable[[Mapping[str, Any]], str]:
    """An error of the times to the first chunk, or of the gaps."""
    return lambda step: f"{step[times][key]:.3f}" if step[times] else "–"


COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    ("step, chunks/s", _name),
    ("", lambda step: FAILED if step["failed"] else PASSED),
    ("TTFT off p50, ms", _off("ttft", "bias_ms")),
    ("p99, ms", _off("ttft", "spread_ms")),
    ("gap off p50, ms", _off("gap", "bias_ms")),
    ("p99, ms", _off("gap", "spread_ms")),
    ("requests", lambda step: f"{step['ttft']['n'] if step['ttft'] else 0:,}"),
    ("first exact", lambda step: f"{step['exact_first']:.0%}"),
    ("CPU, us/chunk", lambda step: "–" if (cpu := step["cpu_us_per_chunk"]) is None else f"{cpu:.1f}"),
    ("notes", _notes),
)


def _holds(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "not measured"
    if entry["holds_to_per_s"] is None:
        return "no rate passed: this machine was too busy, or is too slow"
    text = (
        f"valid up to {entry['holds_to_per_s']:,.0f} chunks/s per worker, with an error at p99 of at most "
        f"{entry['ttft_spread_ms']:.3g} ms (TTFT) and {entry['gap_spread_ms']:.3g} ms (gaps)"
    )
    if entry["disturbed"]:
        text += f" ({entry['disturbed']} lower steps failed: disturbed)"
    if entry["failed_at_per_s"] is not None:
        return f"{text}. It fails at {entry['failed_at_per_s']:,.0f}: use more workers"
    if entry["limited_by"] == ENDPOINT:
        return f"{text}. The simulated endpoint sends no faster here: the client's limit is unknown"
    if entry["limited_by"] == OTHERS:
        return f"{text}. Other processes used the worker's core above that: calibrate again without them"
    return text


# --- the certificate from the steps -------------------------------------------------------------------------------

ENDPOINT, CLIENT, OTHERS = "endpoint", "client", "others"
TIMES = ("ttft", "gap")
DISTURBED = 0.25  # of the steps that hold


def transport(by_model: Mapping[str, Sequence[StepError]]) -> dict[str, Any]:
    """One transport's entry in the certificate: the steps of each latency model, at least one, rates rising."""
    good_steps: list[list[StepError]] = []
    failed: list[StepError] = []
    disturbed = 0
    for steps in by_model.values():
        reached = holding(steps)
        good_steps.append([step for step in steps[:reached] if not step.failed])
        disturbed += reached - len(good_steps[-1])
        failed += steps[reached : reached + 1]
    holds_to = min(good[-1].sent_per_s for good in good_steps) if all(good_steps) else None
    shown = [step for good in good_steps for step in good]
    blamed = [step.sent_per_s for step in failed if not step.strained and not step.crowded]
    every = [step for steps in by_model.values() for step in steps]
    is_strained, is_disturbed = any(step.strained for step in every), any(step.failed for step in every)
    costs = [cost for good in good_steps if good and (cost := good[-1].cpu_us_per_chunk) is not None]
    return {
        "latency_models": list(by_model), "holds_to_per_s": holds_to, "failed_at_per_s": min(blamed, default=None),
        "limited_by": CLIENT if blamed else ENDPOINT if is_strained else OTHERS if is_disturbed else None,
        "disturbed": disturbed,
        **{f"{of}_{error}": _largest(shown, of, error) for of in TIMES for error in ("bias_ms", "spread_ms")},
        "cpu_us_per_chunk": max(costs, default=None),
    }  # fmt: skip


def holding(steps: Sequence[StepError]) -> int:
    """How many steps, from the lowest, a transport holds at; those of them that failed were disturbed."""
    for reached in range(len(steps), 0, -1):
        failures = sum(bool(step.failed) for step in steps[:reached])
        if not steps[reached - 1].failed and failures <= reached * DISTURBED:
            return reached
    return 0


def less(steps: Steps, measured: Sequence[StepError]) -> Steps:
    """The steps for the next latency model: none above a rate that failed, unless others used the core."""
    reached = holding(measured)
    if reached == len(measured) or measured[reached].crowded:
        return steps
    return replace(steps, rates=steps.rates[: max(2, reached + 1)])


def step_facts(name: str, model: str, step: StepError) -> dict[str, Any]:
    """A step as plain values, for the certificate."""
    facts = asdict(step) | {"failed": list(step.failed), "strained": step.strained, "crowded": step.crowded}
    for times in TIMES:
        if facts[times] is not None:
            facts[times]["distance_bound"] = getattr(step, times).distance_bound
    return {"transport": name, "latency_model": model, **facts}


def _largest(steps: Sequence[StepError], times: str, error: str) -> float | None:
    """The value farthest from 0."""
    found = (getattr(step, times) for step in steps)
    return max((float(getattr(one, error)) for one in found if one is not None), key=abs, default=None)
