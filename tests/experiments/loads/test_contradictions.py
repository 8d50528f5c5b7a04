"""Rows decide where a known limit does not say it all: reads that count, slots without a queue; units and protocols vary."""

from __future__ import annotations

import math
from typing import Any

import pytest
from experiments import by_dry_run

PREFIX = {"prefixes": 2, "system_tokens": 1500, "breakpoints": ["system"]}
CACHED = {"pattern": "cached", "prompt_tokens": 100, "output_tokens": 20, "cache": PREFIX}
SHORT = {"prompt_tokens": 200, "output_tokens": 20}


def tree(
    protocol: str, rate: float, traffic: dict[str, Any], simulated: dict[str, Any]
) -> dict[str, Any]:
    """The scenario of a headroom of six minutes."""
    return {
        "name": "contradicted", "seed": 1, "target": {"url": "simulated", "protocol": protocol},
        "arrival": {"rate_per_s": rate}, "traffic": {"chat": {"retry": {"policy": "none"}, **traffic}},
        "simulated": {"profile": "tiny", **simulated}, "experiment": {"kind": "headroom", "minutes": 6.0},
    }  # fmt: skip


def loads(done: Any) -> list[Any]:
    """The judged loads."""
    return list(done.experiment.series().loads)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "rate", "traffic", "limit", "mode"),
    [
        ("anthropic", 4.0, CACHED, 200_000, "marked"),
        ("openai", 3.0, CACHED, 120_000, "automatic"),
        (
            "anthropic",
            2.0,
            {**CACHED, "session": {"turns_mean": 3.0, "think_s": 0.3}},
            200_000,
            "marked",
        ),
    ],
    ids=["requests", "openai", "conversations"],
)
def test_where_reads_count_the_rows_fail_todays_rate(
    tmp_path, protocol, rate, traffic, limit, mode
):
    cache = {"mode": mode, "minimum_tokens": 64}
    simulated = {"cache": cache, "limits": {"itpm": limit, "reads_count": True}}
    done = by_dry_run.conducted(tree(protocol, rate, traffic, simulated), tmp_path)
    facts = done.answer.facts
    most = limit / 60 / 1600 / facts["requests_per_arrival"]  # arrivals/s that use all of the limit

    assert done.answer.result.outcome == "FAIL"
    assert facts["high_per_s"] < rate
    assert (facts["low_per_s"] or 0.0) <= most
    assert all(load.load <= 1.05 * most for load in loads(done) if load.outcome == "PASS")


def erlang(slots: int, refused: float) -> float:
    """Return the offered load of which slots without a queue refuse this share (Erlang B), by bisection."""
    low = 0.0
    high = float(slots)
    for _ in range(50):
        middle = (low + high) / 2
        terms = [middle**k / math.factorial(k) for k in range(slots + 1)]
        if terms[-1] / sum(terms) > refused:
            high = middle
        else:
            low = middle
    return low


@pytest.mark.slow("anthropic")
@pytest.mark.parametrize(
    ("protocol", "slots", "step_ms", "rate", "prompt"),
    [
        ("anthropic", 6, 30.0, 2.0, 200),
        ("openai", 2, 15.0, 0.3, 50),
        ("anthropic", 12, 30.0, 4.0, 100),
    ],
)
def test_slots_without_a_queue_sustain_less_than_they_answer(
    tmp_path, protocol, slots, step_ms, rate, prompt
):
    engine = {"slots": slots, "step_ms": step_ms, "queue_cap": 0}
    traffic = {**SHORT, "prompt_tokens": prompt}
    done = by_dry_run.conducted(tree(protocol, rate, traffic, {"engine": engine}), tmp_path)
    facts = done.answer.facts
    expected = erlang(slots, 0.01) / (20 * step_ms / 1000)
    failed = [load.load for load in loads(done) if load.outcome == "FAIL"]

    assert (facts["low_per_s"] or 0.0) <= 1.02 * expected <= (facts["high_per_s"] or math.inf)
    assert all((facts["sustained_per_s"] or 0.0) <= load for load in failed)
