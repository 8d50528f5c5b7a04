"""The answer of headroom: the sustained rate, what binds, and how much today's traffic may grow.

Exit code 1 if the need is not met, 5 if nothing was found or the need lies inside the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from tailgauge.errors import Exit
from tailgauge.experiments.answer import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Answer,
    AnswerTable,
    Case,
    Mark,
    Outcome,
    Picture,
    PlotCurve,
)  # fmt: skip
from tailgauge.experiments.headroom import limits, search
from tailgauge.experiments.headroom.judge import JudgedRate, Rate, RateResult
from tailgauge.experiments.headroom.limits import CAPACITY, OBJECTIVES, Bound, Limit, at_least, lowest
from tailgauge.scenario.experiment import Headroom as Settings
from tailgauge_analysis.sections.rate_limits.costs import Costs
from tailgauge_analysis.sections.rate_limits.section import kind_name
from tailgauge_analysis.sections.rate_limits.token_bucket import MOST_FACTOR, Growth, growth
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.text.formatting import figures, listed, sentence, share, share_range
from tailgauge_analysis.text.json_values import Json

NOTHING = "No answer: every run was INVALID, or there was no time for one."
NO_HEADER = "No answer without a 429: no header of the target names a limit."
NONE = "–"
RATES = (
    "requests/s", "times today", "runs", "requests", "refused (of attempts)", "95% interval", "429s by", "answered/s", "backlog grows",
    "sustained",
)  # fmt: skip
LIMITS = (
    "limit", "429s", "per second", "burst", "sustained requests/s", "without cache", "growth to the first 429", "without cache",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sustained:
    """Requests/s: the best value, the highest confident pass, the lowest confident fail; None if none was found."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class LimitGrowth:
    """Growth of today's traffic until one limit refuses its first call, with the cache and without; None if unknown."""

    kind: str
    cached: Growth | None
    uncached: Growth | None


def answer(
    settings: Settings, today: float, runs: Sequence[RateResult], tried: Sequence[JudgedRate], found: Sequence[Bound],
    remarks: Sequence[str],
) -> Answer:  # fmt: skip
    """The answer of a search; its first run is at today's rate."""
    if not runs:
        return _nothing(settings, today, NOTHING, remarks)
    low, high = search.ends(tried)
    rate = _sustained(low, high, lowest(found))
    found = at_least(found, rate.low)
    binds = None
    if high is not None:
        failed = [run for one in tried if one.outcome == FAIL for run in one.runs]
        binds = limits.binding(failed, settings.good)
    growths = _growths(runs[0], found)
    first = _least([one.cached for one in growths if one.kind == binds and one.kind != CAPACITY])
    highest = max(one.rate_per_s for one in tried)
    text = _sentence(settings, today, highest, rate, binds) + _first_429(first, runs[0].seconds)
    return Answer(
        kind="headroom", sentence=text + _need(settings, today, rate), table=_rates(tried, today),
        facts=_facts(settings, today, rate, binds, found, growths),
        exit_code=_exit(settings, today, rate), smallest=_smallest(rate), cases=_cases(settings, today, rate, tried, binds),
        remarks=(*remarks, *_remarks(settings, tried, found), *_without_cache_text(found, growths, today)),
        pictures=_pictures(tried, rate, settings.refused),
        more=(_limits(found, growths, today),) if found else (),
    )  # fmt: skip


def answer_without_429(
    settings: Settings, today: float, runs: Sequence[RateResult], found: Sequence[Bound], remarks: Sequence[str],
    *, passes: bool,
) -> Answer:  # fmt: skip
    """The answer of one run at today's rate without a 429, from headers and usage; `passes`: the run's own result."""
    if not runs:
        return _nothing(settings, today, NOTHING, remarks)
    named = [one for one in at_least(found, today if passes else None) if one.limit is not None]
    if not named:
        return _nothing(settings, today, NO_HEADER, remarks)
    first = min(named, key=lambda one: one.per_s.high)
    low, high = min(one.per_s.low for one in named), first.per_s.high
    rate = Sustained(None, low, high)
    growths = _growths(runs[0], named)
    refused = runs[0].refused.k
    met = "without a single 429" if not refused else f"in which {refused:,} calls were refused"
    text = (
        f"Between {figures(low)} and {figures(high)} requests/s can be sustained, {_x(low / today)} to {_x(high / today)} "
        f"today's {figures(today)}: an estimate from headers and usage of one run {met}. "
        f"{sentence(limit_name(first.kind))} binds first."
    )
    unseen = [limit_name(one.kind) for one in named if one.limit is not None and not one.limit.seen]
    wide = (
        [f"Wide interval: nothing was refused, so the burst size of {listed(unseen)} is unknown."]
        if unseen
        else []
    )
    return Answer(
        kind="headroom", sentence=text + _first_429(_least([one.cached for one in growths]), runs[0].seconds),
        table=_limits(named, growths, today), facts=_facts(settings, today, rate, first.kind, named, growths),
        exit_code=_exit(settings, today, rate), smallest=_smallest(rate), cases=_cases(settings, today, rate, (), first.kind),
        remarks=(*remarks, *wide, *_without_cache_text(named, growths, today)),
    )  # fmt: skip


