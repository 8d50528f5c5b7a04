"""The load curve: latency and throughput at each load, and the largest load at which the objectives hold.

Loads double from today's until the target is full, then halve the widest gaps around the knee, or are given. The knee is
the largest load at which every objective on a latency holds, no more calls are refused than allowed, and the backlog does
not grow. FAIL if today's load does not hold, INCONCLUSIVE if that was not shown, or no run can be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, cast

import numpy as np

from tailgauge.experiments.answer import (
    NONE,
    NOTHING,
    Answer,
    answered,
    estimate,
    interval_text,
    load_line,
    tone_of,
)
from tailgauge.experiments.course import Base, RunReading, Step, Steps, as_options
from tailgauge.experiments.loads.judge import BACKLOG, REFUSALS, JudgedLoad, is_limited
from tailgauge.experiments.loads.planner import (
    SHORTEST_S,
    Series,
    SeriesPlanner,
    Unit,
    holds,
)
from tailgauge.experiments.loads.run import LoadRun, measure, objective_text
from tailgauge.experiments.loads.search import NextLoad, Search, bracket
from tailgauge.experiments.next_loads import (
    FollowUp,
    InconclusiveLoad,
    explain,
    follow_up,
    probable_ends,
)
from tailgauge.scenario.experiment import RUN_S
from tailgauge.scenario.experiment import Curve as CurveSettings
from tailgauge.scenario.model import MAX_IN_FLIGHT
from tailgauge.scenario.objective import fewest
from tailgauge.schedule.settings import CLOSED, TASKS
from tailgauge.thresholds import ENDLESS_S
from tailgauge_analysis import (
    FAIL,
    FILES_NOTE,
    INCONCLUSIVE,
    OFFERED,
    PASS,
    RATE,
    UNKNOWN,
    Card,
    Cell,
    Column,
    Criterion,
    Curve,
    CurveObjective,
    CurveOutcome,
    CurvePoint,
    CurveQuantile,
    Ends,
    ObjectiveLine,
    Quantile,
    Result,
    Table,
    Tone,
    Value,
    block_answered,
    block_work,
    curve_files,
    curve_objectives,
    curve_pictures,
    figures,
    good_requests,
    latency_row,
    listed,
    ms,
    on_latency,
    percentile,
    plural,
    quantile_values,
    share,
    unknown_pace,
    wait_for_core_ms,
)

LEAST = 1 / 16  # of today's load
NARROW = 1.01  # ratio of two loads between which there is no other
CHANGED = 1.25  # times the latency of a load with more users
GAINS = 1.1  # times the requests/s for twice the users: less is no gain
SATURATED = 0.98  # of the most output tokens/s: the lowest load that gives so many is named
MANY_REFUSED = 0.3  # of the calls: what is answered beside them is about all that there is
SHOWN = ("ttft", "e2e", "tpot")
# Columns that a terminal shows last, as far as they fit.
LAST_COLUMNS = ("holds", "refused", "goodput requests/s", "requests", "backlog grows")
QUANTILES = (0.5, 0.9, 0.95, 0.99)
UNEQUAL = 1.02  # times the shortest answers: more is other work
TWO_SIDED = 0.975  # confidence of each end of a 95% interval
ROUND_REQUESTS = 50
ROUND_S = 10
# What the options of a sweep replace.
OF_SWEEP = frozenset(
    {
        "experiment",
        "experiment.kind",
        "experiment.minutes",
        "experiment.curve.by",
        "experiment.curve.loads",
        "experiment.curve.requests",
        "experiment.curve.step_s",
        "experiment.curve.most",
        "arrival.rate_per_s",
        "experiment.curve.held",
        "experiment.curve.failed",
    }
)
NO_SLO = (
    "no objective on a latency in [slo], so there is no load up to which it holds; add one, such as --slo 'ttft p95 < 800ms' "
    "('join_sched p95 < 2s' for a fan-out, 'turnaround p95 < 60s' for jobs and batches)"
)
EARLIER = "an earlier curve"
CHANGE = "something else changed between the runs (other processes on the target's cores?)"
ONE_RUN = "one run of each load: its interval does not cover what differs from run to run, as how users and batches fall into step"
CHANGE_OR_STEP = f"{CHANGE}, or calls fell into step with the target's batches"
NOTE = (
    "Each row is one load; every run began cold. Latencies count failures as slowest; ttft and e2e count since {}. “Holds” is decided by "
    "the run of this load, or together with those of the loads that it names. “?”: too few requests for this end of the interval."
)


@dataclass(frozen=True, slots=True)
class CurveRun:
    """A run, and its point of the curve without its outcome."""

    run: LoadRun
    point: CurvePoint
    core_wait_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the answer is worth: given loads that hold and fail, and loads that are missing.

    `holds`, `fails`: of the loads that the user gave, where the rows alone decide; None where the curve chose its loads. `unsure`: loads between
    them whose requests decide nothing. `missing`: loads of which every run was INVALID. `disturbance`: what the loads alone
    cannot have caused.
    """

    holds: float | None = None
    fails: float | None = None
    unsure: Sequence[InconclusiveLoad] = ()
    missing: Sequence[float] = ()
    disturbance: str = ""

    @property
    def missing_between(self) -> list[float]:
        """Return the missing loads that may be the largest that holds."""
        low = self.holds or 0.0
        high = math.inf if self.fails is None else self.fails
        return [load for load in self.missing if low < load < high]

    @property
    def probable(self) -> float | None:
        """Return the inconclusive load that is probably the largest that holds; None where none is."""
        low, _ = probable_ends(self.holds, self.fails, self.unsure)
        return None if low == self.holds else low


