"""Rows 16 and 17 of the ground truths: hit shares in closed form, and break-even to the fraction."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import numpy as np
import pytest

from tailgauge.scenario.simulated import BillingTable, CacheTable
from tailgauge.simulator.behaviours.billing import Billing, PromptTokens
from tailgauge.simulator.behaviours.prefix_cache import (
    Breakpoint,
    Lookup,
    Position,
    PrefixCache,
    Prompt,
)

S = 1_000_000_000
TTL_S = 300.0
PREFIX = Prompt((Position(b"prefix", 1000),), 1000, (Breakpoint(0, "5m"),))
READ, WRITE_5M, WRITE_1H = Fraction(1, 10), Fraction(5, 4), Fraction(2)


@pytest.fixture(scope="module")
def size(full_size):
    """Calls, and the tolerance of a hit share: four standard errors of either size."""
    return (400_000, 0.003) if full_size else (30_000, 0.0115)


def hit_share(settings: CacheTable, rate_per_s: float, count: int) -> float:
    """Of Poisson calls with one prefix, each of whose responses begins at once."""
    cache = PrefixCache(settings, 0)
    gaps = np.random.Generator(np.random.Philox(16)).exponential(S / rate_per_s, count)
    hits = 0
    for now in np.cumsum(gaps).astype(np.int64).tolist():
        found = cache.lookup(PREFIX, now)
        cache.begin(found, now)
        hits += found.cache_read > 0
    return hits / count


def settings(**more):
    return CacheTable(mode="marked", minimum_tokens=0, ttl_5m_s=TTL_S, **more)


@pytest.mark.parametrize(
    ("load", "delay", "sliding"),  # calls per TTL; until others see a write, in TTLs
    [
        *((load, 0.0, is_sliding) for load in (0.2, 1.0, 3.0) for is_sliding in (True, False)),
        *((1.0, 0.1, True), (1.0, 1.0, True), (2.0, 0.5, True), (3.0, 2.0, True)),
    ],
)
def test_row_16_hit_shares(load, delay, sliding, size):
    count, tolerance = size
    table = settings(sliding=sliding, visibility_delay_s=delay * TTL_S)
    missing = exp(-load)
    exact = (1 - missing) / (1 + missing * load * delay) if sliding else load / (1 + load)

    assert hit_share(table, load / TTL_S, count) == pytest.approx(exact, abs=tolerance)


@pytest.mark.parametrize(("ttl", "pays_at"), [("5m", 2), ("1h", 3)])
def test_row_17_the_cache_itself_pays_at_that_use(ttl, pays_at):
    prices, cache = (
        Billing(BillingTable()),
        PrefixCache(CacheTable(mode="marked", minimum_tokens=0), 0),
    )
    prompt = Prompt(PREFIX.positions, 1000, (Breakpoint(0, ttl),))
    paid, pays = Fraction(0), []
    for use in range(1, 5):
        paid += prices.cost(prompt_tokens(called(cache, prompt, use * S)), 0)
        pays.append(paid < use * 1000)

    assert pays == [use >= pays_at for use in range(1, 5)]


def test_row_17_a_bill_at_the_break_even_share_is_the_uncached_one():
    """5 of 23 tokens are read: 18 calls write and 5 read."""
    prices = Billing(BillingTable())
    bill = 18 * prices.cost(PromptTokens(0, 0, 1000), 0) + 5 * prices.cost(PromptTokens(0, 1000), 0)

    assert bill == 23 * prices.cost(PromptTokens(1000), 0)


def called(cache: PrefixCache, prompt: Prompt, now: int) -> Lookup:
    found = cache.lookup(prompt, now)
    cache.begin(found, now)
    return found


def prompt_tokens(found: Lookup) -> PromptTokens:
    return PromptTokens(found.input_tokens, found.cache_read, found.creation_5m, found.creation_1h)
