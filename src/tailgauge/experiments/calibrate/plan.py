"""The load of a calibration: a staircase of chunk rates, against times that are known by their law.

Rule: pure. A rate is in chunks a second over the one worker; each step has a while to settle that does not count, longer
than an answer takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CHUNKS = 40  # of an answer, one every GAP_MS after the first
GAP_MS = 20.0
TTFT_MS = 100.0
SETTLE_S = 1.0  # TTFT_MS and CHUNKS gaps
# Laws of the time to the first chunk; gaps are drawn wherever that is.
LAWS: dict[str, dict[str, Any]] = {
    "constant": {},
    "exponential": {"ttft_exponential": True, "chunk_gap_sigma": 0.2},
    "lognormal": {"ttft_sigma": 0.5, "chunk_gap_sigma": 0.2},
}
# By how much times may differ and still count as the same, where distributions are compared: of a constant what the bias
# may be; else little, for an endpoint that is late sends chunks at once, and these gaps are all the same too.
SLACK_MS = {"constant": 0.5, "exponential": 0.1, "lognormal": 0.1}
IN_FLIGHT = 20_000


@dataclass(frozen=True, slots=True)
class Steps:
    """Rising rates in chunks a second, and how long each is kept."""

    rates: tuple[float, ...]
    step_s: float

    @property
    def duration_s(self) -> float:
        """All steps."""
        return self.step_s * len(self.rates)

    def spans(self) -> list[tuple[float, float, float]]:
        """Rate, and from when to when its step counts, in seconds of the run."""
        return [
            (rate, i * self.step_s + SETTLE_S, (i + 1) * self.step_s) for i, rate in enumerate(self.rates)
        ]

    def up_to(self, count: int) -> Steps:
        """The first `count` of them."""
        return Steps(self.rates[:count], self.step_s)


def endpoint_options(law: str) -> list[str]:
    """What the simulated endpoint is told."""
    wanted = {"ttft_ms": TTFT_MS, "chunk_gap_ms": GAP_MS, **LAWS[law]}
    return [f"--set={key}={json.dumps(value)}" for key, value in wanted.items()]


def scenario(steps: Steps, url: str, authority: str | None, clock: str) -> str:
    """The run as a scenario: random arrivals, so that the streams' phases are random."""
    mean = sum(steps.rates) / len(steps.rates)
    points = [
        [share, rate / mean]
        for i, rate in enumerate(steps.rates)
        for share in (i / len(steps.rates), (i + 1) / len(steps.rates))
    ]
    trusted = [f"ca_file = {json.dumps(authority)}"] if authority else []
    lines: Sequence[str] = [
        'name = "calibrate"',
        f"clock = {json.dumps(clock)}",
        "[target]",
        f"url = {json.dumps(url)}",
        'protocol = "openai"',
        f"connections = {IN_FLIGHT}",
        *trusted,
        "[arrival]",
        'process = "poisson"',
        f"rate_per_s = {mean / CHUNKS!r}",
        *(["[arrival.shape]", 'kind = "piecewise"', f"points = {points!r}"] if len(steps.rates) > 1 else []),
        "[stages]",
        f"duration_s = {steps.duration_s!r}",
        f"warmup_s = {SETTLE_S!r}",
        "[traffic.chat]",
        'pattern = "streaming"',
        "prompt_tokens = 16",
        f"output_tokens = {CHUNKS}",
        "[limits]",
        f"in_flight_per_worker = {IN_FLIGHT}",
        "drain_s = 20",
    ]
    return "\n".join(lines) + "\n"