class CurvePlanner(SeriesPlanner):
    """The course, and its results."""

    borrows = False

    def __init__(self, base: Base) -> None:
        """Check the settings of [experiment.curve] against the scenario; UsageError names the key that does not fit.

        Loads are rates of an open process, or requests in flight of a closed loop (`_is_open`). `_today`: the scenario's
        own load; None where it has none, or where the given loads do not include it.
        """
        settings = base.table.curve
        super().__init__(base, settings, NARROW - 1)
        self._settings = settings
        self._points = settings.points
        arrival = base.scenario.arrival
        self._is_open = settings.by == RATE
        if self._is_open and arrival.process == CLOSED:
            text = "a closed loop has no rate: expected by = 'concurrency', or an open process"
            raise base.refused("experiment.curve.by", text)
        if arrival.process == TASKS:
            text = "curve sets the load, which 'tasks' does not take: expected an open process or 'closed'"
            raise base.refused("arrival.process", text)
        if settings.requests is not None and not settings.loads:
            raise base.refused(
                "experiment.curve.requests",
                "expected `loads` as well: each load gets this many requests",
            )
        _check_known(base, settings)
        if not self._is_open and any(load != round(load) for load in settings.loads):
            raise base.refused(
                "experiment.curve.loads", "expected whole numbers of requests in flight"
            )
        limits = base.scenario.limits
        is_capped = "in_flight_per_worker" in limits.model_fields_set
        self._most_users = base.workers * (
            limits.in_flight_per_worker if is_capped else MAX_IN_FLIGHT
        )
        if not self._is_open and max(settings.loads, default=0) > self._most_users:
            cap = self._most_users // base.workers
            text = f"expected at most {self._most_users:,}: limits.in_flight_per_worker is {cap:,}"
            remedy = "raise it, or add workers" if cap < MAX_IN_FLIGHT else "add workers"
            raise base.refused("experiment.curve.loads", f"{text}: {remedy}")
        count = len(set(settings.loads))
        # Given loads must fit into experiment.minutes, unless a number of requests sets their length.
        shortest_s = SHORTEST_S
        if settings.step_s:
            shortest_s = self.with_warm_up(settings.step_s)
        if settings.requests is None and count * (shortest_s + RUN_S) > self._all_s:
            minutes = math.ceil(count * (shortest_s + RUN_S) / 60)
            text = f"{count} loads take {minutes} minutes or more: raise it, or give fewer loads"
            raise base.refused("experiment.minutes", text)
        self._today: float | None = arrival.closed.users if arrival.process == CLOSED else None
        if self._is_open:
            self._today = base.today()
            self.plan_arrivals()
        else:
            self._fills_s = 0.0  # its users are there from the start
        if settings.loads and self._today not in settings.loads:
            self._today = None

    @property
    def runs(self) -> list[LoadRun]:
        """Return the runs until now."""
        return [result.run for result in self.results]

    @property
    def is_search(self) -> bool:
        """Return whether the target decides which loads are run."""
        return not self._settings.loads

    @property
    def shorter(self) -> Sequence[str]:
        """Return the length of each load, where one was given; else the minutes."""
        settings = self._settings
        if not settings.loads or (settings.requests is None and settings.step_s is None):
            return super().shorter
        text = "shorter: fewer loads"
        times = self._times_needed()
        if times is None or times >= 1:
            return [text]
        if settings.requests is not None:
            return [
                f"{text}, or fewer requests for each: --requests {math.ceil(settings.requests * times)}"
            ]
        assert settings.step_s is not None
        return [
            f"{text}, or fewer seconds for each: --duration {math.ceil(settings.step_s * times)}s"
        ]

    def _times_needed(self) -> float | None:
        """Return how many times as long the runs must be for each load to decide the objectives; None where that is not known."""
        counts = []
        for objective in self._base.latency_objectives:
            count = objective.needs()
            if count is not None:
                counts.append(count)
        if not counts or not self.runs:
            return None
        return max(counts) / max(1, min(run.requests for run in self.runs))

    @property
    def needs(self) -> Sequence[str]:
        """Return a line for each latency objective: how many independent requests decide a load, and how many this plan
        has.

        Empty of a search, and before there are runs (of the dry run). Where no load has enough, the line names the option
        that would.
        """
        if not self.runs or not self._settings.loads:
            return []
        lines = []
        counts = [run.requests for run in self.runs]
        has = f"{min(counts):,}"
        if min(counts) < max(counts):
            has += f" to {max(counts):,}"
        for objective in self._base.latency_objectives:
            name = f"{objective.label} {objective.bound_text}"
            few = fewest(1 - objective.allowed, TWO_SIDED)
            text = f"{few} independent requests decide a load that never misses it, {objective.needs()} one near the bound"
            text = (
                f"{name}: {text}; this plan has {has} at a load, and correlated ones count as fewer"
            )
            if max(counts) < few:
                text += f": may end INCONCLUSIVE{self._longer(few / max(1, *counts))}"
            lines.append(text)
        return lines

    def _longer(self, times: float) -> str:
        """Name the option of a plan that is so many times as long; empty where the minutes decide it."""
        settings = self._settings
        if settings.requests is not None:
            return f": --requests {_up(settings.requests * times, ROUND_REQUESTS)}"
        if settings.step_s is not None:
            return f": --duration {_up(settings.step_s * times, ROUND_S)}s"
        return ""

    @property
    def order(self) -> str:
        """Return the order of given loads."""
        if not self._settings.loads:
            return ""
        loads = ", ".join(figures(load) for load in self._order())
        reason = "random, so that a change of the target in the meantime does not look like an effect of the load"
        return f"order of the loads: {loads} ({reason})"

    def _order(self) -> list[float]:
        """Return the given loads in the order in which they run."""
        loads = sorted(set(self._settings.loads))
        Random(self._scenario.seed).shuffle(loads)
        return loads

    def steps(self) -> Steps:
        """Run the given loads once each in random order, or search."""
        if not self._settings.loads:
            yield from super().steps()
            return
        loads = self._order()
        for number, load in enumerate(loads):
            runs_left = len(loads) - number
            yield from self.run([self._given_step(load, runs_left)], again=False)
            # The repeat shares the time with the loads that follow.
            if load in self.loads_without_run():
                step = self._given_step(load, runs_left)
                yield from self.run([replace(step, is_repeat=True)], again=False)

    def _given_step(self, load: float, runs_left: int) -> Step:
        """Return the run of a given load; `runs_left`: how many share the time that is left."""
        if self._is_counted:
            return self._counted_step(NextLoad(load))
        return self._step(NextLoad(load), self._length_s(load, runs_left))

    @property
    def _is_counted(self) -> bool:
        """Return whether each load sends exactly so many requests, however long that takes."""
        return self._settings.requests is not None and not self._is_open

    def _counted_step(self, attempt: NextLoad) -> Step:
        """Return a run that ends with the last of its requests, all of which count."""
        step = self._step(attempt, self._expected_s(attempt.load))
        longest_s = self._settings.step_s or ENDLESS_S
        stages = (("stages.duration_s", longest_s), ("stages.warmup_s", 0.0))
        return replace(step, overrides=(*step.overrides, *stages))

    def _expected_s(self, load: float) -> float:
        """Return the seconds that the requests will take, as in the run of the nearest load."""
        runs = self.runs
        if not runs:
            return SHORTEST_S
        nearest = min(runs, key=lambda run: abs(math.log(run.load / load)))
        expected_s = nearest.seconds * nearest.load / load
        longest_s: float = self._settings.step_s or math.inf
        return min(expected_s, longest_s)

    def _length_s(self, load: float, loads: int) -> float:
        """Return the seconds of a given load; `loads`: those that share the time that is left."""
        if self._settings.requests is not None:
            return self._settings.requests / (load * self._planned.requests_per_arrival)
        if self._settings.step_s is not None:
            return self.with_warm_up(self._settings.step_s)
        return max(SHORTEST_S, self.left_s() / loads - RUN_S - self.rest())

    def search(self, series: Series) -> list[NextLoad]:
        """Choose the next loads; above the first load that fails only until the target is full."""
        start = self._today or 1.0
        lowest = LEAST * start
        highest = self._settings.most * start
        if not self._is_open:
            lowest = max(lowest, 1.0)
            highest = min(highest, self._most_users)
        search = Search(
            start=start,
            least=lowest,
            most=highest,
            growth=2.0,
            narrow=NARROW,
            on_both_sides=True,
            whole=not self._is_open,
        )
        if self.runs and not self._is_full() and self._highest().load * 2 <= search.most:
            return [NextLoad(2 * self._highest().load)]
        return search.next_loads(series.loads)

    def _highest(self) -> LoadRun:
        return max(self.runs, key=lambda run: run.load)

    def _is_full(self) -> bool:
        """Return whether the highest load was more than the target can do."""
        highest = self._highest()
        if self._is_open:
            refused = (highest.refused.low or 0.0) > self._refused
            many = (highest.refused.value or 0.0) > MANY_REFUSED
            return highest.saturated or (refused and (many or is_limited([highest])))
        lower = [run for run in self.runs if run.load < highest.load]
        return any(_gains_nothing(run, highest) for run in lower)

    def overrides_at(self, load: float) -> list[tuple[str, Any]]:
        """Return the traffic at another load."""
        if self._is_open:
            return super().overrides_at(load)
        closed: dict[str, Any] = {"users": int(load), "think_s": 0.0}
        if self._is_counted:
            closed["requests"] = self._settings.requests
        return [("arrival", {"process": CLOSED, "closed": closed})]

    def name_of(self, load: float) -> str:
        """Name the load, for readers."""
        if self._is_open:
            return super().name_of(load)
        return f"{load:.0f} in flight"

    def seconds_of(self, arrivals: int, load: float) -> float:
        """Return the seconds in which so many arrive; a closed loop always has some."""
        if not self._is_open:
            return 0.0
        return super().seconds_of(arrivals, load)

    def waiting(self, load: float, length_s: float) -> float:
        """Return the requests that may all come to wait in a run: none of a closed loop, whose users fit."""
        if not self._is_open:
            return 0.0
        return super().waiting(load, length_s)

    def measure(self, step: Step, reading: RunReading) -> CurveRun:
        """Measure a run."""
        run = measure(
            step.given.load,
            reading,
            requests_per_arrival=self._planned.requests_per_arrival,
            is_open=self._is_open,
        )
        return CurveRun(run, _point(run, reading), wait_for_core_ms(reading.frames, reading.steady))

    def answer(self) -> Answer:
        """Return what the runs show: the curve with its knee and saturation, judged by today's load.

        A load is judged together with its neighbours, so the points get their outcomes here. Without a run: INCONCLUSIVE,
        with an empty finding. Without an objective on a latency there is no knee.
        """
        if not self.results:
            return Answer("curve", Result(INCONCLUSIVE, NOTHING), {})
        series = self.series()
        objectives = tuple(map(_objective, on_latency(self._scenario.model_dump(mode="json"))))
        knee = UNKNOWN
        if objectives:
            knee = self._knee(series)
        points = sorted(self._points_measured(), key=lambda point: point.load)
        disturbance = disturbance_of(points, self._unit)
        saturation_tokens, saturation_requests = self._saturation(is_disturbed=bool(disturbance))
        judged = {}
        outcomes = {}
        for load in series.loads:
            judged[load.load] = load
            outcomes[load.load] = load.outcome
        judged_points = []
        for result in sorted(self.results, key=lambda result: result.run.load):
            judged_points.append(_judged_point(result.point, judged[result.run.load]))
        curve = Curve(
            by=self._settings.by,
            today=self._today,
            objectives=objectives,
            points=tuple(judged_points),
            knee=knee,
            binds=_binds(series) if objectives else "",
            saturation=saturation_tokens,
            saturation_load=saturation_requests,
            gpus=self._settings.gpus,
            scenario=self._scenario.name,
            target=self._scenario.target.url,
            model=self._scenario.target.model,
        )
        evidence = replace(self._evidence(series), disturbance=disturbance)
        outcome = self._outcome(series, outcomes, evidence)
        answer = _answer(
            curve,
            outcome,
            self._unit,
            [*self._doubts(points, outcome), *self.remarks],
            evidence=evidence,
            is_open=self._is_open,
            is_given=bool(self._settings.loads),
            is_counted=self._is_counted,
        )
        advice = self._advice(series, evidence, outcome)
        return replace(answer, result=replace(answer.result, advice=advice))

    def _evidence(self, series: Series) -> Evidence:
        missing = self.loads_without_run()
        if not self._settings.loads or series.binding is not None:
            return Evidence(missing=missing)
        holds, fails = self._ends(series)
        return Evidence(
            holds=holds, fails=fails, unsure=self._inconclusive_loads(series), missing=missing
        )

    def _ends(self, series: Series) -> tuple[float | None, float | None]:
        """Return the largest load that holds, and the smallest that fails; an earlier curve's where this one has none."""
        lowest, highest = bracket(series.loads)
        holds = None if lowest is None else lowest.load
        fails = None if highest is None else highest.load
        held_load = self._settings.held
        failed_load = self._settings.failed
        if holds is None and held_load is not None and (fails is None or held_load < fails):
            holds = held_load
        if fails is None and failed_load is not None and (holds is None or failed_load > holds):
            fails = failed_load
        return holds, fails

    def _inconclusive_loads(self, series: Series) -> list[InconclusiveLoad]:
        """Return the inconclusive loads between those that hold and fail."""
        holds, fails = self._ends(series)
        inconclusive = []
        for load in series.with_outcome(INCONCLUSIVE):
            if (holds or 0.0) < load.load < (fails or math.inf):
                inconclusive.append(explain(load))
        return inconclusive

    def _advice(self, series: Series, evidence: Evidence, outcome: str) -> str:
        """Return the command that answers what the loads leave open; empty where there is nothing, or no objective.

        It runs other loads, longer ones, or confirms the largest that holds; the ends that are known are passed on to it.
        A single load is advised only if the user gave loads by the options --rate or --concurrency. `evidence`,
        `outcome`: of the answer.
        """
        is_answered = not self._settings.loads and outcome != INCONCLUSIVE
        if is_answered or evidence.missing_between or not self._base.latency_objectives:
            return ""
        holds, fails = self._ends(series)
        following = follow_up(
            [run.load for run in self.runs],
            holds=holds,
            fails=fails,
            unsure=self._inconclusive_loads(series),
            whole=not self._is_open,
        )
        if following is None and outcome == PASS and holds is not None:
            following = FollowUp(reason=f"confirm {figures(holds)} by another run", loads=[holds])
        is_single = following is not None and len(following.loads) == 1
        is_of_options = bool(self._base.keys & {"experiment", "experiment.kind"})
        if following is None or (is_single and not is_of_options):  # one load is no list of loads
            return ""
        length, seconds = self._length_of(following)
        loads = ",".join(f"{load:.10g}" for load in following.loads)
        # The user's own overrides, without those that the options of the new command replace.
        pairs = [pair for pair in self._base.pairs if pair[0] not in OF_SWEEP]
        if not is_single:
            if holds is not None:
                pairs.append(("experiment.curve.held", _plain(holds)))
            if fails is not None:
                pairs.append(("experiment.curve.failed", _plain(fails)))
        overrides, options = as_options(pairs)
        options += ["--rate" if self._is_open else "--concurrency", loads, *length]
        command = self._base.command(overrides, options=options)
        minutes = max(1, round(seconds / 60))
        if not command:
            return ""
        return f"{following.reason}, about {plural(minutes, 'minute')}: {command}"

    def _length_of(self, following: FollowUp) -> tuple[list[str], float]:
        """Return the option that sets the length of each load to run next, and the seconds that all its runs take.

        A number of requests for each, if the user gave that, else seconds. Both are lengthened `following.times` times,
        and rounded up. A load with an unknown rate adds no seconds.
        """
        if self._settings.requests is not None:
            requests = self._settings.requests
            if following.times > 1:
                requests = _up(requests * following.times, ROUND_REQUESTS)
            lengths_s = []
            for load in following.loads:
                rate = self._served_at(load)
                if rate:
                    lengths_s.append(requests / rate + RUN_S)
            return ["--requests", str(requests)], sum(lengths_s)
        measured_s = [run.seconds for run in self.runs if run.load in following.loads]
        seconds = self._settings.step_s or max(measured_s, default=SHORTEST_S)
        if following.times > 1:
            seconds = _up(seconds * following.times, ROUND_S)
        return ["--duration", f"{seconds:.4g}s"], self.series_s(seconds, len(following.loads))

    def _served_at(self, load: float) -> float:
        """Return the requests per second of a load, by the run nearest to it."""
        if self._is_open:
            return load * self._planned.requests_per_arrival
        nearest = min(self.runs, key=lambda run: abs(math.log(run.load / load)))
        if not nearest.seconds:
            return 0.0
        return nearest.requests / nearest.seconds

    def _knee(self, series: Series) -> Ends:
        if self._is_open:
            return Ends(series.value, series.low, series.high)
        # A load is a whole number of users.
        return Ends(_floor(series.value), _floor(series.low), _floor(series.high))

    def _outcome(self, series: Series, outcomes: Mapping[float, str], evidence: Evidence) -> str:
        """Judge today's load: by the interval, else by its own runs.

        Without one a load must hold, and no load that may be the largest is open; it fails where every load does.
        """
        if self._today is None:
            if evidence.missing_between:
                return INCONCLUSIVE
            if series.low is None and evidence.holds is None:
                is_lowest = evidence.fails == min(outcomes)
                return FAIL if is_lowest else INCONCLUSIVE
            return INCONCLUSIVE if evidence.unsure else PASS
        return holds(self._today, series.low, series.high) or outcomes.get(
            self._today, INCONCLUSIVE
        )

    def _doubts(self, points: Sequence[CurvePoint], outcome: str) -> Iterator[str]:
        """Say what the intervals of the loads do not cover."""
        yield faster_with_more_load(points, self._unit)
        yield from self._waits_for_cores()
        if self._settings.loads and outcome == PASS and not self._is_open:
            yield ONE_RUN

    def _waits_for_cores(self) -> list[str]:
        """Say once that other processes took the cores of the workers."""
        waits_ms = [result.core_wait_ms for result in self.results if result.core_wait_ms]
        if not waits_ms:
            return []
        part = f"{len(waits_ms)} of {plural(len(self.results), 'run')}"
        longest = f"a worker waited up to {ms(max(waits_ms))} ms of a second for a core"
        text = f"other processes used the client's cores in {part}: {longest}"
        return [f"{text}; they slow a target on this machine too"]

    def _points_measured(self) -> list[CurvePoint]:
        return [result.point for result in self.results]

    def _saturation(self, *, is_disturbed: bool) -> tuple[Ends, Ends]:
        """Return output tokens/s and requests/s of the load that gave most tokens; without a value where none was too much.

        What a full target does varies with the calls that wait, so the interval is that of all loads that filled it.
        """
        points = self._points_measured()
        best = max(points, key=_output_rate)
        tokens = best.output_tokens_per_s
        requests = best.requests_per_s
        if is_disturbed or not self._is_full():
            return Ends(None, tokens.low or tokens.value), Ends(
                None, requests.low or requests.value
            )
        all_tokens = [tokens]
        all_requests = [requests]
        for result in self.results:
            if result.run.saturated:
                all_tokens.append(result.point.output_tokens_per_s)
                all_requests.append(result.point.requests_per_s)
        return _hull(all_tokens), _hull(all_requests)


