"""The answer of headroom: the sustained rate, what binds, and how much today's traffic may grow.

FAIL if today's rate, or the growth that is needed, is not sustained; INCONCLUSIVE if that lies inside the interval, or
nothing was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tailgauge.experiments.answer import Answer, worst
from tailgauge.experiments.headroom import limits, search
from tailgauge.experiments.headroom.judge import JudgedRate, Rate, RateResult
from tailgauge.experiments.headroom.limits import CAPACITY, OBJECTIVES, Bound, Limit, at_least, lowest
from tailgauge.scenario.experiment import Headroom as Settings
from tailgauge_analysis.sections.rate_limits.costs import Costs
from tailgauge_analysis.sections.rate_limits.section import kind_name
from tailgauge_analysis.sections.rate_limits.token_bucket import MOST_FACTOR, Growth, growth
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.text.cells import share_cell
from tailgauge_analysis.text.formatting import figures, listed, share
from tailgauge_analysis.text.picture import Mark, Picture, PlotCurve
from tailgauge_analysis.text.section import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Cell,
    ObjectiveLine,
    Result,
    Section,
    Table,
    Value,
)

NOTHING = "no answer: every run was INVALID, or there was no time for one"
NO_HEADER = "no answer without a 429: no header of the target names a limit"
NONE = "–"
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
    settings: Settings, today: float, runs: Sequence[RateResult], tried: Sequence[JudgedRate], bounds: Sequence[Bound],
    remarks: Sequence[str],
) -> Answer:  # fmt: skip
    """The answer of a search, or of one run without a 429; the first run is at today's rate."""
    nothing = Sustained(today, settings.refused, settings.no_429)
    if not runs:
        return _answer(settings, nothing, NOTHING, tried, remarks)
    if settings.no_429:
        passes = all(one.alone == PASS for one in tried)
        bounds = [one for one in at_least(bounds, today if passes else None) if one.limit is not None]
        if not bounds:
            return _answer(settings, nothing, NO_HEADER, tried, remarks)
        tightest = min(bounds, key=lambda one: one.per_s.high)
        ends: Ends = (min(one.per_s.low for one in bounds), None, tightest.per_s.high)
        binds: str | None = tightest.kind
    else:
        ends = _ends(tried, lowest(bounds))
        bounds = at_least(bounds, ends[0])
        failed = [run for one in tried if one.outcome == FAIL for run in one.runs]
        binds = limits.binding(failed, settings.good) if failed else None
    low, value, high = ends
    known = tuple(_found_limit(runs[0], one) for one in bounds)
    first = _least([one.first_429 for one in known if one.bound.decides or settings.no_429])
    found = replace(
        nothing, sustained_per_s=value, low_per_s=low, high_per_s=high, growth=None if value is None else value / today,
        binding=binds, first_429=first, without_cache=_without_cache(known), limits=known,
    )  # fmt: skip
    details = [_binding(found, runs[0]), *_cache_text(found), *remarks]
    details += _unseen(found) if settings.no_429 else _remarks(settings, tried, bounds)
    return _answer(settings, found, _sentence(found, tried, runs[0]), tried, details)


def _answer(
    settings: Settings, found: Sustained, sentence: str, tried: Sequence[JudgedRate], details: Sequence[str]
) -> Answer:
    objectives = _objectives(settings, found) if found.low_per_s or found.high_per_s else ()
    outcome = worst(one.outcome for one in objectives)
    low, high = found.low_per_s, found.high_per_s
    smallest = f"a change of the sustainable rate by {share(high / low - 1)}" if low and high else ""
    pictures = _pictures(tried, found)
    tables = (
        [Table("Limits", LIMITS, tuple(map(_limit_row, found.limits)), LIMITS_NOTE)] if found.limits else []
    )
    return Answer(
        "headroom", Result(outcome, sentence, objectives, tuple(filter(None, details))), found,
        (Section("headroom", "Sustained rate", tables=(_rates(tried, found), *tables), figures=tuple(p.name for p in pictures)),),
        smallest, pictures,
    )  # fmt: skip


