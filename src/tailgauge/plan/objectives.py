"""What each objective needs and has, before the run: one line or two for each.

When a run is looked at whose objectives ask for a precision: at doublings of its requests, each look at its own level.

Whoever looks often and stops when an interval is narrow enough has an interval that is too narrow. So the 5% that 95%
intervals may miss are spent over the looks, each the more the more requests came since the look before (alpha spending,
linear): a look when half of the requests of the steady stage were due has what is left for it of 2.5%, the end 2.5%. By
the union bound the interval of the last look covers 95% whenever the run ended, whatever its latencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.objective import LATENCY, LEAST, SHARE, Objective, fewest, text_of
from tailgauge.schedule.schedule import Schedule
from tailgauge.schedule.settings import Crossover
from tailgauge.thresholds import FEWEST_PAIRS

PERCENTILES = (0.99, 0.95, 0.9, 0.5)


def lines(scenario: Scenario, schedule: Schedule, *, only_lacking: bool = False) -> list[str]:
    """The objectives of a plan, or only those for which it is too short: they have a line of advice."""
    of = (scenario, schedule)
    found = [[*_lines(one, *of), *_precision(one, *of)] for one in scenario.slo.values()]
    found += [_pairs(scenario, scenario.crossover)] if scenario.crossover is not None else []
    return [line for texts in found if texts[1:] or not only_lacking for line in texts]


def _precision(objective: Objective, scenario: Scenario, schedule: Schedule) -> list[str]:
    """When it may be known to the precision that it asks for."""
    has = _has(objective, scenario, schedule)
    if objective.precision is None or has is None:
        return []
    every = looks(scenario, schedule)
    begin_s = scenario.stages.warmup
    share = [(one.until_s - begin_s) / (every[-1].until_s - begin_s) for one in every]
    wants = [needed(objective, one.confidence) for one in every]
    text = f"  known to {100 * objective.precision:g}%: about {{:,}} independent requests"
    for one, of_all, n in zip(every, share, wants, strict=True):
        if n <= has * of_all:
            return [f"{text.format(n)}, after {one.until_s:,.0f} s (at most {every[-1].until_s:,.0f})"]
    longer = _longer(scenario, wants[-1] / max(has, 1))
    return [f"{text.format(wants[-1])}, this plan has {has:,}", f"  run {longer} s, or ask for less"]


def _pairs(scenario: Scenario, blocks: Crossover) -> list[str]:
    """What a comparison in alternating blocks needs."""
    stages, pair_s = scenario.stages, 2 * blocks.block_s
    steady_s = stages.duration_s - stages.warmup - stages.cooldown_s
    has = int((steady_s + 1e-6) // pair_s)
    text = f"comparison: needs {FEWEST_PAIRS} pairs of blocks"
    if has >= FEWEST_PAIRS:
        return [f"{text}, has {has}"]
    return [f"{text}, this plan has {has}", f"  run {_longer(scenario, FEWEST_PAIRS * pair_s / steady_s)} s"]


def _lines(objective: Objective, scenario: Scenario, schedule: Schedule) -> list[str]:
    figure, needs = objective.figure, objective.needs()
    text = f"objective: {objective.label} {figure.sign} {text_of(figure, objective.bound)}"
    if needs is None:
        return [text]
    text += f": needs {needs:,} {figure.of}"
    has = _has(objective, scenario, schedule)
    if has is None:
        return [text]
    if has >= needs:
        return [f"{text}, has {has:,}"]
    options = [f"run {_longer(scenario, needs / has)} s"] if has else []
    options += [other] if (other := _weaker(objective, has)) else []
    advice = ", or ".join(options) or "no request is of it"
    return [f"{text}, this plan has {has:,}", f"  {advice}"]


def _has(objective: Objective, scenario: Scenario, schedule: Schedule) -> int | None:
    """How many values the steady stage has if each request gets an answer; None where the plan does not tell."""
    if not scenario.arrival.is_open:
        return None
    stages, at_s = scenario.stages, np.asarray(schedule.at_ns) / 1e9
    steady = (at_s >= stages.warmup) & (at_s < stages.duration_s - stages.cooldown_s)
    for index, name in enumerate(schedule.names):
        traffic = scenario.traffic[name]
        if objective.tag is not None and traffic.prompts.file is not None:
            return None
        tags = {None, *(f"{key}={value}" for key, value in traffic.tags.items())}
        if objective.traffic not in {None, name} or objective.tag not in tags:
            steady &= np.asarray(schedule.traffic) != index
    each = np.asarray(schedule.turns, np.int64)
    if objective.metric == "chunk_gap":
        each = each * np.maximum(np.asarray(schedule.output_tokens, np.int64) - 1, 0)
    return int(each[steady].sum())


def _longer(scenario: Scenario, times: float) -> str:
    seconds = scenario.stages.duration_s * times
    return f"{math.ceil(seconds / 10) * 10 if seconds > 100 else math.ceil(seconds):,}"


def _weaker(objective: Objective, has: int) -> str:
    """An objective of the same figure that so many values can decide."""
    if objective.figure.unit == LATENCY:
        p = next((p for p in PERCENTILES if p < objective.quantile and fewest(p) <= has), None)
        return f"use p{p * 100:.10g}" if p else ""
    if objective.figure.unit != SHARE or not has:
        return ""
    allowed = 1 - 0.025 ** (1 / has)
    step = 0.01 if allowed >= 0.01 else 0.001
    allowed = math.ceil(allowed / step) * step
    share = 1 - allowed if objective.figure.sign == LEAST else allowed
    return f"bound it at {text_of(objective.figure, share)}" if 0 < share < 1 else ""


# --- when a run is looked at --------------------------------------------------------------------------------------

MISSES = 0.05  # what intervals may miss, over all looks
HALVINGS = 5  # the first look is at a 32nd of the requests
FIRST_S = 60.0  # seconds of the steady stage before the first look, at least: limits refill, and slow periods return, each minute
FIRST, BEYOND = 500, 25  # requests of an objective, and of them beyond its quantile


@dataclass(frozen=True, slots=True)
class InterimLook:
    """A look at the requests scheduled before `until_s`; `requests` of them, the warm-up included, have a row by then."""

    until_s: float
    requests: int
    confidence: float


def looks(scenario: Scenario, schedule: Schedule) -> tuple[InterimLook, ...]:
    """Every look, the end of the run as the last; none where no objective asks for a precision.

    Raises ScenarioError with the key where the requests of a run are not planned one by one.
    """
    asked = {name: one for name, one in scenario.slo.items() if one.precision is not None}
    if not asked:
        return ()
    several = scenario.crossover or scenario.experiment
    if several or not scenario.arrival.is_open or (schedule.turns != 1).any():
        why = "not with a closed loop, tasks, sessions, alternating blocks or in an experiment: leave it out"
        raise ScenarioError(f"slo.{next(iter(asked))}.precision: {why}")
    stages, at_s = scenario.stages, np.asarray(schedule.at_ns) / 1e9
    end_s = stages.duration_s - stages.cooldown_s
    first, last = np.searchsorted(at_s, [stages.warmup, end_s])
    fewest = max(max(FIRST, math.ceil(BEYOND / (1 - one.quantile))) for one in asked.values())
    found, share = list[InterimLook](), 0.0
    for halving in range(HALVINGS, 0, -1):
        n = int(last - first) >> halving
        if n < fewest or at_s[first + n] - stages.warmup < FIRST_S:
            continue
        spends = MISSES * (0.5**halving - share)
        share = 0.5**halving
        found.append(InterimLook(float(at_s[first + n]), int(first) + n, 1 - spends))
    return (*found, InterimLook(end_s, int(last), 1 - MISSES * (1 - share)))


def needed(objective: Objective, confidence: float) -> int:
    """Independent requests with which a quantile of exponential latencies is known to the precision that is asked for."""
    p, z = objective.quantile, NormalDist().inv_cdf((1 + confidence) / 2)
    return math.ceil(p / (1 - p) * (z / ((objective.precision or 1.0) * math.log(1 / (1 - p)))) ** 2)
