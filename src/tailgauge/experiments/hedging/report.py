"""The answer of the hedging experiment: helps below, hurts above, at which cost, and why.

Exit code 0 if there is an answer, also if no load shows a difference; 5 if nothing could be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge.errors import Exit
from tailgauge.experiments.answer import (
    INCONCLUSIVE,
    PASS,
    Answer,
    AnswerTable,
    Case,
    Mark,
    Picture,
    PlotCurve,
)
from tailgauge.experiments.hedging.contrast import MOST, Contrast, per_cent
from tailgauge.experiments.hedging.judge import ComparedLoad, CrossoverLoad, HedgingResult, LoadResult, result
from tailgauge_analysis.stats.quantiles import Floats, rank
from tailgauge_analysis.text.formatting import figures, ms_or_failed, percentile, sentence, share
from tailgauge_analysis.text.json_values import Json

DETECTED = 2.8  # standard errors: 5% two-sided, 80% power
NOTHING = "No answer: every run was INVALID, had too few requests, or there was no time for one."
P95 = "Too few requests for a p99 of each variant at the lowest load: the p95 is used."
SHORT_BLOCKS = (
    "Blocks are shorter than three end-to-end p99s at {}: one variant still affects blocks of the other, which hides part of "
    "the difference."
)
NONE = "–"
DRAWN_TO = 1.5  # of a logarithm: +348%; larger values are drawn there
CANCEL, LIMIT, DELAY, TOGETHER, LOAD = "cancel", "limit", "delay", "correlation", "load"
SAVED = 0.5  # of the remaining generation: less is no effective cancel
MORE_REFUSED = 0.005  # share of the calls
TOGETHER_FROM = 0.2  # correlation
GROWS = 1.5  # times the copies at the lowest load
CAUSES = {
    CANCEL: "the target keeps generating for attempts that were closed",
    LIMIT: "the hedges use up a limit that the calls need",
    TOGETHER: "the hedge of a slow call is usually slow too",
    DELAY: "the delay lies among the slow calls, so hedges come too late",
    LOAD: "the slower the calls become, the more hedges are sent",
}
Delays = Mapping[float, tuple[LoadResult, Contrast | None]]  # tried at the lowest load, in ms


@dataclass(frozen=True, slots=True)
class TestedHedge:
    """What was tested: the hedge as text, the sustainable rate, remarks, and the quantile if the scenario sets one."""

    hedge: str
    sustainable_per_s: float
    remarks: tuple[str, ...]
    quantile: float | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Why hedging stops helping, with its number."""

    name: str
    text: str


def answer(tested: TestedHedge, loads: Sequence[LoadResult], delays: Delays) -> Answer:
    """The answer from all tested loads."""
    found = result(loads, tested.quantile)
    if found.p is None or not any(one.slow or one.bad for one in found.compared):
        return nothing(tested, NOTHING)
    causes = _causes(found)
    return Answer(
        kind="hedging", sentence=_sentence(tested, found, causes), table=_loads(found, tested.sustainable_per_s),
        facts=_facts(found, tested, causes, delays), exit_code=Exit.OK, smallest=_smallest(found), cases=_cases(found),
        remarks=(*tested.remarks, *_sizes(found), *_remarks(found, tested.quantile), *(one.text for one in causes)),
        pictures=_pictures(found), more=(_delays(delays),) if delays else (),
    )  # fmt: skip


def nothing(tested: TestedHedge, reason: str) -> Answer:
    """No answer, and why."""
    empty = result(())
    return Answer(
        "hedging", reason, _loads(empty, tested.sustainable_per_s), _facts(empty, tested, [], {}), Exit.INCONCLUSIVE, "",
        (Case("crossover load", INCONCLUSIVE, reason),), tested.remarks,
    )  # fmt: skip


def _sentence(tested: TestedHedge, found: HedgingResult, causes: Sequence[Cause]) -> str:
    name = percentile(found.p or 0.0)
    text = f"{tested.hedge} {_place(found, found.slow, tested.sustainable_per_s)}, by the end-to-end {name}."
    if found.bad is not None:
        text += f" By the share of requests that meet every objective it {_place(found, found.bad, None)}."
    if causes:
        text += f" {sentence(CAUSES[causes[0].name])}."
    return text


