"""An endpoint at which hedging turns from help to harm at a load that is known, for the tests of the hedging experiment.

One slot, and a wait before it that has a long tail: a hedge after 250 ms meets another wait, but the slot serves
both to their end, because nothing cancels. So copies gain at low load, and cost a queue at high load.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from experiments import by_dry_run

OFF: Mapping[str, Any] = {"policy": "off"}
ON: Mapping[str, Any] = {"policy": "fixed", "delay_ms": 150, "budget_share": 0.7}
NEVER: Mapping[str, Any] = {**ON, "delay_ms": 100_000.0}  # equal variants: no copy is ever due
BOUND_MS = 1000.0
ENGINE = {
    "slots": 1,
    "step_ms": 4.0,
    "overhead_ms": 150.0,
    "overhead_sigma": 1.0,
    "cancel_mode": "never",
}


def plain(hedge: Mapping[str, Any], seed: int, rate_per_s: float) -> dict[str, Any]:
    """The scenario without its experiment."""
    return {
        "name": "planted", "seed": seed, "arrival": {"rate_per_s": rate_per_s},
        "traffic": {"chat": {"pattern": "hedged", "prompt_tokens": 200, "output_tokens": 20, "hedge": dict(hedge)}},
        "simulated": {"profile": "tiny", "engine": dict(ENGINE)},
        "slo": {"answered": {"metric": "e2e_sched", "max_ms": BOUND_MS}},
    }  # fmt: skip


def tree(hedge: Mapping[str, Any], seed: int, **hedging: Any) -> dict[str, Any]:
    """The scenario with its experiment."""
    asked = {"loads": 4, "quantile": 0.95, "pairs": 12, "block_s": 12.0, **hedging}
    experiment = {"kind": "hedging", "minutes": 25.0, "hedging": asked}
    return {**plain(hedge, seed, 4.0), "experiment": experiment}


def waits(folder: Path, hedge: Mapping[str, Any], rate_per_s: float, calls: int) -> Any:
    """End-to-end times of a long run without blocks, in ms; inf of what failed."""
    wanted = plain(hedge, 77, rate_per_s)
    wanted["stages"] = {"duration_s": calls / rate_per_s, "warmup_s": 20.0}
    rows = by_dry_run.requests_of(wanted, folder)
    rows = rows[rows["stage"] == "steady"]
    ms = ((rows["ended_at_ns"] - rows["scheduled_at_ns"]) / 1e6).to_numpy(np.float64)
    return np.where((rows["ended"] == "ok").to_numpy(), ms, np.inf)


def by_brute_force(folder: Path, rates: tuple[float, ...], calls: int) -> dict[str, float]:
    """Where p95, p99 and the share beyond the bound cross: off and on in long runs at each rate, straight in between."""
    changes: dict[str, list[float]] = {"p95": [], "p99": [], "missed": []}
    for rate in rates:
        off, on = (waits(folder / f"{rate}", hedge, rate, calls) for hedge in (OFF, ON))
        for name, p in (("p95", 0.95), ("p99", 0.99)):
            ends = [np.quantile(variant, p, method="inverted_cdf") for variant in (off, on)]
            changes[name].append(float(np.log(ends[1] / ends[0])))
        changes["missed"].append(float((on > BOUND_MS).mean() - (off > BOUND_MS).mean()))
    return {name: _zero(rates, values) for name, values in changes.items()}


def _zero(rates: tuple[float, ...], values: list[float]) -> float:
    at = next(i for i in range(1, len(values)) if values[i - 1] < 0 <= values[i])
    share = values[at - 1] / (values[at - 1] - values[at])
    return rates[at - 1] + share * (rates[at] - rates[at - 1])
