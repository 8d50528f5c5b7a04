"""Headroom at engines that never refuse: the capacity is that of long runs at fixed rates, bisected; settings are drawn by seed.

A rate is sustained there if of 3,000 requests (800 in the short form) less than 1.5% pile up per second. So this capacity may read up to 1.5% high.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from experiments import by_dry_run

pytestmark = pytest.mark.slow

MINUTES = 4.0
SEEDS = range(401, 421)
OF_20 = 17
PILES_UP = 0.015


@dataclass(frozen=True)
class Engine:
    """What is drawn of an engine and its traffic."""

    profile: str
    engine: dict[str, Any]
    prompt: int
    output: int
    seed: int

    @classmethod
    def drawn(cls, seed: int) -> Engine:
        draw = Random(seed)
        profile = draw.choice(["tiny", "tiny", "llama3-8b-h100", "haiku"])
        engine = {
            "tiny": {"slots": draw.choice([2, 4, 8, 16]), "step_ms": draw.uniform(3, 25)},
            "haiku": {"slots": draw.choice([2, 4]), "replicas": draw.choice([1, 2]), "step_ms": draw.uniform(6, 12)},
            "llama3-8b-h100": {"slots": draw.choice([4, 8, 16])},
        }[profile]  # fmt: skip
        return cls(profile, engine, draw.choice([50, 200, 800]), draw.choice([20, 40, 100]), seed)

    def tree(self, rate: float, **more: Any) -> dict[str, Any]:
        sizes = {"prompt_tokens": self.prompt, "output_tokens": self.output}
        return {
            "name": "unlimited", "seed": 31 * self.seed + 7, "arrival": {"rate_per_s": rate},
            "traffic": {"chat": {"pattern": "streaming", "retry": {"policy": "none"}, **sizes}},
            "simulated": {"profile": self.profile, "engine": self.engine}, **more,
        }  # fmt: skip

    def times(self, rate: float, seconds: float, warmup_s: float, folder: Path) -> tuple[Any, Any]:
        """When the requests of a run at a fixed rate were due, and when they ended, in seconds."""
        limits = {"in_flight_per_worker": 60_000, "drain_s": 1, "attempt_deadline_s": 600}
        stages = {"duration_s": seconds, "warmup_s": warmup_s}
        rows = by_dry_run.requests_of(self.tree(rate, stages=stages, limits=limits), folder)
        return np.sort(rows["scheduled_at_ns"]) / 1e9, np.sort(rows["ended_at_ns"].dropna()) / 1e9

    def served(self, rate: float, seconds: float, warmup_s: float, folder: Path) -> float:
        _, ended = self.times(rate, seconds, warmup_s, folder)
        return float(((ended > warmup_s) & (ended <= seconds)).sum() / (seconds - warmup_s))

    def capacity(self, folder: Path, requests: int) -> float:
        """By brute force, in runs of so many requests."""
        rate = 5.0
        while (served := self.served(rate, 30.0, 8.0, folder)) >= 0.8 * rate:
            rate *= 2.5
        most = self.served(1.4 * served, max(60.0, 600 / served) + 10, 10.0, folder)
        low, high = 0.75 * most, 1.1 * most
        for _ in range(5):
            rate = (low + high) / 2
            seconds = requests / rate + 20
            due, ended = self.times(rate, seconds, 10.0, folder)
            at = [seconds / 4, 0.999 * seconds]
            begun = np.searchsorted(due, at)
            waiting = begun - np.searchsorted(ended, at)
            piles_up = (waiting[1] - waiting[0]) / (at[1] - at[0]) > PILES_UP * rate
            low, high = (low, rate) if piles_up else (rate, high)
        return (low + high) / 2


@pytest.fixture(scope="module")
def found(tmp_path_factory, full_size):
    """The brute-forced capacity and the answer, at rates of today from a sixteenth of it to a third more."""
    out = []
    for seed in SEEDS if full_size else SEEDS[:1]:
        folder, engine = tmp_path_factory.mktemp("unlimited"), Engine.drawn(seed)
        capacity = engine.capacity(folder, 3_000 if full_size else 800)
        today = float(f"{capacity * 2 ** Random(seed + 999).uniform(-4, 0.4):.3g}")
        experiment = {"kind": "headroom", "minutes": MINUTES}
        done = by_dry_run.conducted(engine.tree(today, experiment=experiment), folder)
        out.append((engine, capacity, done))
    return out


def test_the_interval_holds_the_capacity_of_long_runs(found):
    facts = [(engine, capacity, done.answer.facts) for engine, capacity, done in found]
    missed = [
        (engine, capacity, one["low_per_s"], one["high_per_s"])
        for engine, capacity, one in facts
        if not (one["low_per_s"] or np.inf) <= capacity <= (one["high_per_s"] or 0.0)
    ]

    assert len(missed) <= len(found) * (20 - OF_20) / 20, missed
    assert {one["binding"] for _, _, one in facts if one["binding"]} <= {"capacity"}


def test_the_minutes_given_are_the_minutes_planned(found):
    for engine, _, done in found:
        planned_s = done.ledger.real_s(rests=True)
        assert planned_s <= 1.1 * 60 * MINUTES, engine
        assert planned_s == done.ledger.real_s(rests=False), (
            "nothing refuses, so nothing has to recover"
        )
        assert json.dumps(done.answer.facts)
