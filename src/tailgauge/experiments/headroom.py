"""Headroom: which load is sustained, what binds, and how much today's traffic may grow.

Up from today's rate until something refuses, piles up or misses an objective, then between the ends, or on both sides of a
known limit; with no_429, one run at today's rate. FAIL if today's rate, or the growth that is needed, is not sustained;
INCONCLUSIVE if that lies inside the interval, or nothing was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from tailgauge.experiments.course import Base, Effort, RunReading, Step, as_options
from tailgauge.experiments.loads import limits
from tailgauge.experiments.loads.forecast import efforts
from tailgauge.experiments.loads.judge import JudgedLoad, is_limited
from tailgauge.experiments.loads.limits import CAPACITY, OBJECTIVES, Bound, Limit
from tailgauge.experiments.loads.planner import Series, SeriesPlanner, Unit, holds
from tailgauge.experiments.loads.run import Interval, LoadRun, measure
from tailgauge.experiments.loads.search import NextLoad, Search
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.scenario.figures import BOUNDS_EVERY_FAILURE
from tailgauge.scenario.objective import values_needed
from tailgauge.schedule.settings import POISSON
from tailgauge_analysis import (
    COUNTED,
    FAIL,
    GREEN,
    GREY,
    INCONCLUSIVE,
    MOST_FACTOR,
    PASS,
    RED,
    REQUESTS,
    Card,
    Cell,
    Column,
    Mark,
    ObjectiveLine,
    Panel,
    Picture,
    PlotCurve,
    Result,
    Table,
    Value,
    estimate_curve,
    figures,
    kind_name,
    listed,
    plural,
    share,
    share_cell,
    worst_outcome,
)

LEAST = 1 / 64  # of today's rate
DOUBLE = 2.0  # growth where nothing refuses
RARE = 1e-4  # refused share that a reader calls none
RARELY = "1 in 10,000 refused"
MINUTE_S = 60  # over which most limits count
SPARE = 1.2  # times the needed length: a warm-up of a tenth, and arrivals that come more slowly than planned
EVENLY = "--set arrival.process=constant"
NO_HEADER = "no answer without a 429: no header of the target names a limit"
SAME_TRACE = "a trace has fixed arrivals: every rate was run once, without a burst that empties the bucket first"
CONTRADICTED = (
    "the rows contradict {}, which by itself sustains {}: the answer is based on the rows alone"
)
RATES_NOTE = (
    "Each row pools the runs of one rate. “Offered” and “answered” are what came of the planned rate, per second. “Refused” counts "
    "429, 529 and 503."
)
LIMITS_NOTE = "Each row is one limit, the tightest first. “Sustained” is the rate at which the limit refuses the allowed share of calls."
FIGURE_NOTE = "Bars are 95% intervals. The shaded range reaches from the highest rate that passes to the lowest that fails."

OUTCOME_COLOURS = {PASS: GREEN, FAIL: RED, INCONCLUSIVE: GREY}
VERDICTS = {PASS: "sustained", FAIL: "not sustained", INCONCLUSIVE: "inconclusive"}


@dataclass(frozen=True, slots=True)
class WithoutCache:
    """What would be sustained without reads from the cache."""

    low_per_s: float
    high_per_s: float
    binding: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """What was found, in arrivals/s: the best value, the highest rate that holds, the lowest that fails; None if unknown.

    `unit`: of the rates; `requests_per_arrival`: of a conversation; `prompts_per_request`: of a fan-out or a batch.
    `rarely_refused_per_s`: the rate at which the limit that binds refuses one call in 10,000; `evenly_per_s`: up to which
    evenly spaced requests are never refused.
    """

    today_per_s: float
    refused_at_most: float
    no_429: bool
    unit: str
    requests_per_arrival: float
    prompts_per_request: float = 1.0
    sustained_per_s: float | None = None
    low_per_s: float | None = None
    high_per_s: float | None = None
    rarely_refused_per_s: float | None = None
    evenly_per_s: float | None = None
    growth: float | None = None
    binding: str | None = None
    without_cache: WithoutCache | None = None
    limits: tuple[Bound, ...] = ()

    def text(self, per_s: float) -> str:
        """Name a rate."""
        return Unit(self.unit, self.requests_per_arrival, self.prompts_per_request).text(per_s)

    def times(self, per_s: float) -> float:
        """Return a rate relative to today's."""
        return per_s / self.today_per_s

    @property
    def pace_per_s(self) -> float | None:
        """Return the rate to recommend: without refusals where that is known, as text to three digits."""
        rates = [rate for rate in (self.rarely_refused_per_s, self.low_per_s) if rate]
        if not rates:
            return None
        return float(f"{min(rates):.3g}")


