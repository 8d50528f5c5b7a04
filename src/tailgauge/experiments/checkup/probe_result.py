"""What a probe hands to the answer: its checks, what it measured besides, and the samples that other probes compare with.

Rule: a probe's run has traffic tables of these names, so that its look needs no scenario.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailgauge.experiments.checkup.check import Check, Medians
from tailgauge.experiments.reading import Reading
from tailgauge.rows import schema
from tailgauge_analysis.stats.quantiles import TOO_FEW, Floats, quantiles
from tailgauge_analysis.text.formatting import ms, percentile

STREAMED, WHOLE, WARM, COLD, LEGS, LEFT, LOADED = (
    "streamed", "whole", "warm", "cold", "legs", "left", "loaded",
)  # fmt: skip
PS = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is borne, as the scenario has it. `streams`: whether the user's own traffic does."""

    first_ms: float
    tokens_per_s: float
    threshold: float
    streams: bool
    legs: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A number that no check decides on, as it is shown."""

    name: str
    value: str
    interval: str
    n: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One probe. `samples` in ms, in order of time."""

    checks: tuple[Check, ...]
    measured: tuple[Measured, ...] = ()
    samples: Mapping[str, Floats] = field(default_factory=dict)
    failed: bool = False  # no request succeeded, which makes its run INVALID, and is the target's own doing


def failed(reading: Reading) -> bool:
    """Whether requests were sent and none succeeded."""
    requests = reading.steady.requests
    return bool(len(requests)) and not requests["ended"].eq(schema.OK).any()


def latencies(name: str, values_ms: Floats) -> list[Measured]:
    """p50, p95 and p99 of a sample, with their intervals; what has too few values is left out."""
    shown = [q for q in quantiles(values_ms, PS) if q.mark != TOO_FEW and q.value is not None]
    return [
        Measured(f"{name}, {percentile(q.p)}", f"{ms(q.value)} ms", f"{ms(q.low)} to {ms(q.high)}", q.n)
        for q in shown
    ]


def times(name: str, found: Medians | None, n: int) -> list[Measured]:
    """A ratio of medians."""
    if found is None:
        return []
    return [Measured(name, f"{found.value:.2f} times", f"{found.low:.2f} to {found.high:.2f}", n)]
