"""The answer of the hedging experiment: helps below, hurts above, at which cost, and why.

PASS if there is an answer; INCONCLUSIVE if no load shows a difference, or nothing could be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tailgauge.experiments.answer import NONE, Answer, answered
from tailgauge.experiments.hedging import judge
from tailgauge.experiments.hedging.contrast import MOST, Contrast, per_cent
from tailgauge.experiments.hedging.judge import HELPS, HURTS, ComparedLoad, CrossoverLoad, HedgingResult
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    STABLE,
    Cell,
    Column,
    Floats,
    Mark,
    Panel,
    Picture,
    PlotCurve,
    Result,
    Table,
    Value,
    estimate_curve,
    figures,
    ms_or_failed,
    percentile,
    share,
    tail_curve,
)

DETECTED = 2.8  # standard errors: 5% two-sided, 80% power
NOTHING = "no answer: every run was INVALID, had too few requests, or there was no time for one"
NO_RATE = "no answer: no sustainable rate was found, so there are no loads to try"
P95 = "too few requests for a p99 of each variant at the lowest load: the p95 is used"
SHORT_BLOCKS = "blocks are shorter than five end-to-end p99s at {}: this hides part of the difference"
MIXED = "not compared at {} requests/s: the backlog outlasts a block, so that both variants wait for it"
NOT_STABLE = "unstable without hedging too at {} requests/s"
LOST = "not compared at {} requests/s: the {} is a failed request in both variants"
MODEL = "neighbouring loads are pooled: what hedging changes can only grow with the load (isotonic fit)"
UNSTABLE = "unstable with hedging"
LOADS_NOTE = (
    "One row per load; hedging off and on in alternating blocks. End to end since scheduled, failures slowest; the interval "
    "is a bootstrap over pairs of blocks. Helps, hurts: by the interval of the crossover load; inconclusive: within it. Missed: requests that miss an objective."
)
COSTS_NOTE = "Refused: of the attempts. Cost: of the losing attempts, least to most"
DELAYS_NOTE = "At the lowest load; the delay with the lowest quantile was used at all loads."
COPIES = (("calls hedged", "hedged"), ("hedges won", "won"))
TIMES = 4  # the minutes: half the noise
ADVICE = {
    HELPS: "turn hedging on at {}", HURTS: "leave hedging off at {}", INCONCLUSIVE: "hedging has no clear effect at {}",
}  # fmt: skip
DRAWN_TO = 1.5  # of a logarithm: +348%; larger values are drawn there
FIGURE_NOTE = "Bars are 95% intervals{}; below 0 hedging helps."
SHADED = " Shaded: the interval of the crossover load."
TAILS_NOTE = "At {} requests/s, the tested load nearest to today's {}. A line that ends level above the bottom shows the share of failed requests."
CANCEL = "cancel"
LIMIT = "limit"
DELAY = "delay"
LOAD = "load"
SAVED = 0.5  # of the remaining generation: less is no effective cancel
MORE_REFUSED = 0.005  # share of the calls
GROWS = 1.5  # times the copies at the lowest load


@dataclass(frozen=True, slots=True)
class TestedHedge:
    """What was tested: the hedge as text, the sustainable rate, today's rate, the quantile if the scenario sets one, and the
    minutes; `refused`: why the loads could not be tried.
    """

    hedge: str
    sustainable_per_s: float | None
    today_per_s: float
    quantile: float | None = None
    minutes: float = 0.0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why hedging stops helping, with its number."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Hedging:
    """What was found."""

    tested: TestedHedge
    found: HedgingResult
    delays: tuple[judge.TriedDelay, ...]
    why: tuple[Cause, ...]


def answer(
    tested: TestedHedge, loads: Sequence[judge.LoadResult], delays: Sequence[judge.TriedDelay], notes: Sequence[str]
) -> Answer:  # fmt: skip
    """The answer from all tested loads."""
    found = judge.result(loads, tested.quantile)
    why = _causes(found)
    finding = Hedging(tested, found, tuple(delays), tuple(why))
    known = found.unstable_per_s is not None or any(one.change or one.missed for one in found.loads)
    if tested.sustainable_per_s is None or tested.refused or not known:
        reason = tested.refused or (NO_RATE if tested.sustainable_per_s is None else NOTHING)
        return Answer("hedging", Result(INCONCLUSIVE, reason, details=tuple(notes)), finding)
    measures = [(of, by) for of, by in ((found.tail, ""), (found.goodput, " by goodput")) if of is not None]
    decided, by = next(((of, by) for of, by in measures if of.helps or of.hurts), measures[0])
    place = f"{tested.hedge} {_place(found, decided)}{by}"
    if decided.helps or decided.hurts:
        now = f"today's {figures(tested.today_per_s)} requests/s"
        text, outcome, details = ADVICE[decided.verdict(tested.today_per_s)].format(now), PASS, [place]
        if found.unstable_per_s is not None and tested.today_per_s >= found.unstable_per_s:
            text = f"{text}: the target is {UNSTABLE} there"
    else:
        text, outcome, details = place, INCONCLUSIVE, []
    causes = [one.text for one in why]
    unequal = dict.fromkeys(text for one in found.loads for text in one.load.unequal)
    more, less = _goodput(found, decided)
    details = [*unequal, *details, *more, *_between(tested, decided), *_sizes(found), *causes[:1]]
    tables = [_loads(found, tested.sustainable_per_s), _costs(found), *([_delays(delays)] if delays else [])]
    notes = [*less, *_price(found), *causes[1:], *notes, *_remarks(tested, found)]
    shown, pictures = Result(outcome, text, details=tuple(details)), [*_pictures(found, tested.today_per_s)]
    return answered("hedging", "Hedging by load", shown, finding, tables, notes, _smallest(found), pictures)


# --- text -------------------------------------------------------------------------------------------------------


def _goodput(found: HedgingResult, decided: CrossoverLoad) -> tuple[list[str], list[str]]:
    """What goodput says where the tail decides: as a detail where it shows more than the tail, else as a note."""
    of = found.goodput
    if of is None or of is decided:
        return [], []
    text = [f"by the share of requests that meet every objective it {_place(found, of)}"]
    return (text, []) if (of.hurts, of.helps) > (decided.hurts, decided.helps) else ([], text)


def _between(tested: TestedHedge, of: CrossoverLoad) -> Iterator[str]:
    """What to do between the load up to which it helps and the one from which it hurts."""
    if of.helps_below_per_s is not None and of.hurts_above_per_s is not None:
        band = f"between {_rate(of.helps_below_per_s)} and {_rate(of.hurts_above_per_s)} requests/s"
        yield f"{band}: leave it off, or measure again with experiment.minutes = {TIMES * tested.minutes:g}"


def _place(found: HedgingResult, of: CrossoverLoad) -> str:
    """Where it helps and where it hurts."""
    unstable = found.unstable_per_s
    last = "" if unstable is None else f"; {UNSTABLE} from {_rate(unstable)} requests/s"
    return f"{_ends(found, of)}{last}"


def _ends(found: HedgingResult, of: CrossoverLoad) -> str:
    compared = [one for one in found.loads if not one.load.mixed] or found.loads
    first, last = (_rate(one.rate_per_s) for one in (compared[0], compared[-1]))
    below, above = (
        "at some loads" if rate is None else f"{word} {_rate(rate)} requests/s"
        for word, rate in (("below", of.helps_below_per_s), ("above", of.hurts_above_per_s))
    )
    if of.helps:
        hurts = f"hurts {above}" if of.hurts else f"not shown to hurt up to {last} requests/s"
        return f"helps {below}, {hurts}"
    if of.hurts:
        return f"hurts {above}, not shown to help from {first} requests/s on"
    return f"shows no difference from {first} to {last} requests/s"


def _shown(found: HedgingResult) -> list[tuple[float, ComparedLoad]]:
    """Loads with a shown difference, by it."""
    loads = [one for one in found.loads if found.tail.verdict(one.rate_per_s) != INCONCLUSIVE]
    known = [(one.change.value, one) for one in loads if one.change is not None]
    return sorted(known, key=lambda pair: pair[0])


def _quantile(found: HedgingResult) -> str:
    """Its name; with too few requests for any there is none."""
    return "tail" if found.quantile is None else percentile(found.quantile)


def _sizes(found: HedgingResult) -> list[str]:
    """The largest gain and the largest harm that a load shows."""
    known = _shown(found)
    ends = [pair for pair, sign in ((known[:1], -1), (known[-1:], 1)) if pair and pair[0][0] * sign > 0]
    parts = [f"{_change(value)} at {_rate(one.rate_per_s)} requests/s" for ((value, one),) in ends]
    return [f"{_quantile(found)} {', '.join(parts)}"] if parts else []


def _price(found: HedgingResult) -> Iterator[str]:
    """What a millisecond costs where the gain is largest."""
    for _, best in _shown(found)[:1]:
        if best.cost_per_ms is not None:
            cost = f"{_span(best.cost_per_ms)} {best.load.copies.unit} per 1,000 requests"
            yield f"at {_rate(best.rate_per_s)} requests/s each ms gained costs {cost}"


def _rate(value: float) -> str:
    return f"{value:.3g}"


def _smallest(found: HedgingResult) -> str:
    variances = [float(one.change.draws.var()) for one in found.loads if one.change is not None]
    if not variances or not all(variances):
        return ""
    least = per_cent(DETECTED / math.sqrt(sum(1 / one for one in variances)))
    return f"a {_quantile(found)} that differs by {share(least)} at every load"


def _remarks(tested: TestedHedge, found: HedgingResult) -> list[str]:
    def at(holds: Callable[[ComparedLoad], bool]) -> str:
        return ", ".join(_rate(one.rate_per_s) for one in found.loads if holds(one))

    mixed = at(lambda one: one.load.mixed)
    short = at(lambda one: one.load.short and not one.load.mixed)
    both = "" if found.loads[-1].change else at(lambda one: one.load.growth_per_s[0] is not None)
    lost = at(lambda one: not (one.change or one.load.mixed) and one.load.growth_per_s == STABLE)
    prices = next((one.load.copies.why for one in found.loads if one.load.copies.why), "")
    remarks = (
        (MODEL, True),
        (P95, tested.quantile is None and found.quantile is not None and found.quantile < 0.99),
        (MIXED.format(mixed), mixed),
        (SHORT_BLOCKS.format(f"{short} requests/s"), short),
        (NOT_STABLE.format(both), both),
        (LOST.format(lost, _quantile(found)), lost),
        (f"cost of the losing attempts unknown: {prices}", prices),
    )
    return [text for text, is_so in remarks if is_so]


def _causes(found: HedgingResult) -> list[Cause]:
    """Why it hurts, or, if that is not shown, why it gains nothing: those that the rows show, the strongest first.

    At the first load that hurts, or the highest, and at the lowest.
    """
    hurts = found.tail.hurts or (found.goodput is not None and found.goodput.hurts)
    if not found.loads or (not hurts and found.tail.helps):
        return []
    return [one for one in causes(found) if hurts or one.name == DELAY]


def causes(found: HedgingResult) -> Iterator[Cause]:
    """All that the rows show."""
    harmed = [one for one in found.loads if one.change is not None and one.change.low > 0]
    first, load = found.loads[0].load, (harmed or found.loads[-1:])[0].load
    of, few, p = load.copies, first.copies.hedged, found.quantile
    saved = of.cancelled
    many = of.hedged
    off, on = of.refused
    at = f"at {_rate(load.rate_per_s)} requests/s"
    lowest = f"at {_rate(first.rate_per_s)}"
    if saved is not None and saved < SAVED:
        yield Cause(CANCEL, f"the target keeps generating for closed attempts: closing saves {share(saved)}")
    if off is not None and on is not None and on - off >= MORE_REFUSED:
        text = f"hedges use up a limit {at}: {share(on)} of calls refused, {share(off)} without"
        yield Cause(LIMIT, text)
    if p is not None and few is not None and few <= 2 * (1 - p):
        text = f"the delay lies among the slow calls: only {share(few)} got a hedge {lowest} requests/s"
        yield Cause(DELAY, text)
    if few and many is not None and many >= GROWS * few:
        yield Cause(LOAD, f"slower calls get more hedges: {share(few)} {lowest}, {share(many)} {at}")


# --- tables and figures -------------------------------------------------------------------------------------------


def _change(value: float) -> str:
    """A difference of logarithms as a relative change: −32%, +150%."""
    if abs(value) >= MOST:
        return "more than 148x" if value > 0 else "less than 1/148"
    return _signed(per_cent(value))


def _signed(value: float) -> str:
    text = share(abs(value))
    return text if value == 0 else f"{'+' if value > 0 else '−'}{text}"


def _span(ends: tuple[float, float] | None, times: float = 1.0) -> str:
    """Least to most; one number if both read the same."""
    return NONE if ends is None else " – ".join(dict.fromkeys(figures(times * end) for end in ends))


def _loads(found: HedgingResult, sustainable: float) -> Table:
    name, goodput = _quantile(found), found.goodput
    columns: list[Column[ComparedLoad]] = [
        ("requests/s", lambda one: _rate(one.rate_per_s)),
        ("of sustainable", lambda one: f"{one.rate_per_s / sustainable:.0%}"),
        (f"{name} off, ms", lambda one: ms_or_failed(one.off_ms)),
        (f"{name} on, ms", lambda one: ms_or_failed(one.on_ms)),
        ("change", lambda one: _change_cell(one.change, _change)),
        ("hedging", lambda one: _verdict_cell(one, found, found.tail)),
    ]
    if goodput is not None:
        columns += [
            ("missed off", lambda one: _missed(one.load.bad_off)),
            ("missed on", lambda one: _missed(one.load.bad_on)),
            ("change", lambda one: _change_cell(one.missed, _signed)),
            ("for goodput", lambda one: _verdict_cell(one, found, goodput) if one.missed else NONE),
        ]
    return Table.of("Latency", found.loads, columns, LOADS_NOTE)


def _missed(blocks: Sequence[Floats]) -> str:
    return share(float(np.concatenate(blocks).mean())) if blocks else NONE


def _change_cell(one: Contrast | None, shown: Callable[[float], str]) -> Cell:
    return NONE if one is None else Value(shown(one.value), f"{shown(one.low)} – {shown(one.high)}")


def _verdict_cell(one: ComparedLoad, found: HedgingResult, of: CrossoverLoad) -> Value:
    if found.unstable_per_s is not None and one.rate_per_s >= found.unstable_per_s:
        return Value(UNSTABLE, outcome=FAIL)
    word = of.verdict(one.rate_per_s)
    return Value(word.lower(), outcome={HELPS: PASS, HURTS: FAIL}.get(word, word))


def _costs(found: HedgingResult) -> Table:
    unit = next((one.load.copies.unit for one in found.loads if one.load.copies.unit), "")
    columns: tuple[Column[ComparedLoad], ...] = (
        ("requests/s", lambda one: _rate(one.rate_per_s)),
        ("requests off", lambda one: f"{one.requests[0]:,}"),
        ("on", lambda one: f"{one.requests[1]:,}"),
        *((name, partial(_share_of, of)) for name, of in COPIES),
        ("refused off", lambda one: share(one.load.copies.refused[0])),
        ("refused on", lambda one: share(one.load.copies.refused[1])),
        ("extra cost per 1,000", lambda one: _span(one.load.copies.cost, 1000)),
        ("per ms gained", lambda one: _span(one.cost_per_ms)),
    )
    priced = f", in {unit}." if unit else ", if prices are known."
    return Table.of("Hedges and their cost", found.loads, columns, f"{COSTS_NOTE}{priced}")


def _share_of(name: str, one: ComparedLoad | judge.TriedDelay) -> str:
    return share(getattr(one.load.copies, name))


def _delays(delays: Sequence[judge.TriedDelay]) -> Table:
    columns: tuple[Column[judge.TriedDelay], ...] = (
        ("delay, ms", lambda one: one.delay_ms if isinstance(one.delay_ms, str) else f"{one.delay_ms:g}"),
        ("change", lambda one: _change_cell(one.change, _change)),
        *((name, partial(_share_of, of)) for name, of in COPIES),
    )
    return Table.of("Delays", delays, columns, DELAYS_NOTE)


def _pictures(found: HedgingResult, today_per_s: float) -> Iterator[Picture]:
    """The change by load with the crossover, and the tail with hedging and without near today's rate."""
    if found.quantile is None or len(found.loads) < 2:
        return
    name = percentile(found.quantile)
    slow = [(one.rate_per_s, one.change) for one in found.loads if one.change]
    bad = [(one.rate_per_s, one.missed) for one in found.loads if one.missed]
    if slow:
        yield _picture(
            "hedging", f"{name} with hedging, relative to without", f"change of the {name}, %", slow, found.tail,
            lambda value: 100 * per_cent(min(value, DRAWN_TO)), f", drawn up to {_change(DRAWN_TO)}",
        )  # fmt: skip
    if found.goodput is not None and bad:
        yield _picture(
            "goodput", "Requests that miss an objective, with hedging less without", "change of the share, % points", bad,
            found.goodput, lambda value: 100 * value, "",
        )  # fmt: skip
    yield _tails(found, today_per_s)