class HeadroomPlanner(SeriesPlanner):
    """The course, and its results."""

    def __init__(self, base: Base) -> None:
        self._settings = base.table.headroom
        super().__init__(base, self._settings, self._settings.precision)
        if not base.latency_objectives:
            self.checks = COUNTED  # of refusals and backlogs
        self._today = base.today()
        self.plan_arrivals()

    @property
    def runs(self) -> list[LoadRun]:
        """Return the runs until now."""
        return self.results

    @property
    def is_search(self) -> bool:
        """Return whether the target decides which rates are run."""
        return not self._settings.no_429

    def efforts(self) -> Sequence[Effort]:
        """Return what the search takes at each of several targets that are assumed."""
        if not self.is_search:
            return ()
        is_single = self._planned.requests_per_arrival == 1
        return efforts(lambda: HeadroomPlanner(self._base), self._today, names_limits=is_single)

    def search(self, series: Series) -> list[NextLoad]:
        """Search, or run today's rate once."""
        if self._settings.no_429:
            if series.loads:
                return []
            return [NextLoad(self._today)]
        limited = is_limited(self.runs)
        search = Search(
            start=self._today,
            least=LEAST * self._today,
            most=self._settings.most * self._today,
            growth=self._settings.growth if limited else DOUBLE,
            narrow=1 + self._settings.precision,
            confirm=1 if self._is_trace else self._settings.confirm,
            period_s=self.left_s() / 10,
        )
        ceiling = min((bound.per_s.high for bound in series.limit_bounds), default=None)
        known_rate = None
        if series.binding is not None and series.binding.limit is not None and not self._is_trace:
            known_rate = series.binding.per_s
        return search.next_loads(series.loads, known_rate, ceiling)

    def overrides_at(self, load: float) -> list[tuple[str, Any]]:
        """Return today's traffic at another rate; the first run keeps its shape."""
        if load != self._today or self._kept:
            return super().overrides_at(load)
        return []

    def measure(self, step: Step, reading: RunReading) -> LoadRun:
        """Measure a run."""
        return measure(
            step.given.load, reading, requests_per_arrival=self._planned.requests_per_arrival
        )

    def answer(self) -> Answer:
        """Return which rate is sustained, what binds, and how much today's traffic may grow.

        With no_429 it follows from the limits that the headers name, else from the rates that were run. Without a run:
        INCONCLUSIVE. The advice has a line for each next step.
        """
        sustained = Sustained(
            today_per_s=self._today,
            refused_at_most=self._settings.refused,
            no_429=self._settings.no_429,
            unit=self._unit.name,
            requests_per_arrival=self._planned.requests_per_arrival,
            prompts_per_request=self._planned.prompts,
        )
        if not self.results:
            result = Result(INCONCLUSIVE, NOTHING, details=tuple(self.remarks))
            return answered("headroom", "Sustained rate", result, sustained, [])
        series = self.series()
        read_series = _by_headers if sustained.no_429 else _by_search
        sustained = read_series(sustained, series)
        sustained = replace(
            sustained,
            rarely_refused_per_s=self._rarely_refused(series.binding),
            evenly_per_s=self._evenly(series.binding),
        )
        remarks = self.remarks
        if self._is_trace:
            remarks = [SAME_TRACE, *remarks]
        if sustained.high_per_s is None and not self._is_simulated and not is_limited(self.runs):
            remarks += _too_short(series)
        answer = _answer(sustained, series, self._settings.need, remarks)
        if sustained.no_429:
            return answer
        steps = self._next_steps(sustained, series, answer.result)
        return replace(answer, result=replace(answer.result, advice="\n".join(steps)))

    @property
    def _is_simulated(self) -> bool:
        return self._scenario.target.url == SIMULATED

    def _rarely_refused(self, binding: Bound | None) -> float | None:
        """Return the rate at which the limit that binds refuses almost nothing; None without such a limit."""
        if binding is None or binding.limit is None:
            return None
        rare = limits.bounds(
            self.runs, self._planned, min(RARE, self._settings.refused), self._precision
        )
        for bound in rare:
            if bound.kind == binding.kind:
                return bound.per_s.value
        return None

    def _evenly(self, binding: Bound | None) -> float | None:
        """Return up to which rate evenly spaced requests are never refused, where each costs the same and they are random now."""
        limit = None if binding is None else binding.limit
        is_single = self._planned.requests_per_arrival == self._planned.prompts == 1
        if limit is None or limit.kind != REQUESTS or not is_single or not self._is_random:
            return None
        return limit.rate.low

    @property
    def _is_random(self) -> bool:
        return self._scenario.arrival.process == POISSON

    def _next_steps(self, sustained: Sustained, series: Series, result: Result) -> list[str]:
        """Return what to change where the rate that is needed is not sustained, at the client or the provider; a longer search where no rate held."""
        steps = []
        if sustained.high_per_s is not None and not _confirmed_loads(sustained, series):
            minutes = f"experiment.minutes={2 * self._base.table.minutes:g}"
            steps.append(
                f"search longer: {self._command(self._today, 'experiment.kind=headroom', minutes)}"
            )
        if result.outcome != FAIL:
            return steps
        if sustained.pace_per_s:
            steps.append(self._pace(sustained, series, sustained.pace_per_s))
        if series.binding is not None and sustained.sustained_per_s:
            needed = self._today * max(1.0, self._settings.need)
            steps.append(_more_at_provider(series.binding, needed, sustained))
        if any(run.retries for run in self.runs):
            steps.append(
                "switch retries off while calls are refused: the limit admits no more of them"
            )
        return steps[:1] + [f"or {step}" for step in steps[1:]]

    def _pace(self, sustained: Sustained, series: Series, rate: float) -> str:
        """Recommend the rate `rate` for the client with its reason, then alternatives, and the run that confirms it.

        Of a trace, or where the run would exceed guard.max_requests, no run is named.
        """
        text = f"pace the client at {sustained.text(rate)}"
        if sustained.rarely_refused_per_s is not None:
            text += f": no refusals{_at_random(is_random=self._is_random)}"
        alternatives = []
        if sustained.evenly_per_s:
            alternatives.append(
                f"up to {figures(sustained.evenly_per_s)} if evenly spaced ({EVENLY})"
            )
        if sustained.low_per_s and rate < float(f"{sustained.low_per_s:.3g}"):
            alternatives.append(
                f"{figures(sustained.low_per_s)} if {_allowed(sustained)} may be refused"
            )
        if alternatives:
            text += f"; {', '.join(alternatives)}"
        seconds = self._confirming_s(series, rate)
        allowed = self._base.scenario.guard.max_requests
        is_too_long = (
            allowed is not None and allowed < seconds * rate * sustained.requests_per_arrival
        )
        if self._is_trace or is_too_long:
            return text
        minutes = math.ceil(seconds / MINUTE_S)
        options = ["--duration", f"{minutes}m"]
        if not any(row.metric in BOUNDS_EVERY_FAILURE for row in self._scenario.slo.values()):
            options += ["--slo", f"error_rate < {100 * sustained.refused_at_most:.10g}%"]
        return f"{text}. A run of {plural(minutes, 'minute')} confirms it: {self._command(rate, options=options)}"

    def _confirming_s(self, series: Series, rate: float) -> float:
        """Return the length of a run that decides the share, and in which a full bucket cannot carry a rate that is too high.

        Too high is beyond the refill by the precision of the search.
        """
        needs = [row.needs() or 0 for row in self._scenario.slo.values()]
        requests = max([values_needed(self._settings.refused), *needs])
        measured_s = requests / (rate * self._planned.requests_per_arrival)
        limit = None if series.binding is None else series.binding.limit
        if limit is not None:
            excess_per_s = self._settings.precision * limit.rate.value
            measured_s = max(measured_s, limit.burst.high / excess_per_s)
        stages = self._scenario.stages
        return SPARE * measured_s + (stages.warmup_s or 0.0) + stages.cooldown_s

    def _command(self, rate_per_s: float, *overrides: str, options: Sequence[str] = ()) -> str:
        """Return the command of a run of the same traffic at this rate."""
        replaced = {"arrival.rate_per_s", "stages.duration_s"}
        pairs = []
        for key, value in self._base.pairs:
            if not key.startswith("experiment") and key not in replaced:
                pairs.append((key, value))
        arguments, named = as_options(pairs)
        rate = ["--rate", f"{rate_per_s:.10g}"]
        return self._base.command([*arguments, *overrides], options=[*named, *rate, *options])


