"""Endpoints and traffic with one problem each, for the tests of the checkup: profile `tiny` in dry runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.by_dry_run import conducted_on

from tailgauge.experiments.checkup.checks import CHECKS
from tailgauge.experiments.checkup.plan import PROBES
from tailgauge.experiments.conduct import Conducted
from tailgauge.experiments.course import Base
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.packaged import find

ENGINE, CACHE, LIMITS, MARKED = (
    "simulated.engine",
    "simulated.cache",
    "simulated.limits",
    "traffic.assistant.cache",
)
FANS_OUT = {
    "traffic.assistant.pattern": "fan_out", "traffic.assistant.fan_out": {"legs": 8}, "arrival.rate_per_s": 1.0,
}  # fmt: skip
ONE_BY_ONE = {f"{LIMITS}.rpm": 600, f"{LIMITS}.burst": 5}  # 10 calls a second, 5 at once

# What is planted, by the check that must find it.
PROBLEMS: dict[str, dict[str, Any]] = {
    "first_content": {f"{ENGINE}.overhead_ms": 2600.0},
    "pace": {f"{ENGINE}.step_ms": 80.0, f"{ENGINE}.slots": 64},
    "tail": {"simulated.stragglers": {"slow_share": 0.2, "slow_factor": 10.0}, f"{ENGINE}.step_ms": 6.0, f"{ENGINE}.slots": 64},
    "not_streamed": {"traffic.assistant.stream": False},
    "held_back": {f"{ENGINE}.draft_tokens": 31},
    "coalesced": {f"{ENGINE}.draft_tokens": 7, f"{ENGINE}.step_ms": 20.0},
    "stalled": {"simulated.faults.planted": {"kind": "stall", "share": 0.15, "at_chunk": 5, "seconds": 1.5}},
    "broken": {"simulated.faults.planted": {"kind": "cut", "share": 0.1, "at_chunk": 5}},
    "refused": {f"{LIMITS}.rpm": 300, f"{LIMITS}.burst": 5},
    "early_headers": {"simulated.faults.planted": {"kind": "early_headers", "share": 0.5}},
    "no_cache": {f"{CACHE}.mode": "off"},
    "unmarked": {f"{MARKED}.breakpoints": []},
    "below_minimum": {f"{MARKED}.system_tokens": 600},
    "unstable": {f"{MARKED}.volatile": "front"},
    "once": {f"{MARKED}.prefixes": 100_000},
    "expired": {f"{MARKED}.prefixes": 100, f"{CACHE}.ttl_5m_s": 5.0},
    "unexplained": {f"{CACHE}.route_miss_prob": 0.3},
    "fan_out": {**FANS_OUT, "traffic.assistant.fan_out": {"legs": 16}, f"{ENGINE}.slots": 1, f"{ENGINE}.step_ms": 0.6},
    "heavy_leg": {
        "traffic.assistant": {
            "pattern": "fan_out", "fan_out": {"kinds": [
                {"prompt_tokens": 100, "output_tokens": 20, "count": 4}, {"prompt_tokens": 100, "output_tokens": 80}]},
        },
        f"{ENGINE}.slots": 64, "arrival.rate_per_s": 2,
    },
    "legs_refused": {**FANS_OUT, f"{LIMITS}.rpm": 6000, f"{LIMITS}.burst": 5},
    "race": {**FANS_OUT, f"{MARKED}.prefixes": 100_000, f"{CACHE}.visibility_delay_s": 0.05},
    "per_slot": {
        **FANS_OUT,
        f"{CACHE}.per_replica": True, f"{CACHE}.capacity_tokens": 2000,
        f"{ENGINE}.replicas": 8, f"{ENGINE}.router": "random",
    },
    "cancel_ignored": {f"{ENGINE}.cancel_mode": "never"},
    "cancel_billed": {"simulated.billing.bill_cancelled": "full"},
    "queueing": {f"{ENGINE}.slots": 1, f"{ENGINE}.step_ms": 4.0},
    "burst": ONE_BY_ONE,
    "unrecovered": {f"{ENGINE}.slots": 1, f"{ENGINE}.step_ms": 5.0},
    "no_retry_after": {"simulated.faults.planted": {"kind": "status", "status": 429, "share": 0.15}},
    "early_retries": {**ONE_BY_ONE, "traffic.assistant.retry": {"policy": "naive"}},
}  # fmt: skip
# Endpoints and traffic with exactly these findings: settings, the probes that matter, and what is right.
AUTOMATIC = {f"{CACHE}.mode": "automatic", f"{MARKED}.breakpoints": []}
RIGHT: dict[str, tuple[dict[str, Any], tuple[str, ...], list[str]]] = {
    "no cache, marked": ({f"{CACHE}.mode": "off"}, ("cached",), ["no_cache"]),
    "no cache, not marked": ({f"{CACHE}.mode": "off", f"{MARKED}.breakpoints": []}, ("cached",), ["no_cache"]),
    "no cache, and an unstable prefix": ({f"{CACHE}.mode": "off", f"{MARKED}.volatile": "front"}, ("cached",), ["no_cache"]),
    # Its usage has no cached tokens, and a warm prefix is no faster: that shows no cache and proves none.
    "no cache, a protocol without marks": (
        {f"{CACHE}.mode": "off", f"{MARKED}.breakpoints": [], "target.protocol": "openai"}, ("cached",), [],
    ),
    "an automatic cache": (AUTOMATIC, ("cached",), []),
    "an automatic cache, a protocol without marks": ({**AUTOMATIC, "target.protocol": "openai"}, ("cached",), []),
    "an automatic cache, and an unstable prefix": (
        {**AUTOMATIC, "target.protocol": "openai", f"{MARKED}.volatile": "front"}, ("cached",), ["unstable"],
    ),
    "haiku, 1,600 tokens": (
        {"target.model": "claude-haiku-4-5", f"{MARKED}.system_tokens": 1600}, ("cached",), ["below_minimum"],
    ),
    "haiku, 5,000 tokens": ({"target.model": "claude-haiku-4-5", f"{MARKED}.system_tokens": 5000}, ("cached",), []),
    "unstreamed": (
        {"traffic.assistant.stream": False, "simulated.profile": "haiku", "traffic.assistant.output_tokens": 500,
         "arrival.rate_per_s": 4}, ("light",), ["not_streamed"],
    ),
    "unstreamed, one token": (
        {"traffic.assistant.stream": False, "traffic.assistant.output_tokens": 1}, ("light",), [],
    ),
    "8% stragglers": (
        {"simulated.stragglers": {"slow_share": 0.08, "slow_factor": 15.0}, f"{ENGINE}.slots": 64}, ("light",), ["tail"],
    ),
    "answers of many lengths": (
        {"traffic.assistant.output_sigma": 0.8, "traffic.assistant.prompt_sigma": 1.0, f"{ENGINE}.slots": 64,
         "traffic.assistant.output_tokens": 60}, ("light",), [],
    ),
    "one heavy leg": (PROBLEMS["heavy_leg"], ("light", "fan_out"), ["heavy_leg"]),
    "early headers": ({"simulated.faults.planted": {"kind": "early_headers", "share": 1.0}}, ("light",), []),
}  # fmt: skip
COMPARED = ("fan_out", "queueing")  # with the light probe


def needed(check: str) -> list[str]:
    """The probes that this check needs."""
    return [CHECKS[check].probe, *(["light"] if check in COMPARED else [])]


def conducted(
    planted: dict[str, Any],
    seed: int,
    folder: Path,
    *,
    quick: bool,
    probes: Sequence[str] = tuple(PROBES),
) -> Conducted:
    """The packaged checkup over this endpoint, with these probes only."""
    skip = [name for name in PROBES if name not in probes]
    bounds = {"seed": seed, "experiment.checkup.quick": quick, "experiment.checkup.skip": skip}
    pairs = tuple({**bounds, **planted}.items())
    path = find("checkup")
    base = Base(path, scenarios.load(str(path), pairs), pairs, folder)
    return conducted_on(base)
