"""What the calls cost, what the cache saved, and what it takes to break even.

Prices come from the dated price file; a model that it does not know has no cost, never zero. A call is charged at the price of
the model that answered, else of the one that was asked for; where the target lists iterations, each at its own model's. The simulated
endpoint has no currency: its unit is the price of one uncached input token. Sums are exact fractions, of whole tokens.

    saved        read (P_in - P_read) - written 5 m (P_5m - P_in) - written 1 h (P_1h - P_in)
    break-even   hit share (w - 1) / (w - r); uses per write: more than (w - r) / (1 - r), w and r in prices of input
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import WithJsonSchema

from tailgauge.errors import UsageError
from tailgauge.protocol_violations import MALFORMED_USAGE
from tailgauge.rows.text_file import refusal
from tailgauge.scenario import prices as pricing
from tailgauge_analysis.sections.cache import shares
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, table, whole
from tailgauge_analysis.text.json_values import text as text_of
from tailgauge_analysis.text.quantile import UNPUBLISHED

UNIT = "input-token equivalents"
MILLION = 1_000_000
USAGE = (
    "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation_5m_input_tokens",
    "cache_creation_1h_input_tokens", "output_tokens",
)  # fmt: skip
TIERS = ("service_tier", "speed")  # columns that may have prices of their own
LIST_TIERS = frozenset({"standard", "default", "auto", "on_demand", "normal"})  # whose price is the list's
RELATIVE = {"input": "1", "write_5m": "1.25", "write_1h": "2", "read": "0.1", "output": "5"}

PriceOf = Callable[[str], pricing.Price | None]


Exact = Annotated[Fraction, WithJsonSchema({"type": "number"})]  # report.json has it as a number


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
    write: Exact
    read: Exact
    hit_share: Exact | None
    uses: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact cost of all calls with usage. `without_cache`: with every prompt token at the price of input."""

    unit: str
    calls: int
    unpriced: int
    without_usage: int
    total: Exact
    input: Exact
    input_without_cache: Exact
    saved: Exact
    saved_share: shares.Share
    break_even: tuple[BreakEven, ...]
    hit_share_of_cached: float | None
    uses_per_write: float | None
    why: str
    by_asked: int
    """calls at the price of the model that was asked for, because the one that answered has none"""
    at_list_price: tuple[str, ...]
    """service tiers and speeds of these calls that the price file does not have"""
    saved_each: Floats = field(metadata=UNPUBLISHED)  # of each call, as its input would cost without a cache
    without_each: Floats = field(metadata=UNPUBLISHED)


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
    total, paid, uncached = zero, zero, zero
    saved, without = np.zeros(len(calls)), np.zeros(len(calls))
    unpriced = np.zeros(len(calls), np.bool_)
    unknown: list[str] = []
    ends = []
    lines_of_calls = billed(calls, by.price)
    for model, tier, listed in _by_price(lines_of_calls):
        places = listed["place"].to_numpy(np.int64)
        price = by.price(model)
        if price is None:
            unknown.append(plain(model, 100) or "an unnamed model")
            unpriced[places] = True
            continue
        price = price.of_tier(*tier)
        lines = _by_lifetime(listed)
        for rates, of in _by_length(lines, price):  # in the order of pricing.RATES
            tokens = of[["uncached", "short", "hour", "read", "output_tokens"]].fillna(0).to_numpy(np.int64)
            sums = [int(n) for n in tokens.sum(axis=0)]
            spent = [n * rate * factor / MILLION for n, rate in zip(sums, rates, strict=True)]
            total, paid = total + sum(spent, zero), paid + sum(spent[:4], zero)
            uncached += sum(sums[:4]) * rates[0] * factor / MILLION
            worth = np.array([float(rates[0] - rate) for rate in rates[:4]])
            calls_of = of["place"].to_numpy(np.int64)
            np.add.at(saved, calls_of, tokens[:, :4] @ worth)
            np.add.at(without, calls_of, tokens[:, :4].sum(axis=1) * float(rates[0]))
        ends += _break_even(model, lines, price.rates)
    priced = int((~unpriced).sum())
    if not priced:
        return None
    names = dict.fromkeys(unknown)
    why = by.why or (f"no price for {plain(', '.join(list(names)[:5]), 500)}" if unknown else "")
    read, written = int(calls["read"].clip(lower=0).sum()), int(calls["created"].clip(lower=0).sum())
    return Cost(
        unit=by.unit,
        calls=priced,
        unpriced=len(calls) - priced,
        without_usage=without_usage,
        total=total,
        input=paid,
        input_without_cache=uncached,
        saved=uncached - paid,
        saved_share=shares.saved_share(saved, without),
        break_even=tuple(dict.fromkeys(ends)),
        hit_share_of_cached=read / (read + written) if written else None,
        uses_per_write=(read + written) / written if written else None,
        why=why,
        by_asked=int(lines_of_calls.loc[_is_by_asked(lines_of_calls), "place"].nunique()),
        at_list_price=at_list_price(lines_of_calls, by.price),
        saved_each=saved,
        without_each=without,
    )