# --- what was found -------------------------------------------------------------------------------------------------


def _by_search(sustained: Sustained, series: Series) -> Sustained:
    failed = series.with_outcome(FAIL)
    binding = limits.binding(failed)
    if series.binding is not None and not failed:
        binding = series.binding.kind
    bounds = [limits.raised(bound, series.low or 0.0) for bound in series.bounds]
    growth = None
    if series.value is not None:
        growth = sustained.times(series.value)
    return replace(
        sustained,
        sustained_per_s=series.value,
        low_per_s=series.low,
        high_per_s=series.high,
        growth=growth,
        binding=binding,
        without_cache=_without_cache(bounds),
        limits=tuple(bounds),
    )


def _by_headers(sustained: Sustained, series: Series) -> Sustained:
    """Return what one run without a 429 shows: no more than was known if no header names a limit and today's rate is not shown to hold."""
    holds = all(load.leans == PASS and not load.refused.k for load in series.loads)
    floor = sustained.today_per_s if holds else 0.0
    bounds = [limits.raised(bound, floor) for bound in series.limit_bounds]
    if bounds:
        sustained = replace(sustained, high_per_s=bounds[0].per_s.high, binding=bounds[0].kind)
    elif any(load.outcome != PASS for load in series.loads):
        return sustained
    low = min((bound.per_s.low for bound in bounds), default=sustained.today_per_s)
    return replace(
        sustained, low_per_s=low, without_cache=_without_cache(bounds), limits=tuple(bounds)
    )