def _place(found: HedgingResult, of: CrossoverLoad, sustainable: float | None) -> str:
    """Where it helps and where it hurts; relative to the sustainable rate if that is given."""

    def end(rate: float) -> str:
        relative = "" if sustainable is None else f" ({rate / sustainable:.0%} of the sustainable rate)"
        return f"{_rate(rate)} requests/s{relative}"

    rates = [one.load.rate_per_s for one in found.compared]
    below = f"helps below {end(of.low)}" if of.low is not None else "helps at some loads"
    above = f"hurts above {end(of.high)}" if of.high is not None else "hurts at some loads"
    if of.helps and of.hurts:
        return f"{below} and {above}"
    if of.helps:
        return f"{below} and was not shown to hurt up to {end(rates[-1])}"
    if of.hurts:
        return f"{above} and was not shown to help from {end(rates[0])} on"
    return f"shows no difference from {end(rates[0])} to {end(rates[-1])}"


def _sizes(found: HedgingResult) -> list[str]:
    """The largest gain and the largest harm that a load shows, and what a millisecond costs."""
    shown = [one for one in found.compared if verdict(one.load.rate_per_s, found.slow) != INCONCLUSIVE]
    known = [(one.slow.value, one) for one in shown if one.slow is not None]
    ends = (
        min(known, key=lambda pair: pair[0], default=None),
        max(known, key=lambda pair: pair[0], default=None),
    )
    parts = []
    for pair, word in zip(ends, ("lower", "higher"), strict=True):
        if pair is None or (pair[0] < 0) != (word == "lower"):
            continue
        value, rate = pair[0], _rate(pair[1].load.rate_per_s)
        size = share(abs(per_cent(value))) if abs(value) < 1.1 else f"{math.exp(abs(value)):.3g}x"
        parts.append(f"{size} {word} at {rate} requests/s")
    out = [f"The {percentile(found.p or 0.0)} is {' and '.join(parts)}."] if parts else []
    best = ends[0][1] if ends[0] is not None and ends[0][0] < 0 else None
    each = per_ms(best, found.p) if best is not None else None
    if best is not None and each is not None:
        at, unit = _rate(best.load.rate_per_s), best.load.copies.unit
        out.append(
            f"At {at} requests/s each millisecond gained costs {span(*each, to='to')} {unit} per 1,000 requests."
        )
    return out


def _rate(value: float) -> str:
    return f"{value:.3g}"


def _smallest(found: HedgingResult) -> str:
    errors = [float(one.slow.draws.std()) for one in found.compared if one.slow is not None]
    if not errors:
        return ""
    return f"at one load a change of the {percentile(found.p or 0.0)} of {share(per_cent(DETECTED * float(np.median(errors))))}"


def _cases(found: HedgingResult) -> tuple[Case, ...]:
    measures = [(percentile(found.p) if found.p is not None else "p99", found.slow), ("goodput", found.bad)]
    out = []
    for name, of in measures:
        if of is None:
            continue
        ends = [("helps below", of.low), ("hurts above", of.high)]
        text = ", ".join(f"{word} {_rate(rate)} requests/s" for word, rate in ends if rate is not None)
        outcome = PASS if of.helps or of.hurts else INCONCLUSIVE
        out.append(Case(f"hedging by load, {name}", outcome, text or "no difference shown"))
    return tuple(out)


def _remarks(found: HedgingResult, quantile: float | None) -> list[str]:
    out = [P95] if quantile is None and found.p is not None and found.p < 0.99 else []
    short = [_rate(one.load.rate_per_s) for one in found.compared if one.load.short]
    if short:
        out.append(SHORT_BLOCKS.format(", ".join(short) + " requests/s"))
    lost = [_rate(one.load.rate_per_s) for one in found.compared if one.slow is None]
    if lost:
        name = percentile(found.p or 0.0)
        out.append(
            f"Not compared at {', '.join(lost)} requests/s: the {name} is a failed request in both variants."
        )
    prices = next((one.load.copies.why for one in found.compared if one.load.copies.why), "")
    return [*out, f"Cost of the losing attempts unknown: {prices}."] if prices else out


