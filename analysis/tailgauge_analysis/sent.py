"""What was sent: the marks by which one kind of traffic is known from another.

Rule: counts of the whole run, preflight excepted, by traffic table: attempts are counted here as attempts, whoever saw
their answers. A share is None where nothing could have it. No latency.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tailgauge import records
from tailgauge_analysis.bootstrap import ratio
from tailgauge_analysis.frames import Frames
from tailgauge_analysis.quantiles import Floats, rank
from tailgauge_analysis.wording import plain

MOST_PHASES = 20
READ, CREATED, UNCACHED = "cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens"


@dataclass(frozen=True, slots=True)
class Hedging:
    """Second copies. A leg is one that was sent at all; a win is a hedge that ended ok."""

    legs: int
    hedged: int
    won: int
    held: dict[str, int]

    @property
    def rate(self) -> float | None:
        """Share of the legs that were hedged."""
        return self.hedged / self.legs if self.legs else None

    @property
    def winner_share(self) -> float | None:
        """Share of the hedged legs that the hedge answered."""
        return self.won / self.hedged if self.hedged else None


@dataclass(frozen=True, slots=True)
class Expected:
    """Attempts with usage of which the client expected one state of the cache, and what the target said."""

    attempts: int
    read: int
    no_read: int


@dataclass(frozen=True, slots=True)
class Cache:
    """What the target said of its prompt cache, over the attempts whose usage names it."""

    attempts: int
    requests_with_reads: int
    read_tokens: int
    creation_tokens: int
    uncached_tokens: int
    prefixes: int
    token_hit_low: float | None
    token_hit_high: float | None
    expected: dict[str, Expected]

    @property
    def token_hit_share(self) -> float | None:
        """read / (read + creation + uncached)."""
        total = self.read_tokens + self.creation_tokens + self.uncached_tokens
        return self.read_tokens / total if total else None


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that the target told of: status event or Server-Timing entry."""

    name: str
    attempts: int
    p50_ms: float


@dataclass(frozen=True, slots=True)
class Sent:
    """One traffic table as it went over the wire."""

    traffic: str
    pattern: str
    requests: int
    ended: dict[str, int]
    legs_max: int
    legs_per_request: float | None
    attempts: int
    causes: dict[str, int]
    hedging: Hedging
    cache: Cache
    chunks: dict[str, int]
    phases: tuple[Phase, ...]
    slow_readers: int
    not_streamed: int
    second_target: int
    first_fields: int
    tools_ready: int
    citations: int
    turns_max: int


def sent(frames: Frames) -> list[Sent]:
    """Every traffic table, in the order of their names."""
    requests = frames.requests[frames.requests["stage"] != records.PREFLIGHT].drop_duplicates("request_id")
    attempts = frames.attempts[frames.attempts["request_id"].isin(requests["request_id"])]
    kinds = _kinds(requests, attempts, frames.chunks)
    by = dict(iter(attempts.groupby("traffic")))
    none = attempts.iloc[:0]
    return [
        _sent(str(name), rows, by.get(name, none), kinds.get(str(name), {}))
        for name, rows in requests.groupby("traffic")
    ]


def _sent(name: str, requests: pd.DataFrame, attempts: pd.DataFrame, kinds: dict[str, int]) -> Sent:
    started = requests[requests["ended"] != records.CLIENT_DROP]
    causes = attempts["cause"].value_counts()
    return Sent(
        traffic=name,
        pattern=", ".join(sorted({str(p) for p in requests["pattern"].unique()})),
        requests=len(requests),
        ended=_counts(requests["ended"], (*records.ENDED_CLASSES, records.CENSORED, records.CLIENT_DROP)),
        legs_max=int(started["legs"].max()) if len(started) else 0,
        legs_per_request=float(started["legs"].mean()) if len(started) else None,
        attempts=len(attempts),
        causes={cause: int(causes.get(cause, 0)) for cause in records.CAUSES},
        hedging=_hedging(requests, attempts),
        cache=_cache(attempts),
        chunks=kinds,
        phases=_phases(attempts["phases"].dropna()),
        slow_readers=int(attempts["reader_paused_ns"].notna().sum()),
        not_streamed=int((~attempts["streamed"].astype(bool)).sum()),
        second_target=int((attempts["target"] != "main").sum()),
        first_fields=int(attempts["first_field_at_ns"].notna().sum()),
        tools_ready=int(attempts["tool_ready_at_ns"].notna().sum()),
        citations=int(attempts["citations"].sum()),
        turns_max=int((requests["request_id"] % records.TURNS).max()) + 1 if len(requests) else 0,
    )


