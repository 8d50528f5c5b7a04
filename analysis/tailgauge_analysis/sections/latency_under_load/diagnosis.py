"""Where the slowest requests lose their time: before the first content (input), or after it (output).

Answers of the steady stage in order of arrival. The slowest are those whose whole time is at or beyond its p95.
What each of them takes longer than the median request is split at its first content, against the medians of both parts:

    excess = (TTFT - median TTFT) + (decode - median decode),   share = sum of the first part / sum of both

`input`: the share's 95% interval lies above one half: queues, long prompts, cache misses. `output`: it lies below: long
answers or slow decoding, whichever has more of the excess (at the median pace, or at the median length). `both`: one half
is inside. `healthy`: the slow take less than HEALTHY times the median, in their median. None of these below FEWEST slow requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import by_request, whole_at_ns
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.quantiles import Floats, rank
from tailgauge_analysis.text.formatting import ms
from tailgauge_analysis.text.json_values import one_of

INPUT = "input"
OUTPUT = "output"
BOTH = "both"
HEALTHY_RUN = "healthy"
UNKNOWN = "unknown"
SLOW = 0.95
HEALTHY = 1.5
FEWEST = 20
REPS = 1000
SIDES = {INPUT: "before", OUTPUT: "after", BOTH: "both before and after"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The kind and the numbers that decided it; null where there are too few slow requests. Times in ms."""

    kind: Annotated[str, one_of(INPUT, OUTPUT, BOTH, HEALTHY_RUN, UNKNOWN)]
    n: int
    slow: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    slow_p50_ms: float | None = None
    share_before_first: float | None = None
    low: float | None = None
    high: float | None = None
    tokens_times: float | None = None  # output tokens of the slow, over the median request's
    pace_times: float | None = None  # TPOT of the slow, over the median request's
    sentence: str = ""


def diagnosis(without_slow_readers: Steady) -> Diagnosis:
    """Diagnose the requests of a stage: whether the slowest lose their time before or after the first content.

    A fan-out counts by its join, split at the first content of the leg that it waited for. Times are since scheduled.
    Requests without a first content or an end are left out.
    """
    requests = without_slow_readers.requests
    is_join = requests["answer"].eq(schema.JOIN) & requests["ended"].isin(schema.COMPLETE)
    answered_legs = without_slow_readers.attempts[
        without_slow_readers.attempts["ended"].isin(schema.WITH_ANSWER)
    ]
    joined_at_ns = answered_legs["request_id"].map(
        requests[is_join].set_index("request_id")["joined_at_ns"]
    )
    answered_legs = answered_legs.assign(whole_at_ns=whole_at_ns(answered_legs))[
        whole_at_ns(answered_legs) <= joined_at_ns
    ]
    # Of the legs that were whole by the join the last one is what the request waited for.
    last_legs = by_request(answered_legs.sort_values("whole_at_ns"), "last")
    awaited_legs = last_legs.reindex(requests["request_id"]).set_index(requests.index)
    first_at_ns = requests["first_at_ns"].where(~is_join, awaited_legs["first_content_at_ns"])
    tokens = requests["output_tokens"].where(~is_join, awaited_legs["output_tokens"])
    end_at_ns = requests["last_content_at_ns"].where(~is_join, requests["joined_at_ns"])
    scheduled_at_ns = requests["scheduled_at_ns"]
    ttft_ms = ((first_at_ns - scheduled_at_ns) / 1e6).to_numpy(np.float64)
    whole_ms = ((end_at_ns - scheduled_at_ns) / 1e6).to_numpy(np.float64)
    has_times = ~np.isnan(ttft_ms + whole_ms)
    tail = diagnose(ttft_ms[has_times], whole_ms[has_times], tokens.to_numpy(np.float64)[has_times])
    if not is_join.any():
        return tail
    note = "The time of a fan-out ends when its legs are joined. Its first content is the first content of the leg that was joined last."
    return replace(tail, sentence=f"{tail.sentence} {note}")


