"""Why a call read nothing, or not all of what it shares: one cause a miss.

The target's own reason comes first, where it gives one. Else the cause comes from the rows alone: the first of CAUSES that
fits, since earlier ones are more certain, or hide the later ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.sections.cache.calls import CacheSettings

SALTED = "salted"
BELOW_MINIMUM = "below_minimum"
UNSTABLE = "unstable"
RACE = "race"
EXPIRED = "expired"
LOOKBACK = "lookback"
PARAMETER = "parameter"
FIRST = "first"
NO_CACHE = "no_cache"
UNEXPLAINED = "unexplained"
MOST_BYTES = 5


# Cause, evidence, what to do about it.
CAUSES = (
    (SALTED, "the prompt starts with random bytes, on purpose", "none: this is the control"),
    (
        BELOW_MINIMUM,
        "neither written nor read, and shorter than what is cached",
        "make the prefix longer than the model's minimum",
    ),
    (
        UNSTABLE,
        "the prefix differs from that of the previous call",
        "move what changes behind the last cache mark",
    ),
    (
        RACE,
        "the call that writes the entry had not begun to answer",
        "send one call first, or pre-warm",
    ),
    (EXPIRED, "not used within its TTL", "call more often, or set the TTL to 1 h"),
    (
        LOOKBACK,
        "the entry is further before the mark than the target searches",
        "set a mark in between",
    ),
    (
        PARAMETER,
        "cached with another model, thinking, tool choice or schema",
        "keep these constant",
    ),
    (
        FIRST,
        "the first call with this prefix",
        "nothing: one call has to write it; or write it before the run (pre-warm)",
    ),
    (
        NO_CACHE,
        "no call of the run was read from a cache or written to one",
        "turn the engine's prefix cache on; mark the prefix where the protocol has marks",
    ),
    (UNEXPLAINED, "the entry should be there", "ask the provider about routing and eviction"),
)


EVIDENCE = {cause: evidence for cause, evidence, _ in CAUSES}
ADVICE = {cause: advice for cause, _, advice in CAUSES}

# Reasons that a target gives, and what to do about them. Source: Anthropic's types of `diagnostics.cache_miss_reason`.
ADVICE_OF_TARGET = {
    "model_changed": "keep model and speed constant",
    "system_changed": "keep the system prompt constant",
    "tools_changed": "keep the tools and their order constant",
    "messages_changed": "append to the messages, and change no earlier one",
    "previous_message_not_found": "the target no longer knows the earlier request: the prompt may be unchanged",
    "unavailable": "keep thinking, tool choice and other parameters constant",
}
NOT_KNOWN = "see the target's documentation of this reason"
# With these the target gives no reason: ours is better.
UNREASONED = frozenset({"unavailable", "previous_message_not_found"})


@dataclass(frozen=True, slots=True)
class Miss:
    """Calls that missed for one cause. `partly` of them read an earlier part; `tokens` they did not read."""

    cause: str
    calls: int
    partly: int
    tokens: int
    by_target: bool = False
    """the target gives this reason itself; the tokens are then those that it names"""


def causes(calls: pd.DataFrame, settings: CacheSettings, salted: set[str]) -> pd.Series[str]:
    """Return the cause by call, empty for a call that missed nothing; prompts of `salted` traffic begin with random bytes on purpose."""
    is_miss = calls["known"] & ~calls["hit"] & (calls["prefix"].notna() | (calls["created"] > 0))
    evidence = _evidence(calls, settings, salted)
    conditions = [(is_miss & evidence[name]).to_numpy(np.bool_) for name in EVIDENCE]
    labels = np.select(conditions, list(EVIDENCE), "").astype(object)
    labels[(calls["hit"] & evidence[UNSTABLE]).to_numpy(np.bool_)] = UNSTABLE
    ours = pd.Series(labels, calls.index)
    return ours.mask(reasoned(calls), calls["cache_miss_reason"])


def reasoned(calls: pd.DataFrame) -> pd.Series[bool]:
    """Return which calls missed something for a reason that the target gives."""
    reason = calls["cache_miss_reason"]
    return calls["known"] & reason.notna() & ~reason.isin(UNREASONED)


def _evidence(
    calls: pd.DataFrame, settings: CacheSettings, salted: set[str]
) -> dict[str, pd.Series[bool]]:
    """Return for each cause which calls show it, hits among them; a call may show several, of which the first in order is its cause.

    `calls`: those of cache/calls.py. `salted`: traffic whose prompts begin with random bytes on purpose.
    """
    # The shorter of what the worker that sent it knows, and of what the answers to all workers show.
    worker_since_use_ns = calls["cache_since_use_ns"].astype(np.float64)
    since_use_ns = worker_since_use_ns.where(
        ~(calls["idle_ns"] < worker_since_use_ns) & worker_since_use_ns.notna(), calls["idle_ns"]
    )
    # The worker expected the text to be in the cache.
    is_expected = calls["cache_expected"] == schema.WARM
    # The target counts a life from the request, the client from when the answer began.
    slack_ns = (
        calls.groupby(["traffic", "prefix"], dropna=False)["began_ns"].transform("max").fillna(0.0)
    )
    is_expired = since_use_ns + slack_ns >= calls["life_ns"]
    is_written_beside = (calls["cache_writers"] > 0) & ~is_expected
    # By the rows of all workers: a call that writes the entry is open, and no older entry can still be read.
    racing = is_written_beside | (calls["racing"] & (is_expired | ~is_expected))
    repeats_text = calls.groupby(["target", "prefix_hash"], sort=False).cumcount() > 0
    was_used = since_use_ns.notna()
    # Whether any call to the target read or wrote something.
    target_caches = (calls["read"] + calls["created"]).groupby(calls["target"]).transform("max") > 0
    minimum_tokens = calls["asked_model"].map(settings.least_tokens).astype(np.float64)
    # An automatic cache has a minimum, too.
    is_short = calls["total"] < minimum_tokens
    is_marked = calls["cache_marks"] > 0
    is_salted = calls["traffic"].isin(salted)
    return {
        SALTED: is_salted,
        UNSTABLE: calls["first_difference"].notna() & ~is_salted,
        BELOW_MINIMUM: (calls["created"] == 0)
        & (is_short | is_marked & minimum_tokens.isna() & target_caches),
        RACE: racing | (since_use_ns < settings.visibility_s * 1e9),
        EXPIRED: is_expired,
        LOOKBACK: was_used & (calls["cache_blocks"] >= settings.lookback),
        PARAMETER: ~was_used & repeats_text & calls["idle_ns"].isna(),
        FIRST: ~was_used,
        NO_CACHE: ~target_caches,
        UNEXPLAINED: pd.Series(True, calls.index),
    }


def misses(calls: pd.DataFrame, cause: pd.Series[str]) -> list[Miss]:
    """Return the calls and tokens of each cause: the target's own reasons, most frequent first, then ours in the order of CAUSES.

    `cause`: that of each call, empty where it missed nothing. The tokens are those that the target says were missed, else all that
    a call did not read.
    """
    by_target = reasoned(calls)
    unread = calls["created"] + calls["uncached"]
    tokens = calls["cache_missed_input_tokens"].where(by_target).fillna(unread)
    rows = pd.DataFrame({"cause": cause, "hit": calls["hit"], "tokens": tokens})
    by_cause = []
    target_reasons = calls.loc[by_target, "cache_miss_reason"].value_counts().index
    for is_of_target, names in ((True, target_reasons), (False, EVIDENCE)):
        groups = dict(iter(rows[by_target == is_of_target].groupby("cause")))
        for name in names:
            if name not in groups:
                continue
            group = groups[name]
            miss = Miss(
                cause=name,
                calls=len(group),
                partly=int(group["hit"].sum()),
                tokens=int(group["tokens"].sum()),
                by_target=is_of_target,
            )
            by_cause.append(miss)
    return by_cause


def first_bytes(calls: pd.DataFrame, cause: pd.Series[str]) -> list[tuple[int, int]]:
    """Return the bytes at which unstable prefixes first differ, and how often, most frequent first."""
    differing = calls.loc[cause == UNSTABLE, "first_difference"].astype(int)
    frequent = Counter(differing.tolist()).items()
    return sorted(frequent, key=lambda item: (-item[1], item[0]))[:MOST_BYTES]
