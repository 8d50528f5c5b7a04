"""Makes a certificate from steps: up to which rate the criteria hold, and how large the errors are up to there.

The highest rate that passed holds, under the latency model for which it is lowest. A lower rate that failed was disturbed
by something other than the rate, and is listed; if more than one step in four below a rate failed, it does not hold.
A failure while the endpoint was at its limit, or other processes used the worker's core, does not count against the
client: its own limit is then unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from tailgauge.experiments.calibrate.measure import StepError
from tailgauge.experiments.calibrate.plan import Steps

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