def _nothing(settings: Settings, today: float, why: str, remarks: Sequence[str]) -> Answer:
    return Answer(
        "headroom", why, _rates((), today), _facts(settings, today, Sustained(), None, (), ()),
        Exit.INCONCLUSIVE, "", (Case("sustainable rate", INCONCLUSIVE, why),), tuple(remarks),
    )  # fmt: skip


def _sustained(low: JudgedRate | None, high: JudgedRate | None, known: Rate | None) -> Sustained:
    if low is None or high is None:
        ends = [None if one is None else one.rate_per_s for one in (low, high)]
        return Sustained(None, *ends)
    middle = (low.rate_per_s * high.rate_per_s) ** 0.5
    value = middle if known is None else min(max(known.value, low.rate_per_s), high.rate_per_s)
    return Sustained(value, low.rate_per_s, high.rate_per_s)


# --- growth to the first 429 ------------------------------------------------------------------------------------


def _growths(today: RateResult, found: Sequence[Bound]) -> list[LimitGrowth]:
    """Growth per known limit, in that order: the trace of today's run, repeated, at the bucket that all runs together show.

    A bucket that is full at first carries a short trace beyond the sustained rate, so the trace's length belongs to the
    answer. Of the capacity, which has no first refusal, it is the sustained rate over today's.
    """
    out = []
    for one in found:
        limit = one.limit
        if limit is None:
            by, now = one.per_s, today.rate_per_s
            ratio = Growth(by.value / now, by.low / now, by.high / now, today.requests, None)
            out.append(LimitGrowth(one.kind, ratio, ratio))
            continue
        allowed = not today.kinds.get(one.kind)
        cached, uncached = (
            _growth(trace, limit, allowed=allowed and cached)
            if (trace := today.offered.get((one.kind, limit.counted, cached))) is not None
            else None
            for cached in (True, False)
        )
        out.append(LimitGrowth(one.kind, cached, uncached or cached))
    return out


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


# --- text -------------------------------------------------------------------------------------------------------


def limit_name(kind: str | None) -> str:
    """What binds."""
    if kind == OBJECTIVES:
        return "an objective of [slo]"
    if kind is None:
        return "an unknown limit"
    return "the target's capacity" if kind == CAPACITY else f"the limit on {kind_name(kind)}"


def _x(value: float) -> str:
    return f"{value:.3g}x"


def _sentence(settings: Settings, today: float, highest: float, rate: Sustained, binds: str | None) -> str:
    now = f"today's {figures(today)}"
    if rate.low is None and rate.high is None:
        return (
            f"Inconclusive: no limit was met up to {figures(highest)} requests/s, {_x(highest / today)} {now}, but there were "
            f"too few calls to show that less than {share(settings.refused)} are refused."
        )
    if rate.low is None:
        return f"No sustainable rate was found: {figures(rate.high or 0)} requests/s already fail, by {limit_name(binds)}."
    if rate.high is None:
        return f"At least {figures(rate.low)} requests/s can be sustained, {_x(rate.low / today)} {now}. No limit was met."
    value = rate.value or rate.low
    return (
        f"{figures(value)} requests/s can be sustained (CI {figures(rate.low)} – {figures(rate.high)}), {_x(value / today)} {now} "
        f"({_x(rate.low / today)} – {_x(rate.high / today)}). {sentence(limit_name(binds))} binds first."
    )


def _first_429(grows: Growth | None, seconds: float) -> str:
    if grows is None:
        return ""
    high = f"more than {MOST_FACTOR}x" if grows.high is None else _x(grows.high)
    if grows.value is None:
        return f" First 429 expected between {_x(grows.low or 0)} and {high} today's traffic ({seconds:.0f} s test)."
    return f" First 429 expected at {_x(grows.value)} today's traffic ({_x(grows.low or 0)} – {high}, {seconds:.0f} s test)."


def _need(settings: Settings, today: float, rate: Sustained) -> str:
    if not settings.need or (rate.low is None):
        return ""
    possible = {PASS: "possible", FAIL: "not possible", INCONCLUSIVE: "inconclusive"}
    return f" Growth to {_x(settings.need)}: {possible[_met(settings.need * today, rate)]}."


def _met(needed: float, rate: Sustained) -> Outcome:
    if rate.low is not None and rate.low >= needed:
        return PASS
    return FAIL if rate.high is not None and rate.high <= needed else INCONCLUSIVE


