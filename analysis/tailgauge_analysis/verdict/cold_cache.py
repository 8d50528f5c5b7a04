"""Prompt tokens out of a cache where the plan expects none: another run has warmed it, and the wait is not that of a new prompt.

Expected are cached tokens of shared prefixes, growing sessions, files and traces. Looked at are the first calls of all other
requests, as the target counts their tokens; where its usage does not say, by the engine's own counters over the run.
"""

from __future__ import annotations

from tailgauge.rows import schema
from tailgauge.thresholds import DEGRADED
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.text.formatting import count, share
from tailgauge_analysis.text.json_values import Json, number, table
from tailgauge_analysis.verdict.verdict import Evidence, Judgement

MAY_REPEAT = ("trace", "tasks")  # blocks of a trace, prompts of a user's tasks
SHARE = 0.02  # of the prompt tokens
NEW_TOKENS = 128  # of each request: the template, the salt, and a block of the engine's cache
ADVICE = "Leave repeat_prompts off, or restart the engine before the run."


def judge(evidence: Evidence) -> Judgement | None:
    """where the plan expects no cached tokens, at most 2% of the prompt tokens came out of a cache"""
    frames = evidence.frames
    scenario = frames.run["scenario"]
    if table(scenario, "arrival").get("process") in MAY_REPEAT:
        return None
    tables = table(scenario, "traffic")
    new = [name for name in tables if _is_new(table(tables, name))]
    attempts = frames.attempts
    is_first = (attempts["cause"] == schema.PRIMARY) & (attempts["leg"] == 0)
    measured = (attempts["stage"] != schema.PREFLIGHT) & attempts["input_tokens"].notna()
    first = attempts[attempts["traffic"].isin(new) & is_first & measured]
    if not len(first):
        return None
    if first["cache_read_input_tokens"].notna().any():
        computed, cached = (float(tokens.sum()) for tokens in prompt_tokens(first))
        return _judged(cached, computed + cached, len(first), "")
    # The engine's counters have every prompt, also one that was sent again.
    repeats = (attempts["cause"] != schema.PRIMARY).any() or scenario.get("second_target")
    if len(new) < len(tables) or repeats:
        return None
    counted = frames.run["engine_cache"]
    read, every = (number(counted.get(key)) for key in ("cached", "prompt"))
    engine = f", by {counted['engine']}'s own counters" if counted else ""
    return None if read is None or every is None else _judged(read, every, len(attempts), engine)


def _judged(read: float, every: float, calls: int, by: str) -> Judgement | None:
    if read <= SHARE * every or read <= NEW_TOKENS * calls:
        return None
    text = f"The cache was not cold: {share(read / every)} of the prompt tokens ({count(read)} of {count(every)}) came out of it{by}, and not from this run."
    return DEGRADED, text, ADVICE


def _is_new(traffic: Json) -> bool:
    """Whether every prompt of a traffic table is its own."""
    session, prompts = table(traffic, "session"), table(traffic, "prompts")
    grows = session.get("grow") is True and (number(session.get("turns_mean")) or 1) > 1
    given = any(value for key, value in prompts.items() if key in {"file", "source", "trace"})
    return not (traffic.get("cache") or traffic.get("tools") or grows or given)
