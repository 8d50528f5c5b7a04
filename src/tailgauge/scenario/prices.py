"""What a call cost: dated price files, and what its tokens cost together.

Here is also the shortest prefix that a model caches, from the table of vendors.

A model that the file does not have has no cost, which is not a cost of zero. Sums are exact fractions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tailgauge import vendors
from tailgauge.errors import UsageError
from tailgauge.scenario import packaged
from tailgauge.table import Table, names_at, problem

RATES = ("input", "write_5m", "write_1h", "read", "output")
PACKAGED = Path(__file__).with_name("prices.toml")
_MILLION = 1_000_000
_DATED = re.compile(r"-\d{8}$")  # a model's name with the day of its release
_EXACT = BeforeValidator(lambda given: Decimal(given) if type(given) is int else given)
Rate = Annotated[Decimal, _EXACT, Field(ge=0, le=1_000_000)]
_Name = Annotated[str, Field(min_length=1)]


@cache
def cached_from(model: str) -> int | None:
    """Tokens of the shortest prefix that a model caches; None where it is not known."""
    name = _DATED.sub("", model)
    for row in vendors.TABLE["cache"]["minimums"]:
        if any(fnmatchcase(name, pattern) for pattern in row["models"]):
            return int(row["tokens"])
    return None


class Usage(NamedTuple):
    """Tokens of one call, each counted once."""

    input: int = 0  # neither read from a cache nor written to one
    write_5m: int = 0
    write_1h: int = 0
    read: int = 0
    output: int = 0

    @property
    def prompt(self) -> int:
        """All tokens of the prompt."""
        return self.input + self.write_5m + self.write_1h + self.read

    @classmethod
    def of(cls, counts: Mapping[str, int | None]) -> Usage:
        """Usage from a row's columns; a cache write of unknown lifetime, as OpenAI's, counts as one of 5 minutes."""
        write_1h = counts.get("cache_creation_1h_input_tokens") or 0
        write_5m = counts.get("cache_creation_5m_input_tokens")
        if write_5m is None:
            written = counts.get("cache_creation_input_tokens") or 0
            write_5m = max(written - write_1h, 0)
        return cls(
            input=counts.get("input_tokens") or 0,
            write_5m=write_5m,
            write_1h=write_1h,
            read=counts.get("cache_read_input_tokens") or 0,
            output=counts.get("output_tokens") or 0,
        )


@dataclass(frozen=True, slots=True)
class Price:
    """One entry of a price file; rates in RATES' order, for a million tokens."""

    since: date
    rates: tuple[Fraction, ...]
    long_above: int | None = None  # prompt tokens
    long_rates: tuple[Fraction, ...] = ()
    tiers: tuple[tuple[str, tuple[Fraction, ...]], ...] = ()  # rates by service tier or speed

    def of_tier(self, *names: str | None) -> Price:
        """Return the price of the first of these service tiers or speeds that has one; else this list price."""
        by_name = dict(self.tiers)
        for name in names:
            if name in by_name:
                return Price(self.since, by_name[name])
        return self

    def rates_for(self, prompt_tokens: int) -> tuple[Fraction, ...]:
        """Return the rates of a call whose prompt has so many tokens."""
        if self.long_above is not None and prompt_tokens > self.long_above:
            return self.long_rates
        return self.rates

    def cost(self, usage: Usage, prompt_tokens: int | None = None) -> Fraction:
        """Exact cost of one call, or of many whose prompts have so many tokens."""
        if prompt_tokens is None:
            prompt_tokens = usage.prompt
        cost = Fraction(0)
        for tokens, rate in zip(usage, self.rates_for(prompt_tokens), strict=True):
            cost += tokens * rate
        return cost / _MILLION

    def plain(self) -> list[Any]:
        """Plain values for a message; `of_plain` reads them."""
        return [
            str(self.since),
            list(map(str, self.rates)),
            self.long_above,
            list(map(str, self.long_rates)),
        ]

    @classmethod
    def of_plain(cls, plain: list[Any]) -> Price:
        """Return what `plain` made."""
        day, rates, long_above, long_rates = plain
        return cls(
            since=date.fromisoformat(day),
            rates=tuple(map(Fraction, rates)),
            long_above=long_above,
            long_rates=tuple(map(Fraction, long_rates)),
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """A price file: entries by model, oldest first."""

    currency: str
    source: str
    entries: Mapping[str, tuple[Price, ...]]

    def price(self, model: str, day: date) -> Price | None:
        """Return the entry in force for a model on a day; None where there is none."""
        entries = self.entries.get(model) or self.entries.get(_DATED.sub("", model)) or ()
        in_force = None
        for entry in entries:
            if entry.since <= day:
                in_force = entry
        return in_force


class _Rates(Table):
    input: Rate
    # Whatever the lifetime: for `write_5m` and `write_1h` where they are not there.
    write: Rate | None = None
    write_5m: Rate | None = None
    write_1h: Rate | None = None
    read: Rate
    output: Rate

    @model_validator(mode="after")
    def _has_writes(self) -> _Rates:
        for name in ("write_5m", "write_1h"):
            if self._rate(name) is None:
                raise ValueError(
                    f"{name}: expected a rate: set it, or `write` for every cache write"
                )
        return self

    def _rate(self, name: str) -> Decimal | None:
        rate: Decimal | None = getattr(self, name)
        if rate is None and name.startswith("write"):
            return self.write
        return rate

    @property
    def rates(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(self._rate(name) or 0) for name in RATES)


class _Long(_Rates):
    above: int = Field(ge=1)


class _Entry(_Rates):
    models: list[_Name] = Field(min_length=1)
    since: date
    source: str = ""
    long: _Long | None = None
    tier: dict[_Name, _Rates] = Field(default_factory=dict)

    def price(self) -> Price:
        tiers = tuple((name, rates.rates) for name, rates in self.tier.items())
        if self.long is None:
            return Price(self.since, self.rates, tiers=tiers)
        return Price(self.since, self.rates, self.long.above, self.long.rates, tiers)


class _File(Table):
    currency: _Name = "USD"
    price: list[_Entry] = Field(min_length=1)


def read(path: Path = PACKAGED) -> Prices:
    """Return a price file, its entries by model, oldest first. UsageError with the file, the entry and the key of what is
    wrong.

    Rates are read as decimals, so that sums are exact. A model may have one price from each day on.
    """
    tree = packaged.read(
        path, Decimal, expected="expected prices in TOML, see `tailgauge docs prices`"
    )
    try:
        file = _File.model_validate(tree)
    except ValidationError as error:
        raise UsageError(f"{path}: {_explain(error.errors()[0], tree)}") from None
    prices: dict[str, list[Price]] = {}
    for number, entry in enumerate(file.price, 1):
        price = entry.price()
        for model in entry.models:
            if any(other.since == price.since for other in prices.setdefault(model, [])):
                problem = f"{model} has two prices from {price.since} on"
                raise UsageError(f"{path}: price {number} ({entry.models[0]}): since: {problem}")
            prices[model].append(price)
    entries = {}
    for model, model_prices in prices.items():
        entries[model] = tuple(sorted(model_prices, key=lambda price: price.since))
    return Prices(file.currency, str(path), entries)


def _explain(error: Any, tree: Any) -> str:
    """Return the entry, the key and what was expected of a validation error.

    `error`: pydantic's; `tree`: the file as it was read. Entries are counted from 1 and named by their first model.
    """
    keys = list(error["loc"])
    place = ""
    if keys[0] == "price" and keys[1:]:
        row = tree["price"][keys[1]]
        place = f"price {keys[1] + 1}"
        models = row.get("models") if isinstance(row, dict) else None
        if isinstance(models, list) and models:
            place += f" ({models[0]})"
        place += ": "
        # The keys within the entry; of an error about the entry itself, `price`.
        keys = keys[2:] or keys[:1]
    if error["type"] == "value_error":
        # A check of a whole entry names its key itself; one of a tier has the tier's key in front.
        tier_key = ""
        if keys != ["price"]:
            tier_key = f"{'.'.join(map(str, keys))}."
        return f"{place}{tier_key}{error['ctx']['error']}"
    names = sorted(names_at(_File, error["loc"][:-1]))
    return f"{place}{'.'.join(map(str, keys))}: {problem(error, names)}"
