"""The steps of a checkup: all five probes, INVALID ones once more, then the answer.

The traffic under test is the user's heaviest traffic table. What makes up a call is kept (prompt, answer, cache, retries);
what several calls make up (hedges, fan-outs, sessions, users who leave) is removed, because separate probes add it again.
Arrivals are Poisson at rates relative to today's, so that a probe means the same for any arrival process.

Probes are independent, so one child runs them all; what compares two of them is computed at the end. A probe without a
valid run is lost, and the answer states that. A quick checkup repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailgauge.call import WHOLE_ANSWERS
from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.checkup import probes, report
from tailgauge.experiments.checkup.cancelled import cancelled
from tailgauge.experiments.checkup.judge import (
    BURST_FROM,
    BURST_TO,
    COLD,
    LEFT,
    LEGS,
    LOADED,
    LOW,
    STREAMED,
    WARM,
    WHOLE,
    Popularity,
    ProbeResult,
)
from tailgauge.experiments.checkup.light import light
from tailgauge.experiments.course import RUN_S, Base, Planner, Step, StepResult, Steps
from tailgauge.experiments.reading import RunReading
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.protocols.table import refusal
from tailgauge.rows.schema import JOIN, TURNAROUND
from tailgauge.scenario.experiment import Checkup as Settings
from tailgauge_analysis.stats.quantiles import Floats

SKIP = "experiment.checkup.skip"
QUICK_MINUTES = 3.0
START_S = 25.0  # the dry run and the first run's processes
LOAD = 0.8  # of what is left: the rest is for a busy machine, and for probes that run again
LEAST_S = 5.0  # of a probe
KEPT = (
    "prompt_tokens", "prompt_sigma", "output_tokens", "output_sigma", "prompts", "tags", "model", "headers", "body", "output",
    "thinking", "thinking_tokens", "tools", "cache", "retry",
)  # fmt: skip
LEFT_SHARE = 0.1  # of the answers, if the traffic does not set how many users leave

JOINS = 30  # fan-outs at least
WARMUP = 0.1  # of a probe
MOST_WARMUP_S = 5.0
REST_S = 60.0  # before the burst, if the target keeps state
OUTPUT, LEAVE_AFTER, LEAVE_SHARE = 60, 10, 0.5  # tokens of cancelled answers, chunks before, share


@dataclass(frozen=True, slots=True)
class TestedTraffic:
    """The traffic under test, and today's rate in requests/s."""

    name: str
    table: Traffic
    plain: dict[str, Any]  # what is kept of it
    rate_per_s: float
    settings: Settings

    @property
    def legs(self) -> int:
        """Calls per request of the fan-out probe: the user's own number if they fan out."""
        return len(pattern_of(self.table).prompt_sizes(1)) if self.fans_out else self.settings.legs

    @property
    def fans_out(self) -> bool:
        """Whether the user's requests have several calls."""
        return pattern_of(self.table).answer == JOIN

    @property
    def left_share(self) -> float:
        """Share of the answers that users cancel."""
        return self.table.cancel.share or LEFT_SHARE

    def call(self, **changes: Any) -> dict[str, Any]:
        """A table of single calls; a change of None removes a key."""
        values = {**self.plain, "pattern": "cached" if "cache" in self.plain else "streaming", **changes}
        return {key: value for key, value in values.items() if value is not None}


