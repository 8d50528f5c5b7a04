"""The section on the prompt cache: its findings by traffic table and its text.

The whole run except preflight, but TTFT of the steady stage. A traffic table without marks, shared prefixes, reads or
writes has no entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.timeline import MOST_BINS, width
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.sections.cache import effect, shares
from tailgauge_analysis.sections.cache.calls import CacheSettings, calls, settings
from tailgauge_analysis.sections.cache.cost import UNIT, Cost, Tariff, cost, tariff
from tailgauge_analysis.sections.cache.misses import (
    ADVICE,
    CAUSES,
    NOT_KNOWN,
    RACE,
    Miss,
    causes,
    first_bytes,
    misses,
)
from tailgauge_analysis.sections.latency_under_load.section import NO_EFFECT, slope_cell
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.cells import side_by_side
from tailgauge_analysis.text.formatting import count, ms, percentile, plain, plural, share, share_range
from tailgauge_analysis.text.json_values import Json, number, table, tables
from tailgauge_analysis.text.quantile import Finding
from tailgauge_analysis.text.section import Cell, Section, Table, Value
from tailgauge_analysis.verdict.clocks import clocks

COMPUTED = (
    "Whole run without preflight, by call; TTFT of the steady stage.",
    "A miss has one cause: the target's own reason, else what follows from what the client knew when it sent the call.",
    "Partly: an earlier part was read.",
)

RATES = (
    ("token_hit", "Token hit rate", "read / (read + written + uncached)"),
    ("cacheable_hit", "Cacheable hit rate", "read / (read + written)"),
    ("request_hit", "Call hit rate", "calls that read something"),
    ("full_hit", "Full hit rate", "calls that read something and wrote nothing"),
    ("write_amplification", "Write amplification (times)", "tokens written / tokens of different texts"),
)
EFFECTS = (
    (effect.SAVED, "1,000 tokens read instead of uncached (ms saved)"),
    (effect.UNCACHED_TOKENS, "1,000 uncached tokens (ms)"),
    (effect.CACHED_TOKENS, "1,000 cached tokens (ms)"),
    (effect.IN_FLIGHT, "another call in flight (ms)"),
    (effect.CONNECTION, "a new connection (ms)"),
)
MOST_CAUSES = 3  # in a sentence
BY_TARGET = "the target says so"


@dataclass(frozen=True, slots=True)
class OverTime:
    """By the time of sending: the share of input tokens read, and the input cost over that without a cache; NaN if unknown."""

    width_s: int
    at_s: Floats
    read_share: Floats
    cost_share: Floats


def cache(frames: Frames) -> list[Cache]:
    """Every traffic table that involves a cache, in the order of their names."""
    known = settings(frames.run)
    every = calls(frames, known, clocks(frames).between_ns)
    if not every["counted"].any():
        return []
    every["cause"] = causes(every, known, _salted(frames.run))
    by = tariff(frames.run)
    patterns = frames.requests.drop_duplicates("traffic").set_index("traffic")["pattern"]
    attempts = frames.attempts[frames.attempts["sent_at_ns"].notna()]
    measured = attempts.loc[attempts["stage"] != schema.PREFLIGHT, "traffic"].value_counts()
    found = []
    for name, rows in every.groupby("traffic"):
        of = rows[rows["counted"]]
        if (of["prefix"].notna() | of["hit"] | (of["created"] > 0)).any():
            without = int(measured.get(name, 0)) - len(of)
            share = frames.run["patterns"].get(patterns.get(name), {}).get("price_share", 1.0)
            found.append(Cache(str(name), rows, known, by, price_share=share, without_usage=without))
    return found


def _salted(run: Json) -> set[str]:
    """Traffic whose prompts begin with random bytes on purpose."""
    traffic = tables(run["scenario"], "traffic").items()
    return {name for name, of in traffic if table(of, "cache").get("cold") is True}


class Cache(Finding):
    """What the cache did for one traffic table; tokens as the target counts them."""

    only_for_figures = frozenset({"over_time"})

    def __init__(
        self,
        name: str,
        rows: pd.DataFrame,
        known: CacheSettings,
        by: Tariff,
        *,
        price_share: float,
        without_usage: int,
    ) -> None:
        of = rows[rows["counted"]]
        aged = shares.expiry(rows, sliding=known.sliding)
        spent = cost(of, by, price_share=price_share, without_usage=without_usage)
        self.traffic = name
        self.calls = len(of)
        self.without_usage = without_usage
        self.read_tokens = int(of["read"].sum())
        self.creation_tokens = int(of["created"].sum())
        self.uncached_tokens = int(of["uncached"].sum())
        self.token_hit = shares.token_hit(of)
        self.cacheable_hit = shares.cacheable_hit(of)
        self.request_hit = shares.request_hit(of)
        self.full_hit = shares.full_hit(of)
        self.write_amplification = shares.write_amplification(of)
        self.misses = misses(of, of["cause"])
        # Misses counted as a race because the clocks of two workers cannot order the calls.
        self.unordered = int((of["unordered"] & (of["cause"] == RACE)).sum())
        self.first_bytes = first_bytes(of, of["cause"])
        self.expiry = aged
        self.no_expiry = "" if aged else shares.why_not(rows)
        self.worth = effect.CacheEffect(of)
        self.cost = spent
        self.no_cost = "" if spent else by.why or "no price for the models of these calls"
        self.over_time = _over_time(of, spent)


def _over_time(of: pd.DataFrame, spent: Cost | None) -> OverTime:
    at_s = np.nan_to_num(of["sent_at_ns"].to_numpy(np.float64) / 1e9)
    step = width(float(at_s.max()))
    bins = np.clip(at_s // step, 0, MOST_BINS).astype(np.int64)  # a damaged row may have any time

    def total(values: Floats) -> Floats:
        return np.bincount(bins, values).astype(np.float64)

    with np.errstate(divide="ignore", invalid="ignore"):
        read = total(of["read"].to_numpy(np.float64)) / total(of["total"].to_numpy(np.float64))
        saved = total(spent.saved_each) / total(spent.without_each) if spent else np.full(len(read), np.nan)
    middle = ((np.arange(len(read)) + 0.5) * step).astype(np.float64)
    return OverTime(step, middle, read, 1 - saved)


def section(found: Sequence[Cache], run: Json) -> Section | None:
    """The section; None where no traffic involves a cache."""
    if not found:
        return _by_engine(run)
    facts, listed = side_by_side("By traffic", {plain(one.traffic, 80): list(_facts(one)) for one in found})
    for one in found:
        of = f" ({plain(one.traffic, 80)})" if len(found) > 1 else ""
        listed += (_rates(one, of), _misses(one, of), _effect(one.worth, of))
    kept = tuple(one for one in listed if one.rows)
    return Section(
        "cache", "Prompt cache", " ".join(map(sentence, found)), facts, kept, ("cache-over-time", "cache-ttft"),
        computed=(*COMPUTED, *(f"{title}: {formula}." for _, title, formula in RATES)),
        brief=tuple(line for one in found for line in _brief(one, several=len(found) > 1)),
    )  # fmt: skip


def _by_engine(run: Json) -> Section | None:
    """What the engine's own counters tell of the whole run, where the usage has no cached tokens."""
    counted = run["engine_cache"]
    read, prompt = (number(counted.get(key)) for key in ("cached", "prompt"))
    is_shared = any(table(of, "cache") for of in tables(run["scenario"], "traffic").values())
    if read is None or not prompt or not (read or is_shared):
        return None
    part, engine = share(read / prompt), plain(str(counted["engine"]), 80)
    text = f"{engine} counts {part} of {count(prompt)} prompt tokens read from its cache, those of other users included."
    if engine == "vLLM":
        text += " With --enable-prompt-tokens-details its usage has them for each call."
    line = f"{part} of prompt tokens read, by {engine}'s own counters"
    return Section("cache", "Prompt cache", text, brief=(line,))


