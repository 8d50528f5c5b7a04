"""What the calls cost, and what the cache saved.

Prices come from the dated price file; a model that it does not know has no cost, never zero. A call is charged at the price
of the model that answered, else of the one that was asked for. Where the target lists iterations, parts of an answer that
several models made, each part has the price of its own model. The simulated endpoint has no currency: its unit is the price
of one uncached input token. Sums are exact fractions, of whole tokens.

    saved   read (P_in - P_read) - written 5 m (P_5m - P_in) - written 1 h (P_1h - P_in)

5 m and 1 h are lives of entries: five minutes, one hour. Other sections ask here what calls cost, too; the price file is
read in scenario/prices.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.cache import shares
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, table, whole
from tailgauge_analysis.text.json_values import text as text_of

UNIT = "input-token equivalents"
MILLION = 1_000_000
USAGE = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cache_creation_5m_input_tokens",
    "cache_creation_1h_input_tokens",
    "output_tokens",
)
PROMPT = len(pricing.RATES) - 1  # all rates but that of the output
TIERS = ("service_tier", "speed")  # columns that may have prices of their own
# The price of these tiers is the list's.
LIST_TIERS = frozenset({"standard", "default", "auto", "on_demand", "normal"})
RELATIVE = {"input": "1", "write_5m": "1.25", "write_1h": "2", "read": "0.1", "output": "5"}

PriceOf = Callable[[str], pricing.Price | None]


Exact = Annotated[Fraction, WithJsonSchema({"type": "number"})]  # report.json has it as a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Prices by model; `why` where there are none."""

    unit: str
    price: PriceOf
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    why: str
    by_asked: int
    """calls at the price of the model that was asked for, because the one that answered has none"""
    at_list_price: tuple[str, ...]
    """service tiers and speeds of these calls that the price file does not have"""


def prices_of(run: Run) -> Tariff:
    """Return the tariff of a run: `run.result(prices_of)` reads the price file once for all sections."""
    return tariff(run.record)


def tariff(run: Json) -> Tariff:
    """Return the prices in force on the day of the run."""
    if run["target"].get("simulated"):
        billing = table(table(run["scenario"], "simulated"), "billing")
        rates = []
        for name in pricing.RATES:
            factor = billing.get(name, RELATIVE[name])
            rates.append(Fraction(str(factor)) * MILLION)
        price = pricing.Price(date.min, tuple(rates))
        return Tariff(unit=UNIT, price=lambda _model: price)
    try:
        prices = pricing.read(_file(run))
        day = datetime.fromisoformat(run["started_at"]).date()
    except (UsageError, ValueError) as error:
        return Tariff(unit="", price=lambda _model: None, why=plain(str(error), 300))
    return Tariff(unit=prices.currency, price=lambda model: prices.price(model, day))


def _file(run: Json) -> Path:
    named = table(run["scenario"], "guard").get("prices")
    if not isinstance(named, str):
        return pricing.PACKAGED
    sibling = Path(run["scenario_file"]).parent / named
    if refusal(sibling) is None:
        return sibling
    return Path(named)


