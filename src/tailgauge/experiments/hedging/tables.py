"""The tables and figures of the hedging experiment's answer: every load that was tried, every delay.

Rule: strings out of values; nothing is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tailgauge.experiments.answer import Line, Mark, Picture, Table
from tailgauge.experiments.hedging.contrast import MOST, Contrast, per_cent
from tailgauge.experiments.hedging.crossover_load import Turning
from tailgauge.experiments.hedging.load import Load
from tailgauge.experiments.hedging.result import Compared, Result
from tailgauge_analysis.stats.quantiles import Floats, rank
from tailgauge_analysis.text.formatting import figures, ms_or_failed, percentile, share

NONE = "–"
OPEN = "undecided"
DRAWN_TO = 1.5  # of a logarithm: +348%; what is more is drawn there


def pooled(blocks: tuple[Floats, ...], p: float) -> float:
    """Quantile of all blocks of an arm, ms; inf among failures."""
    values = np.sort(np.concatenate(blocks))
    return float(values[rank(len(values), p) - 1])


def gained_ms(one: Compared, p: float | None) -> float | None:
    """How much lower the quantile is with hedging, in ms; None where it is not, or among failures."""
    if p is None or one.slow is None:
        return None
    gain = pooled(one.load.off, p) - pooled(one.load.on, p)
    return gain if math.isfinite(gain) and gain > 0 else None


def per_ms(one: Compared, p: float | None) -> tuple[float, float] | None:
    """Least and most that a millisecond of the quantile costs, for 1,000 requests."""
    gain = gained_ms(one, p)
    if gain is None or one.load.copied.cost is None:
        return None
    low, high = one.load.copied.cost
    return 1000 * low / gain, 1000 * high / gain


def change(value: float) -> str:
    """A difference of logarithms as it is read: −32%, +150%."""
    if abs(value) >= MOST:
        return "more than 148 times" if value > 0 else "less than 1/148"
    return signed(per_cent(value))


def signed(value: float) -> str:
    """A share with its sign."""
    text = share(abs(value))
    return text if value == 0 else f"{'+' if value > 0 else '−'}{text}"


def verdict(rate: float, of: Turning) -> str:
    """What is shown of a load, by the interval of the crossover."""
    if of.low is not None and rate <= of.low:
        return "helps"
    return "hurts" if of.high is not None and rate >= of.high else OPEN


def loads(found: Result, sustainable: float) -> Table:
    """A row a load."""
    name = percentile(found.p) if found.p is not None else "quantile"
    header: tuple[str, ...] = (
        "requests/s", "of sustainable", "requests off", "on", f"{name} off, ms", f"{name} on, ms", "change", "95% interval",
        "hedging",
    )  # fmt: skip
    if found.bad is not None:
        header += ("good off", "good on", "change", "95% interval", "for goodput")
    header += (
        "calls copied",
        "copy won",
        "refused off",
        "refused on",
        "extra cost, 1,000 requests",
        "a ms gained",
    )
    unit = next((one.load.copied.unit for one in found.compared if one.load.copied.unit), "")
    caption = (
        f"A row is a load; off and on took turns in blocks. End to end from the scheduled time, failures slowest; {name} of all "
        "blocks of an arm, the interval a bootstrap over pairs of blocks. Helps, hurts: by the "
        "interval of the crossover load; undecided: within it. Cost is that of the copies that lost, least to most"
        + (f", in {unit}." if unit else ", where prices are known.")
    )
    return Table(caption, header, tuple(_load(one, found, sustainable) for one in found.compared))


def _load(one: Compared, found: Result, sustainable: float) -> tuple[str, ...]:
    load, copied, p = one.load, one.load.copied, found.p
    row = [
        f"{load.rate_per_s:.3g}", f"{load.rate_per_s / sustainable:.0%}", f"{sum(map(len, load.off)):,}", f"{sum(map(len, load.on)):,}",
        *((ms_or_failed(pooled(load.off, p)), ms_or_failed(pooled(load.on, p))) if p is not None and load.off else (NONE, NONE)),
        *_told(one.slow), verdict(load.rate_per_s, found.slow),
    ]  # fmt: skip
    if found.bad is not None:
        goods = [NONE, NONE, NONE, NONE, NONE]
        if one.bad is not None:
            arms = (
                share(1 - float(np.concatenate(arm).mean())) if arm else NONE
                for arm in (load.bad_off, load.bad_on)
            )
            goods = [
                *arms,
                signed(-one.bad.value),
                f"{signed(-one.bad.high)} – {signed(-one.bad.low)}",
                verdict(load.rate_per_s, found.bad),
            ]
        row += goods
    spent, each = copied.cost, per_ms(one, p)
    row += [
        share(copied.hedged), share(copied.won), share(copied.refused[0]), share(copied.refused[1]),
        NONE if spent is None else span(1000 * spent[0], 1000 * spent[1]), NONE if each is None else span(*each),
    ]  # fmt: skip
    return tuple(row)


def _told(one: Contrast | None) -> tuple[str, str]:
    if one is None:
        return NONE, NONE
    return change(one.value), f"{change(one.low)} – {change(one.high)}"


def span(low: float, high: float, to: str = "–") -> str:
    """Least to most; one number where both read the same."""
    a, b = figures(low), figures(high)
    return a if a == b else f"{a} {to} {b}"


def delays(tried: Mapping[float, tuple[Load, Contrast | None]]) -> Table:
    """A row a hedge delay."""
    caption = (
        "A row is a hedge delay at the lowest load; the one with the lowest quantile was used at all loads."
    )
    rows = tuple(
        (f"{delay:g}", *_told(one), share(load.copied.hedged), share(load.copied.won))
        for delay, (load, one) in sorted(tried.items())
    )  # fmt: skip
    return Table(caption, ("delay, ms", "change", "95% interval", "calls copied", "copy won"), rows)


def pictures(found: Result) -> tuple[Picture, ...]:
    """What changed by load, and where it turns."""
    if found.p is None or len(found.compared) < 2:
        return ()
    known = [(one.load.rate_per_s, one.slow) for one in found.compared if one.slow]
    name = percentile(found.p)
    slow = _picture(
        "hedging", f"{name} with hedging, relative to without", f"change of the {name}, %", known, found.slow,
        lambda value: 100 * per_cent(min(value, DRAWN_TO)), f", drawn up to {change(DRAWN_TO)}",
    )  # fmt: skip
    if found.bad is None:
        return (slow,)
    known = [(one.load.rate_per_s, one.bad) for one in found.compared if one.bad]
    return (
        slow,
        _picture(
            "goodput", "Requests that miss an objective, with hedging less without", "change of the share, % points", known,
            found.bad, lambda value: 100 * value, "",
        ),
    )  # fmt: skip


def _ends(known: Sequence[tuple[float, Contrast]]) -> list[tuple[float, float, float]]:
    return [(one.value, one.low, one.high) for _, one in known]


def _picture(
    name: str, title: str, y: str, known: Sequence[tuple[float, Contrast]], of: Turning, shown: Callable[[float], float],
    drawn: str,
) -> Picture:  # fmt: skip
    at = tuple(rate for rate, _ in known)
    middle, low, high = (tuple(shown(c[i]) for c in _ends(known)) for i in range(3))
    lines = [
        Line("each load", at, middle, low, high, joined=False),
        Line("fit", at, tuple(map(shown, of.fit))),
        Line("no change", (at[0], at[-1]), (0.0, 0.0)),
    ]  # fmt: skip
    marks = (Mark("crossover", of.low, of.high),) if of.low is not None and of.high is not None else ()
    caption = (
        f"Bars are 95% intervals{drawn}; below 0 hedging helps. Shaded: the interval of the crossover load."
    )
    return Picture(name, title, caption, "requests/s", y, tuple(lines), marks)
