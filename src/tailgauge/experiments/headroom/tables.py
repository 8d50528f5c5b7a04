"""The tables and the figure of headroom's answer: every rate that was tried, every limit that is known.

Rule: strings out of values; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailgauge.experiments.answer import Line, Mark, Picture, Table
from tailgauge.experiments.headroom.estimate import Bound
from tailgauge.experiments.headroom.growth import Grown
from tailgauge.experiments.headroom.judge import Judged
from tailgauge.experiments.headroom.limits import CAPACITY, OBJECTIVES
from tailgauge.experiments.headroom.rate_result import Rate
from tailgauge_analysis.sections.rate_limits.growth import MOST_FACTOR, Growth
from tailgauge_analysis.sections.rate_limits.section import kind_name
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.text.formatting import figures, share

LEVELS = (
    "requests/s", "times today", "runs", "requests", "refused", "95% interval", "429s by", "answered/s", "grows", "sustained",
)  # fmt: skip
LIMITS = (
    "limit", "429s", "a second", "at once", "sustained requests/s", "without cache", "growth to the first 429", "without cache",
)  # fmt: skip


def times(value: float) -> str:
    """A factor."""
    return f"{value:.3g}"


def limit_name(kind: str | None) -> str:
    """What is met first, in words."""
    if kind == OBJECTIVES:
        return "an objective of [slo]"
    if kind is None:
        return "a limit that nothing names"
    return "the target's capacity" if kind == CAPACITY else f"the limit on {kind_name(kind)}"


def levels(tried: Sequence[Judged], today: float) -> Table:
    """A row a rate."""
    rows = tuple(_level(one, today) for one in tried)
    caption = (
        "A row is a rate; its runs count as one sample. Refused: 429, 529 and 503. Marked *: began with a burst that used up "
        "the limit; without it a rate above a known limit fails even where a bucket, full at first, hid that."
    )
    if not any(one.good is not None for one in tried):
        return Table(caption, LEVELS, rows)
    header = (*LEVELS[:-1], "within [slo]", LEVELS[-1])
    goods = ["–" if one.good is None else f"{share(one.good.value)} ({_ends(one.good)})" for one in tried]
    told = tuple((*row[:-1], good, row[-1]) for row, good in zip(rows, goods, strict=True))
    return Table(caption, header, told)


def _level(one: Judged, today: float) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for level in one.levels:
        for kind, n in level.kinds.items():
            counts[kind] = counts.get(kind, 0) + n
    seconds = sum(level.seconds for level in one.levels)
    served = sum(level.served.value * level.seconds for level in one.levels) / seconds if seconds else 0.0
    growing = sum(level.growing for level in one.levels)
    return (
        figures(one.rate_per_s) + ("*" if one.emptied else ""), times(one.rate_per_s / today), f"{len(one.levels)}",
        f"{sum(level.requests for level in one.levels):,}", share(one.refused.value), _ends(one.refused),
        ", ".join(kind_name(kind) for kind in sorted(counts, key=lambda kind: -counts[kind])) or "–",
        figures(served), f"{growing} of {len(one.levels)}" if growing else "no", one.outcome,
    )  # fmt: skip


def _ends(proportion: Proportion) -> str:
    return f"{share(proportion.low)} – {share(proportion.high)}"


def limits(found: Sequence[Bound], growths: Sequence[Grown], today: float) -> Table:
    """A row a limit, the tightest first."""
    by_kind = {one.kind: one for one in growths}
    caption = f"A row is a limit. Sustained: the rate at which it refuses as much as is borne, with its interval; today's is {figures(today)}."
    return Table(caption, LIMITS, tuple(_limit(one, by_kind.get(one.kind)) for one in found))


def _limit(one: Bound, growth: Grown | None) -> tuple[str, ...]:
    told = one.limit
    same = one.uncached is None or one.uncached == one.per_s
    return (
        kind_name(one.kind), "–" if told is None else f"{told.refused:,}",
        "–" if told is None else _rate(told.rate), "–" if told is None else _burst(told.burst, seen=told.seen),
        _rate(one.per_s) if one.decides else _between(one.per_s),
        "the same" if same else _rate(one.uncached) if one.decides else _between(one.uncached),
        _growth(growth.cached if growth else None), "the same" if same else _growth(growth.uncached if growth else None),
    )  # fmt: skip


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "–"
    alone = figures(rate.value)
    return alone if rate.low == rate.high else f"{alone} ({figures(rate.low)} – {figures(rate.high)})"


def _between(rate: Rate | None) -> str:
    return "–" if rate is None else f"{figures(rate.low)} – {figures(rate.high)}"


def _burst(burst: Rate, *, seen: bool) -> str:
    return _rate(burst) if seen else f"{_between(burst)} (never seen empty)"


def _growth(one: Growth | None) -> str:
    if one is None or (one.value is None and one.low is None):
        return "unknown" if one is None or one.why is None else f"unknown: {one.why}"
    high = f"more than {MOST_FACTOR}" if one.high is None else times(one.high)
    ends = f"{times(one.low or 0.0)} – {high}"
    return ends if one.value is None else f"{times(one.value)} ({ends})"


def pictures(
    tried: Sequence[Judged], low: float | None, high: float | None, bound: float
) -> tuple[Picture, ...]:
    """Refused share by rate, and where the sustainable rate lies."""
    if len(tried) < 2:
        return ()
    lines = []
    for name, which in (("from rest", False), ("its limit used up first", True)):
        ours = [one for one in tried if one.emptied == which and one.refused.value is not None]
        if ours:
            lines.append(Line(
                name, tuple(one.rate_per_s for one in ours), tuple(100 * (one.refused.value or 0.0) for one in ours),
                tuple(100 * (one.refused.low or 0.0) for one in ours), tuple(100 * (one.refused.high or 0.0) for one in ours),
                joined=not which,
            ))  # fmt: skip
    rates = [one.rate_per_s for one in tried]
    lines.append(Line("borne", (min(rates), max(rates)), (100 * bound, 100 * bound)))
    marks = (Mark("sustained up to here", low, high),) if low is not None and high is not None else ()
    caption = "Bars are 95% intervals. Shaded: from the highest rate that passes to the lowest that fails."
    title = "Calls refused at each rate"
    return (Picture("headroom", title, caption, "requests/s", "refused, %", tuple(lines), marks),)
