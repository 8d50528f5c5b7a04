"""The steps of a checkup: all five probes, INVALID ones once more, then the answer.

Traffic under test is the user's own: the probes of light traffic and of load send every table as it is, but without users
who leave and slow readers. Where answers are not streamed, a quarter of the heaviest such table is. The other probes send
the single calls of one table, as many per second as today: of the heaviest with a shared prefix, of the heaviest fan-out,
of the heaviest. Arrivals are Poisson at rates relative to today's, so that a probe means the same for any arrival process.
Each probe is a set of overrides over the user's scenario; the file of each run is kept beside its report.

A fan-out is compared with its own calls, one at a time, which the probe `fan_out` sends.

Probes are independent, so one child runs them all; what compares two of them is computed at the end. A probe without a
valid run is lost, and the answer states that. A quick checkup repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.checkup import report
from tailgauge.experiments.checkup.measure import MEASURES, RATIOS, ProbeResult
from tailgauge.experiments.checkup.numbers import LEVEL, Number, of_ratio
from tailgauge.experiments.checkup.tested import (
    BURST_FROM,
    BURST_TO,
    COLD,
    CONTROL,
    IDEAL,
    LEFT,
    WARM,
    UserTraffic,
    tested,
)
from tailgauge.experiments.course import Base, Planner, RunReading, Step, StepResult, Steps, warm_up
from tailgauge.patterns.table import pattern_of
from tailgauge.plan.estimate import short_prefixes
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows import schema
from tailgauge.scenario.experiment import REST_S, RUN_S
from tailgauge.scenario.packaged import packaged
from tailgauge_analysis import ObjectiveLine, Quantile, at_level, judged_objectives

SKIP = "experiment.checkup.skip"
QUICK_MINUTES = 3.0
START_S = 25.0  # the dry run and the first run's processes
LOAD = 0.8  # of what is left: the rest is for a busy machine, and for probes that run again
LEAST_S = 5.0  # of a probe
LOW = 0.25  # times today's rate, before the burst
WARMUP = 0.1  # of a probe
MOST_WARMUP_S = 5.0
# Cancelled answers: their tokens, the chunks before a user leaves, the share of users who leave.
OUTPUT = 60
LEAVE_AFTER = 10
LEAVE_SHARE = 0.5
LIGHT = "light"  # the probe that sends today's traffic at today's rate


class CheckupPlanner(Planner):
    """The course, and its results. What a step is given: the name of its probe."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._traffic = tested(base)
        self._settings = base.table.checkup
        skip = self._settings.skip
        for name in skip:
            if name not in PROBES:
                raise base.refused(SKIP, f"no probe {name!r}: expected {', '.join(PROBES)}")
        useful = {"cached": self._traffic.cached, "fan_out": self._traffic.fan_out}
        self._probes: list[str] = []
        for name in PROBES:
            if name not in skip and useful.get(name, True):
                self._probes.append(name)
        if not self._probes:
            raise base.refused(SKIP, "no probe is left")

    @property
    def shorter(self) -> Sequence[str]:
        """Return the quick checkup, else the minutes."""
        if self._settings.quick:
            return super().shorter
        return ["shorter: --set experiment.checkup.quick=true"]

    def steps(self) -> Steps:
        """Return all probes."""
        minutes = self._base.table.minutes
        if self._settings.quick:
            minutes = min(minutes, QUICK_MINUTES)
        load_s = LOAD * (minutes * 60 - START_S - RUN_S * len(self._probes))
        whole = sum(PROBES[name].weight for name in self._probes)
        steps = []
        for name in self._probes:
            length_s = load_s * PROBES[name].weight / whole
            steps.append(self._step(name, max(LEAST_S, length_s), self.seed()))
        yield from self.run(steps, again=not self._settings.quick)

    def _step(self, name: str, duration_s: float, seed: int) -> Step:
        sent = PROBES[name].traffic(self._traffic)
        arrival: dict[str, Any] = {"rate_per_s": sent.rate_per_s}
        warmup_s = min(MOST_WARMUP_S, WARMUP * duration_s)
        rest_s = 0.0
        if sent.points:
            arrival["shape"] = {"kind": "piecewise", "points": sent.points}
            warmup_s = 0.0
            rest_s = REST_S
        slo = self._slo if name == LIGHT else None
        overrides = (
            ("arrival", arrival),
            ("traffic", sent.traffic),
            ("slo", slo or None),
            ("crossover", None),
            *warm_up(warmup_s),
        )
        return Step(sent.title, overrides, duration_s, seed, rest_s=rest_s, given=name)

    @property
    def _slo(self) -> dict[str, dict[str, Any]]:
        """Return the objectives on the traffic under test. They are judged by a probe of fixed length, so none has a precision."""
        slo: dict[str, dict[str, Any]] = {}
        for name, objective in self._base.tree().get("slo", {}).items():
            if objective.get("traffic") in {None, *self._traffic.tables}:
                slo[name] = dict(objective)
                slo[name].pop("precision", None)
        return slo

    def measure(self, step: Step, reading: RunReading) -> ProbeResult:
        """Return the numbers of a probe."""
        with at_level(LEVEL):
            result = MEASURES[step.given](self._traffic, reading)
        if step.given == LIGHT:
            judged = judged_objectives(reading.run).slo
            result = replace(result, objectives=tuple(row.line for row in judged if row.gate))
        ended = reading.steady.requests["ended"]
        failed = bool(len(ended)) and not ended.isin(schema.COMPLETE).any()
        return replace(result, failed=failed)

    def usable(self, result: StepResult) -> bool:
        """Return whether its run is valid, or INVALID only because the target answered nothing."""
        return result.valid or result.measured.failed

    def _scope_texts(self) -> Iterator[str]:
        """Yield what the checkup is about: whose traffic it was, what was skipped, and what that traffic does not test."""
        user_traffic = self._traffic
        scenario = self._scenario
        path = self._base.path
        summaries = []
        for name, table in user_traffic.tables.items():
            summaries.append(f"{name} ({pattern_of(table).summary})")
        tables = ", ".join(summaries)
        text = (
            f"judged: the traffic of {path.name}, {user_traffic.rate_per_s:g} requests/s: {tables}"
        )
        if path.parent == packaged("scenarios") and scenario.target.url != SIMULATED:
            text += "; that is an example: give a scenario of your own to judge your traffic"
        yield text
        if self._settings.skip:
            yield f"skipped by experiment.checkup.skip: {', '.join(self._settings.skip)}"
        if not user_traffic.cached:
            yield "this traffic has no table `cache`, so the prefix cache was not tested"
        if not user_traffic.fan_out:
            yield "this traffic does not fan out, so fan-outs were not tested"
        yield from short_prefixes(scenario)

    def answer(self) -> Answer:
        """Return what was found, from the probes whose runs can be used.

        A ratio compares the medians of two probes, or of two parts of one; it is left out where one of them is missing.
        Hedging is not advised while requests queue. The objectives of the scenario are those that the probe of light
        traffic judged.
        """
        results: dict[str, ProbeResult] = {}
        for step_result in self._kept:
            results[step_result.step.given] = step_result.measured
        numbers: dict[str, Number] = {}
        medians: dict[str, Quantile | None] = {}
        remarks: list[str] = []
        for result in results.values():
            numbers |= result.numbers
            medians |= result.medians
            remarks += result.remarks
        for name, ratio in RATIOS.items():
            if ratio.numerator in medians and ratio.denominator in medians:
                numbers[name] = of_ratio(
                    medians[ratio.numerator], medians[ratio.denominator], ratio.text
                )
        queueing = numbers.get("queueing")
        if queueing and queueing.low and queueing.low > 1 + self._settings.threshold:
            remarks = ["hedging: not while requests queue at today's rate: it adds calls"]
        lost = [name for name in self._probes if name not in results]
        texts = [*self._scope_texts(), *remarks]
        objectives: Sequence[ObjectiveLine] = ()
        if LIGHT in results:
            objectives = results[LIGHT].objectives
        if objectives:
            texts.append(
                f"objectives: judged by light traffic, {self._traffic.rate_per_s:g} requests/s"
            )
        elif self._scenario.slo and LIGHT not in results:
            texts.append("objectives: not judged without a valid run of the probe light")
        return report.answer(
            numbers,
            lost,
            texts,
            threshold=self._settings.threshold,
            line_of=self._base.line_of,
            objectives=objectives,
        )


