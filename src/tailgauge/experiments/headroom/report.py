"""The answer of headroom: the sustained rate, what binds, and how much today's traffic may grow.

FAIL if today's rate, or the growth that is needed, is not sustained; INCONCLUSIVE if that lies inside the interval, or
nothing was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tailgauge.experiments.answer import NONE, NOTHING, Answer, answered, estimate, load_line
from tailgauge.experiments.headroom import limits, search
from tailgauge.experiments.headroom.judge import JudgedRate, Rate, RateResult, Runs, Tried
from tailgauge.experiments.headroom.limits import CAPACITY, OBJECTIVES, Bound, Bounds, Limit, at_least, lowest
from tailgauge.scenario.experiment import Headroom as Settings
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    MOST_FACTOR,
    PASS,
    Cell,
    Costs,
    Growth,
    Mark,
    Picture,
    PlotCurve,
    Result,
    Table,
    Value,
    figures,
    growth,
    kind_name,
    listed,
    share,
    share_cell,
)
from tailgauge_analysis import (
    worst_outcome as worst,
)

NO_HEADER = "no answer without a 429: no header of the target names a limit"
RATES = (
    "requests/s", "times today", "refused of attempts", "answered/s", "sustained", "429s by", "backlog grows", "runs", "requests",
)  # fmt: skip
GOOD = "within [slo]"
RATES_NOTE = (
    "One row per rate, its runs pooled. Refused: 429, 529 and 503. *: began with a burst that empties the bucket. Without such "
    "a burst a rate above a known limit fails even if a full bucket carried it."
)
LIMITS = (
    "limit", "429s", "per second", "burst", "sustained requests/s", "without cache", "growth to the first 429", "without cache",
)  # fmt: skip
LIMITS_NOTE = "One row per limit, the tightest first. Sustained: the rate in requests/s at which it refuses the allowed share."
FIGURE_NOTE = "Bars are 95% intervals. Shaded: from the highest rate that passes to the lowest that fails."
Ends = tuple[float | None, float | None, float | None]  # low, value, high


@dataclass(frozen=True, slots=True)
class FoundLimit:
    """A limit, and how many times today's traffic meets its first 429, with the cache and without."""

    bound: Bound
    first_429: Growth | None
    uncached_first_429: Growth | None


@dataclass(frozen=True, slots=True)
class WithoutCache:
    """What would be sustained without reads from the cache."""

    low_per_s: float
    high_per_s: float
    binding: str
    first_429: Growth | None


@dataclass(frozen=True, slots=True)
class Sustained:
    """What was found, in requests/s: the best value, the highest confident pass, the lowest confident fail; None if unknown."""

    today_per_s: float
    refused_at_most: float
    no_429: bool
    sustained_per_s: float | None = None
    low_per_s: float | None = None
    high_per_s: float | None = None
    growth: float | None = None
    binding: str | None = None
    first_429: Growth | None = None
    without_cache: WithoutCache | None = None
    limits: tuple[FoundLimit, ...] = ()

    def met(self, growth: float) -> str:
        """Whether so much growth of today's traffic is sustained."""
        needed = growth * self.today_per_s
        if self.low_per_s is not None and self.low_per_s >= needed:
            return PASS
        return FAIL if self.high_per_s is not None and self.high_per_s <= needed else INCONCLUSIVE


def answer(
    settings: Settings, today: float, runs: Runs, tried: Tried, bounds: Bounds, remarks: Sequence[str]
) -> Answer:
    """The answer of a search, or of one run without a 429; the first run is at today's rate."""
    found = Sustained(today, settings.refused, settings.no_429)
    known = _found(settings, found, runs, tried, bounds) if runs else None
    text, details, problems = NO_HEADER if runs else NOTHING, list[str](), list[str]()
    if known is not None:
        found, (text, details) = known, _text(known, tried, runs[0])
        if found.without_cache is not None:
            breaks = found.without_cache.high_per_s < today
            (problems if breaks else details).append(_cache_text(found.without_cache, today, breaks=breaks))
    notes = [*_first_429(found, runs[0]), *_notes(settings, tried, found)] if runs else []
    low, value, high = found.low_per_s, found.sustained_per_s, found.high_per_s
    wanted = [(_today(found), 1.0), (f"growth to {_x(settings.need)}", settings.need)] if low or high else []
    needed = [(name, found.met(times), times * today) for name, times in wanted if times]
    objectives = tuple(load_line(*one, (value, low, high), "requests/s") for one in needed)
    smallest = f"a change of the sustainable rate by {share(high / low - 1)}" if low and high else ""
    tables = [_rates(tried, found)]
    if found.limits:
        tables.append(Table("Limits", LIMITS, tuple(map(_limit_row, found.limits)), LIMITS_NOTE))
    outcome, details = worst(one.outcome for one in objectives), [*details, *remarks]
    result = Result(outcome, text, objectives, tuple(details), problems=tuple(problems))
    pictures = _pictures(tried, found)
    return answered("headroom", "Sustained rate", result, found, tables, notes, smallest, pictures)


