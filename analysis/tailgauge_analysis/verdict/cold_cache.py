"""Prompt tokens out of a cache where the plan expects none: another run has warmed it, and the wait is not that of a new prompt.

Expected are cached tokens of shared prefixes, growing sessions, files and traces. Looked at are the first calls of all other
requests, as the target counts their tokens; where its usage does not say, by the engine's own counters over the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge.rows import schema
from tailgauge.thresholds import DEGRADED
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.text.formatting import count, share
from tailgauge_analysis.text.json_values import Json, number, table
from tailgauge_analysis.verdict.verdict import Evidence, Fault

MAY_REPEAT = ("trace", "tasks")  # blocks of a trace, prompts of a user's tasks
SHARE = 0.02  # of the prompt tokens
NEW_TOKENS = 128  # of each request: the template, the salt, and a block of the engine's cache


@dataclass(frozen=True, slots=True)
class Counted:
    """Prompt tokens of calls that should find no cache, and how many of them came out of one; `source`: who counted them."""

    cached: float
    tokens: float
    calls: int
    source: str


def has_counts(evidence: Evidence) -> bool:
    """Return whether the plan expects no cached tokens, and the target counts them."""
    return _counted(evidence) is not None


def cold(evidence: Evidence) -> Fault | None:
    """Return a fault if prompts were read out of a cache that another run has warmed."""
    counted = _counted(evidence)
    if counted is None:
        return None
    if counted.cached <= max(SHARE * counted.tokens, NEW_TOKENS * counted.calls):
        return None
    part = f"{share(counted.cached / counted.tokens)} of the prompt tokens ({count(counted.cached)} of {count(counted.tokens)})"
    text = f"The cache was not cold: {part} came out of it{counted.source}, and not from this run."
    return Fault(DEGRADED, text)


def _counted(evidence: Evidence) -> Counted | None:
    """Return how many tokens of prompts that should be new came out of a cache; None where nothing counts them.

    Counted by the usage of the first calls of requests, else by the engine's counters from the first request on, if every
    prompt was to be new and none was sent again.
    """
    frames = evidence.frames
    scenario = frames.run["scenario"]
    if table(scenario, "arrival").get("process") in MAY_REPEAT:
        return None
    tables = table(scenario, "traffic")
    new = [name for name in tables if _is_new(table(tables, name))]
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    is_first = (attempts["cause"] == schema.PRIMARY) & (attempts["leg"] == 0)
    is_counted = attempts["input_tokens"].notna()
    primary = attempts[attempts["traffic"].isin(new) & is_first & is_counted]
    if primary["cache_read_input_tokens"].notna().any():
        computed, cached = prompt_tokens(primary)
        return Counted(float(cached.sum()), float(computed.sum() + cached.sum()), len(primary), "")
    # The engine's counters have every prompt, also one that was sent again.
    repeats = (attempts["cause"] != schema.PRIMARY).any() or scenario.get("second_target")
    if len(primary) == 0 or len(new) < len(tables) or repeats:
        return None
    counted = frames.run["engine_cache"]
    cached_tokens = number(counted.get("cached"))
    tokens = number(counted.get("prompt"))
    if cached_tokens is None or tokens is None:
        return None
    return Counted(cached_tokens, tokens, len(attempts), f", by {counted['engine']}'s own counters")


def _is_new(traffic: Json) -> bool:
    """Return whether every prompt of a traffic table is its own."""
    session = table(traffic, "session")
    prompts = table(traffic, "prompts")
    grows = session.get("grow") is True and (number(session.get("turns_mean")) or 1) > 1
    is_given = any(prompts.get(key) for key in ("file", "source", "trace"))
    return not (traffic.get("cache") or traffic.get("tools") or grows or is_given)