def _check_known(base: Base, settings: CurveSettings) -> None:
    """Refuse ends of an earlier curve beside which nothing is run, or that contradict each other."""
    held_load = settings.held
    failed_load = settings.failed
    for key, load in (("held", held_load), ("failed", failed_load)):
        if load is not None and not settings.loads:
            raise base.refused(f"experiment.curve.{key}", "expected `loads` as well")
    if held_load is not None and failed_load is not None and held_load >= failed_load:
        raise base.refused(
            "experiment.curve.held", "expected a load below that of experiment.curve.failed"
        )


def _judged_point(point: CurvePoint, load: JudgedLoad) -> CurvePoint:
    return replace(point, meets=cast("CurveOutcome", load.outcome), meets_with=load.pooled_with)


def disturbance_of(points: Sequence[CurvePoint], unit: Unit) -> str:
    """Name a row that its load cannot explain: fewer answers than below and above it.

    Fewer answers at the highest loads alone are no such row: a target that is too full may lose throughput.
    """
    for number, point in enumerate(points):
        rate = point.requests_per_s
        is_faster = partial(_answers_more, requests_per_s=rate)
        lower = list(filter(is_faster, points[:number]))
        higher = list(filter(is_faster, points[number + 1 :]))
        if lower and higher:
            text = f"{unit.text(point.load)} gave {figures(rate.value or 0)} requests/s"
            neighbours = f"{_rate_at(lower[-1])} and {_rate_at(higher[0])}"
            return f"{text}, {neighbours}: {CHANGE}"
    return ""


