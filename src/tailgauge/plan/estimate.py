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
    calls_at_most: int | None  # with every hedge, retry, fallback, second try; None also without such a bound
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
        """The estimate as one or two lines of text; none where tasks of Locust's users make the requests."""
        if self.requests is None or self.calls is None:
            if not self.arrivals:
                return []
            users = f"{self.arrivals:,} users of a closed loop"
            return [f"expected: {users}: the target decides how many requests they send"]
        text = f"expected: {self.requests:,} requests"
        text += f" in {self.calls:,} calls" if self.calls != self.requests else ""
        if self.calls_at_most is None or self.calls_at_most > self.calls:
            most = "more" if self.calls_at_most is None else f"up to {self.calls_at_most:,} calls"
            text += f" ({most} with {' and '.join(self.additions)})"
        text += f", {self.input_tokens:,} input and up to {self.output_tokens:,} output tokens"
        if self.cost is None:
            return [text, f"no price known for model {', '.join(self.without_price)}"]
        shown = f"{self.cost:,.2f}" if self.cost >= 1 else f"{self.cost:.2g}"
        return [f"{text}, up to {shown} {self.currency}"]


def short_prefixes(scenario: Scenario) -> Iterator[str]:
    """Marked prefixes that their models do not cache, a line each: there would be no error, and no cached token."""
    for name, traffic in scenario.traffic.items():
        cache = traffic.cache
        model = scenario.model_of(traffic)
        least = cached_from(model) or 0
        if cache is None or not cache.breakpoints:
            continue
        marks_question = {"last", AUTOMATIC}.intersection(cache.breakpoints)
        marked = cache.prefix_tokens + (traffic.prompt_tokens if marks_question else 0)
        if marked < least:
            yield f"traffic.{name}.cache: {marked:,} marked tokens are not cached: {model} caches from {least:,} tokens"


@dataclass(slots=True)
class _Sum:
    """Sums over the requests of one traffic table."""

    requests: int
    calls: int
    more: float  # calls that may come on top
    usage: Usage


def estimate(scenario: Scenario, schedule: Schedule, prices: Prices, day: date, workers: int = 1) -> Estimate:
    """Estimate the whole schedule, at the prices in force on that day."""
    without = tuple(dict.fromkeys(m for _, m in scenario.models() if prices.price(m, day) is None))
    if not scenario.arrival.is_planned:
        users = len(schedule)
        return Estimate(users, None, None, None, None, None, None, prices.currency, without, prices.source)
    sums = []
    cost = Fraction(0)
    for index, (name, traffic) in enumerate(scenario.traffic.items()):
        one = _sum(traffic, schedule, index, workers)
        sums.append(one)
        if not without:
            cost += _cost(scenario, name, one, prices, day)
    at_most = sum(s.calls + s.more for s in sums)
    return Estimate(
        len(schedule), sum(s.requests for s in sums), sum(s.calls for s in sums),
        math.ceil(at_most) if math.isfinite(at_most) else None, sum(s.usage.prompt for s in sums),
        sum(s.usage.output for s in sums), None if without else float(cost), prices.currency, without, prices.source,
        tuple(dict.fromkeys(kind for traffic in scenario.traffic.values() for kind in _additions(traffic))),
    )  # fmt: skip


def _sum(traffic: Traffic, schedule: Schedule, index: int, workers: int) -> _Sum:
    sizes = np.array([schedule.prompt_tokens, schedule.output_tokens, schedule.turns], np.int64)
    prompts, outputs, turns = sizes[:, schedule.traffic == index]
    requests = int(turns.sum())
    asked = prompts * turns
    answered = outputs * turns
    if traffic.session.grow:  # turn k carries the k turns and answers before it
        before = turns * (turns - 1) // 2
        asked = asked + (prompts + outputs) * before
    demand = pattern_of(traffic).demand(requests, int(asked.sum()), int(answered.sum()))
    tokens_in = demand.input_tokens
    write_5m = write_1h = 0
    if traffic.cache is not None:
        shared = demand.prompts * traffic.cache.prefix_tokens
        marked = bool(traffic.cache.breakpoints)
        write_1h = shared if marked and traffic.cache.ttl == "1h" else 0
        write_5m = shared if marked and not write_1h else 0
        tokens_in += 0 if marked else shared
    usage = Usage(tokens_in, write_5m, write_1h, 0, demand.output_tokens)
    more = _additional(traffic, demand.calls, requests, workers) if demand.is_bound else math.inf
    return _Sum(requests, demand.calls, more, usage)


def _additional(traffic: Traffic, calls: int, requests: int, workers: int) -> float:
    """Calls that trouble or lateness may add."""
    more = 0.0
    retry = traffic.retry
    hedge = traffic.hedge
    if hedge.policy != "off":
        budget = hedge.budget_share * calls + hedge.budget_burst * workers
        more += min(calls, budget) if hedge.budget_share < 1 else calls
    if retry.policy != "none":
        ceiling = float(calls * retry.max_retries)
        budget = retry.budget_share * calls + retry.budget_burst * workers
        more += min(ceiling, budget) if retry.policy == "polite" and retry.budget_share < 1 else ceiling
    more += requests * (traffic.fallback.after_s is not None)
    return more + requests * bool(traffic.cancel.resubmit and traffic.cancel.share)


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


def _cost(scenario: Scenario, name: str, one: _Sum, prices: Prices, day: date) -> Fraction:
    """At the dearest model of the table, with the long-prompt band decided by its mean prompt."""
    alone = scenario.model_copy(update={"traffic": {name: scenario.traffic[name]}})
    prompt = one.usage.prompt // max(1, one.calls)
    known = filter(None, (prices.price(model, day) for _, model in alone.models()))
    share = Fraction(pattern_of(scenario.traffic[name]).price_share)
    return max(price.cost(one.usage, prompt) for price in known) * share
