"""The cache report's findings, by traffic table.

Rule: the order of the computation stands here; whole run except preflight, but TTFT of the steady stage. A traffic table
without marks, shared prefixes, reads or writes has no entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.sections.cache import shares
from tailgauge_analysis.sections.cache.calls import calls
from tailgauge_analysis.sections.cache.cost import Cost, Tariff, cost, tariff
from tailgauge_analysis.sections.cache.effect import Worth, worth
from tailgauge_analysis.sections.cache.expiry import Expiry, expiry, why_not
from tailgauge_analysis.sections.cache.misses import RACE, Miss, causes, first_bytes, misses
from tailgauge_analysis.sections.cache.settings import CacheSettings, settings
from tailgauge_analysis.text.json_values import Json, table
from tailgauge_analysis.verdict.clocks import clocks


@dataclass(frozen=True, slots=True)
class Expected:
    """Calls of which the client expected one state of the cache, and what the target said."""

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
    unordered: (
        int  # misses that count as a race because the clocks of two workers do not tell which call was first
    )
    first_bytes: list[tuple[int, int]]
    expiry: Expiry | None
    no_expiry: str
    worth: Worth
    cost: Cost | None
    no_cost: str


def cache(frames: Frames) -> list[Cache]:
    """Every traffic table that has to do with a cache, in the order of their names."""
    known = settings(frames.run)
    told = calls(frames, known, clocks(frames).between_ns)
    if not told["counted"].any():
        return []
    told["cause"] = causes(told, known, _salted(frames.run))
    by = tariff(frames.run)
    patterns = frames.requests.drop_duplicates("traffic").set_index("traffic")["pattern"]
    found = []
    for name, rows in told.groupby("traffic"):
        of = rows[rows["counted"]]
        if (of["prefix"].notna() | of["hit"] | (of["created"] > 0)).any():
            attempts = frames.attempts[
                (frames.attempts["traffic"] == name) & frames.attempts["sent_at_ns"].notna()
            ]
            measured = int((attempts["stage"] != schema.PREFLIGHT).sum())
            batch = patterns.get(name) == "batch"
            found.append(_cache(str(name), rows, known, by, batch=batch, without_usage=measured - len(of)))
    return found


def _salted(run: Json) -> set[str]:
    """Traffic whose prompts begin with bytes of their own on purpose."""
    traffic = table(run["scenario"], "traffic")
    return {name for name in traffic if table(table(traffic, name), "cache").get("cold") is True}


def _cache(
    name: str, rows: pd.DataFrame, known: CacheSettings, by: Tariff, *, batch: bool, without_usage: int
) -> Cache:
    of = rows[rows["counted"]]
    aged = expiry(rows, sliding=known.sliding)
    spent = cost(of, by, batch=batch, without_usage=without_usage)
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
        expected=_expected(of),
        misses=misses(of, of["cause"]),
        unordered=int((of["unordered"] & (of["cause"] == RACE)).sum()),
        first_bytes=first_bytes(of, of["cause"]),
        expiry=aged,
        no_expiry="" if aged else why_not(rows),
        worth=worth(of),
        cost=spent,
        no_cost="" if spent else by.why or "no price for the models of these calls",
    )


def _expected(of: pd.DataFrame) -> dict[str, Expected]:
    found = {}
    for state in schema.CACHE_STATES:
        hits = of.loc[of["cache_expected"] == state, "hit"]
        if len(hits):
            found[state] = Expected(len(hits), int(hits.sum()), int((~hits).sum()))
    return found
