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
from typing import TYPE_CHECKING, Any

import numpy as np

from tailgauge.call import WHOLE_ANSWERS
from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
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
    Measured,
    Popularity,
    ProbeCheck,
    ProbeResult,
)  # fmt: skip
from tailgauge.experiments.course import RUN_S, SEED_STEP, Base, Course, SpentError, Step, Steps
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.protocols.table import refusal
from tailgauge.rows.schema import JOIN, TURNAROUND
from tailgauge.scenario.experiment import Checkup as Settings
from tailgauge_analysis.stats.quantiles import Floats

if TYPE_CHECKING:
    from tailgauge.experiments.reading import RunReading

QUICK_MINUTES = 3.0
START_S = 25.0  # the dry run and the first run's processes
LOAD = 0.8  # of what is left: the rest is for a busy machine, and for probes that run again
LEAST_S = 5.0  # of a probe
KEPT = (
    "prompt_tokens", "prompt_sigma", "output_tokens", "output_sigma", "prompt_file", "tags", "model", "thinking",
    "thinking_tokens", "tools", "cache", "retry",
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


class CheckupPlanner:
    """The course, and its results."""

    def __init__(self, base: Base) -> None:
        self._base, self._of, self._settings = base, _tested(base), base.table.checkup
        skip = self._settings.skip
        for name in skip:
            if name not in PROBES:
                raise UsageError(
                    f"{base.path}: experiment.checkup.skip: no probe {name!r}: expected {', '.join(PROBES)}"
                )
        has_cache = self._of.table.cache is not None
        self._probes = [name for name in PROBES if name not in skip and (has_cache or name != "cached")]
        if not self._probes:
            raise UsageError(f"{base.path}: experiment.checkup.skip: no probe is left")
        minutes = min(base.table.minutes, QUICK_MINUTES) if self._settings.quick else base.table.minutes
        load_s = LOAD * (minutes * 60 - START_S - RUN_S * len(self._probes))
        weight = sum(PROBES[name].weight for name in self._probes)
        self._steps = {
            name: PROBES[name].step(
                self._of, max(LEAST_S, load_s * PROBES[name].weight / weight), base.scenario.seed + SEED_STEP * (1 + place)
            )
            for place, name in enumerate(PROBES) if name in self._probes
        }  # fmt: skip
        self._results: dict[str, ProbeResult] = {}

    def course(self) -> Course:
        """Probe, and answer."""
        remarks = self._left_out()
        try:
            yield from self._run(self._probes)
            again = [name for name in self._probes if name not in self._results]
            if again and not self._settings.quick:
                yield from self._run(again)
        except SpentError as spent:
            remarks.append(f"{spent}: the answer is based on the probes until then")
        return self._answer(remarks)

    def measure(self, step: Step, reading: RunReading) -> ProbeResult:
        """The checks of a probe."""
        from tailgauge.experiments.checkup.cancelled import cancelled
        from tailgauge.experiments.checkup.light import light
        from tailgauge.experiments.checkup.probes import cached, fan_out, loaded

        results: Mapping[str, Callable[[], ProbeResult]] = {
            "light": lambda: light(reading, self._settings, streams=self._of.table.stream),
            "cached": lambda: cached(reading, self._popularity()),
            "fan_out": lambda: fan_out(reading),
            "cancelled": lambda: cancelled(reading, self._of.left_share),
            "loaded": lambda: loaded(reading),
        }
        return results[self._name(step)]()

    def _name(self, step: Step) -> str:
        return next(name for name, one in self._steps.items() if one.seed == step.seed)

    def _run(self, names: Sequence[str]) -> Steps:
        for result in (yield [self._steps[name] for name in names]):
            if result.valid or result.measured.failed:
                self._results[self._name(result.step)] = result.measured

    def _popularity(self) -> Popularity:
        """Requests/s of each prefix, by the table's part of the arrivals."""
        cache, scenario = self._of.table.cache, self._base.scenario
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
        if self._of.table.cache is None:
            out.append("this traffic has no table `cache`, so the prefix cache was not tested")
        return out

    def _answer(self, remarks: Sequence[str]) -> Answer:
        from tailgauge.experiments.checkup import report

        results = self._results
        checks = [check for one in results.values() for check in one.checks]
        measured = [number for one in results.values() for number in one.measured]
        for check, numbers in self._compared():
            checks.append(check)
            measured += numbers
        lost = [name for name in self._probes if name not in results]
        return report.answer(checks, measured, lost, remarks)

    def _compared(self) -> list[tuple[ProbeCheck, list[Measured]]]:
        """Checks that compare two probes."""
        from tailgauge.experiments.checkup.probes import amplified, queueing

        samples = {name: one.samples for name, one in self._results.items()}
        out = []
        if "light" in samples and "loaded" in samples:
            out.append(
                queueing(samples["light"]["first"], samples["loaded"]["low_load"], self._settings.threshold)
            )
        if "light" in samples and "fan_out" in samples:
            out.append(amplified(samples["fan_out"]["joins"], samples["light"]["alone"], self._of.legs))
        return out


def _tested(base: Base) -> TestedTraffic:
    """The scenario's traffic. Raises UsageError if it has no rate, only batches, or a protocol without whole answers and marks."""
    scenario = base.scenario
    rate = scenario.arrival.rate
    if rate is None:
        raise UsageError(
            f"{base.path}: arrival.rate_per_s: expected today's rate in requests/s, in an open process as "
            "poisson: a checkup compares loads"
        )
    if why := refusal(scenario.target, WHOLE_ANSWERS):
        raise UsageError(f"{base.path}: {why}; a checkup sends both")
    able = {name: one for name, one in scenario.traffic.items() if pattern_of(one).answer != TURNAROUND}
    if not able:
        raise UsageError(f"{base.path}: traffic: expected a table other than batch: a checkup times answers")
    name = max(able, key=lambda one: able[one].weight)
    tree = base.tree()["traffic"][name]
    plain = {key: tree[key] for key in KEPT if key in tree}
    return TestedTraffic(name, able[name], plain, float(rate), base.table.checkup)


# --- the probes: one function each, from the traffic under test, a duration and a seed to a step -------------------


def _light(of: TestedTraffic, duration_s: float, seed: int) -> Step:
    """Today's rate; three of four answers as they are, the fourth with streaming inverted."""
    weights = {True: 3.0, False: 1.0} if of.table.stream else {True: 1.0, False: 3.0}
    traffic = {STREAMED: of.call(weight=weights[True]), WHOLE: of.call(weight=weights[False], stream=False)}
    return _step("light traffic", traffic, of.rate_per_s, duration_s, seed)


def _cached(of: TestedTraffic, duration_s: float, seed: int) -> Step:
    """The traffic as it is, and one call in four with random bytes in front of the prefix."""
    cold = {
        key: value for key, value in of.plain.get("cache", {}).items() if key not in {"volatile", "pre_warm"}
    }
    traffic = {WARM: of.call(weight=3.0), COLD: of.call(weight=1.0, cache={**cold, "cold": True})}
    return _step("cold against warm prefix", traffic, of.rate_per_s * 4 / 3, duration_s, seed)


def _fan_out(of: TestedTraffic, duration_s: float, seed: int) -> Step:
    """Requests of several legs, with as many calls in total as today."""
    rate = max(of.rate_per_s / (1 if of.fans_out else of.legs), JOINS / duration_s)
    call = of.call(
        pattern="fan_out", fan_out={"legs": of.legs}, thinking=None, thinking_tokens=None, tools=None
    )
    return _step(f"fan-out of {of.legs}", {LEGS: call}, rate, duration_s, seed)


def _cancelled(of: TestedTraffic, duration_s: float, seed: int) -> Step:
    """Every second client leaves after some chunks."""
    tokens = max(OUTPUT, of.table.output_tokens)
    leaving = {"share": LEAVE_SHARE, "after_chunks": LEAVE_AFTER}
    traffic = {LEFT: of.call(output_tokens=tokens, output_sigma=None, prompt_file=None, cancel=leaving)}
    return _step("clients that leave", traffic, of.rate_per_s, duration_s, seed)


def _loaded(of: TestedTraffic, duration_s: float, seed: int) -> Step:
    """A quarter of today's rate, a burst, and today's rate."""
    burst = of.settings.burst
    mean = LOW * BURST_FROM + burst * (BURST_TO - BURST_FROM) + (1 - BURST_TO)
    points = [
        [0.0, LOW], [BURST_FROM, LOW], [BURST_FROM, burst], [BURST_TO, burst], [BURST_TO, 1.0], [1.0, 1.0],
    ]  # fmt: skip
    shape = {"kind": "piecewise", "points": points}
    traffic = {LOADED: of.call()}
    return _step("load in steps", traffic, of.rate_per_s * mean, duration_s, seed, shape, REST_S)


def _step(
    name: str, traffic: Mapping[str, Any], rate: float, duration_s: float, seed: int, shape: Mapping[str, Any] | None = None,
    rest_s: float = 0.0,
) -> Step:  # fmt: skip
    warmup_s = 0.0 if shape else min(MOST_WARMUP_S, WARMUP * duration_s)
    arrival = {"rate_per_s": rate, **({"shape": shape} if shape else {})}
    overrides = (
        ("arrival", arrival), ("traffic", dict(traffic)), ("slo", None), ("crossover", None),
        ("stages.warmup_s", warmup_s), ("stages.cooldown_s", 0.0),
    )  # fmt: skip
    return Step(name, overrides, duration_s, seed, rest_s)


@dataclass(frozen=True, slots=True)
class Probe:
    """How a probe becomes a step, and its part of the time."""

    step: Callable[[TestedTraffic, float, int], Step]
    weight: float


PROBES: Mapping[str, Probe] = {
    "light": Probe(_light, 1.2),
    "cached": Probe(_cached, 1.0),
    "fan_out": Probe(_fan_out, 1.0),
    "cancelled": Probe(_cancelled, 0.6),
    "loaded": Probe(_loaded, 1.4),
}