class CheckupPlanner(Planner):
    """The course, and its results. What a step is given: the name of its probe."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._of, self._settings = _tested(base), base.table.checkup
        skip, has_cache = self._settings.skip, self._of.table.cache is not None
        for name in skip:
            if name not in PROBES:
                raise base.refused(SKIP, f"no probe {name!r}: expected {', '.join(PROBES)}")
        self._probes = [name for name in PROBES if name not in skip and (has_cache or name != "cached")]
        if not self._probes:
            raise base.refused(SKIP, "no probe is left")

    def steps(self) -> Steps:
        """All probes."""
        minutes = self._base.table.minutes
        minutes = min(minutes, QUICK_MINUTES) if self._settings.quick else minutes
        load_s = LOAD * (minutes * 60 - START_S - RUN_S * len(self._probes))
        whole = sum(PROBES[name].weight for name in self._probes)
        steps = [
            self._step(name, max(LEAST_S, load_s * one.weight / whole), self.seed())
            for name, one in PROBES.items()
        ]
        yield from self.run(
            [step for step in steps if step.given in self._probes], again=not self._settings.quick
        )

    def _step(self, name: str, duration_s: float, seed: int) -> Step:
        sent = PROBES[name].traffic(self._of, duration_s)
        arrival: dict[str, Any] = {"rate_per_s": sent.rate_per_s}
        warmup_s, rest_s = min(MOST_WARMUP_S, WARMUP * duration_s), 0.0
        if sent.points:
            arrival["shape"] = {"kind": "piecewise", "points": sent.points}
            warmup_s, rest_s = 0.0, REST_S
        overrides = (
            ("arrival", arrival), ("traffic", sent.traffic), ("slo", None), ("alert", None), ("use_case", None),
            ("crossover", None), ("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0),
        )  # fmt: skip
        return Step(sent.title, overrides, duration_s, seed, rest_s, name)

    def measure(self, step: Step, reading: RunReading) -> ProbeResult:
        """The checks of a probe."""
        results: Mapping[str, Callable[[], ProbeResult]] = {
            "light": lambda: light(reading, self._settings, streams=self._of.table.stream),
            "cached": lambda: probes.cached(reading, self._popularity()),
            "fan_out": lambda: probes.fan_out(reading),
            "cancelled": lambda: cancelled(reading, self._of.left_share),
            "loaded": lambda: probes.loaded(reading),
        }
        return results[step.given]()

    def usable(self, result: StepResult) -> bool:
        """Whether its run is valid, or INVALID only because the target answered nothing."""
        return result.valid or result.measured.failed

    def _popularity(self) -> Popularity:
        """Requests/s of each prefix, by the table's part of the arrivals."""
        cache, scenario = self._of.table.cache, self._scenario
        assert cache is not None
        part = self._of.table.weight / sum(one.weight for one in scenario.traffic.values())
        weights: Floats = np.arange(1, cache.prefixes + 1, dtype=np.float64) ** -cache.zipf
        return Popularity(self._of.rate_per_s * part * weights / weights.sum(), cache.ttl)

    def _left_out(self) -> list[str]:
        out = []
        if len(self._base.scenario.traffic) > 1:
            out.append(
                f"of several traffic tables only the heaviest, {self._of.name}, was tested, at the total rate"
            )
        if self._settings.skip:
            out.append(f"skipped by experiment.checkup.skip: {', '.join(self._settings.skip)}")
        if self._scenario.slo:
            out.append("a checkup does not judge the objectives of [slo]: tailgauge run does")
        if self._of.table.cache is None:
            out.append("this traffic has no table `cache`, so the prefix cache was not tested")
        return out

    def answer(self) -> Answer:
        """What was found; `fan_out` and `queueing` compare two probes."""
        results: dict[str, ProbeResult] = {one.step.given: one.measured for one in self._kept}
        checks = [check for one in results.values() for check in one.checks]
        measured = [number for one in results.values() for number in one.measured]
        samples = {name: one.samples for name, one in results.items()}
        if {"light", "loaded"} <= set(samples):
            low_load = samples["loaded"]["low_load"]
            checks.append(probes.queueing(samples["light"]["first"], low_load, self._settings.threshold))
        if {"light", "fan_out"} <= set(samples):
            joins, alone = samples["fan_out"]["joins"], samples["light"]["alone"]
            checks.append(probes.amplified(joins, alone, self._of.legs))
        lost = [name for name in self._probes if name not in results]
        return report.answer(checks, measured, lost, self._left_out())