def spent(rows: pd.DataFrame, price: PriceOf) -> tuple[Fraction | None, str]:
    """Return the exact cost of calls by their usage, as columns of attempts; None, and the model, where one has no price."""
    total = Fraction(0)
    for model, tier, lines in _by_price(billed(rows, price)):
        entry = price(model)
        if entry is None:
            return None, model
        costs, kind = _costs(lines, entry.of_tier(*tier))
        for number, one_cost in zip(np.bincount(kind), costs, strict=True):
            total += int(number) * one_cost
    return total, ""


def each(rows: pd.DataFrame, price: PriceOf) -> tuple[Floats | None, str]:
    """Return the cost of each call by its usage, 0 where it has none; None, and the model, where one has no price."""
    out = np.zeros(len(rows))
    for model, tier, lines in _by_price(billed(rows, price)):
        entry = price(model)
        if entry is None:
            return None, model
        costs, kind = _costs(lines, entry.of_tier(*tier))
        of_lines = np.array(list(map(float, costs)))[kind]
        np.add.at(out, lines["place"].to_numpy(np.int64), of_lines)
    return out, ""


def with_usage(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the calls whose usage is known, and not beyond what was requested: those that have a cost."""
    is_known = rows["output_tokens"].notna() & rows["usage_marks"].isna()
    return rows[is_known & (rows["error_type"] != MALFORMED_USAGE)]


def billed(rows: pd.DataFrame, price: PriceOf) -> pd.DataFrame:
    """Return what these calls are billed for: a line for each, or for each of its iterations where the target lists them.

    Columns USAGE, `place` of the call among the rows, `paid_model`, `service_tier` and `speed`.
    """
    columns = [*USAGE, "asked_model", "model", *TIERS, "fallback", "iterations"]
    lines = rows.reindex(columns=columns).assign(place=np.arange(len(rows)))
    # The price of the model that was asked for says nothing about another one that took over.
    asked = lines["asked_model"].where(lines["fallback"].isna())
    lines = lines.assign(asked_model=asked)
    listed = _iterations(lines[lines["iterations"].notna()])
    if listed is not None:
        lines = pd.concat([lines[~lines["place"].isin(listed["place"])], listed], ignore_index=True)
    return lines.assign(paid_model=_paid_models(lines, price))


def _iterations(lines: pd.DataFrame) -> pd.DataFrame | None:
    """Return a line for each iteration of these calls; None without any that can be read."""
    out = []
    for line in lines.to_dict("records"):
        for iteration in _read_iterations(line["iterations"]):
            counts = {name: iteration.get(name, np.nan) for name in USAGE}
            named = {"model": iteration["model"], "asked_model": None} if iteration.get("model") else {}
            out.append(line | counts | named)
    return pd.DataFrame(out).astype(dict.fromkeys(USAGE, "float64")) if out else None


def _read_iterations(text: str) -> list[Json]:
    """Return the iterations of an answer; none where one of them cannot be."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(tree, list) or not all(isinstance(one, dict) for one in tree):
        return []
    for iteration in tree:
        counts = [iteration[name] for name in USAGE if iteration.get(name) is not None]
        if any(whole(number) is None or number < 0 for number in counts):
            return []
    return [{**one, "model": text_of(one.get("model"))} for one in tree]


def _paid_models(lines: pd.DataFrame, price: PriceOf) -> pd.Series[str]:
    """Return the model whose price each line has: the one that answered, else the one that was asked for."""
    names = lines[["model", "asked_model"]].fillna("").astype(str)
    paid = {}
    for answered, asked in names.drop_duplicates().itertuples(index=False):
        priced = (name for name in (answered, asked) if name and price(name) is not None)
        paid[answered, asked] = next(priced, answered or asked)
    keys = zip(names["model"], names["asked_model"], strict=True)
    return pd.Series([paid[key] for key in keys], lines.index, dtype="object")


def _is_by_asked(lines: pd.DataFrame) -> pd.Series[bool]:
    """Return which lines have the price of the model that was asked for, although another one is named."""
    is_named = lines["model"].notna() & (lines["model"] != "")
    return is_named & (lines["paid_model"] != lines["model"])


def at_list_price(lines: pd.DataFrame, price: PriceOf) -> tuple[str, ...]:
    """Return the service tiers and speeds of these lines that have no price of their own, the list's own left out."""
    names: dict[str, None] = {}
    for model, tier, _ in _by_price(lines):
        entry = price(model)
        if entry is None or entry.of_tier(*tier) is not entry:
            continue
        special = (name for name in tier if name and name.lower() not in LIST_TIERS)
        names.update(dict.fromkeys(plain(name, 40) for name in special))
    return tuple(names)


Tier = tuple[str | None, ...]  # its values of TIERS


def _by_price(lines: pd.DataFrame) -> Iterator[tuple[str, Tier, pd.DataFrame]]:
    """Yield the lines of each model and tier."""
    for key, group in lines.groupby(["paid_model", *TIERS], sort=True, observed=True, dropna=False):
        model, *tier = key
        yield str(model), tuple(name if isinstance(name, str) else None for name in tier), group


def _costs(lines: pd.DataFrame, price: pricing.Price) -> tuple[list[Fraction], Ints]:
    """The cost of each usage that occurs, and which of these each line has."""
    kinds, kind = np.unique(lines[list(USAGE)].fillna(-1).to_numpy(np.int64), axis=0, return_inverse=True)
    rows = ([None if value < 0 else value for value in row] for row in kinds.tolist())
    usages = (pricing.Usage.of(dict(zip(USAGE, row, strict=True))) for row in rows)
    return [price.cost(usage) for usage in usages], kind.ravel()


def no_price(model: str, why: str) -> str:
    """Why there is no cost: the reason of the price table, or the model that it lacks."""
    return why or f"no price for {plain(model, 100) or 'an unnamed model'}"


def _by_lifetime(lines: pd.DataFrame) -> pd.DataFrame:
    """Add the tokens of each kind that has a rate: uncached, short and hour (written), read; and total."""
    tokens = lines[list(USAGE)].fillna(0)
    hour = tokens["cache_creation_1h_input_tokens"]
    written = tokens["cache_creation_input_tokens"]
    rest = (written - hour).clip(lower=0)
    short = lines["cache_creation_5m_input_tokens"].fillna(rest)
    total = tokens["input_tokens"] + tokens["cache_read_input_tokens"] + written
    return lines.assign(
        uncached=tokens["input_tokens"],
        short=short,
        hour=hour,
        read=tokens["cache_read_input_tokens"],
        total=total,
    )


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
