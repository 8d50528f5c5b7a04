"""The section on objectives: each figure measured and decided, and goodput by traffic table.

An objective on some requests only is measured on those. All are of the steady stage without slow readers, but for the share of
input tokens that the cache served, which is of the whole run as in the section on the cache. The rules of a decision are in
objectives/outcome.py, goodput in objectives/goodput.py; the result of the run is in result.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.scenario.figures import ATTEMPTS, FEWEST_RATIO, Figure
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.throughput import Throughput, Work
from tailgauge_analysis.objectives import objective
from tailgauge_analysis.objectives.goodput import Goodput, good_requests, goodput, unknown_pace
from tailgauge_analysis.objectives.health import Health, health
from tailgauge_analysis.objectives.objective import Criterion, on_latency
from tailgauge_analysis.objectives.outcome import (
    Measured,
    ObjectiveResult,
    decided,
    decided_latency,
    unreadable,
)
from tailgauge_analysis.reading.frames import Frames, ended_as
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.cache import calls, shares
from tailgauge_analysis.sections.cache.cost import call_costs, no_price, prices_of, with_usage
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import Floats, Mask
from tailgauge_analysis.text.formatting import count, plain, share, share_range
from tailgauge_analysis.text.json_values import table
from tailgauge_analysis.text.section import Cell, ObjectiveLine, Section, Table, Value

KEY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The objectives of a run, goodput and the health of the target."""

    slo: list[ObjectiveResult]
    """objectives, in the scenario's order; `gate`: whether the result depends on it"""
    goodput: Goodput | None
    """null without objectives on latencies"""
    health: Health | None
    """offered requests with a complete answer; null if none was offered"""


def compute(run: Run) -> Judged:
    """Decide the objectives of a run."""
    scenario = run.record["scenario"]
    warmup = run.evidence.warmup
    return Judged(
        slo=_decided(run),
        goodput=goodput(scenario, run.without_slow_readers, warmup and warmup.without_slow_readers),
        health=health(scenario, run.steady),
    )


def _decided(run: Run) -> list[ObjectiveResult]:
    scenario = run.record["scenario"]
    stage = run.without_slow_readers
    measure = Measure(run)
    results = []
    for name, criterion in objective.read(scenario).items():
        if criterion is None:
            results.append(unreadable(name, table(scenario, "slo")[name]))
        elif criterion.metric is not None:
            results.append(decided_latency(criterion, stage, run.evidence.latency))
        else:
            results.append(decided(criterion, measure.figure(criterion), stage.seconds))
    return results