def _exit(settings: Settings, today: float, rate: Sustained) -> Exit:
    if rate.low is None and rate.high is None:
        return Exit.INCONCLUSIVE
    if not settings.need:
        return Exit.OK
    return {PASS: Exit.OK, FAIL: Exit.FAILED, INCONCLUSIVE: Exit.INCONCLUSIVE}[
        _met(settings.need * today, rate)
    ]


def _smallest(rate: Sustained) -> str:
    if not rate.low or not rate.high:
        return ""
    return f"a change of the sustainable rate by {share(rate.high / rate.low - 1)}"


def _cases(
    settings: Settings, today: float, rate: Sustained, tried: Sequence[JudgedRate], binds: str | None
) -> tuple[Case, ...]:
    low, high = ("unknown" if end is None else figures(end) for end in (rate.low, rate.high))
    ends = f"sustained: {low} to {high} requests/s"
    name = f"today's {figures(today)} requests/s are sustained"
    out = [Case(name, _met(today, rate), f"{ends}; binds first: {limit_name(binds)}")]
    if settings.need:
        out.append(
            Case(f"growth to {_x(settings.need)} today's traffic", _met(settings.need * today, rate), ends)
        )
    rates = ", ".join(figures(one.rate_per_s) for one in tried if one.outcome == INCONCLUSIVE)
    if rates:
        out.append(Case("every rate is decided", INCONCLUSIVE, f"inconclusive: {rates} requests/s"))
    return tuple(out)


def _remarks(settings: Settings, tried: Sequence[JudgedRate], found: Sequence[Bound]) -> list[str]:
    out = []
    kinds = limits.by_kind([run for one in tried for run in one.runs])
    if "ramp" in kinds:
        out.append(
            "An acceleration limit refused calls. Raise the rate more slowly: set experiment.headroom.growth lower."
        )
    if "spend" in kinds:
        out.append("The spending limit refused calls. The answer is based on the runs before.")
    refused = any(one.outcome == FAIL and (one.refused.low or 0.0) > settings.refused for one in tried)
    if refused and not any(one.decides for one in found):
        out.append("No limit explains the refusals. The interval is based on the tried rates alone.")
    return out


def _without_cache_text(found: Sequence[Bound], growths: Sequence[LimitGrowth], today: float) -> list[str]:
    facts = _without_cache(found, growths)
    if facts is None:
        return []
    low, high = facts["low_per_s"], facts["high_per_s"]
    text = (
        f"Without the prompt cache between {figures(low)} and {figures(high)} requests/s could be sustained, {_x(low / today)} to "
        f"{_x(high / today)} today's: {limit_name(facts['binding'])} would bind first."
    )
    return [text]


# --- facts: unrounded, None if a number is unknown ----------------------------------------------------------------


def _facts(
    settings: Settings, today: float, rate: Sustained, binds: str | None, found: Sequence[Bound], growths: Sequence[LimitGrowth],
) -> Json:  # fmt: skip
    kinds = [one.kind for one in found if one.decides or settings.no_429]
    return {
        "today_per_s": today, "sustained_per_s": rate.value, "low_per_s": rate.low, "high_per_s": rate.high,
        "growth": None if rate.value is None else rate.value / today,
        "binding": binds, "refused_at_most": settings.refused, "no_429": settings.no_429,
        "first_429": _growth_facts(_least([one.cached for one in growths if one.kind in kinds])),
        "without_cache": _without_cache(found, growths),
        "limits": [
            {
                "kind": one.kind, "decides": one.decides, "sustained_per_s": asdict(one.per_s),
                "without_cache_per_s": None if one.uncached is None else asdict(one.uncached),
                "rate_per_s": None if one.limit is None else asdict(one.limit.rate),
                "burst": None if one.limit is None else asdict(one.limit.burst),
                "refused": 0 if one.limit is None else one.limit.refused,
                "first_429": _growth_facts(grows.cached),
            }
            for one, grows in zip(found, growths, strict=True)
        ],
    }  # fmt: skip


def _without_cache(found: Sequence[Bound], growths: Sequence[LimitGrowth]) -> Json | None:
    """What would be sustained without reads from the cache; None if there were none, or nothing is known."""
    known = [(one.uncached, one) for one in found if one.uncached is not None]
    if all(rate == one.per_s for rate, one in known):
        return None
    tightest, one = min(known, key=lambda pair: pair[0].high)
    return {
        "low_per_s": min(rate.low for rate, _ in known), "high_per_s": tightest.high, "binding": one.kind,
        "first_429": _growth_facts(_least([grows.uncached for grows in growths])),
    }  # fmt: skip


def _growth_facts(one: Growth | None) -> Json | None:
    return None if one is None else {"value": one.value, "low": one.low, "high": one.high, "why": one.why}


# --- tables and the figure ----------------------------------------------------------------------------------------


