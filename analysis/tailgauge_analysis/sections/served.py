"""Served as: which model, service tier, speed and region answered, as the responses name them, and what that means for cost and
latency.

Answers of the steady stage without slow readers. Shown where the responses name more than one of these, or where the target
fell back to another model within an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import CALL
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.cache.cost import (
    UNIT,
    Tariff,
    at_list_price,
    billed,
    prices_of,
    spent,
    with_usage,
)
from tailgauge_analysis.sections.ends import ENDED_BY_TARGET, name_or_none
from tailgauge_analysis.stats.quantiles import Floats, Quantile, quantiles
from tailgauge_analysis.text.cells import quantile_cell
from tailgauge_analysis.text.formatting import count, plural
from tailgauge_analysis.text.section import OF_SOMETHING_ELSE, Cell, Finding, Section, Table

KEY = "served"
FACTS = ("model", "service_tier", "speed", "inference_geo")
HEADERS = {"model": "model", "service_tier": "tier", "speed": "speed", "inference_geo": "region"}
ROWS = 20
COMPUTED = "The table has the answers of the steady stage, by the model and tier that their responses name. TTFT counts from sending. Cost follows the price of the model and tier."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAs:
    """The answers that were served alike; null: the responses do not name it."""

    model: str | None
    service_tier: str | None
    speed: str | None
    inference_geo: str | None
    calls: int
    cost: float | None
    """null: no price is known"""
    ttft_p50: Quantile | None
    tpot_p50: Quantile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Answers that another model than the first one served."""

    before: str
    after: str
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How the answers of the steady stage were served, the most frequent first."""

    calls: int
    unit: str
    groups: tuple[ServedAs, ...]
    fallbacks: tuple[Fallback, ...]
    at_list_price: tuple[str, ...]
    """tiers and speeds that the price file does not have"""


def compute(run: Run) -> Served | None:
    """Return how answers were served; None where all were served alike, without a fallback."""
    attempts = run.without_slow_readers.attempts
    answers = attempts[attempts["ended"].isin(ENDED_BY_TARGET)]
    named = answers[list(FACTS)].replace("", None)
    has_several = bool(named.nunique().gt(1).any())
    if not has_several and answers["fallback"].isna().all():
        return None
    answers = answers.assign(
        **{name: named[name] for name in FACTS}, tpot_ms=_tpot_ms(answers, run.without_slow_readers)
    )
    prices = run.result(prices_of)
    groups = []
    for key, rows in answers.groupby(list(FACTS), dropna=False, observed=True):
        groups.append(_served_as(key, rows, prices))
    return Served(
        calls=len(answers),
        unit=prices.unit,
        groups=tuple(sorted(groups, key=lambda group: -group.calls)),
        fallbacks=_fallbacks(answers),
        at_list_price=at_list_price(billed(with_usage(answers), prices.price), prices.price),
    )


def _tpot_ms(answers: pd.DataFrame, stage: Steady) -> Floats:
    """Return the TPOT of each call, where its request has it from this call."""
    requests = stage.requests
    keys = requests[["request_id", "answer_leg", "answer_attempt"]].fillna(-1).astype("int64")
    by_call = pd.Series(BY_NAME["tpot"].ns(stage) / 1e6, pd.MultiIndex.from_frame(keys))
    by_call = by_call[~by_call.index.duplicated()]
    calls = pd.MultiIndex.from_frame(answers[list(CALL)].astype("int64"))
    return np.asarray(by_call.reindex(calls), np.float64)


def _served_as(key: tuple[object, ...], rows: pd.DataFrame, prices: Tariff) -> ServedAs:
    model, tier, speed, region = map(name_or_none, key)
    total, _ = spent(with_usage(rows), prices.price)
    ttft_ms = (rows["first_content_at_ns"] - rows["sent_at_ns"]).to_numpy(np.float64) / 1e6
    cost = None
    if total is not None:
        cost = float(total)
    return ServedAs(
        model=model,
        service_tier=tier,
        speed=speed,
        inference_geo=region,
        calls=len(rows),
        cost=cost,
        ttft_p50=_median(ttft_ms),
        tpot_p50=_median(rows["tpot_ms"].to_numpy(np.float64)),
    )


def _median(values: Floats) -> Quantile | None:
    finite = values[~np.isnan(values)]
    if not len(finite):
        return None
    return quantiles(finite, (0.5,))[0]


def _fallbacks(answers: pd.DataFrame) -> tuple[Fallback, ...]:
    fell_back = answers[answers["fallback"].notna()]
    fallbacks = []
    for (requested, answered), rows in fell_back.groupby(
        ["fallback", "model"], dropna=False, observed=True
    ):
        names = (name_or_none(requested) or "", name_or_none(answered) or "another model")
        fallbacks.append(Fallback(before=names[0], after=names[1], calls=len(rows)))
    return tuple(sorted(fallbacks, key=lambda fallback: -fallback.calls))


def section(served: Served | None) -> Section | None:
    """Return the section; None where all answers were served alike."""
    if served is None:
        return None
    sentences = []
    for fallback in served.fallbacks:
        sentences.append(_fallback_sentence(fallback, served.calls))
    answer = ". ".join(sentences) or "Not all answers came from the same model and tier"
    notes = []
    if served.at_list_price:
        names = ", ".join(served.at_list_price)
        notes.append(f"The price file has no rates for {names}: these costs are at the list price.")
    return Section(
        "served",
        "Served as",
        f"{answer}.",
        tables=(_table(served),),
        notes=tuple(notes),
        computed=(COMPUTED,),
        brief=tuple(sentences),
        findings=tuple(_findings(served)),
    )


def _findings(served: Served) -> Iterator[Finding]:
    """Yield answers of another model than the first one."""
    for fallback in served.fallbacks:
        text = f"{_fallback_sentence(fallback, served.calls)}."
        yield Finding(text, OF_SOMETHING_ELSE + fallback.calls / served.calls)


def _fallback_sentence(fallback: Fallback, calls: int) -> str:
    """`6 of 20 answers were served by claude-opus-4-8 after claude-fable-5 (fallback)`."""
    part = f"{count(fallback.calls)} of {plural(calls, 'answer')}"
    return f"{part} were served by {fallback.after} after {fallback.before} (fallback)"


def _table(served: Served) -> Table:
    """Return a row for each way in which answers were served, without the columns that no response names.

    Rarer ways beyond ROWS are counted in the note.
    """
    named_columns = []
    for name in FACTS:
        # Model, tier, speed or region, where any response names it.
        if any(getattr(group, name) for group in served.groups):
            named_columns.append(name)
    header = tuple(HEADERS[name] for name in named_columns)
    rows = []
    for group in served.groups[:ROWS]:
        names = tuple(getattr(group, name) or "–" for name in named_columns)
        medians = (_cell(group.ttft_p50), _cell(group.tpot_p50))
        rows.append((*names, count(group.calls), _cost(group.cost, served.unit), *medians))
    hidden_groups = len(served.groups) - len(rows)
    note = ""
    if hidden_groups:
        note = f"{plural(hidden_groups, 'rarer combination')} not shown."
    columns = (*header, "answers", f"cost ({served.unit})", "TTFT p50 (ms)", "TPOT p50 (ms)")
    return Table("", columns, tuple(rows), note)


def _cell(median: Quantile | None) -> Cell:
    if median is None:
        return "–"
    return quantile_cell(median)


def _cost(cost: float | None, unit: str) -> str:
    if cost is None:
        return "–"
    if unit == UNIT:
        return f"{cost:,.0f}"
    return f"{cost:,.4f}"
