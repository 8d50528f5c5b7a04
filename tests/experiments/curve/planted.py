"""Endpoints whose knee is known by brute force: long dry runs at fixed rates, the share of late requests read from the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from experiments.headroom.planted import sustained_by_bucket
from run_folders.dry_runs import dry_run_of

from tailgauge.scenario import model as scenarios
from tailgauge_analysis.reading.frames import load

MINUTES = 12.0
P = 0.95


@dataclass(frozen=True)
class Endpoint:
    """An endpoint with its traffic and its objective. `near`: requests/s, about where its knee is."""

    name: str
    near: float
    max_ms: float
    simulated: dict[str, Any]
    sizes: dict[str, Any] = field(default_factory=lambda: {"prompt_tokens": 200, "output_tokens": 30})
    bucket: tuple[float, int] | None = None  # requests/s and requests at once, if a limit ends it

    def tree(self, rate: float, seed: int, **more: Any) -> dict[str, Any]:
        """Its scenario."""
        return {
            "name": "planted", "seed": seed, "arrival": {"rate_per_s": rate},
            "traffic": {"chat": {"pattern": "streaming", "retry": {"policy": "none"}, **self.sizes}},
            "slo": {"first": {"metric": "ttft", "quantile": P, "max_ms": self.max_ms}},
            "simulated": self.simulated, **more,
        }  # fmt: skip

    def experiment(self, seed: int, minutes: float = MINUTES, **curve: Any) -> dict[str, Any]:
        """Its curve, from a rate of today between an eighth and four fifths of the knee."""
        today = float(f"{self.near * 2 ** Random(seed).uniform(-3, -0.3):.3g}")
        return self.tree(
            today, 31 * seed + 7, experiment={"kind": "curve", "minutes": minutes, "curve": curve}
        )

    def late(self, rate: float, requests: int, seed: int, folder: Path) -> tuple[int, int]:
        """Late and all requests of a long run at this rate, without its beginning."""
        seconds = requests / rate
        tree = self.tree(
            rate,
            seed,
            stages={"duration_s": seconds},
            limits={"in_flight_per_worker": 60_000, "attempt_deadline_s": 600},
        )
        path = folder / "single.toml"
        path.write_text(
            "".join(f"{key} = {scenarios.as_toml(value)}\n" for key, value in tree.items()), encoding="utf-8"
        )
        frames = load([dry_run_of(str(path), [], folder)])
        rows = frames.requests
        rows = rows[rows["scheduled_at_ns"] > 0.1 * seconds * 1e9]
        first = frames.attempts.groupby("request_id")["first_content_at_ns"].min()
        waited_ms = (rows["request_id"].map(first) - rows["scheduled_at_ns"]) / 1e6
        return int((~(waited_ms <= self.max_ms)).sum()), len(rows)

    def knee(self, folder: Path, requests: int) -> float:
        """The largest rate at which no more than 1 - P are late: bisected, then between rates just beside it."""
        if self.bucket is not None:
            return sustained_by_bucket(self.bucket[0], self.bucket[1], 0.01)
        low, high = 0.6 * self.near, 1.5 * self.near
        for number in range(5):
            middle = (low + high) / 2
            late, of = self.late(middle, requests // 4, 900 + number, folder)
            low, high = (low, middle) if late > (1 - P) * of else (middle, high)
        rates = (low + high) / 2 * np.array([0.97, 0.99, 1.01, 1.03])
        found = [self.late(rate, requests, 950 + number, folder) for number, rate in enumerate(rates)]
        logits = [math.log((late + 0.5) / (of - late + 0.5)) for late, of in found]
        slope, at = np.polyfit(rates, logits, 1)
        return float((math.log((1 - P) / P) - at) / slope)


ENDPOINTS = {
    one.name: one
    for one in (
        Endpoint("batching", 13.3, 600.0, {"profile": "llama3-8b-h100", "engine": {"slots": 16}}, {"prompt_tokens": 100, "output_tokens": 40}),
        Endpoint("limited", 20.0, 500.0, {"profile": "tiny", "limits": {"rpm": 1200}}, bucket=(20.0, 120)),
        Endpoint("four slots", 19.0, 400.0, {"profile": "tiny", "engine": {"slots": 4, "step_ms": 5.5}}),
        Endpoint(
            "two replicas", 19.0, 400.0,
            {"profile": "tiny", "engine": {"replicas": 2, "router": "prefix_affinity", "slots": 3, "step_ms": 7.0}, "cache": {"mode": "marked"}},
            {"pattern": "cached", "prompt_tokens": 100, "output_tokens": 30, "cache": {"prefixes": 12, "system_tokens": 1500, "breakpoints": ["system"]}},
        ),
    )
}  # fmt: skip