def _found(
    settings: Settings, nothing: Sustained, runs: Runs, tried: Tried, bounds: Bounds
) -> Sustained | None:
    """What was found; None of one run without a 429 if no header names a limit and it does not show that today's rate holds."""
    today = nothing.today_per_s
    if settings.no_429:
        holds = all(one.alone != FAIL and not one.refused.k for one in tried)
        bounds = [one for one in at_least(bounds, today if holds else None) if one.limit is not None]
        if not bounds and any(one.alone != PASS for one in tried):
            return None
        least = min((one.per_s.low for one in bounds), default=today)
        high, binds = min(((one.per_s.high, one.kind) for one in bounds), default=(None, None))
        ends: Ends = (least, None, high)
    else:
        ends = _ends(tried, lowest(bounds), settings.precision, by_capacity=limits.by_capacity(bounds))
        bounds = at_least(bounds, ends[0])
        failed = [run for one in tried if one.outcome == FAIL for run in one.runs]
        binds = limits.binding(failed) if failed else None
    low, value, high = ends
    known = tuple(_found_limit(runs[0], one) for one in bounds)
    first = _least([one.first_429 for one in known if one.bound.decides or settings.no_429])
    return replace(
        nothing, sustained_per_s=value, low_per_s=low, high_per_s=high, growth=None if value is None else value / today,
        binding=binds, first_429=first, without_cache=_without_cache(known), limits=known,
    )  # fmt: skip


def _ends(tried: Tried, known: Rate | None, precision: float, *, by_capacity: bool) -> Ends:
    """The sustained rate between the highest pass and the lowest fail, and no further from a capacity than its interval."""
    passed, failed = search.ends(tried)
    low, high = (None if end is None else end.rate_per_s for end in (passed, failed))
    if by_capacity and known is not None and not search.agrees(known, tried):
        known = None
    if by_capacity and known is not None and high is not None and not tried[0].objectives:
        sure = passed.rate_per_s - passed.unseen_per_s if passed is not None else 0.0
        near = precision * known.value
        low = max(sure, known.value - math.hypot(known.value - known.low, near))
        high = min(high, known.value + math.hypot(known.high - known.value, near))
    if low is None or high is None:
        return low, None, high
    return low, (low * high) ** 0.5 if known is None else min(max(known.value, low), high), high


# --- growth to the first 429 ------------------------------------------------------------------------------------


def _found_limit(today: RateResult, one: Bound) -> FoundLimit:
    """The trace of today's run, repeated, at the bucket that all runs together show.

    A bucket that is full at first carries a short trace beyond the sustained rate, so the trace's length belongs to the
    answer. Of the capacity, which has no first refusal, it is the sustained rate over today's.
    """
    limit = one.limit
    if limit is None:
        by, now = one.per_s, today.rate_per_s
        ratio = Growth(by.value / now, by.low / now, by.high / now, today.requests, None)
        return FoundLimit(one, ratio, ratio)
    allowed = not today.kinds.get(one.kind)
    traces = [(today.offered.get((one.kind, limit.counted, cached)), cached) for cached in (True, False)]
    cached, uncached = (_growth(trace, limit, allowed=allowed and is_cached) for trace, is_cached in traces)
    return FoundLimit(one, cached, uncached or cached)


def _growth(trace: Costs | None, limit: Limit, *, allowed: bool) -> Growth | None:
    """Only bounds if the bucket is only bounded; at least 1 if today's traffic met no 429."""
    if trace is None:
        return None
    burst = limit.burst
    one = growth(trace, limit.rate.value, (burst.low, burst.value, burst.high))
    if one.low is None:
        return one
    floor = 1.0 if allowed else 0.0
    value = None if one.value is None or not limit.seen else max(floor, one.value)
    high = None if one.high is None else max(floor, one.high)
    return replace(one, value=value, low=max(floor, one.low), high=high)


