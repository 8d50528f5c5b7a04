"""The state of a run for the tests of the live view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import TrafficCounters
from tailgauge.master.objectives import LiveObjective
from tailgauge.master.progress import Progress


def bins(*values_ms: float) -> quantile_sketch.Bins:
    out: quantile_sketch.Bins = {}
    for value in values_ms:
        quantile_sketch.add(out, value)
    return out


def objective(state: str, label: str = "ttft p95 (chat)", value: str = "352 ms") -> LiveObjective:
    return LiveObjective(label, "< 800 ms", state, value, 800.0, "ttft")


def progress(
    at_s: float,
    duration_s: float = 600.0,
    *,
    ttft_ms: Iterable[float] = (),
    e2e_ms: Iterable[float] = (),
    requests: Mapping[str, int] | None = None,
    attempts: Mapping[str, int] | None = None,
    output_tokens: int = 0,
    **counts: Any,
) -> Progress:
    """One traffic table at one target; latencies and tokens are those of all calls until then."""
    counters = TrafficCounters(
        dict(requests or {}), dict(attempts or {}), output_tokens=output_tokens, ttft=bins(*ttft_ms), e2e=bins(*e2e_ms)
    )  # fmt: skip
    return Progress(at_s, duration_s, **counts, traffic={("chat", "main"): counters}, all=counters)