# --- why it stops helping -----------------------------------------------------------------------------------------


def _causes(found: HedgingResult) -> list[Cause]:
    """Why it hurts, or, if that is not shown, why it gains nothing: those that the rows show, the strongest first.

    At the first load that hurts, or the highest, and at the lowest.
    """
    hurts = found.slow.hurts or (found.bad is not None and found.bad.hurts)
    if not found.compared or (not hurts and found.slow.helps):
        return []
    return [one for one in causes(found) if hurts or one.name in {DELAY, TOGETHER}]


def causes(found: HedgingResult) -> list[Cause]:
    """All that the rows show."""
    harmed = [one for one in found.compared if one.slow is not None and one.slow.low > 0]
    lowest, worst = found.compared[0].load, (harmed or found.compared[-1:])[0].load
    texts = {
        CANCEL: _cancel(worst), LIMIT: _limit(worst), TOGETHER: _together(worst), DELAY: _delay(lowest, found.p),
        LOAD: _load_grows(lowest, worst),
    }  # fmt: skip
    return [Cause(name, f"{text}: {CAUSES[name]}.") for name, text in texts.items() if text]


def _cancel(load: LoadResult) -> str:
    saved = load.copies.cancelled
    if saved is None or saved >= SAVED:
        return ""
    return f"{_at(load)} closing the slower attempt saved only {share(saved)} of its remaining generation"


def _limit(load: LoadResult) -> str:
    off, on = load.copies.refused
    if off is None or on is None or on - off < MORE_REFUSED:
        return ""
    return f"{_at(load)} {share(on)} of the calls were refused with hedging and {share(off)} without"


def _together(load: LoadResult) -> str:
    value, low = load.copies.correlation
    if value is None or low is None or low < TOGETHER_FROM:
        return ""
    return f"{_at(load)} slow calls and their hedges are slow together (correlation {value:.2f}, at least {low:.2f})"


def _delay(load: LoadResult, p: float | None) -> str:
    hedged = load.copies.hedged
    if p is None or hedged is None or hedged > 2 * (1 - p):
        return ""
    return (
        f"{_at(load)} only {share(hedged)} of the calls got a hedge, which hardly changes the {percentile(p)}"
    )


def _load_grows(lowest: LoadResult, worst: LoadResult) -> str:
    few, many = lowest.copies.hedged, worst.copies.hedged
    if not few or many is None or many < GROWS * few:
        return ""
    at = f"at {_rate(lowest.rate_per_s)} requests/s, {share(many)} at {_rate(worst.rate_per_s)}"
    return f"{share(few)} of the calls got a hedge {at}"


def _at(load: LoadResult) -> str:
    return f"At {_rate(load.rate_per_s)} requests/s"


# --- facts: unrounded; changes as differences of logarithms or of shares; costs per request; no infinities ---------


def _facts(found: HedgingResult, tested: TestedHedge, causes: Sequence[Cause], delays: Delays) -> Json:
    return {
        "hedge": tested.hedge, "sustainable_per_s": tested.sustainable_per_s or None, "quantile": found.p,
        "tail": _crossover(found.slow, found.p_values[:2]),
        "goodput": None if found.bad is None else _crossover(found.bad, found.p_values[2:]),
        "loads": [_load_facts(one, found) for one in found.compared],
        "delays": [
            {"delay_ms": delay, "change": _contrast(one), "hedged": load.copies.hedged, "won": load.copies.won}
            for delay, (load, one) in sorted(delays.items())
        ],
        "why": [{"name": one.name, "text": one.text} for one in causes],
    }  # fmt: skip


def _crossover(one: CrossoverLoad, p_values: Sequence[float]) -> Json:
    return {
        "crossover_per_s": one.value, "helps_below_per_s": one.low, "hurts_above_per_s": one.high,
        "helps": one.helps, "hurts": one.hurts, "fit": list(one.fit), "p_values": list(p_values),
    }  # fmt: skip