def cost(
    calls: pd.DataFrame, prices: Tariff, *, price_share: float, without_usage: int
) -> Cost | None:
    """Return what these calls cost, and what the cache saved of it; None where no call has a price.

    `calls`: those with usage. `price_share`: what a call costs of the list price, 0.5 in a batch. `without_usage`: how many
    more calls there were, which is only passed on. Sums are exact; only `saved_share` with its interval is computed in floats.
    """
    total = Fraction(0)
    prompt_cost = Fraction(0)
    prompt_cost_uncached = Fraction(0)
    saved_by_call = np.zeros(len(calls))
    uncached_by_call = np.zeros(len(calls))
    unpriced_models: dict[str, None] = {}
    unpriced_calls: set[int] = set()
    # A line for each call, or for each part of one that several models answered.
    lines = billed(calls, prices.price)
    # A group: lines of one model at the same rates; `places` are the numbers of their calls, `prompts` their prompt tokens.
    for group in _by_rates(lines, prices.price):
        if group.rates is None:
            unpriced_models[plain(group.model, 100) or "an unnamed model"] = None
            unpriced_calls.update(group.places.tolist())
            continue
        total += group.cost
        prompt_cost += replace(group, tokens=group.prompts).cost
        # The first rate is that of uncached input.
        prompt_cost_uncached += int(group.prompts.sum()) * group.rates[0] / MILLION
        saved_by_token = [float(group.rates[0] - rate) for rate in group.rates[:PROMPT]]
        np.add.at(saved_by_call, group.places, group.prompts @ saved_by_token)
        np.add.at(uncached_by_call, group.places, group.prompts.sum(axis=1) * float(group.rates[0]))
    if len(unpriced_calls) == len(calls):
        return None
    reason = ""
    if unpriced_models:
        reason = f"no price for {plain(', '.join(list(unpriced_models)[:5]), 500)}"
    factor = Fraction(price_share)
    is_named = lines["model"].notna() & (lines["model"] != "")
    return Cost(
        unit=prices.unit,
        calls=len(calls) - len(unpriced_calls),
        unpriced=len(unpriced_calls),
        without_usage=without_usage,
        total=total * factor,
        input=prompt_cost * factor,
        input_without_cache=prompt_cost_uncached * factor,
        saved=(prompt_cost_uncached - prompt_cost) * factor,
        saved_share=shares.saved_share(saved_by_call, uncached_by_call),
        why=prices.why or reason,
        by_asked=int(
            lines.loc[is_named & (lines["paid_model"] != lines["model"]), "place"].nunique()
        ),
        at_list_price=at_list_price(lines, prices.price),
    )


def spent(rows: pd.DataFrame, price: PriceOf) -> tuple[Fraction | None, str]:
    """Return the exact cost of calls by their usage, as columns of attempts; None, and the model, where one has no price."""
    total = Fraction(0)
    for group in _by_rates(billed(rows, price), price):
        if group.rates is None:
            return None, group.model
        total += group.cost
    return total, ""


def call_costs(rows: pd.DataFrame, price: PriceOf) -> tuple[Floats | None, str]:
    """Return the cost of each call by its usage, 0 where it has none; None, and the model, where one has no price."""
    costs = np.zeros(len(rows))
    for group in _by_rates(billed(rows, price), price):
        if group.rates is None:
            return None, group.model
        np.add.at(
            costs, group.places, group.tokens @ [float(rate) for rate in group.rates] / MILLION
        )
    return costs, ""


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
    asked_models = lines["asked_model"].where(lines["fallback"].isna())
    lines = lines.assign(asked_model=asked_models)
    listed = _iterations(lines[lines["iterations"].notna()])
    if listed is not None:
        lines = pd.concat([lines[~lines["place"].isin(listed["place"])], listed], ignore_index=True)
    return lines.assign(paid_model=_paid_models(lines, price))


def _iterations(lines: pd.DataFrame) -> pd.DataFrame | None:
    """Return a line for each iteration of these calls; None without any that can be read."""
    rows = []
    for line in lines.to_dict("records"):
        for iteration in _read_iterations(line["iterations"]):
            row = dict(line)
            for name in USAGE:
                row[name] = iteration.get(name, np.nan)
            if iteration.get("model"):
                row["model"] = iteration["model"]
                row["asked_model"] = None
            rows.append(row)
    if not rows:
        return None
    return pd.DataFrame(rows).astype(dict.fromkeys(USAGE, "float64"))