# --- what each probe sends of the traffic under test -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """What a probe sends; `points`: of the rate over time, if it is not constant."""

    title: str
    traffic: dict[str, Any]
    rate_per_s: float
    points: Sequence[list[float]] = ()


def _light(user_traffic: UserTraffic) -> Sent:
    """Today's traffic; of the heaviest unstreamed table a quarter is streamed."""
    traffic = user_traffic.today()
    if user_traffic.whole:
        weight = user_traffic.tables[user_traffic.whole].weight
        traffic[user_traffic.whole]["weight"] = 0.75 * weight
        traffic[CONTROL] = user_traffic.call(user_traffic.whole, weight=0.25 * weight, stream=True)
    return Sent("light traffic", traffic, user_traffic.rate_per_s)


def _cached(user_traffic: UserTraffic) -> Sent:
    """Return the traffic as it is, and one call in four with random bytes in front of the prefix. Where the prefix has no marks, or
    changes, another one in four as it should be shows whether this endpoint has a cache at all.
    """
    cache = user_traffic.plain[user_traffic.cached]["cache"]
    plain = dict(cache)
    plain.pop("volatile", None)
    plain.pop("pre_warm", None)
    traffic = {
        WARM: user_traffic.call(user_traffic.cached, weight=3.0),
        COLD: user_traffic.call(user_traffic.cached, weight=1.0, cache={**plain, "cold": True}),
    }
    table = user_traffic.tables[user_traffic.cached].cache
    if table is not None and (not table.breakpoints or table.volatile != "none"):
        marks = list(table.breakpoints)
        if not marks:
            marks = ["system" if table.system_tokens else "last"]
        traffic[IDEAL] = user_traffic.call(
            user_traffic.cached, weight=1.0, cache={**plain, "breakpoints": marks}
        )
    return Sent("cold against warm prefix", traffic, user_traffic.calls_per_s * 4 / 3)