def _answers_more(point: CurvePoint, requests_per_s: Ends) -> bool:
    return _is_above(point.requests_per_s, requests_per_s, GAINS)


def _rate_at(point: CurvePoint) -> str:
    return f"{figures(point.load)} gave {figures(point.requests_per_s.value or 0)}"


def faster_with_more_load(points: Sequence[CurvePoint], unit: Unit) -> str:
    """Name a row with faster answers than with less load."""
    for number, point in enumerate(points):
        ttft = point.quantile("ttft", "p50")
        # The nearest load below with slower answers.
        for lower in reversed(points[:number]):
            lower_ttft = lower.quantile("ttft", "p50")
            if not _is_above(lower_ttft, ttft, CHANGED):
                continue
            comparison = f"{figures(lower.load)} of {ms(lower_ttft.value or 0)} ms"
            text = (
                f"{unit.text(point.load)} had a TTFT p50 of {ms(ttft.value or 0)} ms, {comparison}"
            )
            return f"{text}: {CHANGE_OR_STEP}"
    return ""


def _is_above(higher: Ends, lower: Ends, times: float) -> bool:
    """Return whether one estimate is above another so many times, and by more than their intervals explain (Zou and Donner 2008)."""
    ends = (higher.value, higher.low, lower.value, lower.high)
    if any(not end or not math.isfinite(end) for end in ends):
        return False
    value, low, base, base_high = cast("tuple[float, float, float, float]", ends)
    ratio = math.log(value / base)
    return ratio > math.log(times) and ratio > math.hypot(
        math.log(value / low), math.log(base_high / base)
    )


