"""What the calls cost, what the cache saved, and what it takes to break even.

Prices come from the dated price file; a model that it does not know has no cost, never zero. The simulated
endpoint has no currency: its unit is the price of one uncached input token. Sums are exact fractions, of whole tokens.

    saved        read (P_in - P_read) - written 5 m (P_5m - P_in) - written 1 h (P_1h - P_in)
    break-even   hit share (w - 1) / (w - r); uses per write: more than (w - r) / (1 - r), w and r in prices of input
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd

from tailgauge.errors import UsageError
from tailgauge.rows.text_file import refusal
from tailgauge.scenario import prices as pricing
from tailgauge_analysis.sections.cache import shares
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, table
from tailgauge_analysis.text.quantile import FOR_FIGURES

UNIT = "input-token equivalents"
MILLION = 1_000_000
USAGE = (
    "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation_5m_input_tokens",
    "cache_creation_1h_input_tokens", "output_tokens",
)  # fmt: skip
RELATIVE = {"input": "1", "write_5m": "1.25", "write_1h": "2", "read": "0.1", "output": "5"}

PriceOf = Callable[[str], pricing.Price | None]


@dataclass(frozen=True, slots=True)
class Tariff:
    """Prices by model; `why` where there are none."""

    unit: str
    price: PriceOf
    why: str = ""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Reuse at which one cache lifetime pays, at one model's prices."""

    model: str
    ttl: str
    write: Fraction
    read: Fraction
    hit_share: Fraction | None
    uses: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact cost of all calls with usage. `without_cache`: with every prompt token at the price of input."""

    unit: str
    calls: int
    unpriced: int
    without_usage: int
    total: Fraction
    input: Fraction
    input_without_cache: Fraction
    saved: Fraction
    saved_share: shares.Share
    break_even: tuple[BreakEven, ...]
    hit_share_of_cached: float | None
    uses_per_write: float | None
    why: str
    saved_each: Floats = field(metadata=FOR_FIGURES)  # of each call, as its input would cost without a cache
    without_each: Floats = field(metadata=FOR_FIGURES)


def tariff(run: Json) -> Tariff:
    """The prices in force on the day of the run."""
    if run["target"].get("simulated"):
        billing = table(table(run["scenario"], "simulated"), "billing")
        rates = tuple(Fraction(str(billing.get(name, RELATIVE[name]))) * MILLION for name in pricing.RATES)
        price = pricing.Price(date.min, rates)
        return Tariff(UNIT, lambda _model: price)
    try:
        prices = pricing.read(_file(run))
        day = datetime.fromisoformat(run["started_at"]).date()
    except (UsageError, ValueError) as error:
        return Tariff("", lambda _model: None, plain(str(error), 300))
    return Tariff(prices.currency, lambda model: prices.price(model, day))


def _file(run: Json) -> Path:
    named = table(run["scenario"], "guard").get("prices")
    if not isinstance(named, str):
        return pricing.PACKAGED
    beside = Path(run["scenario_file"]).parent / named
    return beside if refusal(beside) is None else Path(named)


def cost(calls: pd.DataFrame, by: Tariff, *, price_share: float, without_usage: int) -> Cost | None:
    """Cost of these calls; None where none has a price."""
    factor, zero = Fraction(price_share), Fraction(0)
    total, paid, uncached, priced = zero, zero, zero, 0
    saved, without = np.zeros(len(calls)), np.zeros(len(calls))
    unknown, ends = [], []
    for model, rows in calls.groupby(model_of(calls), sort=True):
        price = by.price(str(model))
        if price is None:
            unknown.append(plain(str(model), 100) or "an unnamed model")
            continue
        priced += len(rows)
        for rates, of in _by_length(rows, price):  # in the order of pricing.RATES
            tokens = of[["uncached", "short", "hour", "read", "output_tokens"]].fillna(0).to_numpy(np.int64)
            sums = [int(n) for n in tokens.sum(axis=0)]
            spent = [n * rate * factor / MILLION for n, rate in zip(sums, rates, strict=True)]
            total, paid = total + sum(spent, zero), paid + sum(spent[:4], zero)
            uncached += sum(sums[:4]) * rates[0] * factor / MILLION
            worth = np.array([float(rates[0] - rate) for rate in rates[:4]])
            places = calls.index.get_indexer(of.index)
            saved[places] = tokens[:, :4] @ worth
            without[places] = tokens[:, :4].sum(axis=1) * float(rates[0])
        ends += _break_even(str(model), rows, price.rates)
    if not priced:
        return None
    why = by.why or (f"no price for {plain(', '.join(unknown[:5]), 500)}" if unknown else "")
    read, written = int(calls["read"].clip(lower=0).sum()), int(calls["created"].clip(lower=0).sum())
    return Cost(
        by.unit, priced, len(calls) - priced, without_usage, total, paid, uncached, uncached - paid,
        shares.saved_share(saved, without), tuple(ends),
        read / (read + written) if written else None, (read + written) / written if written else None, why, saved, without,
    )  # fmt: skip


def spent(rows: pd.DataFrame, models: pd.Series[str], price: PriceOf) -> tuple[Fraction | None, str]:
    """Exact cost of calls by their usage, as columns of attempts; None, and which of `models` it is, where one has no price."""
    total = Fraction(0)
    for model, of in rows.groupby(models, sort=True, observed=True):
        if (entry := price(str(model))) is None:
            return None, str(model)
        costs, kind = _costs(of, entry)
        total += sum((int(n) * cost for n, cost in zip(np.bincount(kind), costs, strict=True)), Fraction(0))
    return total, ""


def each(rows: pd.DataFrame, models: pd.Series[str], price: PriceOf) -> tuple[Floats | None, str]:
    """The cost of each call by its usage, 0 where it has none; None, and which of `models` it is, where one has no price."""
    out = np.zeros(len(rows))
    for model, of in rows.groupby(models, sort=True, observed=True):
        if (entry := price(str(model))) is None:
            return None, str(model)
        costs, kind = _costs(of, entry)
        out[rows.index.get_indexer(of.index)] = np.array(list(map(float, costs)))[kind]
    return out, ""


def model_of(calls: pd.DataFrame) -> pd.Series[str]:
    """The model that each call is paid for: the one that answered, else the one that was asked; empty where none is named."""
    return calls["model"].mask(calls["model"] == "").fillna(calls["asked_model"]).fillna("")


def _costs(of: pd.DataFrame, price: pricing.Price) -> tuple[list[Fraction], Ints]:
    """The cost of each usage that occurs, and which of these each call has."""
    kinds, kind = np.unique(of[list(USAGE)].fillna(-1).to_numpy(np.int64), axis=0, return_inverse=True)
    rows = ([None if value < 0 else value for value in row] for row in kinds.tolist())
    usages = (pricing.Usage.of(dict(zip(USAGE, row, strict=True))) for row in rows)
    return [price.cost(usage) for usage in usages], kind.ravel()


def no_price(model: str, why: str) -> str:
    """Why there is no cost: the reason of the price table, or the model that it lacks."""
    return why or f"no price for {plain(model, 100) or 'an unnamed model'}"


def _by_length(rows: pd.DataFrame, price: pricing.Price) -> list[tuple[tuple[Fraction, ...], pd.DataFrame]]:
    """The calls by the rates for their length."""
    if price.long_above is None:
        return [(price.rates, rows)]
    is_long = rows["total"] > price.long_above
    return [(price.rates, rows[~is_long]), (price.long_rates, rows[is_long])]


def _break_even(model: str, rows: pd.DataFrame, rates: tuple[Fraction, ...]) -> list[BreakEven]:
    """One entry per lifetime that these calls wrote with."""
    if not rates[0]:
        return []
    read, found = rates[3] / rates[0], []
    for ttl, column, rate in (("5m", "short", rates[1]), ("1h", "hour", rates[2])):
        if rows[column].any():
            write = rate / rates[0]
            even = even_share(write, read), even_uses(write, read)
            found.append(BreakEven(plain(model, 100), ttl, write, read, *even))
    return found


def even_share(write: Fraction, read: Fraction) -> Fraction | None:
    """Share of the cached tokens that must be read for the cost to be that without a cache; None if it never is."""
    return None if read >= 1 or write <= read else max(Fraction(0), (write - 1) / (write - read))


def even_uses(write: Fraction, read: Fraction) -> int | None:
    """Fewest uses of a write, the writing call included, from which a cache costs less; None if it never does."""
    return None if read >= 1 else math.floor((write - read) / (1 - read)) + 1