def _ends(tried: Sequence[JudgedRate], known: Rate | None) -> Ends:
    """The sustained rate between the highest pass and the lowest fail."""
    low, high = (None if end is None else end.rate_per_s for end in search.ends(tried))
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
    cached, uncached = (
        _growth(trace, limit, allowed=allowed and cached)
        if (trace := today.offered.get((one.kind, limit.counted, cached))) is not None
        else None
        for cached in (True, False)
    )
    return FoundLimit(one, cached, uncached or cached)


def _growth(trace: Costs, limit: Limit, *, allowed: bool) -> Growth:
    """Only bounds if the bucket is only bounded; at least 1 if today's traffic met no 429."""
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


def _sentence(found: Sustained, tried: Sequence[JudgedRate], first: RateResult) -> str:
    low, value, high = found.low_per_s, found.sustained_per_s, found.high_per_s
    now = _today(found)
    if low is None and high is None:
        most = max(one.rate_per_s for one in tried)
        return (
            f"no limit was met up to {figures(most)} requests/s, {_x(most / found.today_per_s)} {now}, but there were too few "
            f"calls to show that less than {share(found.refused_at_most)} are refused"
        )
    if low is None:
        return f"no sustainable rate was found: {figures(high or 0.0)} requests/s already fail, by {limit_name(found.binding)}"
    if high is None:
        return f"at least {figures(low)} requests/s can be sustained, {_x(low / found.today_per_s)} {now}: no limit was met"
    if value is None:
        refused = first.refused.k
        met = "without a single 429" if not refused else f"in which {refused:,} calls were refused"
        ends = _between(low / found.today_per_s, high / found.today_per_s)
        return f"{figures(low)} – {figures(high)} requests/s can be sustained, {ends} {now}: an estimate from one run {met}"
    ends = f"{figures(low)} – {figures(high)}"
    return f"{figures(value)} requests/s can be sustained (CI {ends}), {_x(value / found.today_per_s)} {now}"


def _binding(found: Sustained, first: RateResult) -> str:
    """What binds, and when the first 429 is expected."""
    if found.high_per_s is None or found.low_per_s is None:
        return ""
    text, grows = f"{limit_name(found.binding)} binds first", found.first_429
    if grows is None or found.binding in {CAPACITY, OBJECTIVES, None}:
        return text
    ends, length = _between(grows.low, grows.high), f"{first.seconds:.0f} s test"
    at = (
        f"{ends} today's traffic ({length})"
        if grows.value is None
        else f"{_x(grows.value)} today's traffic ({ends}, {length})"
    )
    return f"{text}; first 429 expected at {at}"


def _cache_text(found: Sustained) -> list[str]:
    one, today = found.without_cache, found.today_per_s
    if one is None:
        return []
    ends = _between(one.low_per_s / today, one.high_per_s / today)
    rates = f"{figures(one.low_per_s)} – {figures(one.high_per_s)} requests/s"
    return [
        f"without the prompt cache only {rates} ({ends} today's): {limit_name(one.binding)} would bind first"
    ]


def _objectives(settings: Settings, found: Sustained) -> tuple[ObjectiveLine, ...]:
    low, high = ("?" if end is None else figures(end) for end in (found.low_per_s, found.high_per_s))
    value = NONE if found.sustained_per_s is None else f"{figures(found.sustained_per_s)} requests/s"
    return tuple(
        ObjectiveLine(
            name,
            found.met(times),
            value,
            f"≥ {figures(times * found.today_per_s)} requests/s",
            f"{low} – {high}",
        )
        for name, times in ((_today(found), 1.0), (f"growth to {_x(settings.need)}", settings.need))
        if times
    )


def _remarks(settings: Settings, tried: Sequence[JudgedRate], bounds: Sequence[Bound]) -> list[str]:
    out = []
    kinds = limits.by_kind([run for one in tried for run in one.runs])
    open_rates = ", ".join(figures(one.rate_per_s) for one in tried if one.outcome == INCONCLUSIVE)
    if open_rates:
        out.append(f"inconclusive at {open_rates} requests/s")
    if "ramp" in kinds:
        out.append("an acceleration limit refused calls: set experiment.headroom.growth lower")
    if "spend" in kinds:
        out.append("the spending limit refused calls: the answer is based on the runs before")
    refused = any(one.outcome == FAIL and (one.refused.low or 0.0) > settings.refused for one in tried)
    if refused and not any(one.decides for one in bounds):
        out.append("no limit explains the refusals: the interval is based on the tried rates alone")
    return out


