"""How long a run has to be for an objective that is inconclusive, where its length is what it lacks."""

from __future__ import annotations

import math
from dataclasses import replace

from tailgauge.rows import schema
from tailgauge.scenario.figures import MOST
from tailgauge_analysis.objectives.health import COMPLETE
from tailgauge_analysis.objectives.objective import Criterion, read
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import commands, load_steps, objectives
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.proportions import Proportion, counted
from tailgauge_analysis.stats.quantiles import EPISODES
from tailgauge_analysis.text.json_values import number, table
from tailgauge_analysis.text.section import ObjectiveLine

MOST_TIMES = 50.0  # the length of the run: more would not be called "longer"
STEP = 1.1
SPARE = 1.05
ROUND_S = 10
ANSWERS_LONG = 4.0  # a stage this many times as long as its answers has most of them


def longer(run: Run, line: ObjectiveLine) -> str:
    """Return the command of a run that is long enough to decide an objective; empty where length would not decide it.

    Where the load changes on purpose a longer run pools the same rates: the command measures each rate.
    """
    if run.result(load_steps.compute) is not None:
        command = commands.experiment(run.record, commands.CURVE, run.evidence.throughput.offered_per_s)
        return f"the rates of this run are pooled; measure each: {command}" if command else ""
    times = _times(run, line)
    return "" if times is None else _times_as_long(run, times)


def beyond_answers(run: Run) -> str:
    """Return the command of a run in which most answers come while the load runs; empty where its length is not planned."""
    complete = run.steady.requests[run.steady.requests["ended"].isin(schema.COMPLETE)]
    stays_s = (complete["ended_at_ns"] - complete["scheduled_at_ns"]) / 1e9
    return _times_as_long(run, ANSWERS_LONG * float(stays_s.quantile(0.9)) / max(run.steady.seconds, 1e-9))


def _times_as_long(run: Run, times: float) -> str:
    seconds = number(table(run.record["scenario"], "stages").get("duration_s"))
    if seconds is None or times > MOST_TIMES:
        return ""
    length_s = ROUND_S * math.ceil(seconds * times * SPARE / ROUND_S)
    command = commands.again(run.record, options=["--duration", f"{length_s}s"])
    return f"run longer: {command}" if command else ""


def _times(run: Run, line: ObjectiveLine) -> float | None:
    """Return how many times as long the run has to be; None where that is not known, or would not help."""
    judged = run.result(objectives.compute)
    if line.name == COMPLETE and judged.health is not None:
        return _of_share(_failed(judged.health.judged), 1 - judged.health.bound)
    result = next((one for one in judged.slo if one.line is line), None)
    criterion = None if result is None else read(run.record["scenario"]).get(result.name)
    if result is None or criterion is None or result.precision:
        return None
    if criterion.metric is not None:
        return _times_of_latency(run, criterion)
    figure = criterion.objective.figure
    if result.value is None or result.low is None or not figure.ended:
        return None
    bad = result.value if figure.sign == MOST else 1 - result.value
    return _of_share(counted(round(bad * result.n), result.n, result.n_eff), criterion.objective.allowed)


def _times_of_latency(run: Run, criterion: Criterion) -> float | None:
    """Return how many times as long the run has to be for an objective on a latency."""
    part = criterion.part(run.of_target)
    if criterion.unknown(part):
        return None  # more answers of the same kind do not show their pace either
    beyond = criterion.beyond(part)
    fewest = (criterion.objective.needs() or 1) / max(1, beyond.n)
    times = _of_share(beyond, criterion.objective.allowed)
    return None if times is None else max(times, fewest)


def _failed(complete: Proportion) -> Proportion:
    """Return the share of the others, without its interval."""
    value = None if complete.value is None else 1 - complete.value
    return replace(complete, k=complete.n - complete.k, value=value, low=None, high=None)


def _of_share(bad: Proportion, allowed: float) -> float | None:
    """Return how many times as many requests show that this share is below what is allowed."""
    if bad.value is None or bad.value >= allowed or not bad.n_eff:
        return None
    times = 1.0
    while times <= MOST_TIMES:
        n = bad.n_eff * times
        if clopper_pearson(bad.value * n, n)[1] <= allowed:
            break
        times *= STEP
    if bad.mark and bad.episodes:
        times = max(times, EPISODES / bad.episodes)
    return times
