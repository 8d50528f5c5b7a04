"""What each objective needs and has, before the run: one line or two for each.

During the run they are judged in master/objectives.py, after it in the analysis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tailgauge.plan.looks import looks, needed
from tailgauge.scenario.figures import CHUNK_GAPS, LATENCY, LEAST, SHARE
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.objective import MISSES_NEEDED, Objective, name_of, values_needed
from tailgauge.schedule.schedule import Schedule
from tailgauge.schedule.settings import Crossover
from tailgauge.thresholds import FEWEST_PAIRS

PERCENTILES = (0.99, 0.95, 0.9, 0.5)


def lines(scenario: Scenario, schedule: Schedule) -> list[str]:
    """Return the objectives of a plan; those for which it is too short have a line of advice."""
    plan = _Plan(scenario, schedule)
    texts: list[str] = []
    for name, objective in scenario.slo.items():
        texts += plan.lines(name, objective)
    if scenario.crossover is not None:
        texts += plan.pairs(scenario.crossover)
    return texts


@dataclass(frozen=True, slots=True)
class _Plan:
    """The requests of a run as they are planned."""

    scenario: Scenario
    schedule: Schedule

    def lines(self, name: str, objective: Objective) -> list[str]:
        """Return what an objective needs and has, in independent values; a second line is advice, or when it may be known
        to its precision.

        Only its text where nothing is needed, or the plan does not tell what it has.
        """
        text = f"objective: {objective.label} {objective.bound_text}"
        needs = objective.needs()
        if needs is None:
            return [text]
        text += f": needs {needs:,} {objective.figure.counted}"
        has = self.values(objective)
        if has is None:
            return [text]
        if has >= needs:
            return [f"{text}, has {has:,}", *self.precision(objective, has)]
        if not has:
            return [
                f"{text}, this plan has {has:,}",
                "  may end INCONCLUSIVE: no planned request belongs to this objective",
            ]
        options = [f"{self.longer_run(needs / has)}", weaker(name, objective, has)]
        advice = [f"  may end INCONCLUSIVE: {', or '.join(filter(None, options))}"]
        fewest = objective.fewest()
        if fewest is not None and has >= fewest:
            counted = objective.figure.counted
            advice.append(f"  {fewest:,} {counted} are enough if all of them meet the objective")
        return [f"{text}, this plan has {has:,}", *advice, *self.precision(objective, has)]

    def precision(self, objective: Objective, has: int) -> list[str]:
        """Return when it may be known to the precision that it asks for."""
        if objective.precision is None:
            return []
        planned = looks(self.scenario, self.schedule)
        begin_s = self.scenario.stages.warmup
        end_s = planned[-1].until_s
        text = f"  known to {100 * objective.precision:g}%: about"
        for look in planned:
            requests = needed(objective, look.confidence)
            if requests <= has * (look.until_s - begin_s) / (end_s - begin_s):
                time_text = f"after {look.until_s:,.0f} s (at most {end_s:,.0f})"
                return [f"{text} {requests:,} independent requests, {time_text}"]
        requests = needed(objective, planned[-1].confidence)
        lacks = f"{text} {requests:,} independent requests, this plan has {has:,}"
        return [
            lacks,
            f"  add {self.longer_run(requests / max(has, 1))}, or set a coarser precision",
        ]

    def pairs(self, blocks: Crossover) -> list[str]:
        """Return what a comparison in alternating blocks needs."""
        stages = self.scenario.stages
        pair_s = 2 * blocks.block_s
        steady_s = stages.duration_s - stages.warmup - stages.cooldown_s
        has = int((steady_s + 1e-6) // pair_s)
        text = f"comparison: needs {FEWEST_PAIRS} pairs of blocks"
        if has >= FEWEST_PAIRS:
            return [f"{text}, has {has}"]
        return [
            f"{text}, this plan has {has}",
            f"  add {self.longer_run(FEWEST_PAIRS * pair_s / steady_s)}",
        ]

    def values(self, objective: Objective) -> int | None:
        """Return how many values of an objective the steady stage has if each request gets an answer.

        None where the plan does not tell: without planned requests, and for a tag where one of its tables has a prompt file,
        whose rows may have tags. Later turns of a session count where it begins. A value is a request; of chunk gaps, one for each output token but the first.
        """
        if not self.scenario.arrival.is_planned:
            return None
        stages = self.scenario.stages
        at_s = np.asarray(self.schedule.at_ns) / 1e9
        is_counted = (at_s >= stages.warmup) & (at_s < stages.duration_s - stages.cooldown_s)
        for index, name in enumerate(self.schedule.names):
            traffic = self.scenario.traffic[name]
            is_of_table = objective.traffic in {None, name}
            if is_of_table and objective.tag is not None and traffic.prompts.file is not None:
                return None
            tags = [f"{key}={value}" for key, value in traffic.tags.items()]
            has_tag = objective.tag is None or objective.tag in tags
            if not (is_of_table and has_tag):
                is_counted &= np.asarray(self.schedule.traffic) != index
        counts = np.asarray(self.schedule.turns, np.int64)  # values of each arrival
        if objective.figure.counted == CHUNK_GAPS:
            counts = counts * np.maximum(np.asarray(self.schedule.output_tokens, np.int64) - 1, 0)
        return int(counts[is_counted].sum())

    def longer_run(self, factor: float) -> str:
        """Return the option for a run with so many times as many requests: their number, or its length in seconds, rounded up."""
        if self.scenario.arrival.is_counted:
            return f"--requests {math.ceil(self.schedule.requests * factor)}"
        seconds = self.scenario.stages.duration_s * factor
        step = 10 if seconds > 100 else 1
        return f"--duration {math.ceil(seconds / step) * step}s"


def _decidable_percentile(objective: Objective, has: int) -> str:
    """Advise the highest percentile below that of the objective which so many values decide."""
    for p in PERCENTILES:
        if p < objective.quantile and values_needed(1 - p) <= has:
            return f"use p{p * 100:.10g}"
    return ""


def weaker(name: str, objective: Objective, has: int) -> str:
    """Return the advice to use an objective on the same figure that `has` values can decide; empty where there is none.

    `name`: its key in [slo]. A latency gets a lower percentile, a share a wider bound, as the option that sets it. A rate
    has none.
    """
    figure = objective.figure
    if figure.unit == LATENCY:
        return _decidable_percentile(objective, has)
    if figure.unit != SHARE:
        return ""
    allowed = MISSES_NEEDED / has
    step = 0.01 if allowed >= 0.01 else 0.001
    allowed = math.ceil(allowed / step) * step
    bound = allowed
    if figure.sign == LEAST:
        bound = 1 - allowed
    if not 0 < bound < 1:
        return ""
    if objective.traffic and objective.tag:
        return f"bound it at {figure.text(bound)}"  # no text has both
    subset = objective.traffic or objective.tag
    text = ""
    if subset:
        text = f"{subset}: "
    text += f"{objective.metric} {figure.sign} {figure.text(bound)}"
    if name_of(text) == name:
        return f"--slo {text!r}"
    return f"--set {f'slo.{name}={text}'!r}"