def _floor(end: float | None) -> float | None:
    if not end:
        return end
    return float(math.floor(end))


def _output_rate(point: CurvePoint) -> float:
    return point.output_tokens_per_s.value or 0.0


def _plain(load: float) -> float:
    """Write 4.0 as 4."""
    if load != int(load):
        return load
    return int(load)


def _up(value: float, step: int) -> int:
    return step * math.ceil(value / step)


def _gains_nothing(run: LoadRun, higher: LoadRun) -> bool:
    """Return whether a closed loop with more users completes hardly more."""
    doublings = math.log2(higher.load / run.load)
    threshold: float = GAINS**doublings * run.served.value
    return higher.served.value < threshold


def _hull(estimates: Sequence[Ends]) -> Ends:
    """Return the first value, with an interval that covers those of all."""
    lows = []
    highs = []
    for ends in estimates:
        if ends.low is not None:
            lows.append(ends.low)
        if ends.high is not None:
            highs.append(ends.high)
    return Ends(estimates[0].value, min(lows, default=None), max(highs, default=None))


# --- a run as a point -----------------------------------------------------------------------------------------------


def _objective(row: Criterion) -> CurveObjective:
    quantile = percentile(row.objective.quantile)
    return CurveObjective(_metric_name(row), quantile, row.objective.bound, objective_text(row))


def _metric_name(row: Criterion) -> str:
    if row.is_of_all:
        return row.objective.metric
    return f"{row.objective.metric}_{row.name}"


def _point(run: LoadRun, reading: RunReading) -> CurvePoint:
    """Return a run as a point of the curve. Its outcome is INCONCLUSIVE until all runs are judged together.

    Rates are of the steady stage, per second; `latency` has quantiles in ms, by metric, failures slowest. `complete`:
    share of the requests.
    """
    evidence = reading.evidence
    stage = reading.steady
    throughput = evidence.throughput
    work = block_work(stage)
    wanted = on_latency(reading.frames.run["scenario"])
    latency = {}
    for name in SHOWN:
        latency[name] = _latency(reading, name)
    pace = latency["tpot"].get("p50", UNKNOWN)
    for row in wanted:
        latency[_metric_name(row)] = _bounded_latency(reading, row)
    complete = 0.0
    if run.requests:
        complete = block_answered(stage)
    return CurvePoint(
        load=run.load,
        runs=(reading.run_id,),
        seconds=stage.seconds,
        requests=run.requests,
        complete=complete,
        refused=Ends.of(run.refused),
        growth_per_s=run.growth_per_s if run.growing else None,
        stable=False if run.growing else evidence.stability.stable,
        meets=cast("CurveOutcome", INCONCLUSIVE),
        requests_per_s=Ends.of(throughput.requests and throughput.requests.rate()),
        output_tokens_per_s=Ends.of(throughput.tokens and throughput.tokens.rate()),
        good_per_s=_good_per_s(reading, wanted),
        latency=latency,
        user_tokens_per_s=pace.under(1000),
        prompt_tokens=work.get("prompt tokens"),
        output_tokens=work.get("output tokens"),
    )


def _latency(reading: RunReading, name: str) -> dict[CurveQuantile, Ends]:
    """Return quantiles of all requests; ttft and e2e since scheduled, in a closed loop since sent."""
    suffix = "_sent" if reading.frames.run["arrival"] == "closed" else "_sched"
    rows = {}
    for row in reading.evidence.latency:
        if row.view == OFFERED:
            rows[row.metric.name] = row
    return _ends((rows.get(name) or rows[name + suffix]).quantiles)


def _bounded_latency(reading: RunReading, row: Criterion) -> dict[CurveQuantile, Ends]:
    """Return quantiles of the requests of an objective, at its quantile too."""
    ps = tuple(sorted({*QUANTILES, row.objective.quantile}))
    metric = row.on(reading.steady).metric
    assert metric is not None
    return _ends(latency_row(metric, row.part(reading.steady), row.view, ps).quantiles)


def _ends(quantiles: Sequence[Quantile]) -> dict[CurveQuantile, Ends]:
    ends = {}
    for quantile in quantiles:
        values = quantile_values(quantile)
        ends[percentile(quantile.p)] = Ends(values["value"], values["low"], values["high"])
    return ends


def _good_per_s(reading: RunReading, wanted: Sequence[Criterion]) -> Ends:
    """Return the good requests that ended per second."""
    work = reading.evidence.throughput.requests
    warmup = reading.evidence.warmup
    if work is None or warmup is None or unknown_pace(wanted, reading.steady):
        return UNKNOWN
    good = []
    for stage in (reading.steady, warmup):
        numbers = stage.requests["request_id"].to_numpy(np.int64)
        good.append(numbers[good_requests(wanted, stage)])
    return Ends.of(work.rate(np.concatenate(good)))


# --- the answer -----------------------------------------------------------------------------------------------------


