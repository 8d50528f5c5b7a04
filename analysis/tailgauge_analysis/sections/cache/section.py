"""The section on the prompt cache: its findings by traffic table, its part of report.json, and its text.

The whole run except preflight, but TTFT of the steady stage. A traffic table without marks, shared prefixes, reads or
writes has no entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.sections.cache import effect, shares
from tailgauge_analysis.sections.cache.calls import CacheSettings, calls, settings
from tailgauge_analysis.sections.cache.cost import UNIT, Cost, Tariff, cost, tariff
from tailgauge_analysis.sections.cache.misses import CAUSES, RACE, Miss, causes, first_bytes, misses
from tailgauge_analysis.text.formatting import count, ms, percentile, plain, plural, share, share_range
from tailgauge_analysis.text.json_values import Json, table
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.verdict.clocks import clocks

NOTE = (
    "Whole run without preflight, by call; TTFT of the steady stage. A miss has one cause, found from what the client knew when it "
    "sent the call. Partly: an earlier part was read. Formulas: `tailgauge docs reports`."
)
Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]

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
_CAUSE_NAMES = {name: name.replace("_", " ") for name, *_ in CAUSES}


@dataclass(frozen=True, slots=True)
class Expected:
    """Calls of which the client expected one state of the cache, and how many read from it."""

    calls: int
    read: int
    no_read: int


@dataclass(frozen=True, slots=True)
class Cache:
    """What the cache did for one traffic table; tokens as the target counts them."""

    traffic: str
    calls: int
    without_usage: int
    read_tokens: int
    creation_tokens: int
    uncached_tokens: int
    prefixes: int
    token_hit: shares.Share
    cacheable_hit: shares.Share
    request_hit: shares.Share
    full_hit: shares.Share
    write_amplification: shares.Share
    expected: dict[str, Expected]
    misses: list[Miss]
    unordered: int  # misses counted as a race because the clocks of two workers cannot order the calls
    first_bytes: list[tuple[int, int]]
    expiry: shares.Expiry | None
    no_expiry: str
    worth: effect.CacheEffect
    cost: Cost | None
    no_cost: str


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
            facts, without = (
                frames.run["patterns"].get(patterns.get(name), {}),
                int(measured.get(name, 0)) - len(of),
            )
            share = facts.get("price_share", 1.0)
            found.append(_cache(str(name), rows, known, by, price_share=share, without_usage=without))
    return found


def _salted(run: Json) -> set[str]:
    """Traffic whose prompts begin with random bytes on purpose."""
    traffic = table(run["scenario"], "traffic")
    return {name for name in traffic if table(table(traffic, name), "cache").get("cold") is True}


def _cache(
    name: str, rows: pd.DataFrame, known: CacheSettings, by: Tariff, *, price_share: float, without_usage: int
) -> Cache:
    of = rows[rows["counted"]]
    aged = shares.expiry(rows, sliding=known.sliding)
    spent = cost(of, by, price_share=price_share, without_usage=without_usage)
    return Cache(
        traffic=name,
        calls=len(of),
        without_usage=without_usage,
        read_tokens=int(of["read"].sum()),
        creation_tokens=int(of["created"].sum()),
        uncached_tokens=int(of["uncached"].sum()),
        prefixes=int(of["prefix"].nunique()),
        token_hit=shares.token_hit(of),
        cacheable_hit=shares.cacheable_hit(of),
        request_hit=shares.request_hit(of),
        full_hit=shares.full_hit(of),
        write_amplification=shares.write_amplification(of),
        expected={
            state: Expected(len(hits), int(hits.sum()), int((~hits).sum()))
            for state in schema.CACHE_STATES
            if len(hits := of.loc[of["cache_expected"] == state, "hit"])
        },
        misses=misses(of, of["cause"]),
        unordered=int((of["unordered"] & (of["cause"] == RACE)).sum()),
        first_bytes=first_bytes(of, of["cause"]),
        expiry=aged,
        no_expiry="" if aged else shares.why_not(rows),
        worth=effect.worth(of),
        cost=spent,
        no_cost="" if spent else by.why or "no price for the models of these calls",
    )


def to_json(found: Sequence[Cache]) -> Json | None:
    """`cache` of report.json; None where no traffic involves a cache."""
    if not found:
        return None
    nothing = np.empty(0)
    entries = {}
    for one in found:
        values: Json = plain_values(replace(one, worth=replace(one.worth, hit_ms=nothing, miss_ms=nothing)))
        values["first_bytes"] = [{"byte": byte, "calls": n} for byte, n in one.first_bytes]
        del values["worth"]["hit_ms"], values["worth"]["miss_ms"], values["traffic"]
        entries[one.traffic] = {"sentence": _sentence(one), **values}
    return {"sentence": " ".join(entry["sentence"] for entry in entries.values()), "traffic": entries}


def _sentence(one: Cache) -> str:
    """How much was read, what it saved, and what most misses came from."""
    name, hit = plain(one.traffic, 80), one.token_hit
    if hit.value is None:
        return f"{name}: the target reports no token usage."
    between = f" (95% CI {share_range(hit.low, hit.high)})" if hit.low is not None else ""
    text = f"{name}: {share(hit.value)} of input tokens read from the cache{between}"
    if one.cost and (part := one.cost.saved_share).value:
        ends = sorted(-end for end in (part.low, part.high) if end is not None)
        sure = f" (95% CI {share_range(ends[0], ends[1])})" if ends else ""
        text += f"; input cost {'+' if part.value < 0 else ''}{share(-part.value)}{sure}"
    if one.misses:
        most = sorted(one.misses, key=lambda miss: -miss.calls)[:3]
        reasons = ", ".join(f"{count(miss.calls)} {_CAUSE_NAMES[miss.cause]}" for miss in most)
        partly = sum(miss.partly for miss in one.misses)
        text += f"; {_misses_of(sum(miss.calls for miss in one.misses))}"
        text += (f" ({count(partly)} of them partly)" if partly else "") + f": {reasons}"
        text += " and others" if len(one.misses) > len(most) else ""
    return f"{text}."


def _misses_of(n: int) -> str:
    return f"{count(n)} {'miss' if n == 1 else 'misses'}"


def summary(entry: Json) -> Json:
    """One traffic table's entry as text: `facts` (name, text) and `tables` (caption, header, rows)."""
    tables = [_rates(entry), _misses(entry), _effect(entry["worth"])]
    return {"facts": _facts(entry), "tables": [table for table in tables if table[2]]}


