"""From levels to a certificate: up to which rate the criteria hold, and how large the errors are until there.

Rule: pure. The highest rate that passed holds, under the law under which it is lowest. A lower rate that failed beside
it was disturbed by something else than the rate, and is told; more than one step in four below it, and nothing holds
there. What failed while the endpoint itself was at its limit, or other processes had the worker's core, is not held against
the client: nobody knows what it would have done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tailgauge.experiments.calibrate.plan import Steps

if TYPE_CHECKING:
    from tailgauge.experiments.calibrate.client_error import Error, Level

ENDPOINT, CLIENT, OTHERS = "endpoint", "client", "others"
DISTURBED = 0.25  # of the steps that hold


def transport(by_law: Mapping[str, Sequence[Level]]) -> dict[str, Any]:
    """One transport's entry in the certificate; `by_law` has at least one law, rates rising."""
    held: list[list[Level]] = []
    failed: list[Level] = []
    disturbed = 0
    for levels in by_law.values():
        reached = holding(levels)
        held.append([level for level in levels[:reached] if not level.failed])
        disturbed += reached - len(held[-1])
        failed += levels[reached : reached + 1]
    holds_to = min(good[-1].sent_per_s for good in held) if all(held) else None
    shown = [level for good in held for level in good]
    blamed = [level.sent_per_s for level in failed if not level.strained and not level.crowded]
    costs = [cost for good in held if good and (cost := good[-1].cpu_us_per_chunk) is not None]
    return {
        "laws": list(by_law),
        "holds_to_per_s": holds_to,
        "failed_at_per_s": min(blamed, default=None),
        "limited_by": CLIENT if blamed else _limit([level for levels in by_law.values() for level in levels]),
        "disturbed": disturbed,
        "ttft_bias_ms": _largest([level.ttft for level in shown], "bias_ms"),
        "ttft_spread_ms": _largest([level.ttft for level in shown], "spread_ms"),
        "gap_bias_ms": _largest([level.gap for level in shown], "bias_ms"),
        "gap_spread_ms": _largest([level.gap for level in shown], "spread_ms"),
        "cpu_us_per_chunk": max(costs, default=None),
    }


def holding(levels: Sequence[Level]) -> int:
    """How many of the steps, from the lowest, a transport holds at; those of them that failed were disturbed."""
    for reached in range(len(levels), 0, -1):
        failures = sum(bool(level.failed) for level in levels[:reached])
        if not levels[reached - 1].failed and failures <= reached * DISTURBED:
            return reached
    return 0


def less(steps: Steps, levels: Sequence[Level]) -> Steps:
    """The steps for the next law: a rate that failed holds no more, unless others had the core; what is above it goes."""
    reached = holding(levels)
    if reached == len(levels) or levels[reached].crowded:
        return steps
    return steps.up_to(max(2, reached + 1))


def told(name: str, law: str, level: Level) -> dict[str, Any]:
    """A level as plain values, for the certificate."""
    facts = asdict(level)
    facts["failed"] = list(level.failed)
    for kind in ("ttft", "gap"):
        error: Error | None = getattr(level, kind)
        if error is not None:
            facts[kind]["distance_bound"] = error.distance_bound
    return {"transport": name, "law": law, **facts, "strained": level.strained, "crowded": level.crowded}


def _limit(levels: Sequence[Level]) -> str | None:
    """What else than the client was at its limit."""
    if any(level.strained for level in levels):
        return ENDPOINT
    return OTHERS if any(level.failed for level in levels) else None


def _largest(errors: Sequence[Error | None], field: str) -> float | None:
    """The value that is farthest from 0."""
    values = [float(getattr(error, field)) for error in errors if error is not None]
    return max(values, key=abs, default=None)