def _tails(found: HedgingResult, today_per_s: float) -> Picture:
    load = min((one.load for one in found.loads), key=lambda one: abs(one.rate_per_s - today_per_s))
    curves = []
    for name, blocks in (("without hedging", load.off), ("with hedging", load.on)):
        ms = np.sort(np.concatenate(blocks))
        known = ms[np.isfinite(ms)]
        curves.append(tail_curve(known, 1 - np.arange(1, len(known) + 1) / len(ms), name))
    return Picture(
        name="tails",
        title="Latency tail with hedging and without",
        caption=TAILS_NOTE.format(_rate(load.rate_per_s), figures(today_per_s)),
        panels=(Panel("share of requests that took longer", curves, scale="tail"),),
        x="latency (ms, logarithmic)",
        x_scale="log",
    )


def _picture(
    name: str, title: str, y: str, known: Sequence[tuple[float, Contrast]], of: CrossoverLoad, shown: Callable[[float], float],
    drawn: str,
) -> Picture:  # fmt: skip
    rates = [rate for rate, _ in known]
    rows = [(rate, change.value, change.low, change.high) for rate, change in known]
    curves = (
        replace(estimate_curve("each load", rows, shown), style="points"),
        PlotCurve(rates, [shown(value) for value in of.fit], "fit", style="line and points"),
        PlotCurve((rates[0], rates[-1]), (0.0, 0.0), "no change", dash="dash"),
    )
    low, high = of.helps_below_per_s, of.hurts_above_per_s
    marks = (Mark(low, high, "crossover"),) if low is not None and high is not None else ()
    return Picture(
        name=name,
        title=title,
        caption=FIGURE_NOTE.format(drawn) + (SHADED if marks else ""),
        panels=(Panel(y, curves),),
        x="requests/s",
        marks=marks,
    )