def _without_cache(bounds: Sequence[Bound]) -> WithoutCache | None:
    """Return None if nothing was read from the cache, or nothing is known."""
    if not any(map(_differs, bounds)):
        return None
    rates = [(bound.uncached or bound.per_s, bound.kind) for bound in bounds]
    tightest, kind = min(rates, key=lambda pair: pair[0].high)
    return WithoutCache(min(rate.low for rate, _ in rates), tightest.high, kind)


# --- the answer -----------------------------------------------------------------------------------------------------


def _answer(sustained: Sustained, series: Series, need: float, remarks: Sequence[str]) -> Answer:
    """Return the answer with its objectives, tables, pictures and card.

    `need`: the growth that is needed, as a multiple of today's rate; 0 if none is. Objectives: today's rate and the
    needed one. A cache whose loss would break today's traffic is a problem; else it is a detail.
    """
    today = sustained.today_per_s
    is_unknown = sustained.low_per_s is None and sustained.high_per_s is None
    text, details = _sentence_and_details(sustained, series)
    problems: list[str] = []
    if sustained.without_cache is not None:
        breaks = sustained.without_cache.high_per_s < today
        cache = _cache_text(sustained, sustained.without_cache, breaks=breaks)
        (problems if breaks else details).append(cache)
    rows = []
    if not is_unknown:
        rows = [_objective(f"today's {figures(today)} {sustained.unit}", today, sustained)]
        if need:
            rows.append(_objective(f"growth to {_times(need)}", need * today, sustained))
    tables = [Table.of("Rates", series.loads, _rate_columns(series.loads, sustained), RATES_NOTE)]
    if sustained.limits:
        tables.append(
            Table.of("Limits", sustained.limits, _limit_columns(sustained.unit), LIMITS_NOTE)
        )
    outcome = worst_outcome(row.outcome for row in rows)
    result = Result(outcome, text, tuple(rows), (*details, *remarks), problems=tuple(problems))
    smallest = ""
    if sustained.low_per_s and sustained.high_per_s:
        smallest = f"a change of the sustainable rate by {share(sustained.high_per_s / sustained.low_per_s - 1)}"
    pictures = _pictures(series, sustained)
    notes = _notes(sustained, series)
    return answered(
        "headroom",
        "Sustained rate",
        result,
        sustained,
        tables,
        notes=notes,
        smallest=smallest,
        pictures=pictures,
        card=_card(sustained, outcome),
    )