@dataclass(frozen=True, slots=True)
class Measure:
    """What the figures of a run are computed from."""

    run: Run

    @property
    def frames(self) -> Frames:
        """Return the tables of the run."""
        return self.run.frames

    @property
    def stage(self) -> Steady:
        """Return the steady stage without slow readers."""
        return self.run.without_slow_readers

    @property
    def throughput(self) -> Throughput:
        """Return the rates of the steady stage."""
        return self.run.evidence.throughput

    def figure(self, criterion: Criterion) -> Measured:
        """Measure the figure of an objective on the requests that it is about."""
        part = criterion.part(self.stage)
        if not len(part.requests):
            return Measured(why="no request is of it")
        figure = criterion.objective.figure
        if figure.ended:
            return _measured(_ended(figure, part))
        return FIGURES[figure.name](self, criterion, part)

    def good(self, part: Steady) -> Mask | str:
        """Return the good requests, or why it is not known which are."""
        wanted = on_latency(self.frames.run["scenario"])
        return unknown_pace(wanted, self.stage) or good_requests(wanted, part)

    def goodput(self, _criterion: Criterion, part: Steady) -> Measured:
        """Return the share of the good requests."""
        good = self.good(part)
        if isinstance(good, str):
            return Measured(why=good)
        return _measured(part.share(good))

    def cache_hit(self, criterion: Criterion, _part: Steady) -> Measured:
        """Return the share of the input tokens that were read from the cache, over the whole run without preflight.

        `criterion`: an objective, maybe on some requests only. Rows are those of cache/calls.py that have usage.
        """
        counted_calls = self.run.result(calls.compute)
        counted_calls = counted_calls[counted_calls["counted"]]
        request_ids = self._ids(criterion)
        if request_ids is not None:
            counted_calls = counted_calls[counted_calls["request_id"].isin(request_ids)]
        hit = shares.token_hit(counted_calls)
        if not len(counted_calls):
            return Measured(why="the target reports no tokens read from a cache")
        low = hit.low
        high = hit.high
        if hit.value is not None and hit.n >= FEWEST_RATIO and (low is None or low == high):
            # All calls are alike; of one that is not, no more than so many may come.
            most_others = clopper_pearson(0, hit.n)[1]
            low = hit.value * (1 - most_others)
            high = hit.value + (1 - hit.value) * most_others
        return Measured(hit.value, low, high, hit.n, hit.n, why=hit.why)

    def rate(self, criterion: Criterion, work: Work | None, reason: str) -> Measured:
        """Return what was done per second; `reason`: what is missing without it."""
        if work is None:
            return Measured(why=reason)
        rate = work.rate(self._ids(criterion))
        few = ""
        if rate.low is None:
            few = f"not enough events: {rate.n} of the 20 needed"
        return Measured(rate.value, rate.low, rate.high, rate.n, rate.n, why=few)

    def _ids(self, criterion: Criterion) -> np.ndarray | None:
        """Return the IDs of the requests of the whole run that an objective is about; None of all."""
        if criterion.is_of_all:
            return None
        requests = self.frames.requests
        ids: np.ndarray = requests["request_id"].to_numpy(np.int64)[criterion.of(requests)]
        return ids

    def cost_per_good_request(self, _criterion: Criterion, part: Steady) -> Measured:
        """Return the cost of all attempts of `part` over its good requests; `why` where prices, pace or requests are lacking.

        With no good request the value is infinite. At most 3 / n of all can then be good (95%), and so one costs at least the
        low end.
        """
        is_good = self.good(part)
        # A text: why it is not known which requests are good.
        if isinstance(is_good, str):
            return Measured(why=is_good)
        cost_by_request, reason = self._paid(part)
        if cost_by_request is None:
            return Measured(why=reason)
        request_count = len(is_good)
        good_count = int(is_good.sum())
        total_cost = float(cost_by_request.sum())
        if request_count < FEWEST_RATIO:
            few = f"not enough requests: {request_count} of the {FEWEST_RATIO} needed"
            value = math.inf
            if good_count:
                value = total_cost / good_count
            return Measured(value, n=request_count, why=few)
        if not good_count:
            good_share = part.share(is_good)
            return Measured(
                math.inf,
                total_cost / request_count / (good_share.high or 1.0),
                math.inf,
                request_count,
                good_share.n_eff,
            )
        low, high = ratio(cost_by_request, is_good.astype(np.float64))
        return Measured(total_cost / good_count, low, high, request_count, request_count)

    def _paid(self, part: Steady) -> tuple[Floats | None, str]:
        """Return the cost of each request, or why it is not known."""
        prices = self.run.result(prices_of)
        used = with_usage(part.attempts)
        costs, unpriced = call_costs(used, prices.price)
        if costs is None:
            return None, no_price(unpriced, prices.why)
        spent = pd.Series(costs).groupby(used["request_id"].to_numpy()).sum()
        price_shares = {}
        for name, facts in self.frames.run["patterns"].items():
            price_shares[name] = float(facts.get("price_share", 1.0))
        by_request = part.requests["request_id"].map(spent).fillna(0.0)
        by_request *= part.requests["pattern"].map(price_shares).fillna(1.0)
        return np.asarray(by_request, np.float64), ""


