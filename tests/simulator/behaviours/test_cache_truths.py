"""Rows 16 to 18 of the ground truths: hit shares in closed form, break-even to the fraction, and races."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import numpy as np
import pytest

from tailgauge.simulator.billing import (
    BillSettings,
    Usage,
    break_even_hit_share,
    break_even_uses,
    cost,
    cost_ratio,
)
from tailgauge.simulator.cache_markers import Breakpoint, Position, Prompt
from tailgauge.simulator.prefix_cache import CacheSettings, Lookup, PrefixCache

S = 1_000_000_000
TTL_S = 300.0
PREFIX = Prompt("m", (Position(b"prefix", 1000),), 1000, (Breakpoint(0, "5m"),))
READ, WRITE_5M, WRITE_1H = Fraction(1, 10), Fraction(5, 4), Fraction(2)


@pytest.fixture(scope="module")
def size(full_size: bool) -> tuple[int, float]:
    """Calls, and the tolerance of a hit share: four standard errors of either size."""
    return (400_000, 0.003) if full_size else (30_000, 0.0115)


def hit_share(settings: CacheSettings, rate_per_s: float, count: int) -> float:
    """Of Poisson calls with one prefix, each of whose responses begins at once."""
    cache = PrefixCache(settings)
    gaps = np.random.Generator(np.random.Philox(16)).exponential(S / rate_per_s, count)
    hits = 0
    for now in np.cumsum(gaps).astype(np.int64).tolist():
        found = cache.lookup(PREFIX, now)
        cache.begin(found, now)
        hits += found.cache_read > 0
    return hits / count


def settings(**more: object) -> CacheSettings:
    return CacheSettings("marked", minimum_tokens=0, ttl_5m_s=TTL_S, **more)


@pytest.mark.parametrize("load", [0.2, 1.0, 3.0])  # calls per TTL
def test_row_16_a_sliding_ttl(load: float, size: tuple[int, float]) -> None:
    count, tolerance = size

    assert hit_share(settings(), load / TTL_S, count) == pytest.approx(1 - exp(-load), abs=tolerance)


@pytest.mark.parametrize("load", [0.2, 1.0, 3.0])
def test_row_16_a_fixed_ttl(load: float, size: tuple[int, float]) -> None:
    count, tolerance = size

    found = hit_share(settings(sliding=False), load / TTL_S, count)
    assert found == pytest.approx(load / (1 + load), abs=tolerance)


@pytest.mark.parametrize(("load", "delay"), [(1.0, 0.1), (1.0, 1.0), (2.0, 0.5), (3.0, 2.0)])  # delay in TTLs
def test_row_16_a_race(load: float, delay: float, size: tuple[int, float]) -> None:
    count, tolerance = size
    missing = exp(-load)

    found = hit_share(settings(visibility_delay_s=delay * TTL_S), load / TTL_S, count)
    assert found == pytest.approx((1 - missing) / (1 + missing * load * delay), abs=tolerance)


@pytest.mark.parametrize(
    ("write", "share", "uses"),
    [(WRITE_5M, Fraction(5, 23), Fraction(23, 18)), (WRITE_1H, Fraction(10, 19), Fraction(19, 9))],
    ids=["5m", "1h"],
)
def test_row_17_break_even_is_exact(write: Fraction, share: Fraction, uses: Fraction) -> None:
    """21.7% and 52.6% of the tokens; 1.28 and 2.11 uses, so the second and the third."""
    assert break_even_hit_share(write, READ) == share
    assert break_even_uses(write, READ) == uses
    assert cost_ratio(share, write, READ) == 1
    assert cost_ratio(1 - 1 / uses, write, READ) == 1


@pytest.mark.parametrize(("ttl", "pays_at"), [("5m", 2), ("1h", 3)])
def test_row_17_the_cache_itself_pays_at_that_use(ttl: str, pays_at: int) -> None:
    prices, cache = BillSettings(), PrefixCache(CacheSettings("marked", minimum_tokens=0))
    prompt = Prompt("m", PREFIX.positions, 1000, (Breakpoint(0, ttl),))
    paid, pays = Fraction(0), []
    for use in range(1, 5):
        paid += cost(prices, usage(called(cache, prompt, use * S)))
        pays.append(paid < use * 1000)

    assert pays == [use >= pays_at for use in range(1, 5)]


def test_row_17_a_bill_at_the_break_even_share_is_the_uncached_one() -> None:
    """5 of 23 tokens are read: 18 calls write and 5 read."""
    prices = BillSettings()
    bill = 18 * cost(prices, Usage(0, 0, 1000, 0, 0)) + 5 * cost(prices, Usage(0, 1000, 0, 0, 0))

    assert bill == 23 * cost(prices, Usage(1000, 0, 0, 0, 0))


@pytest.mark.parametrize("calls", [1, 2, 20])
@pytest.mark.parametrize("mode", ["begins", "delay"])
def test_row_18_simultaneous_cold_calls_each_write(calls: int, mode: str) -> None:
    delay_s = 2.0 if mode == "delay" else 0.0
    cache = PrefixCache(settings(visibility_delay_s=delay_s))
    found = [cache.lookup(PREFIX, 0) for _ in range(calls)]
    for i, one in enumerate(found):
        cache.begin(one, S + i)
    during = [cache.peek(PREFIX, at) for at in (0, 2 * S)] if mode == "delay" else []
    warm = [cache.lookup(PREFIX, round((1 + delay_s) * S) + i) for i in range(calls)]

    assert [(one.cache_creation, one.cache_read) for one in found] == [(1000, 0)] * calls
    assert [one.reason for one in found] == ["cold"] + ["race"] * (calls - 1)
    assert [one.reason for one in during] == ["race"] * len(during)
    assert [(one.cache_creation, one.cache_read) for one in warm] == [(0, 1000)] * calls


def called(cache: PrefixCache, prompt: Prompt, now: int) -> Lookup:
    found = cache.lookup(prompt, now)
    cache.begin(found, now)
    return found


def usage(found: Lookup) -> Usage:
    return Usage(found.input_tokens, found.cache_read, found.creation_5m, found.creation_1h, 0)