def _fan_out(user_traffic: UserTraffic) -> Sent:
    """Return the calls of the fan-out, one at a time, as many as today."""
    traffic = {}
    for name, changes in user_traffic.kinds().items():
        traffic[name] = user_traffic.call(user_traffic.fan_out, **changes)
    return Sent("calls of the fan-out, one at a time", traffic, user_traffic.calls_per_s)


def _cancelled(user_traffic: UserTraffic) -> Sent:
    """Every second client leaves after some chunks."""
    name = user_traffic.heaviest
    tokens = max(OUTPUT, user_traffic.tables[name].output_tokens)
    leaving = {"share": LEAVE_SHARE, "after_chunks": LEAVE_AFTER}
    call = user_traffic.call(
        name, output_tokens=tokens, output_sigma=None, prompts=None, cancel=leaving
    )
    return Sent("clients that leave", {LEFT: call}, user_traffic.calls_per_s)


def _loaded(user_traffic: UserTraffic) -> Sent:
    """Return a quarter of today's rate, a burst, and today's rate."""
    burst = user_traffic.settings.burst
    begin = BURST_FROM
    end = BURST_TO
    mean = LOW * begin + burst * (end - begin) + (1 - end)
    points = [[0.0, LOW], [begin, LOW], [begin, burst], [end, burst], [end, 1.0], [1.0, 1.0]]
    return Sent("load in steps", user_traffic.today(), user_traffic.rate_per_s * mean, points)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe sends, and its part of the time."""

    traffic: Callable[[UserTraffic], Sent]
    weight: float


PROBES: Mapping[str, Probe] = {
    "light": Probe(_light, 1.2),
    "cached": Probe(_cached, 1.0),
    "fan_out": Probe(_fan_out, 1.0),
    "cancelled": Probe(_cancelled, 0.6),
    "loaded": Probe(_loaded, 1.4),
}