FIGURES: dict[str, Callable[[Measure, Criterion, Steady], Measured]] = {
    "goodput": Measure.goodput,
    "cache_hit": Measure.cache_hit,
    "requests_per_s": lambda run, criterion, _: run.rate(
        criterion, run.throughput.requests, "the steady stage has no length"
    ),
    "output_tokens_per_s": lambda run, criterion, _: run.rate(
        criterion, run.throughput.tokens, "the target reports no output tokens"
    ),
    "cost_per_good_request": Measure.cost_per_good_request,
}


def _measured(proportion: Proportion) -> Measured:
    return Measured(
        proportion.value,
        proportion.low,
        proportion.high,
        proportion.n,
        proportion.n_eff,
        share=proportion,
    )


def _ended(figure: Figure, part: Steady) -> Proportion:
    """Return the share of requests or attempts that ended as a figure counts."""
    if figure.counted == ATTEMPTS:
        sent = part.sent
        return part.share_of(sent, np.asarray(ended_as(sent, *figure.ended), np.bool_))
    ended = part.requests["ended"].isin(figure.ended).to_numpy(np.bool_)
    return part.share(~ended if figure.others else ended)


DECIDED = (
    "A 95% interval decides an objective. For a latency, this is the interval of the share of requests slower than the bound. For any "
    "other figure, it is the interval of the value. PASS: every value in the interval meets the objective. FAIL: no value in it does. "
    "Otherwise INCONCLUSIVE. The last column is a value: if the target really had it, 4 of 5 runs like this one would fail."
)
GOOD = "Goodput counts complete requests that meet every latency objective that applies to them."
REPORTED = "Neither the result nor the exit code depends on them (gate = false)."


def section(judged: Judged) -> Section | None:
    """Return the section: what each outcome rests on, the objectives that decide nothing, and goodput by traffic; None without an objective.

    Objectives with gate = false are only reported. The outcomes of the others stand before the sections.
    """
    objective_results = judged.slo
    good = judged.goodput
    if not objective_results:
        return None
    sample_rows = tuple(map(_sample, objective_results))
    tables = [
        Table(
            "",
            ("objective", "figure", "n", "effective n", "4 of 5 runs fail at"),
            sample_rows,
            prose=(1, 4),
        )
    ]
    reported = []
    for result in objective_results:
        if not result.gate:
            reported.append(result.line)
    if reported:
        header = ("objective", "measured", "required", "outcome", "why")
        reported_rows = tuple(map(_cells, reported))
        tables.append(Table("Reported objectives", header, reported_rows, REPORTED, prose=(4,)))
    if good and good.by_traffic:
        tables.append(_by_traffic(good))
    return Section(
        "objectives",
        "Objectives",
        tables=tuple(tables),
        computed=(DECIDED, GOOD),
        brief=tuple(f"{line.name} {line.measured}: {line.outcome}" for line in reported),
        is_folded=len(tables) == 1,
    )


def _sample(result: ObjectiveResult) -> tuple[str, ...]:
    return result.label, result.title, count(result.n), count(result.n_eff), result.line.finds


def _cells(line: ObjectiveLine) -> tuple[Cell, ...]:
    outcome = Value(line.outcome, outcome=line.outcome)
    return line.name, Value(line.value, line.interval), line.requirement, outcome, line.why


def _by_traffic(goodput: Goodput) -> Table:
    header = ("traffic", "latency objectives", "offered", "good", "good, share of offered")
    rows = []
    for part in goodput.by_traffic:
        rows.append((plain(part.traffic, 80), count(part.objectives), *_good(part.good)))
    rows.append(("all", "", *_good(goodput.good)))
    return Table("Goodput by traffic", header, tuple(rows))


def _good(good: Proportion) -> tuple[str, str, Value]:
    interval = share_range(good.low, good.high)
    return count(good.n), count(good.k), Value(share(good.value), interval, share=good.value)
