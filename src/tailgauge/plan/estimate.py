"""Calls, tokens and cost of a run, estimated before the first request.

It errs on the high side: every answer is taken to be as long as it may be, nothing to come from a cache. Hedges,
retries and the like are listed apart, as "up to", because they are not known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge.patterns.settings import AUTOMATIC
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.prices import Prices, Usage, cached_from
from tailgauge.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Estimate:
    """The plan in figures; `requests` and all that follows from it are None for a closed loop, which plans none."""

    arrivals: int
    requests: int | None
    calls: int | None  # without the additional ones
    # With every hedge, retry, fallback and second try; None also without such a bound.
    calls_at_most: int | None
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None  # of `calls`, in `currency`
    currency: str
    without_price: tuple[str, ...]  # models
    prices: str  # file
    additions: tuple[str, ...] = ()  # what makes calls beyond `calls`: hedges, retries, ...

    def facts(self) -> dict[str, Any]:
        """Plain values for run.json."""
        lists = {"without_price": list(self.without_price), "additions": list(self.additions)}
        return {**asdict(self), **lists, "prices": Path(self.prices).name}

    def lines(self) -> list[str]:
        """Return the estimate as one or two lines of text; none where tasks of Locust's users make the requests.

        The second line names the models without a price.
        """
        if self.requests is None or self.calls is None:
            if not self.arrivals:
                return []
            users = f"{self.arrivals:,} users of a closed loop"
            return [f"expected: {users}: the target decides how many requests they send"]
        text = f"expected: {self.requests:,} requests"
        if self.calls != self.requests:
            text += f" in {self.calls:,} calls"
        if self.calls_at_most is None or self.calls_at_most > self.calls:
            bound = "more"
            if self.calls_at_most is not None:
                bound = f"up to {self.calls_at_most:,} calls"
            text += f" ({bound} with {' and '.join(self.additions)})"
        text += f", {self.input_tokens:,} input and up to {self.output_tokens:,} output tokens"
        if self.cost is None:
            return [
                text,
                f"cost not estimated: no price known for model {', '.join(self.without_price)}",
            ]
        cost = f"{self.cost:,.2f}"
        if self.cost < 1:
            cost = f"{self.cost:.2g}"
        return [f"{text}, up to {cost} {self.currency}"]


def short_prefixes(scenario: Scenario) -> Iterator[str]:
    """Marked prefixes that their models do not cache, a line each: there would be no error, and no cached token."""
    for name, traffic in scenario.traffic.items():
        cache = traffic.cache
        model = scenario.model_of(traffic)
        threshold = cached_from(model) or 0
        if cache is None or not cache.breakpoints:
            continue
        marks_question = {"last", AUTOMATIC}.intersection(cache.breakpoints)
        marked = cache.prefix_tokens + (traffic.prompt_tokens if marks_question else 0)
        if marked < threshold:
            yield f"traffic.{name}.cache: {marked:,} marked tokens are not cached: {model} caches from {threshold:,} tokens"


@dataclass(slots=True)
class _Sum:
    """Sums over the requests of one traffic table."""

    requests: int
    calls: int
    additional: float  # calls that may come on top
    usage: Usage


def estimate(
    scenario: Scenario, schedule: Schedule, prices: Prices, day: date, workers: int = 1
) -> Estimate:
    """Return the calls, tokens and cost of the whole schedule, at the prices in force on that day.

    `workers` count for the budgets of hedges and retries, which each worker has. A closed loop without a number of
    requests has None for all of them. The cost is None where one model has no price.
    """
    without_price = []
    for _, model in scenario.models():
        if model not in without_price and prices.price(model, day) is None:
            without_price.append(model)
    unpriced = tuple(without_price)
    if not scenario.arrival.is_planned:
        users = len(schedule)
        return Estimate(
            arrivals=users,
            requests=None,
            calls=None,
            calls_at_most=None,
            input_tokens=None,
            output_tokens=None,
            cost=None,
            currency=prices.currency,
            without_price=unpriced,
            prices=prices.source,
        )
    requests = 0
    calls = 0
    input_tokens = 0
    output_tokens = 0
    calls_with_additions = []
    cost = Fraction(0)
    for index, (name, traffic) in enumerate(scenario.traffic.items()):
        table_sum = _sum(traffic, schedule, index, workers)
        requests += table_sum.requests
        calls += table_sum.calls
        input_tokens += table_sum.usage.prompt
        output_tokens += table_sum.usage.output
        calls_with_additions.append(table_sum.calls + table_sum.additional)
        if not unpriced:
            cost += _cost(scenario, name, table_sum, prices, day)
    total_cost = None
    if not unpriced:
        total_cost = float(cost)
    at_most = sum(calls_with_additions)
    calls_at_most = None
    if math.isfinite(at_most):
        calls_at_most = math.ceil(at_most)
    additions = chain.from_iterable(map(_additions, scenario.traffic.values()))
    return Estimate(
        arrivals=len(schedule),
        requests=requests,
        calls=calls,
        calls_at_most=calls_at_most,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost=total_cost,
        currency=prices.currency,
        without_price=unpriced,
        prices=prices.source,
        additions=tuple(dict.fromkeys(additions)),
    )


def _sum(traffic: Traffic, schedule: Schedule, index: int, workers: int) -> _Sum:
    """Return the requests, calls and tokens of one traffic table, as its pattern makes them from the schedule.

    `index`: of the table, as in the schedule. Every prefix with marks counts as written, none as read; one without marks
    counts as plain input.
    """
    sizes = np.array([schedule.prompt_tokens, schedule.output_tokens, schedule.turns], np.int64)
    prompts, outputs, turns = sizes[:, schedule.traffic == index]
    requests = int(turns.sum())
    inputs = prompts * turns
    answered = outputs * turns
    if traffic.session.grow:  # turn k carries the k turns and answers before it
        earlier_turns = turns * (turns - 1) // 2
        inputs = inputs + (prompts + outputs) * earlier_turns
    demand = pattern_of(traffic).demand(requests, int(inputs.sum()), int(answered.sum()))
    tokens_in = demand.input_tokens
    write_5m = 0
    write_1h = 0
    if traffic.cache is not None:
        prefix_tokens = demand.prompts * traffic.cache.prefix_tokens
        if not traffic.cache.breakpoints:
            tokens_in += prefix_tokens
        elif traffic.cache.ttl == "1h":
            write_1h = prefix_tokens
        else:
            write_5m = prefix_tokens
    usage = Usage(tokens_in, write_5m, write_1h, 0, demand.output_tokens)
    additional = math.inf
    if demand.is_bound:
        additional = _additional(traffic, demand.calls, requests, workers)
    return _Sum(requests, demand.calls, additional, usage)


def _additional(traffic: Traffic, calls: int, requests: int, workers: int) -> float:
    """Return the calls that trouble or lateness may add: hedges, retries, fallbacks, second tries. A bound from above.

    `calls`: without these; a budget allows a share of them, and on each worker a burst.
    """
    additional = 0.0
    retry = traffic.retry
    hedge = traffic.hedge
    if hedge.policy != "off":
        hedges = float(calls)
        if hedge.budget_share < 1:
            budget = hedge.budget_share * calls + hedge.budget_burst * workers
            hedges = min(hedges, budget)
        additional += hedges
    if retry.policy != "none":
        ceiling = float(calls * retry.max_retries)
        if retry.policy == "polite" and retry.budget_share < 1:
            budget = retry.budget_share * calls + retry.budget_burst * workers
            ceiling = min(ceiling, budget)
        additional += ceiling
    additional += requests * (traffic.fallback.after_s is not None)
    return additional + requests * bool(traffic.cancel.resubmit and traffic.cancel.share)


def _additions(traffic: Traffic) -> Iterator[str]:
    """Yield what adds calls whose number is not known beforehand."""
    if traffic.hedge.policy != "off":
        yield "hedges"
    if traffic.retry.policy != "none":
        yield "retries"
    if traffic.fallback.after_s is not None:
        yield "fallbacks"
    if traffic.cancel.resubmit and traffic.cancel.share:
        yield "resubmissions"
    if added := pattern_of(traffic).adds_calls:
        yield added


def _cost(scenario: Scenario, name: str, table_sum: _Sum, prices: Prices, day: date) -> Fraction:
    """At the dearest model of the table, with the long-prompt band decided by its mean prompt."""
    single = scenario.model_copy(update={"traffic": {name: scenario.traffic[name]}})
    prompt = table_sum.usage.prompt // max(1, table_sum.calls)
    costs = []
    for _, model in single.models():
        price = prices.price(model, day)
        if price is not None:
            costs.append(price.cost(table_sum.usage, prompt))
    return max(costs) * Fraction(pattern_of(scenario.traffic[name]).price_share)
