"""How long a run has to be for an objective that is inconclusive, as a command; none where its length is not what it lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tailgauge.rows import schema
from tailgauge.scenario.figures import MOST
from tailgauge_analysis.metrics.steady import is_of_tasks
from tailgauge_analysis.objectives.health import COMPLETE
from tailgauge_analysis.objectives.objective import Criterion, read
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import commands, load_steps, objectives
from tailgauge_analysis.stats.proportions import MOST_TIMES, Proportion, counted, times_to_decide
from tailgauge_analysis.stats.quantiles import EPISODES
from tailgauge_analysis.text.json_values import number, table
from tailgauge_analysis.text.section import ObjectiveLine

ROUND_REQUESTS = 50
SPARE = 1.05
ROUND_S = 10
ANSWERS_LONG = 4.0  # a stage this many times as long as its answers has most of them


def longer(run: Run, line: ObjectiveLine, *, is_explained: bool) -> str:
    """Return the command of a run that is long enough to decide an objective; empty where length would not decide it.

    `is_explained`: the misses of this run have a cause. Where the run misses its objective, that goes before its length.
    Where the load changes on purpose a longer run pools the same rates: the command measures each rate.
    """
    if run.result(load_steps.compute) is not None:
        command = commands.experiment(
            run.record, commands.CURVE, run.evidence.throughput.offered_per_s
        )
        if not command:
            return ""
        return f"the rates of this run are pooled; measure each: {command}"
    missing = _missing(run, line)
    if missing is None or (is_explained and missing.is_beyond):
        return ""
    return _times_as_long(run, missing.times())


def beyond_answers(run: Run) -> str:
    """Return the command of a run in which most answers come while the load runs; empty where its length is not planned."""
    complete = run.steady.requests[run.steady.requests["ended"].isin(schema.COMPLETE)]
    stays_s = (complete["ended_at_ns"] - complete["scheduled_at_ns"]) / 1e9
    return _times_as_long(
        run, ANSWERS_LONG * float(stays_s.quantile(0.9)) / max(run.steady.seconds, 1e-9)
    )


def _times_as_long(run: Run, times: float) -> str:
    """Return `run longer: COMMAND` for a run that is `times` as long as this one, rounded up; empty where no command can be given.

    That is beyond MOST_TIMES, and where the scenario plans no length.
    """
    scenario = run.record["scenario"]
    planned_requests = number(table(table(scenario, "arrival"), "closed").get("requests"))
    planned_s = number(table(scenario, "stages").get("duration_s"))
    if is_of_tasks(scenario):
        planned_s = run.steady.to_s  # no scenario plans them
    if times > MOST_TIMES or (planned_s is None and planned_requests is None):
        return ""
    if (
        planned_requests is not None
    ):  # the length of a closed loop with a number of requests is that number
        request_count = ROUND_REQUESTS * math.ceil(
            planned_requests * times * SPARE / ROUND_REQUESTS
        )
        length_options = ["--requests", str(request_count)]
    else:
        length_s = ROUND_S * math.ceil((planned_s or 0.0) * times * SPARE / ROUND_S)
        length_options = ["--duration", f"{length_s}s"]
    command = commands.again(run.record, options=length_options)
    if not command:
        return ""
    return f"run longer: {command}"


@dataclass(frozen=True, slots=True)
class _Missing:
    """The share of the requests that miss an objective, and what is allowed; the run has to be `fewest` times as long at least."""

    share: Proportion
    allowed: float
    fewest: float = 1.0

    @property
    def value(self) -> float:
        """Return the share that was seen."""
        return self.share.value or 0.0

    @property
    def is_beyond(self) -> bool:
        """Return whether more miss it than are allowed."""
        return self.value > self.allowed

    def times(self) -> float:
        """Return how many times as many requests decide whether this share is allowed; +inf: more than would be called longer."""
        times = max(times_to_decide(self.share, self.allowed), self.fewest)
        if self.share.mark and self.share.episodes and not self.is_beyond:
            times = max(times, EPISODES / self.share.episodes)
        return times


def _missing(run: Run, line: ObjectiveLine) -> _Missing | None:
    """Return the share that misses an objective, and what is allowed; None where it is not known, or where more requests would not tell.

    `line`: the objective as the result shows it. More requests help with shares only, those beyond the bound of a latency
    among them.
    """
    decided = run.result(objectives.compute)
    result = next((candidate for candidate in decided.slo if candidate.line is line), None)
    # The default objective is not in the scenario: a share of complete answers.
    if result is None and line.name == COMPLETE and decided.health is not None:
        return _missing_if_known(_failed_share(decided.health.judged), 1 - decided.health.bound)
    criterion = None
    if result is not None:
        # The objectives of the scenario by their names.
        criterion = read(run.record["scenario"]).get(result.name)
    # An objective on the precision of a latency has no share that misses it.
    if result is None or criterion is None or result.precision:
        return None
    # An objective on a latency: the share of requests beyond its bound.
    if criterion.metric is not None:
        return _missing_of_latency(run, criterion)
    # An objective on how requests end, such as refused or complete ones.
    figure = criterion.objective.figure
    if result.value is None or result.low is None or not figure.ended:
        return None
    missed_share = 1 - result.value
    # An upper bound is on the bad share itself.
    if figure.sign == MOST:
        missed_share = result.value
    return _missing_if_known(
        counted(round(missed_share * result.n), result.n, result.n_eff), criterion.objective.allowed
    )


def _missing_of_latency(run: Run, criterion: Criterion) -> _Missing | None:
    criterion = criterion.on(run.without_slow_readers)
    part = criterion.part(run.without_slow_readers)
    if criterion.unknown(part):
        return None  # more answers of the same kind do not show their pace either
    misses = criterion.beyond(part)
    fewest = (criterion.objective.needs() or 1) / max(1, misses.n)
    return _missing_if_known(misses, criterion.objective.allowed, fewest)


def _missing_if_known(share: Proportion, allowed: float, fewest: float = 1.0) -> _Missing | None:
    if share.value is not None and share.n_eff:
        return _Missing(share, allowed, fewest)
    return None


def _failed_share(complete: Proportion) -> Proportion:
    """Return the share of the others, without its interval."""
    value = None
    if complete.value is not None:
        value = 1 - complete.value
    return replace(complete, k=complete.n - complete.k, value=value, low=None, high=None)