def sentence(one: Cache) -> str:
    """How much was read, what it saved, and what most misses came from."""
    name, hit = plain(one.traffic, 80), one.token_hit
    if hit.value is None:
        return f"{name}: the target reports no token usage."
    text = f"{name}: {share(hit.value)} of input tokens read from the cache{_between(hit)}"
    if saved := _saved(one):
        text += f"; input cost {saved}"
    if one.misses:
        n, partly = (sum(getattr(miss, key) for miss in one.misses) for key in ("calls", "partly"))
        text += f"; {_misses_of(n)}{f' ({count(partly)} of them partly)' if partly else ''}: {_reasons(one)}"
        text += " and others" if len(one.misses) > MOST_CAUSES else ""
    return f"{text}."


def _between(of: shares.Share) -> str:
    return f" (95% CI {share_range(of.low, of.high)})" if of.low is not None else ""


def _saved(one: Cache) -> str:
    """`-74% (95% CI -76% – -70%)`; empty where no price is known."""
    if not one.cost or not (part := one.cost.saved_share).value:
        return ""
    ends = sorted(-end for end in (part.low, part.high) if end is not None)
    sure = f" (95% CI {share_range(ends[0], ends[1])})" if ends else ""
    return f"{'+' if part.value < 0 else ''}{share(-part.value)}{sure}"


