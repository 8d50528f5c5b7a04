"""The steps of a checkup: all five probes, INVALID ones once more, then the answer.

Traffic under test is the user's own: the probes of light traffic and of load send every table as it is, but without users
who leave and slow readers. Where answers are not streamed, a quarter of the heaviest such table is. The other probes send
the single calls of one table, as many per second as today: of the heaviest with a shared prefix, of the heaviest fan-out,
of the heaviest. Arrivals are Poisson at rates relative to today's, so that a probe means the same for any arrival process.

A fan-out is compared with its own calls, one at a time, which the probe `fan_out` sends.

Probes are independent, so one child runs them all; what compares two of them is computed at the end. A probe without a
valid run is lost, and the answer states that. A quick checkup repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.checkup import judge, light, probes, report
from tailgauge.experiments.checkup.judge import BURST_FROM, BURST_TO, CONTROL, ProbeResult
from tailgauge.experiments.course import RUN_S, Base, Planner, RunReading, Step, StepResult, Steps, warm_up
from tailgauge.patterns.settings import NO_MARKS, Marks
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.plan.estimate import short_prefixes
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.schema import JOIN, TURNAROUND
from tailgauge.scenario.experiment import Checkup as Settings
from tailgauge.scenario.packaged import packaged
from tailgauge_analysis import (
    Floats,
)

SKIP = "experiment.checkup.skip"
QUICK_MINUTES = 3.0
START_S = 25.0  # the dry run and the first run's processes
LOAD = 0.8  # of what is left: the rest is for a busy machine, and for probes that run again
LEAST_S = 5.0  # of a probe
KEPT = (
    "prompt_tokens", "prompt_sigma", "output_tokens", "output_sigma", "prompts", "tags", "model", "headers", "body", "output",
    "thinking", "thinking_tokens", "tools", "cache", "retry",
)  # fmt: skip
NOT_SENT = ("cancel", "reader")  # of the user's tables: the user, not the target
LEFT_SHARE = 0.1  # of the answers, if the traffic does not set how many users leave

IDEAL, LEGS, LEFT = "marked_and_stable", "legs", "left"  # traffic tables
LOW = 0.25  # times today's rate, before the burst
WARMUP = 0.1  # of a probe
MOST_WARMUP_S = 5.0
REST_S = 60.0  # before the burst, if the target keeps state
OUTPUT, LEAVE_AFTER, LEAVE_SHARE = 60, 10, 0.5  # tokens of cancelled answers, chunks before, share


@dataclass(frozen=True, slots=True)
class TestedTraffic:
    """The user's tables that a checkup can time, their plain values, today's requests/s, and the cache marks that the target takes.

    The heaviest table of all; of those that fan out; of those with a shared prefix; of those with single answers that are
    not streamed: empty where there is none.
    """

    tables: Mapping[str, Traffic]
    plain: Mapping[str, dict[str, Any]]
    rate_per_s: float
    settings: Settings
    marks: Marks
    heaviest: str
    fan_out: str
    cached: str
    whole: str

    @property
    def streams(self) -> set[str]:
        """Tables of single streamed answers, the control with them."""
        found = {name for name, table in self.tables.items() if table.stream and not _fans_out(table)}
        return found | ({CONTROL} if self.whole else set())

    @property
    def calls_per_s(self) -> float:
        """Calls/s today."""
        parts = [(table.weight, pattern_of(table).demand(1, 1, 1).calls) for table in self.tables.values()]
        return self.rate_per_s * sum(part * calls for part, calls in parts) / sum(part for part, _ in parts)

    def today(self) -> dict[str, dict[str, Any]]:
        """The tables as they are."""
        return {
            name: {key: value for key, value in table.items() if key not in NOT_SENT}
            for name, table in self.plain.items()
        }

    def kinds(self) -> dict[str, dict[str, Any]]:
        """The calls of the fan-out, by the table that sends one at a time; its weight is how many a request has."""
        settings = pattern_of(self.tables[self.fan_out]).settings
        if not settings.kinds:
            return {LEGS: {"weight": float(settings.legs)}}
        even = {"prompt_sigma": None, "output_sigma": None}  # all of a kind have its sizes
        return {
            f"{LEGS}_{number}": {**even, **kind.model_dump(exclude={"count"}), "weight": float(kind.count)}
            for number, kind in enumerate(settings.kinds)
        }

    def call(self, name: str, **changes: Any) -> dict[str, Any]:
        """A table of single calls like those of a table; a change of None removes a key."""
        kept = {key: value for key, value in self.plain[name].items() if key in KEPT}
        values = {**kept, "pattern": "cached" if "cache" in kept else "streaming", **changes}
        return {key: value for key, value in values.items() if value is not None}


def _fans_out(table: Traffic) -> bool:
    return pattern_of(table).answer == JOIN


class CheckupPlanner(Planner):
    """The course, and its results. What a step is given: the name of its probe."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._of, self._settings = _tested(base), base.table.checkup
        skip = self._settings.skip
        for name in skip:
            if name not in PROBES:
                raise base.refused(SKIP, f"no probe {name!r}: expected {', '.join(PROBES)}")
        useful = {"cached": self._of.cached, "fan_out": self._of.fan_out}
        self._probes = [name for name in PROBES if name not in skip and useful.get(name, True)]
        if not self._probes:
            raise base.refused(SKIP, "no probe is left")

    def steps(self) -> Steps:
        """All probes."""
        minutes = self._base.table.minutes
        minutes = min(minutes, QUICK_MINUTES) if self._settings.quick else minutes
        load_s = LOAD * (minutes * 60 - START_S - RUN_S * len(self._probes))
        whole = sum(PROBES[name].weight for name in self._probes)
        part_s = {name: load_s * PROBES[name].weight / whole for name in self._probes}
        steps = [self._step(name, max(LEAST_S, length_s), self.seed()) for name, length_s in part_s.items()]
        yield from self.run(steps, again=not self._settings.quick)

    def _step(self, name: str, duration_s: float, seed: int) -> Step:
        sent = PROBES[name].traffic(self._of)
        arrival: dict[str, Any] = {"rate_per_s": sent.rate_per_s}
        warmup_s, rest_s = min(MOST_WARMUP_S, WARMUP * duration_s), 0.0
        if sent.points:
            arrival["shape"] = {"kind": "piecewise", "points": sent.points}
            warmup_s, rest_s = 0.0, REST_S
        overrides = (
            ("arrival", arrival), ("traffic", sent.traffic), ("slo", None),
            ("crossover", None), *warm_up(warmup_s),
        )  # fmt: skip
        return Step(sent.title, overrides, duration_s, seed, rest_s, name)

    def measure(self, step: Step, reading: RunReading) -> ProbeResult:
        """The checks of a probe."""
        return PROBES[step.given].measure(self._of, reading)

    def usable(self, result: StepResult) -> bool:
        """Whether its run is valid, or INVALID only because the target answered nothing."""
        return result.valid or result.measured.failed

    def _judged(self) -> Iterator[str]:
        """Whose traffic it was, and what was left out."""
        of, scenario, path = self._of, self._scenario, self._base.path
        tables = ", ".join(f"{name} ({pattern_of(table).summary})" for name, table in of.tables.items())
        whose = f"judged: the traffic of {path.name}, {of.rate_per_s:g} requests/s: {tables}"
        if path.parent == packaged("scenarios") and scenario.target.url != SIMULATED:
            whose += "; that is an example: tailgauge checkup SCENARIO --target URL judges your own traffic"
        yield whose
        if self._settings.skip:
            yield f"skipped by experiment.checkup.skip: {', '.join(self._settings.skip)}"
        if scenario.slo:
            yield "a checkup does not judge the objectives of [slo]: tailgauge run does"
        if not of.cached:
            yield "this traffic has no table `cache`, so the prefix cache was not tested"
        if not of.fan_out:
            yield "this traffic does not fan out, so fan-outs were not tested"
        yield from short_prefixes(scenario)

    def answer(self) -> Answer:
        """What was found; `fan_out` and `queueing` compare two probes."""
        results: dict[str, ProbeResult] = {one.step.given: one.measured for one in self._kept}
        checks = [check for one in results.values() for check in one.checks]
        measured = [number for one in results.values() for number in one.measured]
        remarks = [remark for one in results.values() for remark in one.remarks]
        samples = {name: one.samples for name, one in results.items()}
        if {"light", "loaded"} <= set(samples):
            low_load = samples["loaded"]["low_load"]
            checks.append(probes.queueing(samples["light"]["today"], low_load, self._settings.threshold))
            if (checks[-1].p_value or 1.0) < judge.ALPHA:
                remarks = ["hedging: not while requests queue at today's rate: it adds calls"]
        if {"light", "fan_out"} <= set(samples):
            kinds = self._of.kinds().items()
            singles = [(samples["fan_out"][name], int(kind["weight"])) for name, kind in kinds]
            checks.append(probes.amplified(samples["light"]["joins"], singles))
        lost = [name for name in self._probes if name not in results]
        return report.answer(checks, measured, lost, [*self._judged(), *remarks])