def _binds(series: Series) -> str:
    """Name what ends the curve: what failed the lowest load that fails, or the limit that is below it."""
    if series.binding is not None:
        return BACKLOG if series.binding.limit is None else REFUSALS
    failed = series.with_outcome(FAIL)
    if not failed:
        return ""
    return failed[0].cause


def _answer(
    curve: Curve,
    outcome: str,
    unit: Unit,
    remarks: Sequence[str],
    *,
    evidence: Evidence,
    is_open: bool,
    is_given: bool,
    is_counted: bool,
) -> Answer:
    """Return the answer with its sentence, details, table, pictures and card.

    `evidence`: what is known of given loads. `is_open`: loads are rates. `is_given`: the user gave the loads.
    `is_counted`: each load sent a given number of requests. `remarks`: sentences, or empty texts, that come last in the
    details.
    """
    knee = curve.knee
    today = dict.fromkeys(_today(curve, unit))  # two objectives on one percentile have one text
    holds = ""
    if curve.objectives:
        holds = _holding_text(curve, unit, evidence)
    # Loads below the probable one hold where it does.
    causes = []
    for load in evidence.unsure:
        if load.load >= (evidence.probable or 0.0):
            causes.append(f"inconclusive at {unit.text(load.load)}: {load.text}")
    full = evidence.disturbance or _saturation_text(curve, unit)
    texts = [holds, *causes, full, *today, _missing(evidence, unit)]
    if not curve.objectives:
        texts.append(NO_SLO)
    sentence, *details = filter(None, [*texts, *remarks])
    smallest = ""
    if knee.value and knee.low is not None and knee.high is not None and evidence.holds is None:
        change = (knee.high - knee.low) / knee.value
        if change < 1:  # an interval as wide as the load shows no change
            smallest = f"a change of the largest load that holds by {share(change)}"
    note = NOTE.format("scheduled" if is_open else "sent")
    table = Table.of("Loads", curve.points, _columns(curve, unit), note)
    table = replace(table, brief=_brief(table.header))
    result = Result(
        outcome, sentence, tuple(_lines(curve, outcome, unit, evidence)), tuple(details)
    )
    return answered(
        "curve",
        "Load curve",
        result,
        curve,
        [table],
        notes=[*_notes(curve, evidence, is_given=is_given, is_counted=is_counted), FILES_NOTE],
        smallest=smallest,
        pictures=curve_pictures(curve),
        files=curve_files(curve),
        card=_card(curve, outcome, unit, evidence),
    )


def _card(curve: Curve, outcome: str, unit: Unit, evidence: Evidence) -> Card | None:
    """Return the largest load at which the objectives hold, else where the target saturates; None where neither is known.

    In this order: the load that probably holds, the given loads that hold and fail, the knee with its interval, its low
    end alone, the saturation.
    """
    knee = curve.knee
    saturation = curve.saturation_load
    holds = _hold_text(curve)
    full = evidence.disturbance or _saturation_text(curve, unit)
    lines = [full, *dict.fromkeys(_today(curve, unit))]
    load = _largest_held(curve, evidence)
    if load is not None:
        lines = [*filter(None, [_work_at(curve, unit, load)]), *lines]
    if evidence.probable is not None:
        value = Value(unit.text(evidence.probable))
        fails = ""
        if evidence.fails is not None:
            fails = f"; {_failure(curve)} at {figures(evidence.fails)}"
        detail = f"is the largest load of this sweep at which {holds} probably, which was not shown{fails}"
    elif evidence.holds is not None and evidence.fails is not None:
        value = Value(unit.text(evidence.holds))
        detail = f"is the largest load of this sweep at which {holds}; {_failure(curve)} at {figures(evidence.fails)}"
    elif knee.value is not None:
        value = Value(unit.text(knee.value), interval_text(knee.low, knee.high))
        detail = f"is the largest load at which {holds}"
    elif knee.low is not None:
        value = Value(f"≥ {unit.text(knee.low)}")
        detail = f"is a load at which {holds}; {_beyond_largest(curve, evidence)}"
    elif saturation.value is not None:
        value = Value(
            f"{figures(saturation.value)} requests/s",
            interval_text(saturation.low, saturation.high),
        )
        detail = "is what the target completes when it is full"
        lines = lines[1:]  # the saturation is the value
    else:
        return None
    tone: Tone = ""
    if curve.objectives:
        tone = tone_of(outcome)
    return Card(label="curve", value=value, detail=detail, lines=tuple(lines), tone=tone)


def _hold_text(curve: Curve) -> str:
    return "the objective holds" if len(curve.objectives) == 1 else "the objectives hold"


def _failure(curve: Curve) -> str:
    return "it fails" if len(curve.objectives) == 1 else "they fail"


def _largest_held(curve: Curve, evidence: Evidence) -> float | None:
    """Return the largest load that was run and holds, or probably does."""
    if evidence.probable is not None:
        return evidence.probable
    if evidence.holds is not None:
        return evidence.holds
    ends = [end for end in (curve.knee.value, curve.knee.low) if end is not None]
    if not ends:
        return None
    passing = []
    for point in curve.points:
        if point.meets == PASS and point.load <= max(ends):
            passing.append(point.load)
    return max(passing, default=None)


def _point_at(curve: Curve, load: float) -> CurvePoint | None:
    return next((point for point in curve.points if point.load == load), None)


def _latencies_at(curve: Curve, load: float) -> str:
    """Say `TTFT p95 154 ms` of each objective that is known there; empty where none is."""
    point = _point_at(curve, load)
    if point is None:
        return EARLIER
    texts = []
    for objective in curve_objectives(curve):
        quantile = point.quantile(objective.metric, objective.quantile)
        if quantile.value is not None:
            texts.append(f"{_name(objective)} {ms(quantile.value)} ms")
    return ", ".join(dict.fromkeys(texts))


def _work_at(curve: Curve, unit: Unit, load: float) -> str:
    """Say `measured at 4 requests in flight: TTFT p95 154 ms, 5.8 requests/s answered, 350 output tokens/s`."""
    return f"measured at {unit.text(load)}: {_measured_at(curve, load)}"


def _rates_at(curve: Curve, load: float) -> str:
    """Say `5.8 requests/s answered, 350 output tokens/s`."""
    point = _point_at(curve, load)
    if point is None:
        return ""
    texts = []
    if point.requests_per_s.value is not None:
        texts.append(f"{figures(point.requests_per_s.value)} requests/s answered")
    if point.output_tokens_per_s.value is not None:
        texts.append(f"{figures(point.output_tokens_per_s.value)} output tokens/s")
    return ", ".join(texts)


def _name(objective: CurveObjective) -> str:
    """Name an objective's percentile: `TTFT p95`."""
    metric = objective.metric
    if metric in {"ttft", "tpot"}:
        metric = metric.upper()
    return f"{metric} {objective.quantile}"


