"""The five probes as steps.

Rule: one function a probe, pure: the traffic under test in, one step out. Arrivals are Poisson at rates made of today's,
so that a probe means the same whatever process the scenario has. `weight` is the part of the time that a probe gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailgauge.experiments.checkup.loaded import BURST_FROM, BURST_TO, QUIET
from tailgauge.experiments.checkup.probe_result import COLD, LEFT, LEGS, LOADED, STREAMED, WARM, WHOLE
from tailgauge.experiments.checkup.traffic import Tested
from tailgauge.experiments.course import Step
from tailgauge.scenario.experiment import Checkup as Table

JOINS = 30  # fan-outs at least
WARMUP = 0.1  # of a probe
MOST_WARMUP_S = 5.0
REST_S = 60.0  # before the burst, where the target remembers
OUTPUT, LEAVE_AFTER, LEAVE_SHARE = 60, 10, 0.5  # tokens of answers that are left, chunks before, share


@dataclass(frozen=True, slots=True)
class Asked:
    """What every probe is made of."""

    of: Tested
    table: Table
    duration_s: float
    seed: int


def light(asked: Asked) -> Step:
    """Today's rate; three of four answers as they are, the fourth the other way: streamed, or whole."""
    weights = {True: 3.0, False: 1.0} if asked.of.table.stream else {True: 1.0, False: 3.0}
    traffic = {
        STREAMED: asked.of.call(weight=weights[True]),
        WHOLE: asked.of.call(weight=weights[False], stream=False),
    }
    return _step(asked, "light traffic", traffic, asked.of.rate_per_s)


def cached(asked: Asked) -> Step:
    """The traffic as it is, and one call in four with bytes of its own in front of the prefix."""
    cold = {
        key: value
        for key, value in asked.of.plain.get("cache", {}).items()
        if key not in {"volatile", "pre_warm"}
    }
    traffic = {
        WARM: asked.of.call(weight=3.0),
        COLD: asked.of.call(weight=1.0, cache={**cold, "cold": True}),
    }
    return _step(asked, "cold against warm prefix", traffic, asked.of.rate_per_s * 4 / 3)


def fan_out(asked: Asked) -> Step:
    """Requests of K calls, together as many calls as today."""
    legs = width(asked)
    rate = max(asked.of.rate_per_s / (1 if asked.of.legs else legs), JOINS / asked.duration_s)
    call = asked.of.call(pattern="fan_out", fan_out={"legs": legs})
    left_out = ("thinking", "thinking_tokens", "tools")
    traffic = {LEGS: {key: value for key, value in call.items() if key not in left_out}}
    return _step(asked, f"fan-out of {legs}", traffic, rate)


def width(asked: Asked) -> int:
    """K."""
    return asked.of.legs or asked.table.legs


def cancelled(asked: Asked) -> Step:
    """Every second client leaves after some chunks."""
    tokens = max(OUTPUT, asked.of.table.output_tokens)
    leaving = {"share": LEAVE_SHARE, "after_chunks": LEAVE_AFTER}
    traffic = {LEFT: asked.of.call(output_tokens=tokens, output_sigma=None, prompt_file=None, cancel=leaving)}
    return _step(asked, "clients that leave", traffic, asked.of.rate_per_s)


def loaded(asked: Asked) -> Step:
    """A quarter of today's rate, a burst, and today's rate."""
    burst = asked.table.burst
    mean = QUIET * BURST_FROM + burst * (BURST_TO - BURST_FROM) + (1 - BURST_TO)
    points = [
        [0.0, QUIET], [BURST_FROM, QUIET], [BURST_FROM, burst], [BURST_TO, burst], [BURST_TO, 1.0], [1.0, 1.0],
    ]  # fmt: skip
    shape = {"kind": "piecewise", "points": points}
    traffic = {LOADED: asked.of.call()}
    return _step(asked, "load in steps", traffic, asked.of.rate_per_s * mean, shape=shape, rest_s=REST_S)


def _step(
    asked: Asked,
    name: str,
    traffic: Mapping[str, Any],
    rate: float,
    shape: Mapping[str, Any] | None = None,
    rest_s: float = 0.0,
) -> Step:
    warmup_s = 0.0 if shape else min(MOST_WARMUP_S, WARMUP * asked.duration_s)
    arrival = {"rate_per_s": rate, **({"shape": shape} if shape else {})}
    told = (
        ("arrival", arrival), ("traffic", dict(traffic)), ("slo", None), ("crossover", None),
        ("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0),
    )  # fmt: skip
    return Step(name, told, asked.duration_s, asked.seed, rest_s)


@dataclass(frozen=True, slots=True)
class Probe:
    """How a probe is made, and which part of the time it gets."""

    step: Callable[[Asked], Step]
    weight: float


PROBES: Mapping[str, Probe] = {
    "light": Probe(light, 1.2),
    "cached": Probe(cached, 1.0),
    "fan_out": Probe(fan_out, 1.0),
    "cancelled": Probe(cancelled, 0.6),
    "loaded": Probe(loaded, 1.4),
}
