"""The answer of the hedging experiment: helps below, hurts above, at which cost, and why.

Rule: the sentence and the facts from the same values; tables are in `tables`, reasons in `why`. The exit code is 0
wherever there is an answer, also where no load shows a difference; 3 where nothing could be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge.errors import Exit
from tailgauge.experiments.answer import OPEN, PASS, Answer, Case
from tailgauge.experiments.hedging import explanation, facts, tables
from tailgauge.experiments.hedging.contrast import Contrast, per_cent
from tailgauge.experiments.hedging.crossover_load import Turning
from tailgauge.experiments.hedging.load import Load
from tailgauge.experiments.hedging.result import Compared, Result, result
from tailgauge_analysis.text.formatting import percentile, share

DETECTED = 2.8  # standard errors: 5% two-sided, 80% power
NOTHING = (
    "No load could be compared: every run was INVALID, had too few requests, or there was no time for one."
)
LESS = "There are too few requests for a p99 in each arm at the lowest load: this is the p95."
SHORT = "Blocks are shorter than three end-to-end p99s at {}: what one arm left behind reaches into blocks of the other, which hides some of the difference."


@dataclass(frozen=True, slots=True)
class About:
    """How the hedge is described, the sustainable rate, the remarks so far, and the quantile, if one was asked for."""

    hedge: str
    sustainable_per_s: float
    remarks: tuple[str, ...]
    quantile: float | None = None


def answer(about: About, loads: Sequence[Load], tried: Mapping[float, tuple[Load, Contrast | None]]) -> Answer:  # fmt: skip
    """Of all loads; `tried` are the delays of the scan."""
    found = result(loads, about.quantile)
    if found.p is None or not any(one.slow or one.bad for one in found.compared):
        return nothing(about, NOTHING)
    reasons = _reasons(found)
    return Answer(
        kind="hedging", sentence=_sentence(about, found, reasons),
        table=tables.loads(found, about.sustainable_per_s),
        facts=facts.facts(found, about.sustainable_per_s, about.hedge, reasons, tried), exit_code=Exit.OK,
        smallest=_smallest(found), cases=_cases(found), remarks=(*about.remarks, *_sized(found), *_remarks(found, about.quantile), *(text for _, text in reasons)),
        pictures=tables.pictures(found), more=(tables.delays(tried),) if tried else (),
    )  # fmt: skip


def nothing(about: About, reason: str) -> Answer:
    """No answer, and why."""
    empty = result(())
    case = Case("crossover load", OPEN, reason)
    return Answer(
        "hedging", reason, tables.loads(empty, about.sustainable_per_s), facts.facts(empty, about.sustainable_per_s, about.hedge, [], {}),
        Exit.INVALID, "", (case,), about.remarks,
    )  # fmt: skip


def _sentence(about: About, found: Result, reasons: Sequence[tuple[str, str]]) -> str:
    name = percentile(found.p or 0.0)
    text = f"{about.hedge} {_place(found, found.slow, about.sustainable_per_s)} for the end-to-end {name}"
    if found.bad is not None:
        text += f"; for the share of requests that meet every objective it {_place(found, found.bad, None)}"
    if reasons:
        text += f"; {explanation.SHORT[reasons[0][0]]}"
    return text + "."


def _sized(found: Result) -> list[str]:
    """How much it changes, and what a millisecond costs."""
    name = percentile(found.p or 0.0)
    out = [f"The {name} is {sizes}." for sizes in [_sizes(found)] if sizes]
    best = _best(found)
    each = tables.per_ms(best, found.p) if best is not None else None
    if best is not None and each is not None:
        text = f"At {_rate(best.load.rate_per_s)} requests/s a millisecond less costs {tables.span(*each, to='to')} {best.load.copied.unit} for 1,000 requests."
        out.append(text)
    return out


def _place(found: Result, of: Turning, sustainable: float | None) -> str:
    """Where it helps and where it hurts; relative to what is sustained where that is given."""

    def end(rate: float) -> str:
        share = "" if sustainable is None else f" ({rate / sustainable:.0%} of what is sustained)"
        return f"{_rate(rate)} requests/s{share}"

    rates = [one.load.rate_per_s for one in found.compared]
    below = f"helps below {end(of.low)}" if of.low is not None else "helps at some loads"
    above = f"hurts above {end(of.high)}" if of.high is not None else "hurts at some loads"
    if of.helps and of.hurts:
        return f"{below} and {above}"
    if of.helps:
        return f"{below} and was not shown to hurt up to {end(rates[-1])}"
    if of.hurts:
        return f"{above} and was not shown to help from {end(rates[0])} on"
    return f"makes no difference that could be told from {end(rates[0])} to {end(rates[-1])}"


def _reasons(found: Result) -> list[tuple[str, str]]:
    """Why it hurts; where that is not shown, why it gains nothing."""
    hurts = found.slow.hurts or (found.bad is not None and found.bad.hurts)
    if not hurts and found.slow.helps:
        return []
    return [
        one
        for one in explanation.reasons(found)
        if hurts or one[0] in {explanation.DELAY, explanation.TOGETHER}
    ]


def _sizes(found: Result) -> str:
    """The largest gain and the largest harm that a load shows."""
    shown = _shown(found)
    out = []
    for one, word in (
        (min(shown, key=_value, default=None), "lower"),
        (max(shown, key=_value, default=None), "higher"),
    ):
        if one is None or one.slow is None or (one.slow.value < 0) != (word == "lower"):
            continue
        size = share(abs(per_cent(one.slow.value))) if abs(one.slow.value) < 1.1 else f"{math.exp(abs(one.slow.value)):.3g} times"  # fmt: skip
        out.append(f"{size} {word} at {_rate(one.load.rate_per_s)} requests/s")
    return " and ".join(out)


def _value(one: Compared) -> float:
    return one.slow.value if one.slow is not None else 0.0


def _best(found: Result) -> Compared | None:
    """The load that shows the largest gain."""
    gains = [one for one in _shown(found) if _value(one) < 0]
    return min(gains, key=_value, default=None)


def _shown(found: Result) -> list[Compared]:
    """Loads at which it is told apart."""
    return [
        one for one in found.compared
        if one.slow is not None and tables.verdict(one.load.rate_per_s, found.slow) != tables.OPEN
    ]  # fmt: skip


def _rate(value: float) -> str:
    return f"{value:.3g}"


def _smallest(found: Result) -> str:
    errors = [float(one.slow.draws.std()) for one in found.compared if one.slow is not None]
    if not errors:
        return ""
    return f"at one load a change of the {percentile(found.p or 0.0)} of {share(per_cent(DETECTED * float(np.median(errors))))}"


def _cases(found: Result) -> tuple[Case, ...]:
    out = []
    for name, of in (("p99", found.slow), ("goodput", found.bad)):
        if of is None:
            continue
        told = found.p is not None and name == "p99"
        title = f"hedging by load, {percentile(found.p or 0.0) if told else name}"
        said = [("helps below", of.low), ("hurts above", of.high)]
        text = ", ".join(f"{word} {_rate(rate)} requests/s" for word, rate in said if rate is not None)
        out.append(
            Case(title, PASS if of.helps or of.hurts else OPEN, text or "no difference that could be told")
        )
    return tuple(out)


def _remarks(found: Result, asked: float | None) -> list[str]:
    out = [LESS] if asked is None and found.p is not None and found.p < 0.99 else []
    short = [f"{_rate(one.load.rate_per_s)}" for one in found.compared if one.load.short]
    if short:
        out.append(SHORT.format(", ".join(short) + " requests/s"))
    lost = [_rate(one.load.rate_per_s) for one in found.compared if one.slow is None]
    if lost:
        out.append(f"At {', '.join(lost)} requests/s the {percentile(found.p or 0.0)} falls among requests without answer in both arms: nothing is told of it.")  # fmt: skip
    prices = next((one.load.copied.why for one in found.compared if one.load.copied.why), "")
    return [*out, f"What the copies cost is not told: {prices}."] if prices else out