def _reasons(one: Cache) -> str:
    most = sorted(one.misses, key=lambda miss: -miss.calls)[:MOST_CAUSES]
    return ", ".join(f"{count(miss.calls)} {_cause_name(miss)}" for miss in most)


def _brief(one: Cache, *, several: bool) -> Iterator[str]:
    """For the terminal."""
    name, hit = f"{plain(one.traffic, 40)}: " if several else "", one.token_hit
    if hit.value is None:
        return
    part = one.cost.saved_share.value if one.cost else None
    cost = f"; input cost {'+' if part < 0 else ''}{share(-part)}" if part else ""
    yield f"{name}{share(hit.value)} of input tokens read{_between(hit)}{cost}"
    if one.misses:
        yield f"{_misses_of(sum(miss.calls for miss in one.misses))}: {_reasons(one)}"


def _cause_name(miss: Miss) -> str:
    return plain(miss.cause, 60) if miss.by_target else miss.cause.replace("_", " ")


def _misses_of(n: int) -> str:
    return f"{count(n)} {'miss' if n == 1 else 'misses'}"


def _rates(one: Cache, of: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key, title, _ in RATES:
        rate: shares.Share = getattr(one, key)
        value, ends = share(rate.value), share_range(rate.low, rate.high)
        if key == "write_amplification":
            value, ends = _times(rate.value), f"{_times(rate.low)} – {_times(rate.high)}"
        rows.append((title, Value(value, ends if rate.low is not None else rate.why), count(rate.n)))
    return Table(f"Hit rates{of}", ("rate", "value", "calls"), tuple(rows))


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _misses(one: Cache, of: str) -> Table:
    why = {name: (evidence, advice) for name, evidence, advice in CAUSES}
    rows = []
    for miss in one.misses:
        of_target = (BY_TARGET, ADVICE.get(miss.cause, NOT_KNOWN))
        texts = of_target if miss.by_target else why[miss.cause]
        numbers = (count(miss.calls), count(miss.partly), count(miss.tokens))
        rows.append((_cause_name(miss), *numbers, *texts))
    header = ("cause", "calls", "partly", "tokens not read", "evidence", "what to do")
    return Table(f"Misses by cause{of}", header, tuple(rows), prose=(4, 5))


def _effect(worth: effect.CacheEffect, of: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, title in EFFECTS:
        slopes = [slope for slope in worth.slopes if slope.name == name]
        if any(slope.value is not None for slope in slopes):
            rows.append((title, *map(slope_cell, slopes)))
    title = f"Effect on TTFT: quantile regression over {plural(worth.n, 'answer')}{of}"
    ps = dict.fromkeys(slope.p for slope in worth.slopes)
    return Table(title, ("TTFT since sent", *map(percentile, ps)), tuple(rows))


def _facts(one: Cache) -> Iterator[tuple[str, str]]:
    parts = ((one.read_tokens, "read"), (one.creation_tokens, "written"), (one.uncached_tokens, "uncached"))
    tokens = ", ".join(f"{count(n)} {name}" for n, name in parts)
    missing = f"; {plural(one.without_usage, 'more call')} without usage (refused, failed or closed)"
    yield "Input tokens", f"{tokens}, in {plural(one.calls, 'call')}{missing if one.without_usage else ''}"
    if one.unordered:
        race = f"{_misses_of(one.unordered)} counted as race"
        yield "Order unknown", f"{race}: the workers' clocks cannot order the calls"
    if one.first_bytes:
        places = (f"{count(byte)} ({plural(calls, 'call')})" for byte, calls in one.first_bytes)
        yield "First differing byte", ", ".join(places)
    if gain := one.worth.strata:
        classes = f"{gain.strata} {'class' if gain.strata == 1 else 'classes'} of length"
        calls = f"{plural(gain.hits, 'hit')} and {_misses_of(gain.misses)} in {classes}"
        text = f"{ms(gain.value)} ms (95% CI {ms(gain.low)} to {ms(gain.high)})"
        yield "Median TTFT saved by a hit", f"{text} among prompts of the same length ({calls})"
    if one.worth.why:
        yield "Effect on TTFT", f"not estimated: {one.worth.why}"
    elif all(slope.value is None for slope in one.worth.slopes):
        yield "Effect on TTFT", NO_EFFECT
    yield "Repeated prefixes", _expiry(one.expiry) if one.expiry else f"not estimated: {one.no_expiry}"
    yield from _cost(one.cost) if one.cost else [("Cost", f"unknown: {one.no_cost}")]


def _expiry(one: shares.Expiry) -> str:
    life = f"{one.life_s:,.4g} s" if one.life_s is not None else "the TTL"
    excess = f". {plural(one.excess_misses, 'call')} read nothing within {life} of the last use"
    here = f"The TTL is {'sliding' if one.sliding else 'fixed'} here{excess if one.excess_misses else ''}"
    hits = f"{share(one.observed.value)} of {plural(one.calls, 'call')} read from the cache{_between(one.observed)}"
    ttls = f"{share(one.by_rate_sliding)} with a sliding TTL, {share(one.by_rate_fixed)} with a fixed one"
    return f"{hits}. Expected: {share(one.by_gaps)} from their gaps; for Poisson arrivals {ttls}. {here}"


def _cost(cost: Cost) -> Iterator[tuple[str, str]]:
    unit, part = cost.unit, cost.saved_share
    unknown = f"; {plural(cost.unpriced, 'call')} left out: {cost.why}" if cost.unpriced else ""
    if cost.by_asked:
        unknown += f"; {plural(cost.by_asked, 'call')} at the price of the model that was asked for"
    if cost.at_list_price:
        unknown += f"; list price for {', '.join(cost.at_list_price)}, which the price file does not have"
    yield "Cost", f"{_money(cost.total, unit)} {unit}, {_money(cost.input, unit)} of it for input{unknown}"
    saved = f"{_money(cost.saved, unit)} {unit}, {share(part.value)} of the input cost without a cache"
    yield "Saved by the cache", f"{saved}{_between(part)}"
    here = f" (here {share(cost.hit_share_of_cached)} and {cost.uses_per_write or 0:,.3g})"
    for one in cost.break_even:
        text = "never: a read costs as much as no cache"
        if one.hit_share is not None and one.uses is not None:
            text = f"{share(float(one.hit_share))} of cached tokens read, or {one.uses} uses per write"
            text += here if cost.uses_per_write else ""
        yield f"Break-even, {one.model}, {one.ttl}", text


def _money(value: Fraction, unit: str) -> str:
    return f"{float(value):,.0f}" if unit == UNIT else f"{float(value):,.4f}"