def _read_iterations(text: str) -> list[Json]:
    """Return the iterations of an answer; none where one of them cannot be read."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(tree, list):
        return []
    iterations = []
    for iteration in tree:
        if not isinstance(iteration, dict) or not _has_whole_counts(iteration):
            return []
        iterations.append({**iteration, "model": text_of(iteration.get("model"))})
    return iterations


def _has_whole_counts(iteration: Json) -> bool:
    """Return whether each count of the usage is a whole number from 0 on, or absent."""
    for name in USAGE:
        number = iteration.get(name)
        if number is not None and (whole(number) is None or number < 0):
            return False
    return True


def _paid_models(lines: pd.DataFrame, price: PriceOf) -> pd.Series[str]:
    """Return the model whose price each line has: the one that answered, else the one that was asked for."""
    names = lines[["model", "asked_model"]].fillna("").astype(str)
    paid = {}
    for answered, requested in names.drop_duplicates().itertuples(index=False):
        paid[answered, requested] = _paid_model(answered, requested, price)
    keys = zip(names["model"], names["asked_model"], strict=True)
    return pd.Series([paid[key] for key in keys], lines.index, dtype="object")


def _paid_model(answered: str, requested: str, price: PriceOf) -> str:
    for name in (answered, requested):
        if name and price(name) is not None:
            return name
    return answered or requested


def at_list_price(lines: pd.DataFrame, price: PriceOf) -> tuple[str, ...]:
    """Return the service tiers and speeds of these lines that have no price of their own, the list's own left out."""
    names: dict[str, None] = {}
    for model, tier, _ in _by_price(lines):
        entry = price(model)
        if entry is None or entry.of_tier(*tier) is not entry:
            continue
        for name in tier:
            if name and name.lower() not in LIST_TIERS:
                names[plain(name, 40)] = None
    return tuple(names)


Tier = tuple[str | None, ...]  # its values of TIERS


def _by_price(lines: pd.DataFrame) -> Iterator[tuple[str, Tier, pd.DataFrame]]:
    """Yield the lines of each model and tier."""
    for key, group in lines.groupby(["paid_model", *TIERS], sort=True, observed=True, dropna=False):
        model, *tier = key
        yield str(model), tuple(name if isinstance(name, str) else None for name in tier), group


@dataclass(frozen=True, slots=True, kw_only=True)
class _BilledTokens:
    """Lines of one model at the same rates: tokens in the order of pricing.RATES, and the places of their calls."""

    model: str
    rates: tuple[Fraction, ...] | None
    tokens: Ints
    places: Ints

    @property
    def prompts(self) -> Ints:
        """Return the tokens of the prompts alone."""
        return self.tokens[:, :PROMPT]

    @property
    def cost(self) -> Fraction:
        """Return the exact cost of all lines."""
        total = Fraction(0)
        for tokens, rate in zip(self.tokens.sum(axis=0).tolist(), self.rates or (), strict=False):
            total += tokens * rate
        return total / MILLION


def _by_rates(lines: pd.DataFrame, price: PriceOf) -> Iterator[_BilledTokens]:
    """Yield the tokens of these lines in groups of one model and the same rates; rates of None where the model has no price.

    Lines are those of `billed`. A prompt longer than `long_above` of the price has other rates.
    """
    for model, tier, group in _by_price(lines):
        counts = group[list(USAGE)].fillna(0).astype(np.int64)
        # Tokens written for 5 minutes: as reported, else all written ones but those for an hour.
        hour = counts["cache_creation_1h_input_tokens"]
        not_hour = (counts["cache_creation_input_tokens"] - hour).clip(lower=0)
        short = group["cache_creation_5m_input_tokens"].fillna(not_hour).astype(np.int64)
        read = counts["cache_read_input_tokens"]
        columns = (counts["input_tokens"], short, hour, read, counts["output_tokens"])
        # In the order of pricing.RATES.
        tokens = np.stack(columns, axis=1)
        places = group["place"].to_numpy(np.int64)
        price_entry = price(model)
        if price_entry is None:
            yield _BilledTokens(model=model, rates=None, tokens=tokens, places=places)
            continue
        price_entry = price_entry.of_tier(*tier)
        prompts = tokens[:, :PROMPT].sum(axis=1)
        is_long = np.zeros(len(prompts), np.bool_)
        if price_entry.long_above is not None:
            is_long = prompts > price_entry.long_above
        for rates, rows in ((price_entry.rates, ~is_long), (price_entry.long_rates, is_long)):
            if rows.any():
                yield _BilledTokens(
                    model=model, rates=rates, tokens=tokens[rows], places=places[rows]
                )


def no_price(model: str, reason: str) -> str:
    """Return why there is no cost: the reason of the price table, or the model that it lacks."""
    return reason or f"no price for {plain(model, 100) or 'an unnamed model'}"