def _tested(base: Base) -> TestedTraffic:
    """The scenario's traffic. UsageError if it has no rate, or only batches."""
    scenario, rate = base.scenario, base.today()
    able = {name: one for name, one in scenario.traffic.items() if pattern_of(one).answer != TURNAROUND}
    if not able:
        raise base.refused("traffic", "expected a table other than batch: a checkup times answers")
    tree = base.tree().get("traffic", {})
    weights = {name: one.weight for name, one in scenario.traffic.items()}
    rate *= sum(weights[name] for name in able) / sum(weights.values())

    def heaviest(fits: Callable[[Traffic], object]) -> str:
        return max((name for name, table in able.items() if fits(table)), key=weights.__getitem__, default="")

    cached = heaviest(lambda table: table.cache)
    marks = scenario.marks(able[cached]) if cached else NO_MARKS
    return TestedTraffic(
        able, {name: tree.get(name, {}) for name in able}, rate, base.table.checkup,
        marks, heaviest(lambda _: True), heaviest(_fans_out), cached,
        heaviest(lambda table: not table.stream and not _fans_out(table)),
    )  # fmt: skip


# --- the probes: what each sends of the traffic under test, and what is found in its run ------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """What a probe sends; `points`: of the rate over time, if it is not constant."""

    title: str
    traffic: dict[str, Any]
    rate_per_s: float
    points: Sequence[list[float]] = ()


