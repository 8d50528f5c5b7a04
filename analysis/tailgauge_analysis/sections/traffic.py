"""What was sent: the marks by which one kind of traffic is known from another.

Rule: counts of the whole run, preflight excepted, by traffic table: attempts are counted here as attempts, whoever saw
their answers. A share is None where nothing could have it. No latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.chunks import Chunks
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.sections.phases import parse
from tailgauge_analysis.stats.quantiles import rank

MOST_PHASES = 20


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
class Phase:
    """A phase that the target told of: when it `began`, ms since sent (status event), or what it `took` (Server-Timing)."""

    name: str
    kind: str
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
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates("request_id")
    attempts = frames.attempts[frames.attempts["request_id"].isin(requests["request_id"])]
    kinds = _kinds(requests, attempts, frames.chunks)
    by = dict(iter(attempts.groupby("traffic")))
    none = attempts.iloc[:0]
    return [
        _sent(str(name), rows, by.get(name, none), kinds.get(str(name), {}))
        for name, rows in requests.groupby("traffic")
    ]


def _sent(name: str, requests: pd.DataFrame, attempts: pd.DataFrame, kinds: dict[str, int]) -> Sent:
    started = requests[requests["ended"] != schema.CLIENT_DROP]
    causes = attempts["cause"].value_counts()
    return Sent(
        traffic=name,
        pattern=", ".join(sorted({str(p) for p in requests["pattern"].unique()})),
        requests=len(requests),
        ended=_counts(requests["ended"], (*schema.ENDED_CLASSES, schema.CENSORED, schema.CLIENT_DROP)),
        legs_max=int(started["legs"].max()) if len(started) else 0,
        legs_per_request=float(started["legs"].mean()) if len(started) else None,
        attempts=len(attempts),
        causes={cause: int(causes.get(cause, 0)) for cause in schema.CAUSES},
        hedging=_hedging(requests, attempts),
        chunks=kinds,
        phases=_phases(attempts["phases"].dropna()),
        slow_readers=int(attempts["reader_paused_ns"].notna().sum()),
        not_streamed=int((~attempts["streamed"].astype(bool)).sum()),
        second_target=int((attempts["target"] != "main").sum()),
        first_fields=int(attempts["first_field_at_ns"].notna().sum()),
        tools_ready=int(attempts["tool_ready_at_ns"].notna().sum()),
        citations=int(attempts["citations"].sum()),
        turns_max=int((requests["request_id"] % schema.TURNS).max()) + 1 if len(requests) else 0,
    )


def _counts(values: pd.Series[Any], order: Sequence[str]) -> dict[str, int]:
    """How often each value occurs, known ones first."""
    found = values.value_counts()
    names = [name for name in order if name in found.index]
    return {str(name): int(found[name]) for name in [*names, *sorted(set(found.index) - set(names))]}


def _hedging(requests: pd.DataFrame, attempts: pd.DataFrame) -> Hedging:
    hedges = attempts[attempts["cause"] == schema.HEDGE]
    keys = ["request_id", "leg"]
    return Hedging(
        legs=len(attempts[keys].drop_duplicates()),
        hedged=len(hedges[keys].drop_duplicates()),
        won=len(hedges.loc[hedges["ended"] == schema.OK, keys].drop_duplicates()),
        held=_counts(requests["hedge_held"].dropna(), schema.HEDGE_HELD),
    )


def _kinds(requests: pd.DataFrame, attempts: pd.DataFrame, chunks: Chunks) -> dict[str, dict[str, int]]:
    """Chunks of each kind by traffic. Nearly all are text: only the others are looked up."""
    total = attempts.groupby("traffic")["chunks"].sum()
    other = chunks.kinds
    names = requests.set_index("request_id")["traffic"]
    found = other.groupby([other["request_id"].map(names), "kind"])["n"].sum().to_dict()
    out = {}
    for name in total.index:
        counts = {kind: int(found.get((name, i), 0)) for i, kind in enumerate(schema.CHUNK_KINDS)}
        counts[schema.TEXT] = max(0, int(total[name]) - sum(counts.values()))
        out[str(name)] = counts
    return out


def _phases(told: pd.Series[str]) -> tuple[Phase, ...]:
    """Median of each phase's beginning and of each duration, in the order of these medians."""
    seen: dict[tuple[str, str], list[float]] = {}
    for text in told:
        for kind, entries in zip(("began", "took"), parse(text), strict=True):
            for name, ms in entries.items():
                seen.setdefault((kind, name), []).append(ms)
    phases = [
        Phase(name, kind, len(ms), float(np.sort(ms)[rank(len(ms), 0.5) - 1]))
        for (kind, name), ms in seen.items()
    ]
    return tuple(sorted(phases, key=lambda phase: (phase.kind, phase.p50_ms))[:MOST_PHASES])