def _card(sustained: Sustained, outcome: str) -> Card | None:
    """Return the sustained rate, how much of today's it is, and what binds; None where no rate was shown to hold.

    With a low end alone no limit was met. Without a value between both ends the rate is an interval.
    """
    low = sustained.low_per_s
    high = sustained.high_per_s
    value = sustained.sustained_per_s
    if low is None:
        return None
    today = f"today's {sustained.text(sustained.today_per_s)}"
    binds = f"{limit_name(sustained.binding)} binds first"
    if high is None:
        rate = Value(f"≥ {sustained.text(low)}")
        lines = [f"{_times(sustained.times(low))} {today}", "no limit was met"]
    elif value is None:
        rate = Value(f"{interval_text(low, high)} {sustained.unit}")
        lines = [f"{_times_range(sustained.times(low), sustained.times(high))} {today}", binds]
    else:
        rate = Value(sustained.text(value), interval_text(low, high))
        lines = [*_without_refusals(sustained), f"{_times(sustained.times(value))} {today}", binds]
    if sustained.without_cache is not None:
        breaks = sustained.without_cache.high_per_s < sustained.today_per_s
        lines.append(_cache_text(sustained, sustained.without_cache, breaks=breaks))
    return Card(
        label="headroom",
        value=rate,
        detail=f"can be sustained{_with_refused(sustained)}",
        lines=tuple(lines),
        tone=tone_of(outcome),
    )


def _objective(name: str, needed: float, sustained: Sustained) -> ObjectiveLine:
    ends = (sustained.sustained_per_s, sustained.low_per_s, sustained.high_per_s)
    return load_line(name, holds(needed, *ends[1:]) or INCONCLUSIVE, needed, ends, sustained.unit)


def _sentence_and_details(sustained: Sustained, series: Series) -> tuple[str, list[str]]:
    """Return the answer in a sentence; and how much of today's traffic that is, what binds, and where the value comes
    from.

    The cases are, in this order: nothing is known, no rate holds, no rate fails, a value with its interval, and an
    interval from one run without a value.
    """
    low = sustained.low_per_s
    value = sustained.sustained_per_s
    high = sustained.high_per_s
    today = f"today's {sustained.text(sustained.today_per_s)}"
    binds = f"{limit_name(sustained.binding)} binds first"
    if low is None and high is None:
        if sustained.no_429:
            return NO_HEADER, []
        highest = figures(max(load.load for load in series.loads))
        allowed = share(sustained.refused_at_most)
        return (
            f"too few calls to show that up to {highest} {sustained.unit} fewer than {allowed} are refused",
            [],
        )
    if low is None:
        return f"no sustainable rate was found: {sustained.text(high or 0.0)} already fail", [binds]
    if high is None:
        details = [f"the rate is {_times(sustained.times(low))} {today}; no limit was met"]
        return f"at least {sustained.text(low)} can be sustained", details
    ends = interval_text(low, high)
    if value is not None:
        details = [
            f"the rate is {_times(sustained.times(value))} {today}; {binds}",
            *_explanation(sustained, series),
        ]
        text = f"{sustained.text(value)} can be sustained{_with_refused(sustained)} (CI {ends})"
        return text, [*_without_refusals(sustained), *details]
    refused = series.loads[0].runs[0].refused.k
    refusals = "without a single 429"
    if refused:
        refusals = f"{refused:,} calls were refused"
    details = [
        f"the rate is {_times_range(sustained.times(low), sustained.times(high))} {today}; {binds}"
    ]
    return f"{ends} {sustained.unit} can be sustained, from one run ({refusals})", details