def _rates(entry: Json) -> Table:
    rows: list[tuple[str, ...]] = []
    for key, title, formula in RATES:
        one, is_factor = entry[key], key == "write_amplification"
        ends = (
            f"{_times(one['low'])} – {_times(one['high'])}"
            if is_factor
            else share_range(one["low"], one["high"])
        )
        value, between = (
            (_times if is_factor else share)(one["value"]),
            ends if one["low"] is not None else one["why"] or "–",
        )
        rows.append((title, value, between, count(one["n"]), formula))
    return "Hit rates", ("rate", "value", "95% CI", "calls", "formula"), rows


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _misses(entry: Json) -> Table:
    why = {name: (evidence, advice) for name, evidence, advice in CAUSES}
    rows: list[tuple[str, ...]] = [
        (
            _CAUSE_NAMES[m["cause"]],
            count(m["calls"]),
            count(m["partly"]),
            count(m["tokens"]),
            *why[m["cause"]],
        )
        for m in entry["misses"]
    ]
    return "Misses by cause", ("cause", "calls", "partly", "tokens not read", "evidence", "what to do"), rows


def _effect(worth: Json) -> Table:
    slopes = worth["slopes"]
    rows: list[tuple[str, ...]] = []
    for name, title in EFFECTS:
        found = [next((e for e in s["effects"] if e["name"] == name), None) for s in slopes]
        if any(found):
            rows.append((title, *(_cell(e, s["mark"]) for e, s in zip(found, slopes, strict=True))))
    header = ("TTFT since sent", *(f"{percentile(s['p'])} (95% CI)" for s in slopes))
    n = slopes[0]["n"] if slopes else 0
    return f"Effect on TTFT: quantile regression over {count(n)} answers", header, rows


def _cell(effect: Json | None, mark: str) -> str:
    if effect is None:
        return "–"
    return f"{ms(effect['value'])} ({ms(effect['low'])} to {ms(effect['high'])}){' ' + mark if mark else ''}"


