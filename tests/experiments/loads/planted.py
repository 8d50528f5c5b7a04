"""Endpoints with a known sustainable rate, for the tests of headroom: profile `tiny` in dry runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from experiments import by_dry_run

TODAY, LIMIT = 4.0, 10.0  # requests/s
PROMPT, OUTPUT = 200, 20  # tokens
LIMITS = {
    "requests": {"rpm": 600},
    "input_tokens": {"itpm": 600 * PROMPT},
    "output_tokens": {"otpm": 600 * OUTPUT},
}
SLOW = {"slots": 4, "step_ms": 16.0}  # some 11 requests/s


def tree(binding: str, seed: int, **headroom: Any) -> dict[str, Any]:
    """A scenario in which this limit is met first."""
    simulated: dict[str, Any] = {"profile": "tiny"}
    simulated |= {"engine": SLOW} if binding == "capacity" else {"limits": LIMITS[binding]}
    return {
        "name": "planted", "seed": seed,
        "experiment": {"kind": "headroom", "minutes": 15.0, "headroom": {"step_s": 30.0, **headroom}},
        "arrival": {"rate_per_s": TODAY},
        "traffic": {"chat": {"pattern": "streaming", "prompt_tokens": PROMPT, "output_tokens": OUTPUT}},
        "simulated": simulated,
    }  # fmt: skip


def sustained_by_bucket(rate: float, calls: int, share: float) -> float:
    """Rate at which Poisson arrivals lose this share at a bucket that holds so many calls: M/D/1/K, by bisection."""
    low, high = 0.2, 1.5
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if lost(middle, calls) > share else (middle, high)
    return low * rate


def lost(rho: float, most: int) -> float:
    """Share lost by M/D/1/K with K = `most`, from the chain at departures."""
    arrivals = [math.exp(-rho) * rho**k / math.factorial(k) for k in range(most)]
    chain = np.zeros((most, most))
    for state in range(most):
        first = max(state - 1, 0)
        chain[state, first : most - 1] = arrivals[: most - 1 - first]
        chain[state, most - 1] = 1 - chain[state, : most - 1].sum()
    stationary = np.linalg.lstsq(
        np.vstack([chain.T - np.eye(most), np.ones(most)]),
        np.append(np.zeros(most), 1.0),
        rcond=None,
    )[0]
    return float(1 - 1 / (stationary[0] + rho))


def sustained_by_capacity(folder: Path) -> float:
    """What the slow endpoint answers a second when three times as much is asked of it, by brute force."""
    wanted = tree("capacity", 1)
    del wanted["experiment"]
    wanted["arrival"]["rate_per_s"] = 36.0
    wanted["stages"] = {"duration_s": 60.0, "warmup_s": 5.0}
    ended = by_dry_run.requests_of(wanted, folder)["ended_at_ns"].dropna() / 1e9
    return float(((ended > 10) & (ended <= 60)).sum() / 50)
