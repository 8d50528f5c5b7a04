"""The answer of the model choice: which models meet the objectives, and which of them costs least.

Rule: the sentence, the table and the facts from the same values. Exit code 0 if a model meets every objective, 1 if none
does, 3 if that is open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tailgauge.errors import Exit
from tailgauge.experiments.answer import OPEN, Answer, Case, Table
from tailgauge.experiments.models.judge import Chosen, Objective, cheapest
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE, PASS
from tailgauge_analysis.text.formatting import figures, listed, ms, ms_or_failed, percentile, plural, share
from tailgauge_analysis.text.quantile import plain_values

NOTHING = "No model could be judged: every run was INVALID, or there was no time for one."
NONE = "–"
SAME = 0.0005  # of shares: an interval narrower than this is one number


def answer(found: Sequence[Chosen], remarks: Sequence[str]) -> Answer:
    """Of all models."""
    if not found:
        return Answer(
            "models", NOTHING, _table(()), {"models": [], "meet": [], "cheapest": None}, Exit.INVALID, "",
            (Case("models", OPEN, NOTHING),), tuple(remarks),
        )  # fmt: skip
    best = cheapest(found)
    meet = [one.name for one in found if one.outcome == PASS]
    facts = {"models": [_facts(one) for one in found], "meet": meet, "cheapest": best.name if best else None}
    codes = {one.outcome for one in found}
    code = Exit.OK if PASS in codes else Exit.INVALID if INCONCLUSIVE in codes else Exit.SLO_FAILED
    return Answer(
        "models", _sentence(found, best), _table(found), facts, code, _smallest(found),
        tuple(Case(one.name, one.outcome, "; ".join(map(_said, one.objectives))) for one in found),
        (*remarks, *_remarks(found)),
    )  # fmt: skip


def _sentence(found: Sequence[Chosen], best: Chosen | None) -> str:
    by = {word: [one.name for one in found if one.outcome == word] for word in (PASS, FAIL, INCONCLUSIVE)}
    parts = []
    if by[PASS]:
        parts.append(f"{listed(by[PASS], None)} {'meets' if len(by[PASS]) == 1 else 'meet'} every objective")
    else:
        parts.append("No model was shown to meet every objective")
    if best is not None and best.per_1000 is not None:
        others = [one for one in found if one is not best and one.outcome == PASS and one.dearer is not None]
        least = ", ".join(map(_less, others))
        alone = "which costs" if len(by[PASS]) == 1 else f"{best.name} costs least,"
        parts.append(
            f"{alone} {_cost(best.per_1000)} {best.unit} for 1,000 requests{', ' + least if least else ''}"
        )
    if by[FAIL]:
        parts.append(f"{listed(by[FAIL], None)} {'does' if len(by[FAIL]) == 1 else 'do'} not ({_why(found)})")
    if by[INCONCLUSIVE]:
        parts.append(f"of {listed(by[INCONCLUSIVE], None)} it is open")
    return "; ".join(parts) + "."


def _cost(per_1000: tuple[float, float, float]) -> str:
    """With its interval, where that is more than one number."""
    value, low, high = map(figures, per_1000)
    return value if low == value == high else f"{value} ({low} – {high})"


def _less(one: Chosen) -> str:
    """How much less than this one the cheapest costs."""
    assert one.dearer is not None  # asked before
    ends = [one.dearer.mean, one.dearer.low, one.dearer.high]
    value, low, high = (None if end is None else -math.expm1(-end) for end in ends)
    word = "less" if (value or 0) >= 0 else "more"
    between = (
        "" if low is None or high is None or high - low < SAME else f" ({_signed(low)} – {_signed(high)})"
    )
    return f"{share(abs(value or 0.0))} {word} than {one.name}{between}"


def _signed(value: float) -> str:
    return share(value) if value >= 0 else f"−{share(-value)}"


def _why(found: Sequence[Chosen]) -> str:
    """The first objective that each missed."""
    out = []
    for one in found:
        missed = [objective for objective in one.objectives if objective.outcome == FAIL]
        if missed:
            out.append(f"{one.name}: {_said(missed[0])}")
    return "; ".join(out)


def _said(one: Objective) -> str:
    q = one.quantile
    return (
        f"{percentile(one.p)} of {_title(one.metric)} {ms_or_failed(q.value)} ms ({ms_or_failed(q.low)} – {ms_or_failed(q.high)}), at most {ms(one.max_ms)}"
    )  # fmt: skip


def _title(metric: str) -> str:
    """The metric in words: TTFT since scheduled, end to end since scheduled."""
    title = BY_NAME[metric].title
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


def _table(found: Sequence[Chosen]) -> Table:
    objectives = [one.name for one in found[0].objectives] if found else []
    header = (
        "model", "blocks", "requests", "answered", "p50, ms", "p95, ms", "p99, ms", *objectives, "meets all",
        "cost of 1,000", "95% interval", "than the cheapest", "95% interval",
    )  # fmt: skip
    caption = (
        "A row is a model; all had the same traffic, in blocks in random order. p50 to p99: end to end from the scheduled "
        "time, failures slowest. Each objective: its quantile with its 95% interval, and its outcome."
    )
    return Table(caption, header, tuple(map(_row, found)))


def _row(one: Chosen) -> tuple[str, ...]:
    cost = one.per_1000
    dearer = one.dearer
    return (
        one.name, f"{one.blocks}", f"{one.requests:,}", share(one.answered / one.requests if one.requests else None),
        *(ms_or_failed(q.value) for q in one.took), *(f"{ms_or_failed(o.quantile.value)} ({ms_or_failed(o.quantile.low)} – {ms_or_failed(o.quantile.high)}): {o.outcome}" for o in one.objectives),
        one.outcome, NONE if cost is None else figures(cost[0]), NONE if cost is None else f"{figures(cost[1])} – {figures(cost[2])}",
        NONE if dearer is None else f"{math.exp(dearer.mean):.3g} times",
        NONE if dearer is None or dearer.low is None or dearer.high is None else f"{math.exp(dearer.low):.3g} – {math.exp(dearer.high):.3g}",
    )  # fmt: skip


def _facts(one: Chosen) -> dict[str, object]:
    told: dict[str, object] = plain_values(one, "failed")
    return told | {"outcome": one.outcome}


def _smallest(found: Sequence[Chosen]) -> str:
    """How far from its bound an objective must be to be decided: half the width of the intervals seen."""
    halves = [
        (q.high - q.low) / 2 / q.value
        for one in found
        for q in (objective.quantile for objective in one.objectives)
        if q.value and q.low is not None and q.high is not None and math.isfinite(q.high)
    ]
    return f"an objective whose bound is {share(float(np.median(halves)))} away" if halves else ""


def _remarks(found: Sequence[Chosen]) -> list[str]:
    fewest = min(one.blocks for one in found)
    out = [f"What {one.name} costs is not told: {one.why}." for one in found if one.why]
    if fewest < max(one.blocks for one in found):
        out.append(f"Some runs did not count: the fewest of a model are {plural(fewest, 'block')}.")
    return out