def _allowed(sustained: Sustained) -> str:
    return f"{figures(100 * sustained.refused_at_most)}%"


def _with_refused(sustained: Sustained) -> str:
    """Return ` with at most 1% of calls refused`, where a limit is what binds."""
    if sustained.binding in {CAPACITY, OBJECTIVES, None}:
        return ""
    return f" with at most {_allowed(sustained)} of calls refused"


def _without_refusals(sustained: Sustained) -> Iterator[str]:
    """Say at which rate a known limit refuses nothing."""
    if sustained.rarely_refused_per_s is None:
        return
    text = f"without refusals: {sustained.text(sustained.rarely_refused_per_s)}"
    if sustained.evenly_per_s is None:
        yield f"{text} ({RARELY}; computed from the limit)"
        return
    evenly = sustained.text(sustained.evenly_per_s)
    yield f"{text}{_at_random(is_random=True)}, {evenly} if evenly spaced (computed from the limit)"


def _at_random(*, is_random: bool) -> str:
    if is_random:
        return f" with random arrivals ({RARELY})"
    return f" ({RARELY})"


def _explanation(sustained: Sustained, series: Series) -> Iterator[str]:
    """Say what today's rate meets, where the sustained rate comes from, and which run confirms it."""
    yield from _today_text(sustained, series)
    limit = None if series.binding is None else series.binding.limit
    source = "the rate lies between those that hold and those that fail"
    if limit is not None:
        yield _limit_text(limit, series, sustained)
        source = "computed from the limit's refill and burst"
    elif series.binding is not None:
        source = "computed from the rate that the target answers at capacity"
    yield f"{source}; {_confirmation(sustained, series)}"


def _today_text(sustained: Sustained, series: Series) -> Iterator[str]:
    """Say which share today's rate has refused, and when the first 429 came."""
    for load in series.loads:
        if load.load != sustained.today_per_s or not load.refused.k:
            continue
        refused = share_cell(load.refused)
        text = f"{refused.text} of today's calls are refused (CI {refused.interval})"
        for run in load.runs:
            if run.first_429_s is not None:
                text += f", the first after {figures(run.first_429_s)} s"
                break
        yield text


def _limit_text(limit: Limit, series: Series, sustained: Sustained) -> str:
    """Name a limit as its provider does, and say how long a full burst lasts today on average."""
    per_minute = figures(MINUTE_S * limit.rate.value)
    rate = f"{per_minute} {kind_name(limit.kind)} per minute ({figures(limit.rate.value)}/s)"
    text = f"limit: {rate}, burst {figures(limit.burst.value)}"
    charges = [run.charges.cached[limit.kind] for run in _runs(series)]
    mean = float(np.concatenate(charges).mean()) * sustained.requests_per_arrival
    excess_per_s = sustained.today_per_s * mean - limit.rate.value
    if excess_per_s <= 0:
        return text
    lasts_s = figures(limit.burst.value / excess_per_s)
    return f"limit: {rate}; burst {figures(limit.burst.value)} lasts {lasts_s} s today on average"


def _more_at_provider(binding: Bound, needed_per_s: float, sustained: Sustained) -> str:
    """Name the limit, or the capacity, that the needed rate takes: without refusals, and with the allowed share of them."""
    needed = sustained.text(needed_per_s)
    sustained_per_s = sustained.sustained_per_s or needed_per_s
    if binding.limit is None:
        return f"give the target {needed_per_s / sustained_per_s:.2g}x of its capacity for {needed}"
    per_minute = MINUTE_S * binding.limit.rate.value
    allowed = figures(math.ceil(needed_per_s / sustained_per_s * per_minute))
    refused = f"{_allowed(sustained)} of calls refused"
    name = f"raise the limit on {kind_name(binding.limit.kind)} from {figures(per_minute)}"
    rare_per_s = sustained.rarely_refused_per_s
    if rare_per_s is None or rare_per_s >= sustained_per_s:
        return f"{name} to {allowed} per minute: {needed} with at most {refused}"
    rarely_refused = figures(math.ceil(needed_per_s / rare_per_s * per_minute))
    return f"{name} to {rarely_refused} per minute: {needed} without refusals ({allowed} are enough with at most {refused})"