def _counts(values: pd.Series[Any], order: Sequence[str]) -> dict[str, int]:
    """How often each value occurs, known ones first."""
    found = values.value_counts()
    names = [name for name in order if name in found.index]
    return {str(name): int(found[name]) for name in [*names, *sorted(set(found.index) - set(names))]}


def _hedging(requests: pd.DataFrame, attempts: pd.DataFrame) -> Hedging:
    hedges = attempts[attempts["cause"] == records.HEDGE]
    keys = ["request_id", "leg"]
    return Hedging(
        legs=len(attempts[keys].drop_duplicates()),
        hedged=len(hedges[keys].drop_duplicates()),
        won=len(hedges.loc[hedges["ended"] == records.OK, keys].drop_duplicates()),
        held=_counts(requests["hedge_held"].dropna(), records.HEDGE_HELD),
    )


def _cache(attempts: pd.DataFrame) -> Cache:
    told = attempts[attempts[READ].notna()]
    reads = told[told[READ] > 0]
    expected = {}
    for state in records.CACHE_STATES:
        of = told[told["cache_expected"] == state]
        if len(of):
            read = int((of[READ] > 0).sum())
            expected[state] = Expected(len(of), read, len(of) - read)
    from_cache, total = _tokens(told)
    low, high = ratio(from_cache, total, reps=500) if from_cache.any() else (None, None)
    return Cache(
        attempts=len(told),
        requests_with_reads=int(reads["request_id"].nunique()),
        read_tokens=int(told[READ].sum()),
        creation_tokens=int(told[CREATED].sum()),
        uncached_tokens=int(told[UNCACHED].sum()),
        prefixes=int(attempts["prefix"].nunique()),
        token_hit_low=low,
        token_hit_high=high,
        expected=expected,
    )


def _tokens(told: pd.DataFrame) -> tuple[Floats, Floats]:
    """Tokens read from the cache and all input tokens of each attempt, in order of time."""
    counts = told.sort_values("dispatched_at_ns", kind="stable")[[READ, CREATED, UNCACHED]].fillna(0)
    return counts[READ].to_numpy(np.float64), counts.sum(axis=1).to_numpy(np.float64)


def _kinds(requests: pd.DataFrame, attempts: pd.DataFrame, chunks: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Chunks of each kind by traffic. Nearly all are text: only the others are looked up one by one."""
    total = attempts.groupby("traffic")["chunks"].sum()
    other = chunks.loc[chunks["kind"] > 0, ["request_id", "kind"]]
    names = requests.set_index("request_id")["traffic"]
    found = other.groupby([other["request_id"].map(names), "kind"]).size().to_dict()
    out = {}
    for name in total.index:
        counts = {kind: int(found.get((name, i), 0)) for i, kind in enumerate(records.CHUNK_KINDS)}
        counts[records.TEXT] = max(0, int(total[name]) - sum(counts.values()))
        out[str(name)] = counts
    return out


def _phases(told: pd.Series[str]) -> tuple[Phase, ...]:
    """Median of each phase's time, in the order of these medians."""
    seen: dict[str, list[float]] = {}
    for text in told:
        try:
            entries = json.loads(text)
        except ValueError:
            continue
        for name, ns in entries.items() if isinstance(entries, dict) else ():
            if isinstance(ns, int | float) and not isinstance(ns, bool):
                seen.setdefault(plain(str(name), 60), []).append(float(ns))
    phases = [
        Phase(name, len(ns), float(np.sort(ns)[rank(len(ns), 0.5) - 1]) / 1e6) for name, ns in seen.items()
    ]
    return tuple(sorted(phases, key=lambda phase: phase.p50_ms)[:MOST_PHASES])
