"""The section on fan-outs: joins and legs by traffic table.

Steady stage without requests that were read slowly on purpose. `join` is what a user waits, since scheduled, failures
counted as slowest; everything about legs is of the complete requests (ok, with an answer of every leg) and of the legs'
times since sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.fan_out.legs import ALL, SEQUENTIAL, Legs, legs
from tailgauge_analysis.stats.proportions import Proportion, Ratio, proportion, quantile_ratio
from tailgauge_analysis.stats.quantiles import TOO_FEW, Floats, Quantile, quantiles
from tailgauge_analysis.text import cells
from tailgauge_analysis.text.cells import share_cell, with_interval
from tailgauge_analysis.text.formatting import count, percentile, plain, plural, share
from tailgauge_analysis.text.picture import BLUE, ORANGE, Panel, Picture, PlotCurve
from tailgauge_analysis.text.section import Card, Section

KEY = "fan_out"
QUANTILES = (0.5, 0.95, 0.99)
MOST_POSITIONS = 50
COMPUTED = (
    "A leg is one of the calls of a request; the join is when the awaited legs have answered. The time of a join starts at the scheduled arrival; failed requests count as slowest.",
    "The time of a leg starts when its first byte is sent; only requests in which every leg answered are counted.",
)


@dataclass(frozen=True, slots=True)
class LastLegs:
    """Which legs requests waited for last, by leg number; `even` is each share if all legs were alike."""

    n: int
    even: float
    positions: tuple[Proportion, ...]

    @property
    def most(self) -> int:
        """Return the leg that was waited for most often."""
        return max(range(len(self.positions)), key=lambda i: self.positions[i].k)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialFailures:
    """Legs without an answer, and the outcomes of their requests."""

    legs: int
    failed: int
    closed: int
    never_sent: int
    failed_share: Proportion
    """with effective n: the legs of one request fail together"""
    requests_with_failed: int
    ok_with_failed: int
    retries: int
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """Joins and legs by traffic table.

    Quantiles are in ms, empty without several legs or a complete request.
    """

    traffic: str
    join: str
    order: str
    bounded: bool
    legs: int
    requests: int
    complete: int
    joined: tuple[Quantile, ...]
    without_answer: int
    slowest: tuple[Quantile, ...]
    one_less: tuple[Quantile, ...]
    """the second slowest leg"""
    single: tuple[Quantile, ...]
    """empty where late legs are closed at the join: there the time of one leg is not known"""
    cost: tuple[Ratio, ...]
    critical: LastLegs | None
    partial: PartialFailures

    @property
    def is_sequential(self) -> bool:
        """Return whether legs run one after the other."""
        return self.order == SEQUENTIAL


def compute(run: Run) -> list[FanOut]:
    """Return every traffic table with fan-outs."""
    without_slow_readers = run.without_slow_readers
    fan_outs = []
    for table in legs(run.record["scenario"], without_slow_readers):
        part = without_slow_readers.of_traffic(table.traffic)
        joined = latency.row(BY_NAME["join_sched"], part, latency.OFFERED, QUANTILES)
        fan_outs.append(_fan_out(table, joined))
    return fan_outs


def _fan_out(table: Legs, joined: latency.Row) -> FanOut:
    times = table.times_ms[table.complete]
    slowest: tuple[Quantile, ...] = ()
    one_less: tuple[Quantile, ...] = ()
    single: tuple[Quantile, ...] = ()
    cost: tuple[Ratio, ...] = ()
    if len(table.kinds) > 1 and len(times):
        slowest = _quantiles(times.max(axis=1))
        one_less = _quantiles(np.sort(times, axis=1)[:, -2])
        if table.join == ALL:
            single = _quantiles(times.ravel())
            cost = tuple(map(quantile_ratio, slowest, single))
    return FanOut(
        traffic=plain(table.traffic, 80),
        join=table.join,
        order=SEQUENTIAL if table.is_sequential else "parallel",
        bounded=table.is_bounded,
        legs=len(table.kinds),
        requests=len(table.requests),
        complete=len(times),
        joined=joined.quantiles,
        without_answer=joined.without_answer,
        slowest=slowest,
        one_less=one_less,
        single=single,
        cost=cost,
        critical=_critical(table),
        partial=_partial(table),
    )


def _quantiles(values: Floats) -> tuple[Quantile, ...]:
    if not len(values):
        return ()
    return tuple(quantiles(values, QUANTILES))


def _critical(table: Legs) -> LastLegs | None:
    """Return which leg requests waited for last, in how many of them; None with one leg, or without a complete request.

    Of legs that run one after the other it is the longest leg. Requests in which two legs are last together are left out. Only the
    first MOST_POSITIONS legs have a share.
    """
    leg_times = table.ended_ms
    if table.is_sequential:
        leg_times = table.times_ms
    leg_times_of_complete = leg_times[table.ok]
    legs = len(table.kinds)
    if not leg_times_of_complete.size or legs < 2:
        return None
    # A leg without an answer is never the last.
    ranking_ms = np.where(np.isnan(leg_times_of_complete), -np.inf, leg_times_of_complete)
    # Where two legs are last together, none of them is the last.
    is_last = ranking_ms == ranking_ms.max(axis=1)[:, None]
    ranking_ms = ranking_ms[is_last.sum(axis=1) == 1]
    if not len(ranking_ms):
        return None
    last_leg = ranking_ms.argmax(axis=1)
    positions = tuple(proportion(last_leg == i) for i in range(min(legs, MOST_POSITIONS)))
    return LastLegs(len(ranking_ms), 1 / legs, positions)


def _partial(table: Legs) -> PartialFailures:
    failed = table.failed.any(axis=1)
    is_over = ~np.isnan(table.times_ms) | table.failed
    return PartialFailures(
        legs=table.times_ms.size,
        failed=int(table.failed.sum()),
        closed=int(table.closed.sum()),
        never_sent=int((~is_over & ~table.closed).sum()),
        failed_share=proportion(table.failed[is_over], is_over.sum(axis=1)),
        requests_with_failed=int(failed.sum()),
        ok_with_failed=int((failed & table.ok).sum()),
        retries=table.retries,
        copies=table.copies,
    )


def section(fan_outs: Sequence[FanOut]) -> Section | None:
    """Return how long joins take, and what makes them slow; None without fan-outs."""
    if not fan_outs:
        return None
    waits = []
    facts_by_traffic = {}
    answers = []
    for fan_out in fan_outs:
        waits.append(cells.quantile_table(f"Waits of {fan_out.traffic}", "from", _waits(fan_out)))
        facts_by_traffic[fan_out.traffic] = _facts(fan_out)
        answers.append((fan_out.traffic, _answer(fan_out)))
    facts, tables = cells.side_by_side("Legs and joins", facts_by_traffic)
    return Section(
        name="fan-out",
        title="Fan-out",
        answer=cells.by_traffic(answers),
        facts=facts,
        tables=(*waits, *tables),
        figures=tuple(_last_legs(fan_outs)),
        computed=COMPUTED,
        card=_card(fan_outs),
    )


def _answer(fan_out: FanOut) -> str:
    """Return how long a join takes, and what it costs against one call."""
    wait = ""  # at the highest percentile with an interval
    for quantile in fan_out.joined:
        cell = cells.quantile_cell(quantile)
        if cell.interval:
            wait = cells.quantiles_text(quantile)
    if not wait:
        return "too few joined requests to report the latency of a join."
    parts = [_awaited(fan_out), f"join of {plural(fan_out.legs, 'leg')}: {wait}"]
    answer = "; ".join(filter(None, parts)) + "."
    costs = [ratio for ratio in fan_out.cost if ratio.value is not None]
    if not costs:
        return answer
    ratio = costs[-1]
    slowest = f"the slowest leg takes {cells.ratio_text(ratio)} the time of one leg"
    return f"{answer} At {percentile(ratio.p)}, {slowest}."


def _card(fan_outs: Sequence[FanOut]) -> Card | None:
    """Return the slowest leg of the traffic table with most requests; None where too few of them have a time."""
    measured = [fan_out for fan_out in fan_outs if _slowest(fan_out) is not None]
    if not measured:
        return None
    main = max(measured, key=lambda fan_out: fan_out.requests)
    lines = [_last_in_short(main)]
    for fan_out in measured:
        if fan_out is not main:
            legs = plural(fan_out.legs, "leg")
            lines.append(f"{fan_out.traffic}: slowest of {legs} {_slowest_text(fan_out)}")
    slowest = _slowest(main)
    assert slowest is not None
    cell = cells.quantile_cell(slowest)
    return Card(
        label="fan-out",
        value=replace(cell, text=_with_unit(cell.text)),
        detail=f"at {percentile(slowest.p)} for the slowest of a request's {plural(main.legs, 'leg')}",
        lines=tuple(filter(None, lines)),
    )


def _slowest(fan_out: FanOut) -> Quantile | None:
    """Return the time of the slowest leg at p95, else at p50."""
    for quantile in reversed(fan_out.slowest):
        if quantile.p <= 0.95 and quantile.mark != TOO_FEW:
            return quantile
    return None


def _slowest_text(fan_out: FanOut) -> str:
    slowest = _slowest(fan_out)
    if slowest is None:
        return ""
    return cells.values_text([slowest])


def _with_unit(text: str) -> str:
    if not text[:1].isdigit():
        return text
    return f"{text} ms"


def _last_in_short(fan_out: FanOut) -> str:
    """`leg 3 is last in 71% of requests (20% if all were alike)`; that no leg is where none stands out; empty without several."""
    if fan_out.critical is None:
        return ""
    leg = fan_out.critical.positions[fan_out.critical.most]
    word = _extreme(fan_out)
    if (leg.low or 0.0) <= fan_out.critical.even:
        return f"no leg is {word} more often than the others"
    return f"leg {fan_out.critical.most} is {word} in {share(leg.value)} of requests ({share(fan_out.critical.even)} if all were alike)"


def _extreme(fan_out: FanOut) -> str:
    """Return what the leg is that decides the time of a request."""
    return "longest" if fan_out.is_sequential else "last"


def _awaited(fan_out: FanOut) -> str:
    """Return the leg that more requests wait for than if the legs were alike; empty if there is none."""
    if fan_out.critical is None:
        return ""
    leg = fan_out.critical.positions[fan_out.critical.most]
    if (leg.low or 0.0) <= fan_out.critical.even:
        return ""
    population = f"{plural(fan_out.critical.n, 'request')} ({share(fan_out.critical.even)} if all were alike)"
    return (
        f"leg {fan_out.critical.most} is {_extreme(fan_out)} in {share(leg.value)} of {population}"
    )


def _waits(fan_out: FanOut) -> list[tuple[str, tuple[Quantile, ...]]]:
    """Return the rows of a table of percentiles in ms: what they are of, and the percentiles."""
    return [
        ("Join, since scheduled", fan_out.joined),
        ("Slowest leg, measured", fan_out.slowest),
        ("One leg", fan_out.single),
        ("Second slowest leg", fan_out.one_less),
    ]


def _facts(fan_out: FanOut) -> list[tuple[str, str]]:
    """Return the other results, as name and text."""
    rows = [("Legs", _legs_text(fan_out))]
    if fan_out.cost:
        rows.append(("Slowest leg relative to one leg", cells.ratios_text(fan_out.cost)))
    if fan_out.critical:
        rows.append(
            (
                "Longest leg" if fan_out.is_sequential else "Last leg",
                _critical_text(fan_out.critical, _extreme(fan_out)),
            )
        )
    return [*rows, ("Partial failures", _partial_text(fan_out.partial, fan_out.requests))]


def _legs_text(fan_out: FanOut) -> str:
    joins = {
        "all": "joined on all",
        "first_k": "joined on the first k",
        "deadline": "joined at a deadline",
    }
    bounded = ", limited concurrency" if fan_out.bounded else ""
    complete = f"{count(fan_out.complete)} of {plural(fan_out.requests, 'request')} complete"
    return f"{fan_out.legs} per request, {fan_out.order}, {joins.get(fan_out.join, fan_out.join)}{bounded}; {complete}"


def _critical_text(critical: LastLegs, extreme: str) -> str:
    """Return how often which leg was last or longest, and how often each would be if all were alike."""
    leg_share = with_interval(share_cell(critical.positions[critical.most]))
    legs = f"Each request has legs 0 to {len(critical.positions) - 1}"
    return (
        f"leg {critical.most} was {extreme} in {leg_share} of {plural(critical.n, 'request')}. "
        f"{legs}; if all were alike, each would be {extreme} in {share(critical.even)}"
    )


def _partial_text(partial: PartialFailures, requests: int) -> str:
    text = "no leg failed"
    cell = share_cell(partial.failed_share)
    if partial.failed:
        population = f"{count(partial.requests_with_failed)} of {plural(requests, 'request')}"
        text = f"{plural(partial.failed, 'leg')} failed ({cell.text}, 95% CI {cell.interval}) in {population}; "
        text += f"{count(partial.ok_with_failed)} of these requests succeeded nevertheless"
    counts = (
        (partial.closed, "closed at the join"),
        (partial.never_sent, "not sent"),
        (partial.retries, "retries"),
        (partial.copies, "hedges"),
    )
    for n, name in counts:
        if n:
            text += f"; {count(n)} {name}"
    return text


# --- figure -------------------------------------------------------------------------------------------------------

FEWEST = 20  # requests, below which the last legs are not drawn


def _last_legs(fan_outs: Sequence[FanOut]) -> Iterator[Picture]:
    """Draw the traffic table with the most requests whose last leg is known."""
    fan_out = max(fan_outs, key=_requests_with_last_leg)
    critical = fan_out.critical
    if critical is None or critical.n < FEWEST:
        return
    estimates = []
    for leg in critical.positions:
        estimates.append((leg.value or 0.0, leg.low or 0.0, leg.high or 0.0))
    shares, low, high = 100 * np.array(estimates).T
    legs = range(len(shares))
    bars = PlotCurve(
        legs, shares, low=low, high=high, colour=BLUE, style="bars", hover="leg %{x}: %{y:.3~g}%"
    )
    even = PlotCurve(
        legs, [100 * critical.even] * len(legs), colour=ORANGE, dash="dash", hover="skip"
    )
    word = "longest" if fan_out.is_sequential else "last"
    yield Picture(
        name="fan-out-last",
        title=f"Which leg is {word}",
        caption=f"{fan_out.traffic}, {critical.n:,} requests, with 95% intervals. The dashed line is the share if all legs were alike.",
        panels=(Panel(f"requests in which the leg is {word} (%)", (bars, even)),),
        x="leg (number)",
        x_scale="category",
        height=300,
    )


def _requests_with_last_leg(fan_out: FanOut) -> int:
    if fan_out.critical is None:
        return 0
    return fan_out.critical.n