def _confirmed_loads(sustained: Sustained, series: Series) -> list[JudgedLoad]:
    """Return the rates that held in a run, as far as the answer reaches."""
    high = sustained.high_per_s or math.inf
    return [load for load in series.with_outcome(PASS) if load.load <= high]


def _confirmation(sustained: Sustained, series: Series) -> str:
    """Name the highest rate that held in a run."""
    loads = _confirmed_loads(sustained, series)
    if not loads:
        return "not confirmed: no rate held in a run"
    highest = max(loads, key=lambda load: load.load)
    return f"confirmed at {figures(highest.load)}/s by {plural(len(highest.runs), 'run')}"


def _runs(series: Series) -> list[LoadRun]:
    """Return the runs of all loads."""
    runs: list[LoadRun] = []
    for load in series.loads:
        runs += load.runs
    return runs


def _too_short(series: Series) -> list[str]:
    """Say that a limit per minute may be higher than what the runs used of it."""
    longest_s = max(run.seconds for run in _runs(series))
    if longest_s >= MINUTE_S:
        return []
    requests = max(run.requests for run in _runs(series))
    text = f"a limit above {requests:,} requests per minute would not have shown: no run lasted a minute"
    return [f"{text} (experiment.headroom.step_s=75)"]


def _cache_text(sustained: Sustained, without_cache: WithoutCache, *, breaks: bool) -> str:
    """Say what a cold cache leaves of today's traffic; `breaks`: less than all of it."""
    ends = _times_range(
        sustained.times(without_cache.low_per_s), sustained.times(without_cache.high_per_s)
    )
    qualifier = "only " if breaks else ""
    return f"without the prompt cache {qualifier}{ends} of today's traffic fits"


def _notes(sustained: Sustained, series: Series) -> Iterator[str]:
    """Yield what a reader must know of the tables: what is unknown, inconclusive or contradicted, and limits of other
    kinds.
    """
    if sustained.no_429:
        unseen = [bound.kind for bound in sustained.limits if not bound.is_known]
        if unseen:
            yield f"the interval is wide: nothing was refused, so the burst size of {listed(map(limit_name, unseen))} is unknown"
        return
    rates = [figures(load.load) for load in series.with_outcome(INCONCLUSIVE)]
    if rates:
        yield f"inconclusive at {', '.join(rates)} {sustained.unit}"
    if series.contradicted is not None:
        sustains = sustained.text(series.contradicted.per_s.value)
        yield CONTRADICTED.format(limit_name(series.contradicted.kind), sustains)
    kinds = limits.by_kind(_runs(series))
    if "ramp" in kinds:
        yield "an acceleration limit refused calls: set experiment.headroom.growth lower"
    if "spend" in kinds:
        yield "the spending limit refused calls: the answer is based on the runs before"
    failed = series.with_outcome(FAIL)
    refused = any((load.refused.low or 0.0) > sustained.refused_at_most for load in failed)
    if refused and series.binding is None and series.contradicted is None:
        text = "no limit explains the refusals: the interval is based on the tried rates alone"
        yield f"{text}, whose runs may have begun with a full burst: longer ones by experiment.headroom.step_s=120"


def limit_name(kind: str | None) -> str:
    """Name what binds."""
    names = {
        OBJECTIVES: "an objective of [slo]",
        CAPACITY: "the target's capacity",
        None: "an unknown limit",
    }
    return names.get(kind) or f"the limit on {kind_name(kind or '')}"


def _times(factor: float | None) -> str:
    if factor is None:
        return f"more than {MOST_FACTOR}x"
    return f"{factor:.3g}x"


def _times_range(low: float | None, high: float | None) -> str:
    return f"{_times(low or 0.0)} – {_times(high)}"


# --- tables and the figure ------------------------------------------------------------------------------------------