def _beyond_largest(curve: Curve, evidence: Evidence) -> str:
    """Say why nothing is known above the largest load that holds."""
    gaps = "; ".join(_gaps(curve, evidence))
    if gaps:
        return gaps
    low = curve.knee.low or 0.0
    is_tested = any(point.load > low and point.meets == INCONCLUSIVE for point in curve.points)
    return "higher loads are inconclusive" if is_tested else "no higher load was tested"


def _missing(evidence: Evidence, unit: Unit) -> str:
    """Name the loads without a usable run."""
    if not evidence.missing:
        return ""
    return f"no valid run at {listed(map(figures, evidence.missing))} {unit.name}: the answer is that of the other loads"


def _holding_text(curve: Curve, unit: Unit, evidence: Evidence) -> str:
    """Return the answer's first sentence: `the objective holds up to 14.2 requests/s (13.6 – 14.9)`.

    Of given loads it names the largest at which the objectives hold and the smallest at which they fail, with what was
    measured there. Then what happens beyond: calls are refused, the backlog grows, or which objective fails.
    """
    knee = curve.knee
    is_single = len(curve.objectives) == 1
    holds = _hold_text(curve)
    # What binds is a limit, the capacity, or the name of an objective; a single objective is not named again.
    ends = {REFUSALS: "then calls are refused", BACKLOG: "then the backlog grows"}
    consequence = ends.get(curve.binds, "")
    if curve.binds not in ends and not is_single:
        consequence = f"then {curve.binds} fails"
    load = _largest_held(curve, evidence)
    work = ""
    if load is not None:
        work = f" ({_measured_at(curve, load)})"
    if evidence.probable is not None:
        return _probably_holds(curve, evidence, f"{unit.text(evidence.probable)}{work}")
    if evidence.holds is not None and evidence.fails is not None:
        fails = "fails" if is_single else "fail"
        text = (
            f"{holds} at {unit.text(evidence.holds)}{work} and {fails} at {figures(evidence.fails)}"
        )
        if latencies := _latencies_at(curve, evidence.fails):
            text += f" ({latencies})"
        return "; ".join(filter(None, [text, *_gaps(curve, evidence), consequence]))
    if knee.value is not None:
        text = f"{holds} up to {unit.text(knee.value)} (CI {interval_text(knee.low, knee.high)})"
        place = ""
        if load is not None:
            place = _work_at(curve, unit, load)
        return "; ".join(filter(None, [text, consequence, place]))
    if knee.low is not None:
        place = "up to" if load is None or load < knee.low else "at"
        return f"{holds} {place} {unit.text(knee.low)}{work}; {_beyond_largest(curve, evidence)}"
    if knee.high is not None:
        return _failing_text(curve, unit, evidence, knee.high)
    return f"inconclusive at every load: not shown whether {holds}"


def _probably_holds(curve: Curve, evidence: Evidence, probable: str) -> str:
    """Say `the objective probably holds at 4 requests in flight (...), and fails at 8 (...); shown at 2`."""
    is_single = len(curve.objectives) == 1
    text = f"the objective{' probably holds' if is_single else 's probably hold'} at {probable}"
    if evidence.fails is not None:
        text += f" and {'fails' if is_single else 'fail'} at {figures(evidence.fails)}"
        latencies = _latencies_at(curve, evidence.fails)
        if latencies:
            text += f" ({latencies})"
    else:
        text += "; no higher load was tested"
    proof = "not shown at any load"
    if evidence.holds is not None:
        proof = f"shown at {figures(evidence.holds)}"
    return "; ".join(filter(None, [text, proof, _missing_between(evidence)]))


def _failing_text(curve: Curve, unit: Unit, evidence: Evidence, high: float) -> str:
    """Return the first sentence where no load was shown to hold; `high`: the lowest load that fails.

    Loads between, whose runs decide nothing or are missing, are named.
    """
    is_single = len(curve.objectives) == 1
    missing = _missing_between(evidence)
    if evidence.unsure:
        loads = listed(figures(load.load) for load in evidence.unsure)
        failure = f"{_failure(curve)} at {figures(high)}"
        text = f"not shown whether {_hold_text(curve)} at {loads} {unit.name}; {failure}"
        latencies = ""
        if high == evidence.fails:
            latencies = _latencies_at(curve, high)
        if latencies:
            text += f" ({latencies})"
        return "; ".join(filter(None, [text, missing]))
    fails = "the objective does not hold" if is_single else "the objectives do not hold"
    text = f"{fails} at {unit.text(high)}"
    if high <= curve.points[0].load and not evidence.missing:
        return f"{text}, the lowest load of this sweep"
    return f"{text}, the lowest load that fails; {missing or 'no load was shown to hold'}"


def _measured_at(curve: Curve, load: float) -> str:
    return ", ".join(filter(None, [_latencies_at(curve, load), _rates_at(curve, load)]))


def _gaps(curve: Curve, evidence: Evidence) -> Iterator[str]:
    """Name the loads between that which holds and that which fails, of which nothing is known."""
    if missing := _missing_between(evidence):
        yield missing
    if evidence.unsure:
        texts = []
        for load in evidence.unsure:
            latencies = _latencies_at(curve, load.load)
            text = figures(load.load)
            if latencies:
                text += f" ({latencies})"
            texts.append(text)
        yield f"inconclusive at {listed(texts)}"


def _missing_between(evidence: Evidence) -> str:
    if not evidence.missing_between:
        return ""
    return f"no valid run at {listed(map(figures, evidence.missing_between))}"


def _least_of_full(curve: Curve, point: CurvePoint, best: CurvePoint) -> float:
    """Return the share of the most output tokens/s from which a load fills the target; users who add little fill it too."""
    if curve.by == RATE or point.load >= best.load:
        return SATURATED
    doublings = math.log2(best.load / point.load)
    gain: float = GAINS**doublings
    return min(SATURATED, 1 / gain)


def _saturation_text(curve: Curve, unit: Unit) -> str:
    """Return `saturated at 24 requests/s: the target completes at most 2,430 output tokens/s and 19 requests/s`.

    The load named is the lowest that gives about as many output tokens/s as the best one. Where no load was shown to be
    too much, the text says what the highest one gained.
    """
    tokens = curve.saturation
    requests = curve.saturation_load
    best = max(curve.points, key=_output_rate)
    # The first load that gives about as many tokens as the best one.
    full = best
    for point in curve.points:
        if _output_rate(point) >= _least_of_full(curve, point, best) * _output_rate(best):
            full = point
            break
    rates = []
    if tokens.value is not None:
        rates.append(f"{figures(tokens.value)} output tokens/s")
    if requests.value is not None:
        rates.append(f"{figures(requests.value)} requests/s")
        is_first = len(curve.points) > 1 and full is curve.points[0]
        place = unit.text(full.load)
        if is_first and curve.by != RATE:
            place += " or fewer"
        text = f"saturated at {place}: the target completes at most {' and '.join(rates)}"
        if curve.by != RATE:
            text += "; more requests in flight only wait longer"
        return text
    return _highest_load_text(curve, unit)