def _load_facts(one: ComparedLoad, found: HedgingResult) -> Json:
    load, copies = one.load, one.load.copies
    each = per_ms(one, found.p)
    return {
        "rate_per_s": load.rate_per_s, "pairs": len(load.on), "washout_s": load.washout_s,
        "requests": [sum(map(len, load.off)), sum(map(len, load.on))],
        "off_ms": _finite(load.off, found.p), "on_ms": _finite(load.on, found.p),
        "change": _contrast(one.slow), "missed": _contrast(one.bad),
        "hedged": copies.hedged, "won": copies.won,
        "cost": None if copies.cost is None else list(copies.cost), "unit": copies.unit,
        "cost_per_ms_of_1000": None if each is None else list(each),
        "cancel_effectiveness": copies.cancelled, "correlation": copies.correlation[0],
        "refused": list(copies.refused),
    }  # fmt: skip


def _contrast(one: Contrast | None) -> Json | None:
    return None if one is None else {"value": one.value, "low": one.low, "high": one.high}


def _finite(blocks: tuple[Floats, ...], p: float | None) -> float | None:
    if p is None or not blocks:
        return None
    value = pooled(blocks, p)
    return value if math.isfinite(value) else None


def pooled(blocks: tuple[Floats, ...], p: float) -> float:
    """Quantile of all blocks of a variant, ms; inf if it is a failure."""
    values = np.sort(np.concatenate(blocks))
    return float(values[rank(len(values), p) - 1])


def per_ms(one: ComparedLoad, p: float | None) -> tuple[float, float] | None:
    """Least and most that each millisecond of the quantile gained costs per 1,000 requests; None without a gain."""
    if p is None or one.slow is None or one.load.copies.cost is None:
        return None
    gain = pooled(one.load.off, p) - pooled(one.load.on, p)
    if not math.isfinite(gain) or gain <= 0:
        return None
    low, high = one.load.copies.cost
    return 1000 * low / gain, 1000 * high / gain


# --- tables and figures -------------------------------------------------------------------------------------------


def verdict(rate: float, of: CrossoverLoad) -> str:
    """Verdict on a load: its place relative to the crossover interval."""
    if of.low is not None and rate <= of.low:
        return "helps"
    return "hurts" if of.high is not None and rate >= of.high else INCONCLUSIVE


def _change(value: float) -> str:
    """A difference of logarithms as a relative change: −32%, +150%."""
    if abs(value) >= MOST:
        return "more than 148x" if value > 0 else "less than 1/148"
    return _signed(per_cent(value))


def _signed(value: float) -> str:
    text = share(abs(value))
    return text if value == 0 else f"{'+' if value > 0 else '−'}{text}"


def span(low: float, high: float, to: str = "–") -> str:
    """Least to most; one number if both read the same."""
    a, b = figures(low), figures(high)
    return a if a == b else f"{a} {to} {b}"


def _loads(found: HedgingResult, sustainable: float) -> AnswerTable:
    name = percentile(found.p) if found.p is not None else "quantile"
    header: tuple[str, ...] = (
        "requests/s", "of sustainable", "requests off", "on", f"{name} off, ms", f"{name} on, ms", "change", "95% interval",
        "hedging",
    )  # fmt: skip
    if found.bad is not None:
        header += ("good off", "good on", "change", "95% interval", "for goodput")
    header += (
        "calls hedged", "hedges won", "refused off (of attempts)", "refused on (of attempts)", "extra cost per 1,000 requests", "per ms gained",
    )  # fmt: skip
    unit = next((one.load.copies.unit for one in found.compared if one.load.copies.unit), "")
    caption = (
        f"One row per load; hedging off and on in alternating blocks. End to end since scheduled, failures slowest; {name} of all "
        "blocks of a variant; the interval is a bootstrap over pairs of blocks. Helps, hurts: by the interval of the crossover "
        "load; inconclusive: within it. Cost: of the losing attempts, least to most"
        + (f", in {unit}." if unit else ", if prices are known.")
    )
    return AnswerTable(caption, header, tuple(_load_row(one, found, sustainable) for one in found.compared))


