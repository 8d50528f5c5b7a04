"""The numbers of the prefix cache: misses by cause, as the cache section counts them, and entries that expire.

Costs are in prices of an input token: a read 0.1, a write 1.25. A miss costs at most what reading its tokens would have saved.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tailgauge.experiments.checkup.numbers import FEWEST, Number, known_share, of_share
from tailgauge_analysis import (
    NO_READS,
    RELATIVE,
    CacheResult,
    CacheSettings,
    Floats,
    Json,
    Quantile,
    count,
    counted,
    fixed_hit,
    number,
    share,
    sliding_hit,
)

READ = float(RELATIVE["read"])
WRITE = float(RELATIVE["write_5m"])
FASTER = 1.1  # cold over warm first content: a sign of a cache
NO_CACHE = "no_cache"
BELOW_MINIMUM = "below_minimum"
UNEXPLAINED = "unexplained"
UNSTABLE = "unstable"
EXPIRED = "expired"
RACE = "race"
NO_USAGE = "the usage has no cached tokens; vLLM adds them with --enable-prompt-tokens-details"
MOST_EXPIRED = 0.5  # of the calls, even with the longest lifetime: then the prefix is not reused


def of_cause(result: CacheResult, *causes: str) -> Number:
    """Return the share of the calls that miss for one of these causes, as a number of a check.

    Its gain is a share of the cost of all prompts, 1 at most: what reading the missed tokens would have saved.
    """
    calls = 0
    tokens = 0
    for miss in result.misses:
        if miss.cause in causes:
            calls += miss.calls
            tokens += miss.tokens
    missed_share = None
    if result.calls:
        missed_share = calls / result.calls
    text = f"{calls} of {result.calls} calls, {share(missed_share)}"
    if UNSTABLE in causes and result.first_bytes:
        text += f"; first difference at byte {result.first_bytes[0][0]:,}"
    # A missed token was written to the cache, if this endpoint bills writes; else it was plain input.
    price = WRITE if result.creation_tokens else 1.0
    gain = min(1.0, (price - READ) * tokens / max(1.0, _cost(result)))
    return of_share(counted(calls, result.calls), text, gain)


def _cost(result: CacheResult) -> float:
    """Return what the prompts cost, in prices of an input token."""
    return result.uncached_tokens + READ * result.read_tokens + WRITE * result.creation_tokens


def warm_numbers(
    result: CacheResult, references: Mapping[str, CacheResult], *, is_marked: bool, has_marks: bool
) -> dict[str, Number]:
    """Return the numbers of the checks of the user's own prefix, by the check's name.

    `references`: the results of the same traffic with the prefix as it should be, and with a cold one; they show whether
    there is a cache at all. `is_marked`: the user's table sets marks. `has_marks`: the protocol has them. A check is left
    out where another one explains all misses.
    """
    missing = [of_cause(prefix, NO_CACHE) for prefix in (result, *references.values())]
    absent = max(missing, key=lambda number: number.value or 0.0)
    is_absent = (absent.value or 0.0) > MOST_EXPIRED
    if is_absent:  # then it is why all miss
        every = of_cause(result, NO_CACHE, *(miss.cause for miss in result.misses))
        return {NO_CACHE: every, BELOW_MINIMUM: of_cause(result, BELOW_MINIMUM)}
    numbers = {
        NO_CACHE: absent,
        BELOW_MINIMUM: of_cause(result, BELOW_MINIMUM),
        UNSTABLE: of_cause(result, UNSTABLE),
    }
    # Neither marked, nor cached without a mark.
    nothing = not is_marked and result.read_tokens + result.creation_tokens == 0
    if nothing and has_marks and result.calls >= FEWEST:
        text = f"none of {result.calls} calls has a mark, and they read and write nothing"
        return numbers | {"unmarked": known_share(1.0, result.calls, text, 1 - READ)}
    text = "this protocol has no cache marks"
    if has_marks:
        text = "calls have a mark, or are cached without one"
    unmarked = known_share(0.0, result.calls, text, 0.0)
    return numbers | {"unmarked": unmarked, UNEXPLAINED: of_cause(result, UNEXPLAINED)}


def without_usage(
    engine: Json, calls: int, cold: Quantile | None, warm: Quantile | None
) -> dict[str, Number]:
    """Return whether there is a cache at all, by the engine's own counters, else by the first content."""
    read = number(engine.get("cached"))
    prompt = number(engine.get("prompt"))
    if read is not None and prompt:
        text = f"{engine['engine']} counts {share(read / prompt)} of {count(prompt)} prompt tokens read from its cache"
        is_absent = read < NO_READS * prompt
        return {NO_CACHE: known_share(float(is_absent), calls, text, (1 - READ) * is_absent)}
    slower = None
    if cold is not None and warm is not None and cold.low is not None and warm.high:
        slower = cold.low / warm.high
    if slower is not None and slower > FASTER:
        text = f"{NO_USAGE}; a cold prefix takes at least {slower:.2f}x the time to first content of a warm one"
        return {NO_CACHE: known_share(0.0, calls, text, 0.0)}
    text = (
        f"{NO_USAGE}; a warm prefix is not seen to be faster: no sign of a cache, or of no use here"
    )
    return {NO_CACHE: Number(evidence=text, n=calls)}


def lifetime(
    result: CacheResult, per_s: Floats, ttl: str, settings: CacheSettings
) -> dict[str, Number]:
    """Return whether entries live until they are used again: `once`, with the longest lifetime; `expired`, with the set
    one.

    `per_s`: the scenario's uses per second of each prefix; `ttl`: the lifetime that its marks set. The share that expires
    is computed for Poisson arrivals, because a probe is shorter than a lifetime; what expired within the probe counts
    too, if it is more. Where prefixes are not reused within the longest lifetime there is no number `expired`.
    """
    longest = "12h"
    duration = "12 hours"
    if ttl in {"5m", "1h"}:
        longest = "1h"
        duration = "an hour"
    expired = _expired_share(per_s, settings, ttl)
    expired_at_most = _expired_share(per_s, settings, longest)
    gap_s = 1 / float(per_s.mean())
    gap = f"{gap_s:.3g}"
    if gap_s >= 100:
        gap = f"{gap_s:,.0f}"
    text = f"a prefix is used every {gap} s, its entry lives for {settings.lives_s[ttl]:g} s"
    evidence = f"{text}: {share(expired)} of the calls find it expired, {share(expired_at_most)} with marks for {duration} (Poisson arrivals)"
    rewrite_cost = (WRITE - READ) * (result.creation_tokens + result.read_tokens)
    gain = expired * min(1.0, rewrite_cost / max(1.0, _cost(result)))
    reuse = known_share(expired_at_most, result.calls, evidence, gain)
    if expired_at_most > MOST_EXPIRED:
        return {"once": reuse}
    measured = of_cause(result, EXPIRED)
    planned = known_share(expired, result.calls, evidence, gain)
    return {"once": reuse, EXPIRED: max(measured, planned, key=lambda number: number.low or 0.0)}


def _expired_share(per_s: Floats, settings: CacheSettings, ttl: str) -> float:
    """Return the share of the calls that find their entry expired."""
    lived = per_s * settings.lives_s[ttl]
    hit_share = sliding_hit if settings.sliding else fixed_hit
    hits = hit_share(lived)
    return 1 - float(np.sum(hits * per_s) / np.sum(per_s))