def _light(of: TestedTraffic) -> Sent:
    """Today's traffic; of the heaviest unstreamed table a quarter is streamed."""
    traffic = of.today()
    if of.whole:
        weight = of.tables[of.whole].weight
        traffic[of.whole]["weight"] = 0.75 * weight
        traffic[CONTROL] = of.call(of.whole, weight=0.25 * weight, stream=True)
    return Sent("light traffic", traffic, of.rate_per_s)


def _light_found(of: TestedTraffic, reading: RunReading) -> ProbeResult:
    """The user's traffic, with its fan-outs."""
    found = light.light(reading, of.settings, of.streams, of.whole)
    return found.joined(probes.fan_out(reading, of.fan_out)) if of.fan_out else found


def _cached(of: TestedTraffic) -> Sent:
    """The traffic as it is, and one call in four with random bytes in front of the prefix. Where the prefix has no marks, or
    changes, another one in four as it should be shows whether this endpoint has a cache at all.
    """
    cache = of.plain[of.cached]["cache"]
    plain = {key: value for key, value in cache.items() if key not in {"volatile", "pre_warm"}}
    traffic = {
        judge.WARM: of.call(of.cached, weight=3.0),
        judge.COLD: of.call(of.cached, weight=1.0, cache={**plain, "cold": True}),
    }
    table = of.tables[of.cached].cache
    if table is not None and (not table.breakpoints or table.volatile != "none"):
        marks = table.breakpoints or (["system"] if table.system_tokens else ["last"])
        traffic[IDEAL] = of.call(of.cached, weight=1.0, cache={**plain, "breakpoints": list(marks)})
    return Sent("cold against warm prefix", traffic, of.calls_per_s * 4 / 3)


