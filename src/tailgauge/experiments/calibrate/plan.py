"""The load of a calibration: rising chunk rates, against times with a known latency model; and what is tried.

A rate is in chunks/s over one worker; the first second of each step does not count, longer than an answer takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.plan.certificate import PLAIN, TLS
from tailgauge.scenario.model import toml_file

CHUNKS = 40  # of an answer, one every GAP_MS after the first
GAP_MS = 20.0
TTFT_MS = 100.0
SETTLE_S = 1.0  # TTFT_MS and CHUNKS gaps
# Of the time to first chunk; gaps vary where it does.
LATENCY_MODELS: dict[str, dict[str, Any]] = {
    "constant": {},
    "exponential": {"ttft_exponential": True, "chunk_gap_sigma": 0.2},
    "lognormal": {"ttft_sigma": 0.5, "chunk_gap_sigma": 0.2},
}
# Times within this count as equal when distributions are compared: for a constant the allowed bias; else little, because a
# late endpoint sends chunks together, with equal gaps near 0.
SLACK_MS = {"constant": 0.5, "exponential": 0.1, "lognormal": 0.1}
SPARE_STREAMS = 100
RATES: tuple[float, ...] = (500.0, 1000.0, 2000.0, 4000.0, 8000.0, 16000.0)  # chunks/s
SHARES = (0.5, 1.0, 1.5)  # of a planned rate
PLANNED = (250.0, 200_000.0)  # chunks/s
ENOUGH = 40  # requests in the lowest step of a planned rate
QUICK = ("lognormal",)


@dataclass(frozen=True, slots=True)
class Window:
    """One step of a run: its chunk rate, and the seconds of the run that count."""

    asked_per_s: float
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Steps:
    """Rising rates in chunks/s, and the duration of each."""

    rates: tuple[float, ...]
    step_s: float

    @property
    def duration_s(self) -> float:
        """All steps."""
        return self.step_s * len(self.rates)

    def windows(self) -> list[Window]:
        """What counts of each step."""
        s = self.step_s
        return [Window(rate, i * s + SETTLE_S, (i + 1) * s) for i, rate in enumerate(self.rates)]


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """What is tried, in this order, within `budget_s` seconds."""

    mode: str
    steps: Steps
    latency_models: tuple[str, ...]
    clock: str
    budget_s: float
    transports: tuple[str, ...] = (PLAIN, TLS)
    planned_per_s: float | None = None


def plan(planned_per_s: float | None, clock: str, *, quick: bool) -> CalibrationPlan:
    """The default plan, or the short one; around a planned rate if it is given."""
    rates, step_s = (RATES[1:-1], 3.0) if quick else (RATES, 5.0)
    if planned_per_s is not None:
        least, most = PLANNED
        if not least <= planned_per_s <= most:
            expected = f"expected {least:,.0f} to {most:,.0f} chunks/s, got {planned_per_s:,.0f}"
            raise UsageError(f"--planned: {expected}")
        rates = tuple(share * planned_per_s for share in SHARES)
        step_s = max(step_s, SETTLE_S + ENOUGH * CHUNKS / rates[0])
    mode = "planned" if planned_per_s is not None else "quick" if quick else "full"
    models, budget_s = (QUICK, 60.0) if quick else (tuple(LATENCY_MODELS), 300.0)
    return CalibrationPlan(mode, Steps(rates, step_s), models, clock, budget_s, planned_per_s=planned_per_s)


def endpoint_options(model: str) -> list[str]:
    """Settings of the simulated endpoint."""
    wanted = {"ttft_ms": TTFT_MS, "chunk_gap_ms": GAP_MS, **LATENCY_MODELS[model]}
    return [f"--set={key}={json.dumps(value)}" for key, value in wanted.items()]


def scenario(steps: Steps, url: str, authority: str | None, clock: str) -> str:
    """The run as a scenario: random arrivals, so that the streams' phases are random."""
    mean = sum(steps.rates) / len(steps.rates)
    in_flight = round(2 * max(steps.rates) / CHUNKS * SETTLE_S) + SPARE_STREAMS
    n = len(steps.rates)
    points = [[at / n, rate / mean] for i, rate in enumerate(steps.rates) for at in (i, i + 1)]
    tree: dict[str, Any] = {
        "name": "calibrate", "clock": clock,
        "target": {"url": url, "protocol": "openai", "connections": in_flight},
        "arrival": {"process": "poisson", "rate_per_s": mean / CHUNKS},
        "stages": {"duration_s": steps.duration_s, "warmup_s": SETTLE_S},
        "traffic": {"chat": {"pattern": "streaming", "prompt_tokens": 16, "output_tokens": CHUNKS}},
        "limits": {"in_flight_per_worker": in_flight, "drain_s": 20},
    }  # fmt: skip
    if authority:
        tree["target"]["ca_file"] = authority
    if len(steps.rates) > 1:
        tree["arrival"]["shape"] = {"kind": "piecewise", "points": points}
    return toml_file(tree)
