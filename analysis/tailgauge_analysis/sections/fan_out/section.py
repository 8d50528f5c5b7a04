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
PS = (0.5, 0.95, 0.99)
MOST_POSITIONS = 50
COMPUTED = (
    "A join counts from the scheduled arrival, failures as slowest. Times of legs count from their first byte sent, in requests in which every leg answered.",
)


@dataclass(frozen=True, slots=True)
class LastLegs:
    """Which legs requests waited for last, by leg number; `even` is each share if all legs were alike."""

    n: int
    even: float
    positions: tuple[Proportion, ...]

    @property
    def most(self) -> int:
        """The leg that was waited for most often."""
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
    """Joins and legs of one traffic table; see reports.md.

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
        """One leg after the other."""
        return self.order == SEQUENTIAL


def compute(run: Run) -> list[FanOut]:
    """Return every traffic table with fan-outs."""
    of_target = run.of_target
    fan_outs = []
    for one in legs(run.record["scenario"], of_target):
        part = of_target.of_traffic(one.traffic)
        joined = latency.row(BY_NAME["join_sched"], part, latency.OFFERED, PS)
        fan_outs.append(_fan_out(one, joined))
    return fan_outs


def _fan_out(one: Legs, joined: latency.Row) -> FanOut:
    times = one.times_ms[one.complete]
    several = len(one.kinds) > 1 and len(times) > 0
    slowest = _quantiles(times.max(axis=1)) if several else ()
    single: tuple[Quantile, ...] = ()
    cost: tuple[Ratio, ...] = ()
    if several and one.join == ALL:
        single = _quantiles(times.ravel())
        cost = tuple(quantile_ratio(slow, leg) for slow, leg in zip(slowest, single, strict=True))
    return FanOut(
        traffic=plain(one.traffic, 80),
        join=one.join,
        order=SEQUENTIAL if one.is_sequential else "parallel",
        bounded=one.is_bounded,
        legs=len(one.kinds),
        requests=len(one.requests),
        complete=len(times),
        joined=joined.quantiles,
        without_answer=joined.without_answer,
        slowest=slowest,
        one_less=_quantiles(np.sort(times, axis=1)[:, -2]) if several else (),
        single=single,
        cost=cost,
        critical=_critical(one),
        partial=_partial(one),
    )


def _quantiles(values: Floats) -> tuple[Quantile, ...]:
    return tuple(quantiles(values, PS)) if len(values) else ()


def _critical(one: Legs) -> LastLegs | None:
    """Parallel: the leg that was over last before the join; one after the other: the longest."""
    times = (one.times_ms if one.is_sequential else one.ended_ms)[one.ok]
    legs = len(one.kinds)
    if not times.size or legs < 2:
        return None
    known = np.where(np.isnan(times), -np.inf, times)
    known = known[(known == known.max(axis=1)[:, None]).sum(axis=1) == 1]  # none is last where two are
    if not len(known):
        return None
    last = known.argmax(axis=1)
    positions = tuple(proportion(last == i) for i in range(min(legs, MOST_POSITIONS)))
    return LastLegs(len(known), 1 / legs, positions)


def _partial(one: Legs) -> PartialFailures:
    failed = one.failed.any(axis=1)
    known = ~np.isnan(one.times_ms) | one.failed
    return PartialFailures(
        legs=one.times_ms.size,
        failed=int(one.failed.sum()),
        closed=int(one.closed.sum()),
        never_sent=int((~known & ~one.closed).sum()),
        failed_share=proportion(one.failed[known], known.sum(axis=1)),
        requests_with_failed=int(failed.sum()),
        ok_with_failed=int((failed & one.ok).sum()),
        retries=one.retries,
        copies=one.copies,
    )


def section(found: Sequence[FanOut]) -> Section | None:
    """How long joins take, and what makes them slow; None without fan-outs."""
    if not found:
        return None
    facts, tables = cells.side_by_side("Legs and joins", {one.traffic: _facts(one) for one in found})
    waits = (cells.quantile_table(f"Waits of {one.traffic}", "from", _waits(one)) for one in found)
    answer = cells.by_traffic([(one.traffic, _answer(one)) for one in found])
    return Section(
        "fan-out", "Fan-out", answer, facts, (*waits, *tables), tuple(_last_legs(found)), computed=COMPUTED,
        card=_card(found),
    )  # fmt: skip


def _answer(one: FanOut) -> str:
    """How long a join takes, and what it costs against one call."""
    waits = [(percentile(q.p), cells.quantile_cell(q)) for q in one.joined]
    known = [(label, cell) for label, cell in waits if cell.interval]
    if not known:
        return "too few joined requests to report the latency of a join."
    label, cell = known[-1]
    joins = f"joins of {plural(one.legs, 'leg')} take {with_interval(cell, ' ms')} at {label}"
    parts = [_awaited(one), joins]
    costs = [ratio for ratio in one.cost if ratio.value is not None]
    if costs:
        ratio = costs[-1]
        text = f"{cells.ratio_text(ratio)} as long as one leg at {percentile(ratio.p)}"
        parts.append(f"the slowest leg takes {text}")
    return "; ".join(filter(None, parts)) + "."


def _card(found: Sequence[FanOut]) -> Card | None:
    """The slowest leg of the traffic table with most requests; None where too few of them have a time."""
    known = [one for one in found if _slowest(one) is not None]
    if not known:
        return None
    main = max(known, key=lambda one: one.requests)
    others = [one for one in known if one is not main]
    lines = [_last_in_short(main)]
    lines += [f"{one.traffic}: slowest of {plural(one.legs, 'leg')} {_slowest_text(one)}" for one in others]
    slowest = _slowest(main)
    assert slowest is not None
    cell = cells.quantile_cell(slowest)
    return Card(
        label="fan-out",
        value=replace(cell, text=_with_unit(cell.text)),
        detail=f"for the slowest of {plural(main.legs, 'leg')} at {percentile(slowest.p)}",
        lines=tuple(filter(None, lines)),
    )


def _slowest(one: FanOut) -> Quantile | None:
    """The time of the slowest leg at p95, else at p50."""
    known = [quantile for quantile in one.slowest if quantile.p <= 0.95 and quantile.mark != TOO_FEW]
    return known[-1] if known else None


def _slowest_text(one: FanOut) -> str:
    slowest = _slowest(one)
    return "" if slowest is None else cells.values_text([slowest])


def _with_unit(text: str) -> str:
    return f"{text} ms" if text[:1].isdigit() else text


def _last_in_short(one: FanOut) -> str:
    """`leg 3 is last in 71%, 20% if alike`; that no leg is where none stands out; empty without several."""
    if one.critical is None:
        return ""
    leg = one.critical.positions[one.critical.most]
    word = "longest" if one.is_sequential else "last"
    if (leg.low or 0.0) <= one.critical.even:
        return f"no leg is {word} more often than the others"
    return f"leg {one.critical.most} is {word} in {share(leg.value)} ({share(one.critical.even)} if alike)"


def _awaited(one: FanOut) -> str:
    """The leg that more requests wait for than if the legs were alike; empty if there is none."""
    if one.critical is None:
        return ""
    leg = one.critical.positions[one.critical.most]
    if (leg.low or 0.0) <= one.critical.even:
        return ""
    waits = "is the longest in" if one.is_sequential else "is what requests wait for in"
    of = f"{plural(one.critical.n, 'request')} ({share(one.critical.even)} if legs were alike)"
    return f"leg {one.critical.most} {waits} {share(leg.value)} of {of}"


def _waits(one: FanOut) -> list[tuple[str, tuple[Quantile, ...]]]:
    """Rows of percentiles in ms: what they are of, and the percentiles."""
    return [
        ("Join, since scheduled", one.joined),
        ("Slowest leg, measured", one.slowest),
        ("One leg", one.single),
        ("Second slowest leg", one.one_less),
    ]


def _facts(one: FanOut) -> list[tuple[str, str]]:
    """The other results, as name and text."""
    rows = [("Legs", _legs_text(one))]
    if one.cost:
        costs = ", ".join(f"{percentile(ratio.p)} {cells.ratio_text(ratio)}" for ratio in one.cost)
        rows.append(("Slowest leg over one leg", costs))
    if one.critical:
        rows.append(("Longest leg" if one.is_sequential else "Last leg", _critical_text(one.critical)))
    return [*rows, ("Partial failures", _partial_text(one.partial, one.requests))]


def _legs_text(one: FanOut) -> str:
    joins = {"all": "joined on all", "first_k": "joined on the first k", "deadline": "joined at a deadline"}
    bounded = ", limited concurrency" if one.bounded else ""
    complete = f"{count(one.complete)} of {plural(one.requests, 'request')} complete"
    return f"{one.legs} per request, {one.order}, {joins.get(one.join, one.join)}{bounded}; {complete}"


def _critical_text(critical: LastLegs) -> str:
    last = with_interval(share_cell(critical.positions[critical.most]))
    of = f"{plural(critical.n, 'request')}; {share(critical.even)} if legs were alike"
    return f"leg {critical.most} (0 to {len(critical.positions) - 1}) in {last} of {of}"


def _partial_text(partial: PartialFailures, requests: int) -> str:
    text = "no leg failed"
    cell = share_cell(partial.failed_share)
    if partial.failed:
        of = f"{count(partial.requests_with_failed)} of {plural(requests, 'request')}"
        text = f"{plural(partial.failed, 'leg')} failed ({cell.text}, 95% CI {cell.interval}) in {of}; "
        text += f"{count(partial.ok_with_failed)} of these succeeded without them"
    others = (
        (partial.closed, "closed at the join"), (partial.never_sent, "not sent"), (partial.retries, "retries"),
        (partial.copies, "hedges"),
    )  # fmt: skip
    return text + "".join(f"; {count(n)} {name}" for n, name in others if n)


# --- figure -------------------------------------------------------------------------------------------------------

FEWEST = 20  # requests, below which the last legs are not drawn


def _last_legs(found: Sequence[FanOut]) -> Iterator[Picture]:
    """Draw the traffic table with the most requests whose last leg is known."""
    known = [(one.critical, one) for one in found if one.critical and one.critical.n >= FEWEST]
    if not known:
        return
    last, fan_out = max(known, key=lambda pair: pair[0].n)
    ends = np.array([(share.value or 0.0, share.low or 0.0, share.high or 0.0) for share in last.positions])
    shares, low, high = 100 * ends.T
    legs = range(len(shares))
    bars = PlotCurve(
        legs, shares, low=low, high=high, colour=BLUE, style="bars", hover="leg %{x}: %{y:.3~g}%"
    )
    even = PlotCurve(legs, [100 * last.even] * len(legs), colour=ORANGE, dash="dash", hover="skip")
    word = "longest" if fan_out.is_sequential else "last"
    yield Picture(
        name="fan-out-last",
        title=f"Which leg is {word}",
        caption=f"{fan_out.traffic}, {last.n:,} requests, with 95% intervals. Dashed: every leg alike.",
        panels=(Panel(f"requests in which the leg is {word} (%)", (bars, even)),),
        x="leg (number)",
        x_scale="category",
        height=300,
    )