def _facts(entry: Json) -> list[tuple[str, str]]:
    parts = (("read_tokens", "read"), ("creation_tokens", "written"), ("uncached_tokens", "uncached"))
    tokens = ", ".join(f"{count(entry[key])} {name}" for key, name in parts)
    missing = ""
    if entry["without_usage"]:
        missing = f"; {plural(entry['without_usage'], 'more call')} without usage (refused, failed or closed)"
    facts = [("Input tokens", f"{tokens}, in {plural(entry['calls'], 'call')}{missing}")]
    facts += [
        (f"Expected {state}", f"{count(one['read'])} of {plural(one['calls'], 'call')} read from the cache")
        for state, one in entry["expected"].items()
    ]
    if entry["unordered"]:
        text = f"{_misses_of(entry['unordered'])} counted as race: the workers' clocks cannot order the calls"
        facts.append(("Order unknown", text))
    if entry["first_bytes"]:
        places = ", ".join(f"{count(b['byte'])} ({plural(b['calls'], 'call')})" for b in entry["first_bytes"])
        facts.append(("First differing byte", places))
    facts += _ttft(entry["worth"])
    facts.append(("Repeated prefixes", _expiry(entry["expiry"], entry["no_expiry"])))
    return facts + _cost(entry["cost"], entry["no_cost"])


def _ttft(worth: Json) -> list[tuple[str, str]]:
    strata, facts = worth["strata"], []
    if strata:
        text = (
            f"{ms(strata['value'])} ms (95% CI {ms(strata['low'])} to {ms(strata['high'])}) among prompts of the same length "
            f"({plural(strata['hits'], 'hit')} and {_misses_of(strata['misses'])} in {strata['strata']} "
            f"{'class' if strata['strata'] == 1 else 'classes'} of length)"
        )
        facts.append(("Median TTFT saved by a hit", text))
    if worth["why"]:
        facts.append(("Effect on TTFT", f"not estimated: {worth['why']}"))
    return facts


def _expiry(one: Json | None, why: str) -> str:
    if one is None:
        return f"not estimated: {why}"
    hit = one["observed"]
    between = f" (95% CI {share_range(hit['low'], hit['high'])})" if hit["low"] is not None else ""
    text = (
        f"{share(hit['value'])} of {plural(one['calls'], 'call')} read from the cache{between}. Expected: {share(one['by_gaps'])} from "
        f"their gaps; for Poisson arrivals {share(one['by_rate_sliding'])} with a sliding TTL, {share(one['by_rate_fixed'])} with a "
        f"fixed one. The TTL is {'sliding' if one['sliding'] else 'fixed'} here"
    )
    if one["excess_misses"]:
        life = f"{one['life_s']:,.4g} s" if one["life_s"] is not None else "the TTL"
        text += f". {plural(one['excess_misses'], 'call')} read nothing within {life} of the last use"
    return text


def _cost(cost: Json | None, why: str) -> list[tuple[str, str]]:
    if cost is None:
        return [("Cost", f"unknown: {why}")]
    unit, part = cost["unit"], cost["saved_share"]
    between = f" (95% CI {share_range(part['low'], part['high'])})" if part["low"] is not None else ""
    unknown = f"; {plural(cost['unpriced'], 'call')} left out: {cost['why']}" if cost["unpriced"] else ""
    saved = (
        f"{_money(cost['saved'], unit)}, {share(part['value'])} of the input cost without a cache{between}"
    )
    facts = [
        (
            "Cost",
            f"{_money(cost['total'], unit)}, {_money(cost['input'], unit, named=False)} of it for input{unknown}",
        ),
        ("Saved by the cache", saved),
    ]
    for one in cost["break_even"]:
        if one["hit_share"] is None or one["uses"] is None:
            text = "never: a read costs as much as no cache"
        else:
            text = f"{share(one['hit_share'])} of cached tokens read, or {one['uses']} uses per write"
            if cost["uses_per_write"]:
                text += f" (here {share(cost['hit_share_of_cached'])} and {cost['uses_per_write']:,.3g})"
        facts.append((f"Break-even, {one['model']}, {one['ttl']}", text))
    return facts


def _money(value: float, unit: str, *, named: bool = True) -> str:
    amount = f"{value:,.0f}" if unit == UNIT else f"{value:,.4f}"
    return f"{amount} {unit}" if named else amount