def _highest_load_text(curve: Curve, unit: Unit) -> str:
    """Return what the highest load gained over the one below it, where no load was shown to be too much.

    At a rate: whether all was answered. In a closed loop: how many more output tokens/s, and whether that is within the
    intervals.
    """
    highest = curve.points[-1]
    answered_per_s = highest.requests_per_s
    if curve.by == RATE and (answered_per_s.high or math.inf) < highest.load * unit.requests:
        rate = f"{figures(answered_per_s.value or 0.0)} requests/s answered at {unit.text(highest.load)}"
        return f"{rate}: it may be more than the target can do"
    text = f"no saturation up to {unit.text(highest.load)}"
    if curve.by == RATE or len(curve.points) < 2:
        return text
    lower = curve.points[-2]
    lower_rate = lower.output_tokens_per_s.value or 0.0
    gain = 0.0
    if lower_rate:
        gain = (highest.output_tokens_per_s.value or 0.0) / lower_rate - 1
    if gain <= 0:
        return text
    increase = f"{gain:.0%} more output tokens/s than at {figures(lower.load)}"
    has_intervals = (
        highest.output_tokens_per_s.low is not None and lower.output_tokens_per_s.high is not None
    )
    if not has_intervals or _is_above(highest.output_tokens_per_s, lower.output_tokens_per_s, 1.0):
        return f"{text}: {increase}"
    return f"not shown whether {unit.text(highest.load)} saturate the target: {increase}, a difference within the intervals"


def _today(curve: Curve, unit: Unit) -> Iterator[str]:
    """Say `at today's 6 requests/s TTFT p95 is 420 ms`."""
    for point in curve.points:
        if point.load == curve.today:
            for objective in curve_objectives(curve):
                quantile = point.quantile(objective.metric, objective.quantile)
                if not curve.objectives and quantile.value is None and quantile.low is None:
                    continue  # as of a fan-out, which has no TTFT
                value = "not known (too few requests)"
                if quantile.value is not None:
                    value = f"{ms(quantile.value)} ms"
                elif quantile.low:
                    value = f"at least {ms(quantile.low)} ms"
                yield f"at today's {unit.text(point.load)} {_name(objective)} is {value}"
            return


def _lines(curve: Curve, outcome: str, unit: Unit, evidence: Evidence) -> Iterator[ObjectiveLine]:
    if curve.today is not None:
        knee = curve.knee
        name = f"today's {figures(curve.today)} {unit.name}"
        largest = knee.value if evidence.holds is None else evidence.holds
        yield load_line(name, outcome, curve.today, (largest, knee.low, knee.high), unit.name)


def _columns(curve: Curve, unit: Unit) -> Iterator[Column[CurvePoint]]:
    """Return what the table shows of a load."""
    bounded = [(objective.metric, objective.quantile) for objective in curve.objectives]
    yield (
        unit.name,
        lambda point: f"{figures(point.load)}{' (today)' if point.load == curve.today else ''}",
    )
    for name in dict.fromkeys([("ttft", "p50"), ("ttft", "p95"), *bounded, ("tpot", "p50")]):
        yield f"{' '.join(name)}, ms", partial(_latency_cell, name)
    yield "answered requests/s", lambda point: _cell(point.requests_per_s)
    yield "output tokens/s", lambda point: _cell(point.output_tokens_per_s)
    if curve.objectives:
        yield "goodput requests/s", lambda point: _cell(point.good_per_s)
    yield "refused", lambda point: share(point.refused.value)
    if curve.by == RATE:  # the users of a closed loop wait for their answers
        yield "backlog grows", _grows
    yield "holds", _outcome_cell
    yield "requests", lambda point: f"{point.requests:,}"


def _brief(header: Sequence[str]) -> tuple[int, ...]:
    """Return the columns of a terminal: latency, what was answered, whether it holds; the others as far as they fit."""
    order = [header[0]]
    for name in header[1:]:
        if not name.startswith((*LAST_COLUMNS, "requests")):
            order.append(name)
    order += LAST_COLUMNS
    return tuple(header.index(name) for name in order if name in header)


def _latency_cell(name: tuple[str, str], point: CurvePoint) -> Cell:
    quantile = point.quantile(*name)
    if quantile.value is None and quantile.low is not None:
        return f"> {ms(quantile.low)}"
    return _cell(quantile, ms)


def _cell(ends: Ends, text_of: Callable[[float], str] = figures) -> Cell:
    if ends.value is None:
        return NONE
    return estimate(ends.value, ends.low, ends.high, text_of)


def _outcome_cell(point: CurvePoint) -> Value:
    """Say `pass`, or `pass (5 does)` where its own requests did not decide it."""
    outcome = point.meets.lower()
    if point.meets_with:
        verb = "does" if len(point.meets_with) == 1 else "do"
        outcome += f" ({listed(map(figures, point.meets_with))} {verb})"
    return Value(outcome, outcome=point.meets)


def _grows(point: CurvePoint) -> str:
    if point.growth_per_s is not None:
        return f"{figures(point.growth_per_s)}/s"
    return "yes" if point.stable is False else "no"


def _notes(curve: Curve, evidence: Evidence, *, is_given: bool, is_counted: bool) -> Iterator[str]:
    """Say what a reader must know of the curve."""
    measured_s = [point.seconds for point in curve.points]
    durations = list(dict.fromkeys(figures(seconds) for seconds in sorted(measured_s)))
    part = "from its first request" if is_counted else "after its warm-up"
    yield f"each load was measured for {' – '.join(durations[:1] + durations[1:][-1:])} s, {part}"
    lengths = [point.output_tokens for point in curve.points if point.output_tokens]
    if lengths and max(lengths) > UNEQUAL * min(lengths):
        span = f"{min(lengths):,.0f} to {max(lengths):,.0f} tokens"
        yield f"answers have {span}, depending on the load, so that the work is not the same; set traffic.*.output = 'exact'"
    if curve.saturation.value is None and not is_given and not evidence.disturbance:
        yield "no load was too much for the target: raise experiment.curve.most or experiment.minutes"
    if is_given:
        yield "the loads ran in random order, so that a change of the target in the meantime does not look like an effect of the load"
    if curve.knee.is_interval:
        yield "the knee lies between the largest load that holds and the smallest that fails"