def _unseen(found: Sustained) -> list[str]:
    unseen = [
        one.bound.limit.kind
        for one in found.limits
        if one.bound.limit is not None and not one.bound.limit.seen
    ]
    return (
        [
            f"wide interval: nothing was refused, so the burst size of {listed(map(limit_name, unseen))} is unknown"
        ]
        if unseen
        else []
    )


# --- tables and the figure ----------------------------------------------------------------------------------------


def _rates(tried: Sequence[JudgedRate], found: Sustained) -> Table:
    has_good = any(one.good is not None for one in tried)
    header = (*RATES[:4], GOOD, *RATES[4:]) if has_good else RATES
    rows = tuple(_rate_row(one, found.today_per_s, has_good=has_good) for one in tried)
    return Table("Rates", header, rows, RATES_NOTE)


def _rate_row(one: JudgedRate, today: float, *, has_good: bool) -> tuple[Cell, ...]:
    counts = limits.by_kind(one.runs)
    seconds = sum(run.seconds for run in one.runs)
    served = sum(run.served.value * run.seconds for run in one.runs) / seconds if seconds else 0.0
    growing = sum(run.growing for run in one.runs)
    good = [_share(one.good)] if has_good else []
    return (
        figures(one.rate_per_s) + ("*" if one.emptied else ""), f"{one.rate_per_s / today:.3g}", _share(one.refused),
        figures(served), *good, Value(one.outcome.lower(), outcome=one.outcome),
        ", ".join(kind_name(kind) for kind in sorted(counts, key=lambda kind: -counts[kind])) or NONE,
        f"{growing} of {len(one.runs)}" if growing else "no", f"{len(one.runs)}", f"{sum(run.requests for run in one.runs):,}",
    )  # fmt: skip


def _share(of: Proportion | None) -> Cell:
    return NONE if of is None else share_cell(of)


def _limit_row(one: FoundLimit) -> tuple[Cell, ...]:
    bound, limit = one.bound, one.bound.limit
    same = bound.uncached is None or bound.uncached == bound.per_s
    burst = _rate(limit.burst, exact=limit.seen) if limit is not None else Value(NONE)
    return (
        kind_name(bound.kind), NONE if limit is None else f"{limit.refused:,}", Value(NONE) if limit is None else _rate(limit.rate),
        replace(burst, mark="never seen empty") if limit is not None and not limit.seen else burst,
        _rate(bound.per_s, exact=bound.decides), "the same" if same else _rate(bound.uncached, exact=bound.decides),
        _growth_cell(one.first_429), "the same" if same else _growth_cell(one.uncached_first_429),
    )  # fmt: skip


def _rate(rate: Rate | None, *, exact: bool = True) -> Value:
    if rate is None:
        return Value(NONE)
    value, low, high = map(figures, (rate.value, rate.low, rate.high))
    ends = f"{low} – {high}"
    return Value(value, "" if low == value == high else ends) if exact else Value(ends)


def _growth_cell(one: Growth | None) -> Value:
    if one is None or (one.value is None and one.low is None):
        return Value("unknown" if one is None or one.why is None else f"unknown: {one.why}")
    ends = _between(one.low, one.high)
    return Value(ends) if one.value is None else Value(_x(one.value), ends)


def _pictures(tried: Sequence[JudgedRate], found: Sustained) -> tuple[Picture, ...]:
    """Refused share by rate, and where the sustainable rate lies."""
    if len(tried) < 2:
        return ()
    curves = []
    for name, emptied in (("from rest", False), ("after a burst that empties the bucket", True)):
        ours = [
            (one.rate_per_s, one.refused)
            for one in tried
            if one.emptied == emptied and one.refused.value is not None
        ]
        if ours:
            curves.append(PlotCurve.of(name, ours, lambda share: 100 * share, joined=not emptied))
    rates = [one.rate_per_s for one in tried]
    curves.append(PlotCurve("allowed", (min(rates), max(rates)), (100 * found.refused_at_most,) * 2))
    low, high = found.low_per_s, found.high_per_s
    marks = (Mark("sustainable up to here", low, high),) if low is not None and high is not None else ()
    title = "Calls refused at each rate"
    return (Picture("headroom", title, FIGURE_NOTE, "requests/s", "refused, %", tuple(curves), marks),)