def _load_row(one: ComparedLoad, found: HedgingResult, sustainable: float) -> tuple[str, ...]:
    load, copies, p = one.load, one.load.copies, found.p
    ends = [ms_or_failed(pooled(of, p)) if p is not None and of else NONE for of in (load.off, load.on)]
    row = [
        _rate(load.rate_per_s), f"{load.rate_per_s / sustainable:.0%}", f"{sum(map(len, load.off)):,}",
        f"{sum(map(len, load.on)):,}", *ends, *_change_cells(one.slow), verdict(load.rate_per_s, found.slow),
    ]  # fmt: skip
    if found.bad is not None:
        goods = [NONE, NONE, NONE, NONE, NONE]
        if one.bad is not None:
            shares = [
                share(1 - float(np.concatenate(blocks).mean())) if blocks else NONE
                for blocks in (load.bad_off, load.bad_on)
            ]
            interval = f"{_signed(-one.bad.high)} – {_signed(-one.bad.low)}"
            goods = [*shares, _signed(-one.bad.value), interval, verdict(load.rate_per_s, found.bad)]
        row += goods
    spent, each = copies.cost, per_ms(one, p)
    row += [
        share(copies.hedged), share(copies.won), share(copies.refused[0]), share(copies.refused[1]),
        NONE if spent is None else span(1000 * spent[0], 1000 * spent[1]), NONE if each is None else span(*each),
    ]  # fmt: skip
    return tuple(row)


def _change_cells(one: Contrast | None) -> tuple[str, str]:
    if one is None:
        return NONE, NONE
    return _change(one.value), f"{_change(one.low)} – {_change(one.high)}"


def _delays(delays: Delays) -> AnswerTable:
    caption = (
        "One row per hedge delay, at the lowest load; the one with the lowest quantile was used at all loads."
    )
    rows = tuple(
        (f"{delay:g}", *_change_cells(one), share(load.copies.hedged), share(load.copies.won))
        for delay, (load, one) in sorted(delays.items())
    )  # fmt: skip
    return AnswerTable(caption, ("delay, ms", "change", "95% interval", "calls hedged", "hedges won"), rows)


def _pictures(found: HedgingResult) -> tuple[Picture, ...]:
    """The change by load, and the crossover."""
    if found.p is None or len(found.compared) < 2:
        return ()
    name = percentile(found.p)
    slow = [(one.load.rate_per_s, one.slow) for one in found.compared if one.slow]
    bad = [(one.load.rate_per_s, one.bad) for one in found.compared if one.bad]
    out = []
    if slow:
        out.append(_picture(
            "hedging", f"{name} with hedging, relative to without", f"change of the {name}, %", slow, found.slow,
            lambda value: 100 * per_cent(min(value, DRAWN_TO)), f", drawn up to {_change(DRAWN_TO)}",
        ))  # fmt: skip
    if found.bad is not None and bad:
        out.append(_picture(
            "goodput", "Requests that miss an objective, with hedging less without", "change of the share, % points", bad,
            found.bad, lambda value: 100 * value, "",
        ))  # fmt: skip
    return tuple(out)


def _picture(
    name: str, title: str, y: str, known: Sequence[tuple[float, Contrast]], of: CrossoverLoad, shown: Callable[[float], float],
    drawn: str,
) -> Picture:  # fmt: skip
    at = tuple(rate for rate, _ in known)
    middle, low, high = (
        tuple(shown(value) for value in values)
        for values in zip(*((one.value, one.low, one.high) for _, one in known), strict=True)
    )
    curves = (
        PlotCurve("each load", at, middle, low, high, joined=False),
        PlotCurve("fit", at, tuple(map(shown, of.fit))),
        PlotCurve("no change", (at[0], at[-1]), (0.0, 0.0)),
    )
    marks = (Mark("crossover", of.low, of.high),) if of.low is not None and of.high is not None else ()
    caption = (
        f"Bars are 95% intervals{drawn}; below 0 hedging helps. Shaded: the interval of the crossover load."
    )
    return Picture(name, title, caption, "requests/s", y, curves, marks)