def _cached_found(of: TestedTraffic, reading: RunReading) -> ProbeResult:
    """With the requests/s of each prefix, by the table's part of the arrivals."""
    cache = of.tables[of.cached].cache
    assert cache is not None
    part = of.tables[of.cached].weight / sum(one.weight for one in of.tables.values())
    weights: Floats = np.arange(1, cache.prefixes + 1, dtype=np.float64) ** -cache.zipf
    per_s = of.rate_per_s * part * weights / weights.sum()
    return probes.cached(reading, per_s, of.marks.ttl(cache), has_marks=bool(of.marks.places))


def _fan_out(of: TestedTraffic) -> Sent:
    """The calls of the fan-out, one at a time, as many as today."""
    traffic = {name: of.call(of.fan_out, **changes) for name, changes in of.kinds().items()}
    return Sent("calls of the fan-out, one at a time", traffic, of.calls_per_s)


def _fan_out_found(of: TestedTraffic, reading: RunReading) -> ProbeResult:
    """The calls of a fan-out, one at a time; what is judged of streams, if nothing else is streamed."""
    kinds, steady = list(of.kinds()), reading.steady
    samples = {name: light.since_sent_ms(steady, name) for name in kinds}
    if of.streams:
        return ProbeResult((), samples=samples, failed=judge.failed(reading))
    checks, advice = light.stream_checks(steady, of.settings, kinds), light.hedging(steady, kinds)
    return ProbeResult(tuple(checks), (), samples, judge.failed(reading), (advice,))


def _cancelled(of: TestedTraffic) -> Sent:
    """Every second client leaves after some chunks."""
    name = of.heaviest
    tokens = max(OUTPUT, of.tables[name].output_tokens)
    leaving = {"share": LEAVE_SHARE, "after_chunks": LEAVE_AFTER}
    call = of.call(name, output_tokens=tokens, output_sigma=None, prompts=None, cancel=leaving)
    return Sent("clients that leave", {LEFT: call}, of.calls_per_s)


def _cancelled_found(of: TestedTraffic, reading: RunReading) -> ProbeResult:
    return probes.cancelled(reading, of.tables[of.heaviest].cancel.share or LEFT_SHARE)


def _loaded(of: TestedTraffic) -> Sent:
    """A quarter of today's rate, a burst, and today's rate."""
    burst, begin, end = of.settings.burst, BURST_FROM, BURST_TO
    mean = LOW * begin + burst * (end - begin) + (1 - end)
    points = [[0.0, LOW], [begin, LOW], [begin, burst], [end, burst], [end, 1.0], [1.0, 1.0]]
    return Sent("load in steps", of.today(), of.rate_per_s * mean, points)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe sends, what is found in its run, and its part of the time."""

    traffic: Callable[[TestedTraffic], Sent]
    measure: Callable[[TestedTraffic, RunReading], ProbeResult]
    weight: float


PROBES: Mapping[str, Probe] = {
    "light": Probe(_light, _light_found, 1.2),
    "cached": Probe(_cached, _cached_found, 1.0),
    "fan_out": Probe(_fan_out, _fan_out_found, 1.0),
    "cancelled": Probe(_cancelled, _cancelled_found, 0.6),
    "loaded": Probe(
        _loaded, lambda of, reading: probes.loaded(reading, light.wait_ms(reading.steady, of.streams)), 1.4
    ),
}