def _least(several: Sequence[Growth | None]) -> Growth | None:
    """Growth until the first limit refuses."""
    known = [one for one in several if one is not None and (one.value is not None or one.low is not None)]
    return min(known, key=lambda one: one.value if one.value is not None else one.low or 0.0, default=None)


def _without_cache(known: Sequence[FoundLimit]) -> WithoutCache | None:
    """None if nothing was read from the cache, or nothing is known."""
    rates = [(one.bound.uncached, one.bound) for one in known if one.bound.uncached is not None]
    if all(rate == bound.per_s for rate, bound in rates):
        return None
    tightest, bound = min(rates, key=lambda pair: pair[0].high)
    first = _least([one.uncached_first_429 for one in known])
    return WithoutCache(min(rate.low for rate, _ in rates), tightest.high, bound.kind, first)


# --- text -------------------------------------------------------------------------------------------------------


def limit_name(kind: str | None) -> str:
    """What binds."""
    names = {OBJECTIVES: "an objective of [slo]", CAPACITY: "the target's capacity", None: "an unknown limit"}
    return names.get(kind) or f"the limit on {kind_name(kind or '')}"


def _x(value: float | None) -> str:
    return f"more than {MOST_FACTOR}x" if value is None else f"{value:.3g}x"


def _between(low: float | None, high: float | None) -> str:
    return f"{_x(low or 0.0)} – {_x(high)}"


def _today(found: Sustained) -> str:
    return f"today's {figures(found.today_per_s)} requests/s"


def _text(found: Sustained, tried: Tried, first: RateResult) -> tuple[str, list[str]]:
    """The answer in a sentence, and how much of today's traffic that is, with what binds."""
    low, value, high = found.low_per_s, found.sustained_per_s, found.high_per_s
    today, binds = found.today_per_s, f"{limit_name(found.binding)} binds first"
    if low is None and high is None:
        most, allowed = figures(max(one.rate_per_s for one in tried)), share(found.refused_at_most)
        return f"too few calls to show that up to {most} requests/s fewer than {allowed} are refused", []
    if low is None:
        return f"no sustainable rate was found: {figures(high or 0.0)} requests/s already fail", [binds]
    if high is None:
        text = f"at least {figures(low)} requests/s can be sustained"
        return text, [f"{_x(low / today)} {_today(found)}; no limit was met"]
    ends = f"{figures(low)} – {figures(high)}"
    if value is None:
        met = f"{first.refused.k:,} calls were refused" if first.refused.k else "without a single 429"
        text = f"{ends} requests/s can be sustained, from one run ({met})"
        return text, [f"{_between(low / today, high / today)} {_today(found)}; {binds}"]
    text = f"{figures(value)} requests/s can be sustained (CI {ends})"
    return text, [f"{_x(value / today)} {_today(found)}; {binds}"]


def _first_429(found: Sustained, first: RateResult) -> Iterator[str]:
    """When the first 429 is expected."""
    grows = found.first_429
    is_open = None in {found.low_per_s, found.high_per_s}
    if grows is not None and not is_open and found.binding not in {CAPACITY, OBJECTIVES, None}:
        ends = _between(grows.low, grows.high)
        at = ends if grows.value is None else f"{_x(grows.value)} ({ends})"
        yield f"first 429 expected at {at} today's traffic, in a test of {first.seconds:.0f} s"


def _cache_text(one: WithoutCache, today: float, *, breaks: bool) -> str:
    """What a cold cache leaves of today's traffic; `breaks`: less than all of it."""
    ends = _between(one.low_per_s / today, one.high_per_s / today)
    return f"without the prompt cache {'only ' if breaks else ''}{ends} of today's traffic fits"


def _notes(settings: Settings, tried: Tried, found: Sustained) -> list[str]:
    unseen = [one.bound.limit.kind for one in found.limits if one.bound.limit and not one.bound.limit.seen]
    if settings.no_429:
        text = "the interval is wide: nothing was refused, so the burst size of {} is unknown"
        return [text.format(listed(map(limit_name, unseen)))] if unseen else []
    kinds = limits.by_kind([run for one in tried for run in one.runs])
    open_rates = ", ".join(figures(one.rate_per_s) for one in tried if one.outcome == INCONCLUSIVE)
    refused = any(one.outcome == FAIL and (one.refused.low or 0.0) > settings.refused for one in tried)
    decided = any(one.bound.decides for one in found.limits)
    notes = (
        (f"inconclusive at {open_rates} requests/s", open_rates),
        ("an acceleration limit refused calls: set experiment.headroom.growth lower", "ramp" in kinds),
        ("the spending limit refused calls: the answer is based on the runs before", "spend" in kinds),
        ("no limit explains the refusals: the interval is based on the tried rates alone", refused and not decided),
    )  # fmt: skip
    return [text for text, is_so in notes if is_so]