def _rates(tried: Sequence[JudgedRate], today: float) -> AnswerTable:
    rows = tuple(_rate_row(one, today) for one in tried)
    caption = (
        "One row per rate, its runs pooled. Refused: 429, 529 and 503. *: began with a burst that empties the bucket. "
        "Without such a burst a rate above a known limit fails even if a full bucket carried it."
    )
    if not any(one.good is not None for one in tried):
        return AnswerTable(caption, RATES, rows)
    header = (*RATES[:-1], "within [slo] (of requests)", RATES[-1])
    goods = [NONE if one.good is None else f"{share(one.good.value)} ({_ends(one.good)})" for one in tried]
    return AnswerTable(
        caption, header, tuple((*row[:-1], good, row[-1]) for row, good in zip(rows, goods, strict=True))
    )


def _rate_row(one: JudgedRate, today: float) -> tuple[str, ...]:
    counts = limits.by_kind(one.runs)
    seconds = sum(run.seconds for run in one.runs)
    served = sum(run.served.value * run.seconds for run in one.runs) / seconds if seconds else 0.0
    growing = sum(run.growing for run in one.runs)
    return (
        figures(one.rate_per_s) + ("*" if one.emptied else ""), f"{one.rate_per_s / today:.3g}", f"{len(one.runs)}",
        f"{sum(run.requests for run in one.runs):,}", share(one.refused.value), _ends(one.refused),
        ", ".join(kind_name(kind) for kind in sorted(counts, key=lambda kind: -counts[kind])) or NONE,
        figures(served), f"{growing} of {len(one.runs)}" if growing else "no", one.outcome,
    )  # fmt: skip


def _ends(proportion: Proportion) -> str:
    return share_range(proportion.low, proportion.high)


def _limits(found: Sequence[Bound], growths: Sequence[LimitGrowth], today: float) -> AnswerTable:
    caption = (
        f"One row per limit, the tightest first. Sustained: the rate at which it refuses the allowed share, with its interval; "
        f"today's rate is {figures(today)}."
    )
    return AnswerTable(
        caption, LIMITS, tuple(_limit_row(one, of) for one, of in zip(found, growths, strict=True))
    )


def _limit_row(one: Bound, grows: LimitGrowth) -> tuple[str, ...]:
    limit, same = one.limit, one.uncached is None or one.uncached == one.per_s
    shown = _rate if one.decides else _between
    return (
        kind_name(one.kind), NONE if limit is None else f"{limit.refused:,}", NONE if limit is None else _rate(limit.rate),
        NONE if limit is None else _rate(limit.burst) if limit.seen else f"{_between(limit.burst)} (never seen empty)",
        shown(one.per_s), "the same" if same else shown(one.uncached),
        _growth_cell(grows.cached), "the same" if same else _growth_cell(grows.uncached),
    )  # fmt: skip


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return NONE
    alone = figures(rate.value)
    return alone if rate.low == rate.high else f"{alone} ({figures(rate.low)} – {figures(rate.high)})"


def _between(rate: Rate | None) -> str:
    return NONE if rate is None else f"{figures(rate.low)} – {figures(rate.high)}"


def _growth_cell(one: Growth | None) -> str:
    if one is None or (one.value is None and one.low is None):
        return "unknown" if one is None or one.why is None else f"unknown: {one.why}"
    ends = f"{one.low or 0.0:.3g} – {f'more than {MOST_FACTOR}' if one.high is None else f'{one.high:.3g}'}"
    return ends if one.value is None else f"{one.value:.3g} ({ends})"


def _pictures(tried: Sequence[JudgedRate], rate: Sustained, allowed: float) -> tuple[Picture, ...]:
    """Refused share by rate, and where the sustainable rate lies."""
    if len(tried) < 2:
        return ()
    curves = []
    for name, emptied in (("from rest", False), ("after a burst that empties the bucket", True)):
        ours = [one for one in tried if one.emptied == emptied and one.refused.value is not None]
        if ours:
            curves.append(PlotCurve(
                name, tuple(one.rate_per_s for one in ours), tuple(100 * (one.refused.value or 0.0) for one in ours),
                tuple(100 * (one.refused.low or 0.0) for one in ours), tuple(100 * (one.refused.high or 0.0) for one in ours),
                joined=not emptied,
            ))  # fmt: skip
    rates = [one.rate_per_s for one in tried]
    curves.append(PlotCurve("allowed", (min(rates), max(rates)), (100 * allowed, 100 * allowed)))
    known = rate.low is not None and rate.high is not None
    marks = (Mark("sustainable up to here", rate.low or 0.0, rate.high or 0.0),) if known else ()
    caption = "Bars are 95% intervals. Shaded: from the highest rate that passes to the lowest that fails."
    title = "Calls refused at each rate"
    return (Picture("headroom", title, caption, "requests/s", "refused, %", tuple(curves), marks),)