def diagnose(ttft_ms: Floats, whole_ms: Floats, tokens: Floats) -> Diagnosis:
    """Diagnose answers: ms to the first content, ms to the last, output tokens (NaN where unknown), a value per answer in order of arrival.

    The kind is UNKNOWN below FEWEST slow answers, and HEALTHY_RUN where these take less than HEALTHY times the median.
    An answer is slow if its whole time is at or beyond the p95. Its excess is what it takes longer than the median request.
    """
    n = len(whole_ms)
    if not n:
        return Diagnosis(
            UNKNOWN, 0, 0, sentence="No tail analysis: no request has an answer or a join."
        )
    p50_ms = _quantile(whole_ms, 0.5)
    p95_ms = _quantile(whole_ms, SLOW)
    is_slow = whole_ms >= p95_ms
    slow_count = int(is_slow.sum())
    if slow_count < FEWEST:
        reason = f"Not enough slow requests to explain the tail ({slow_count} beyond p95, {FEWEST} needed)."
        return Diagnosis(UNKNOWN, n, slow_count, sentence=reason)
    decode_ms = whole_ms - ttft_ms
    slow_p50_ms = float(np.median(whole_ms[is_slow]))
    excess_before_ms = ttft_ms[is_slow] - np.median(ttft_ms)
    excess_ms = excess_before_ms + decode_ms[is_slow] - np.median(decode_ms)
    # How many times as many tokens the slow have as all, and how many times as long each token takes.
    tokens_times, pace_times = _times_of_slow(decode_ms, tokens, is_slow)
    tail = Diagnosis(
        kind=HEALTHY_RUN,
        n=n,
        slow=slow_count,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        slow_p50_ms=slow_p50_ms,
        tokens_times=tokens_times,
        pace_times=pace_times,
    )
    # Without an excess there is nothing to divide.
    if slow_p50_ms < HEALTHY * p50_ms or excess_ms.sum() <= 0:
        times = slow_p50_ms / p50_ms
        text = (
            f"No tail problem: the median time to the last content is {ms(slow_p50_ms)} ms among the slowest 5% of the answers, "
            f"and {ms(p50_ms)} ms among all ({times:.2f}x)."
        )
        return replace(tail, sentence=text)
    share_before_first = float(excess_before_ms.sum() / excess_ms.sum())
    low, high = ratio(excess_before_ms, excess_ms, reps=REPS)
    kind = BOTH
    cause = ""
    if low > 0.5:
        kind = INPUT
    elif high < 0.5:
        kind = OUTPUT
        cause = _cause(tokens_times, pace_times)
    text = f"The slowest 5% of the answers take longer {SIDES[kind]} the first content. "
    text += f"{_split(kind, share_before_first, low, high)}.{cause} "
    text += f"The median time to the last content is {ms(slow_p50_ms)} ms among these 5%, and {ms(p50_ms)} ms among all answers."
    return replace(
        tail, kind=kind, share_before_first=share_before_first, low=low, high=high, sentence=text
    )


def _split(kind: str, part: float, low: float, high: float) -> str:
    """Return how much of the extra time passes on the side that the sentence before names, with its interval, in whole per cents."""
    shares = [part, low, high]
    if kind == OUTPUT:
        shares = [1 - part, 1 - high, 1 - low]
    value, lower, upper = map(_whole_percent, shares)
    value = value.replace(">", "More than ").replace("<", "Less than ")
    side = "before the first content" if kind == BOTH else "there"
    part_text = f"{value} of their extra time (beyond the median) passes {side}"
    if lower == upper:
        return part_text
    if upper.startswith(">"):
        return f"{part_text} (95% CI: at least {lower})"
    return f"{part_text} (95% CI {lower} \N{EN DASH} {upper})"


def _whole_percent(value: float) -> str:
    """`93%`; `>99%` and `<1%` of what is not all and not nothing."""
    if 0.995 <= value < 1:
        return ">99%"
    if 0 < value < 0.005:
        return "<1%"
    return f"{min(1.0, max(0.0, value)):.0%}"


def _times_of_slow(
    decode_ms: Floats, tokens: Floats, slow: np.ndarray
) -> tuple[float | None, float | None]:
    """Return how much longer the answers of the slow are, and how much slower their pace, in medians."""
    real = (tokens >= 2) & (decode_ms > 0)
    if not (real & slow).any():
        return None, None
    is_slow = slow[real]
    lengths = tokens[real]
    paces = decode_ms[real] / (lengths - 1)
    return _slow_over_all(lengths, is_slow), _slow_over_all(paces, is_slow)


def _slow_over_all(values: Floats, is_slow: np.ndarray) -> float:
    return float(np.median(values[is_slow]) / np.median(values))


def _quantile(values: Floats, p: float) -> float:
    place = rank(len(values), p) - 1
    return float(np.partition(values, place)[place])


def _cause(lengths: float | None, paces: float | None) -> str:
    if lengths is None or paces is None:
        return ""
    reason = "longer answers" if lengths >= paces else "slower decoding"
    return (
        f" They have {reason}: their median length is {lengths:.1f}x that of all answers. "
        f"Their median time per token is {paces:.1f}x that of all answers."
    )