# --- tables and the figure ----------------------------------------------------------------------------------------


def _rates(tried: Tried, found: Sustained) -> Table:
    has_good = any(one.objectives for one in tried)
    header = (*RATES[:4], GOOD, *RATES[4:]) if has_good else RATES
    rows = tuple(_rate_row(one, found.today_per_s, has_good=has_good) for one in tried)
    return Table("Rates", header, rows, RATES_NOTE)


def _rate_row(one: JudgedRate, today: float, *, has_good: bool) -> tuple[Cell, ...]:
    counts = limits.by_kind(one.runs)
    seconds = sum(run.seconds for run in one.runs)
    served = sum(run.served.value * run.seconds for run in one.runs) / seconds if seconds else 0.0
    growing = sum(run.growing for run in one.runs)
    least = min(one.objectives, key=lambda of: (of.within.value or 0.0) - of.needed, default=None)
    good: list[Cell] = [NONE if least is None else share_cell(least.within)] if has_good else []
    return (
        figures(one.rate_per_s) + ("*" if one.emptied else ""), f"{one.rate_per_s / today:.3g}", share_cell(one.refused),
        figures(served), *good, Value(one.outcome.lower(), outcome=one.outcome),
        ", ".join(kind_name(kind) for kind, _ in counts.most_common()) or NONE,
        f"{growing} of {len(one.runs)}" if growing else "no", f"{len(one.runs)}", f"{sum(run.requests for run in one.runs):,}",
    )  # fmt: skip


def _limit_row(one: FoundLimit) -> tuple[Cell, ...]:
    bound, limit = one.bound, one.bound.limit
    of_limit: tuple[Cell, ...] = (NONE, NONE, NONE)
    if limit is not None:
        mark = "" if limit.seen else "never seen empty"
        burst = replace(_rate(limit.burst, exact=limit.seen), mark=mark)
        of_limit = f"{limit.refused:,}", _rate(limit.rate), burst
    uncached: tuple[Cell, Cell] = ("the same", "the same")
    if bound.uncached is not None and bound.uncached != bound.per_s:
        uncached = _rate(bound.uncached, exact=bound.decides), _growth_cell(one.uncached_first_429)
    return (
        kind_name(bound.kind), *of_limit, _rate(bound.per_s, exact=bound.decides), uncached[0], _growth_cell(one.first_429),
        uncached[1],
    )  # fmt: skip


def _rate(rate: Rate, *, exact: bool = True) -> Value:
    cell = estimate(rate.value, rate.low, rate.high, figures)
    return cell if exact else Value(cell.interval or cell.text)


def _growth_cell(one: Growth | None) -> Value:
    if one is None or (one.value is None and one.low is None):
        return Value("unknown" if one is None or one.why is None else f"unknown: {one.why}")
    ends = _between(one.low, one.high)
    return Value(ends) if one.value is None else Value(_x(one.value), ends)


def _pictures(tried: Tried, found: Sustained) -> tuple[Picture, ...]:
    """Refused share by rate, and where the sustainable rate lies."""
    if len(tried) < 2:
        return ()
    curves, known = [], [one for one in tried if one.refused.value is not None]
    for name, emptied in (("from rest", False), ("after a burst that empties the bucket", True)):
        if ours := [(one.rate_per_s, one.refused) for one in known if one.emptied == emptied]:
            curves.append(PlotCurve.of(name, ours, lambda share: 100 * share, joined=not emptied))
    ends, allowed = (tried[0].rate_per_s, tried[-1].rate_per_s), 100 * found.refused_at_most
    curves.append(PlotCurve("allowed", ends, (allowed, allowed), dashed="red"))
    low, high = found.low_per_s, found.high_per_s
    marks = (Mark("sustainable rate", low, high),) if low is not None and high is not None else ()
    text = ("Calls refused at each rate", FIGURE_NOTE, "requests/s", "refused, %")
    return (Picture("headroom", *text, tuple(curves), marks),)