def _tested(base: Base) -> TestedTraffic:
    """The scenario's traffic. UsageError if it has no rate, only batches, or a protocol without whole answers and marks."""
    scenario, rate = base.scenario, base.today()
    if why := refusal(scenario.target, WHOLE_ANSWERS):
        raise UsageError(f"{base.path}: {why}; a checkup sends both")
    able = {name: one for name, one in scenario.traffic.items() if pattern_of(one).answer != TURNAROUND}
    if not able:
        raise base.refused("traffic", "expected a table other than batch: a checkup times answers")
    name = max(able, key=lambda one: able[one].weight)
    tree = base.tree()["traffic"][name]
    plain = {key: tree[key] for key in KEPT if key in tree}
    return TestedTraffic(name, able[name], plain, rate, base.table.checkup)


# --- the probes: one function each, from the traffic under test and the duration to what is sent -------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """What a probe sends; `points`: of the rate over time, if it is not constant."""

    title: str
    traffic: dict[str, Any]
    rate_per_s: float
    points: Sequence[list[float]] = ()


def _light(of: TestedTraffic, _: float) -> Sent:
    """Today's rate; three of four answers as they are, the fourth with streaming inverted."""
    weights = {True: 3.0, False: 1.0} if of.table.stream else {True: 1.0, False: 3.0}
    traffic = {STREAMED: of.call(weight=weights[True]), WHOLE: of.call(weight=weights[False], stream=False)}
    return Sent("light traffic", traffic, of.rate_per_s)


def _cached(of: TestedTraffic, _: float) -> Sent:
    """The traffic as it is, and one call in four with random bytes in front of the prefix."""
    cold = {
        key: value for key, value in of.plain.get("cache", {}).items() if key not in {"volatile", "pre_warm"}
    }
    traffic = {WARM: of.call(weight=3.0), COLD: of.call(weight=1.0, cache={**cold, "cold": True})}
    return Sent("cold against warm prefix", traffic, of.rate_per_s * 4 / 3)


def _fan_out(of: TestedTraffic, duration_s: float) -> Sent:
    """Requests of several legs, with as many calls in total as today."""
    rate = max(of.rate_per_s / (1 if of.fans_out else of.legs), JOINS / duration_s)
    call = of.call(
        pattern="fan_out", fan_out={"legs": of.legs}, thinking=None, thinking_tokens=None, tools=None
    )
    return Sent(f"fan-out of {of.legs}", {LEGS: call}, rate)


def _cancelled(of: TestedTraffic, _: float) -> Sent:
    """Every second client leaves after some chunks."""
    tokens = max(OUTPUT, of.table.output_tokens)
    leaving = {"share": LEAVE_SHARE, "after_chunks": LEAVE_AFTER}
    call = of.call(output_tokens=tokens, output_sigma=None, prompts=None, cancel=leaving)
    return Sent("clients that leave", {LEFT: call}, of.rate_per_s)


def _loaded(of: TestedTraffic, _: float) -> Sent:
    """A quarter of today's rate, a burst, and today's rate."""
    burst = of.settings.burst
    mean = LOW * BURST_FROM + burst * (BURST_TO - BURST_FROM) + (1 - BURST_TO)
    points = [
        [0.0, LOW], [BURST_FROM, LOW], [BURST_FROM, burst], [BURST_TO, burst], [BURST_TO, 1.0], [1.0, 1.0],
    ]  # fmt: skip
    return Sent("load in steps", {LOADED: of.call()}, of.rate_per_s * mean, points)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe sends, and its part of the time."""

    traffic: Callable[[TestedTraffic, float], Sent]
    weight: float


PROBES: Mapping[str, Probe] = {
    "light": Probe(_light, 1.2),
    "cached": Probe(_cached, 1.0),
    "fan_out": Probe(_fan_out, 1.0),
    "cancelled": Probe(_cancelled, 0.6),
    "loaded": Probe(_loaded, 1.4),
}