def _rate_columns(
    loads: Sequence[JudgedLoad], sustained: Sustained
) -> Iterator[Column[JudgedLoad]]:
    yield f"planned {sustained.unit}", lambda load: figures(load.load)
    yield "offered", lambda load: figures(load.arrived)
    yield "times today", lambda load: f"{sustained.times(load.load):.3g}"
    yield "refused of attempts", lambda load: share_cell(load.refused)
    yield "answered", _served
    if any(load.objectives for load in loads):
        yield "beyond [slo]", _worst_objective
    yield "sustained", lambda load: Value(load.outcome.lower(), outcome=load.outcome)
    yield "429s by", _refused_by
    yield "backlog grows", _grows
    yield "runs", lambda load: f"{len(load.runs)}"
    yield "requests", lambda load: f"{sum(run.requests for run in load.runs):,}"


def _refused_by(load: JudgedLoad) -> str:
    counts = limits.by_kind(load.runs)
    names = [kind_name(kind) for kind, _ in counts.most_common()]
    return ", ".join(names) or NONE


def _served(load: JudgedLoad) -> str:
    lengths_s = []
    served = []
    for run in load.runs:
        lengths_s.append(run.seconds)
        served.append(run.served.value * run.seconds)
    seconds = sum(lengths_s)
    if not seconds:
        return NONE
    return figures(sum(served) / seconds)


def _worst_objective(load: JudgedLoad) -> Cell:
    """Show the objective that is nearest to its bound, or furthest beyond it."""
    worst = max(load.objectives, key=lambda row: (row.missed.value or 0.0) - row.allowed)
    return share_cell(worst.missed)


def _grows(load: JudgedLoad) -> str:
    growing = sum(run.growing for run in load.runs)
    if not growing:
        return "no"
    return f"{growing} of {len(load.runs)}"


def _limit_columns(unit: str) -> Iterator[Column[Bound]]:
    yield "limit", lambda bound: kind_name(bound.kind)
    yield "429s", _refusals
    yield "per second", _refill
    yield "burst", _burst
    yield f"sustained {unit}", lambda bound: _rate(bound.per_s, is_exact=bound.is_known)
    yield "without cache", _uncached


def _refusals(bound: Bound) -> Cell:
    if bound.limit is None:
        return NONE
    return f"{bound.limit.refused:,}"


def _refill(bound: Bound) -> Cell:
    if bound.limit is None:
        return NONE
    return _rate(bound.limit.rate)


def _burst(bound: Bound) -> Cell:
    limit = bound.limit
    if limit is None:
        return NONE
    return replace(
        _rate(limit.burst, is_exact=limit.seen), mark="" if limit.seen else "never seen empty"
    )


def _differs(bound: Bound) -> bool:
    return bound.uncached is not None and bound.uncached != bound.per_s


def _uncached(bound: Bound) -> Cell:
    if bound.uncached is None or not _differs(bound):
        return "the same"
    return _rate(bound.uncached, is_exact=bound.is_known)


def _rate(rate: Interval, *, is_exact: bool = True) -> Value:
    cell = estimate(rate.value, rate.low, rate.high, figures)
    if is_exact:
        return cell
    return Value(cell.interval or cell.text)


def _pictures(series: Series, sustained: Sustained) -> tuple[Picture, ...]:
    """Return the picture of the refused share by rate, with its intervals and where the sustainable rate lies.

    None of a single rate. Rates are coloured by their outcome.
    """
    if len(series.loads) < 2:
        return ()
    curves = []
    for outcome, colour in OUTCOME_COLOURS.items():
        rows = []
        for load in series.with_outcome(outcome):
            refused = load.refused
            rows.append((load.load, refused.value, refused.low, refused.high))
        points = estimate_curve(VERDICTS[outcome], rows, lambda value: 100 * value)
        if len(points.x):
            curves.append(replace(points, style="points", colour=colour))
    ends = (series.loads[0].load, series.loads[-1].load)
    allowed = 100 * sustained.refused_at_most
    bound = PlotCurve(ends, (allowed, allowed), "allowed", colour=RED, dash="dash")
    marks: tuple[Mark, ...] = ()
    if sustained.low_per_s is not None and sustained.high_per_s is not None:
        marks = (Mark(sustained.low_per_s, sustained.high_per_s, "sustainable rate"),)
    picture = Picture(
        name="headroom",
        title="Calls refused at each rate",
        caption=FIGURE_NOTE,
        panels=(Panel("refused, %", (*curves, bound)),),
        x=sustained.unit,
        marks=marks,
    )
    return (picture,)
