"""Input disease or output disease: where the slowest requests lose their time.

Rule: answers of the steady stage in order of arrival. The slowest are those whose whole time is at or beyond its p95.
What each of them takes longer than the median request is split at its first content, against the medians of both parts:

    excess = (TTFT - median TTFT) + (decode - median decode),   share = sum of the first part / sum of both

`input`: the share's 95% interval lies above one half: queues, long prompts, cache misses. `output`: it lies below: long
answers or a slow pace, whichever has more of the excess (at the median pace, or at the median length). `both`: one half
is inside. `healthy`: the slow take less than HEALTHY times the median, in their own median. None of these below FEWEST slow requests.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.quantiles import Floats, rank
from tailgauge_analysis.text.formatting import ms, share
from tailgauge_analysis.text.json_values import Json

INPUT, OUTPUT, BOTH, HEALTHY_RUN, UNKNOWN = "input", "output", "both", "healthy", "unknown"
SLOW = 0.95
HEALTHY = 1.5
FEWEST = 20
REPS = 1000


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The word, and the numbers that decided it; null where there are too few slow requests. Times in ms."""

    kind: str
    n: int
    slow: int
    p50_ms: float | None
    p95_ms: float | None
    slow_p50_ms: float | None
    share_before_first: float | None
    low: float | None
    high: float | None
    tokens_times: float | None  # output tokens of the slow, over the median request's
    pace_times: float | None  # TPOT of the slow, over the median request's
    sentence: str


def diagnosis(of_target: Steady) -> Diagnosis:
    """What ails the slow requests of a stage."""
    requests = of_target.requests
    before = ((requests["first_at_ns"] - requests["scheduled_at_ns"]) / 1e6).to_numpy(np.float64)
    whole = ((requests["last_content_at_ns"] - requests["scheduled_at_ns"]) / 1e6).to_numpy(np.float64)
    tokens = requests["output_tokens"].to_numpy(np.float64)
    known = ~np.isnan(before + whole)
    return told(before[known], whole[known], tokens[known])


def told(before: Floats, whole: Floats, tokens: Floats) -> Diagnosis:
    """The diagnosis of answers: ms to the first content, ms to the last, output tokens (NaN where unknown)."""
    n = len(whole)
    if not n:
        return _unknown(0, 0, "No request was answered, so there is nothing to say of slow ones.")
    p50, p95 = (float(np.partition(whole, rank(n, p) - 1)[rank(n, p) - 1]) for p in (0.5, SLOW))
    slow = whole >= p95
    count = int(slow.sum())
    if count < FEWEST:
        why = f"Too few requests to say what ails the slow ones: {count} are at the p95 or beyond, {FEWEST} are needed."
        return _unknown(n, count, why)
    after, typical = whole - before, float(np.median(whole[slow]))
    early = before[slow] - np.median(before)
    over = early + after[slow] - np.median(after)
    lengths, paces = _times(after, tokens, slow)
    if typical < HEALTHY * p50 or over.sum() <= 0:
        said = f"Neither input nor output disease: the slowest 5% take {typical / p50:.2f} times as long as the median request."
        return Diagnosis(HEALTHY_RUN, n, count, p50, p95, typical, None, None, None, lengths, paces, said)
    part = float(early.sum() / over.sum())
    low, high = ratio(early, over, reps=REPS)
    kind = INPUT if low > 0.5 else OUTPUT if high < 0.5 else BOTH
    said = _sentence(kind, part, low, high, p50, typical, lengths, paces)
    return Diagnosis(kind, n, count, p50, p95, typical, part, low, high, lengths, paces, said)


def _unknown(n: int, slow: int, why: str) -> Diagnosis:
    return Diagnosis(UNKNOWN, n, slow, None, None, None, None, None, None, None, None, why)


def _times(after: Floats, tokens: Floats, slow: np.ndarray) -> tuple[float | None, float | None]:
    """How much longer the answers of the slow are, and how much slower their pace, in medians."""
    real = (tokens >= 2) & (after > 0)
    if not (real & slow).any():
        return None, None
    pace = after[real] / (tokens[real] - 1)
    of = slow[real]
    return (
        float(np.median(tokens[real][of]) / np.median(tokens[real])),
        float(np.median(pace[of]) / np.median(pace)),
    )


def _sentence(
    kind: str, part: float, low: float, high: float, p50: float, typical: float, lengths: float | None, paces: float | None
) -> str:  # fmt: skip
    slow = f"the slowest 5% take {ms(typical)} ms in the median, all requests {ms(p50)} ms, and"
    within = f"(95% interval {_part(low)} to {_part(high)})"
    if kind == INPUT:
        return (
            f"Input disease: {slow} {_part(part)} {within} of the difference passes before the first content."
        )
    if kind == OUTPUT:
        rest = f"(95% interval {_part(1 - high)} to {_part(1 - low)})"
        return f"Output disease: {slow} {_part(1 - part)} {rest} of the difference passes after the first content{_cause(lengths, paces)}."
    return f"Both input and output: {slow} {_part(part)} {within} of the difference passes before the first content."


def _cause(lengths: float | None, paces: float | None) -> str:
    if lengths is None or paces is None:
        return ""
    what = "long answers" if lengths >= paces else "a slow pace"
    return f": {what} (of the slow, answers are {lengths:.1f} times as long in the median, the pace takes {paces:.1f} times as long)"


def _part(value: float) -> str:
    return share(min(1.0, max(0.0, value)))


def plainly(found: Diagnosis) -> Json:
    """The key `diagnosis` of the report's contents."""
    return asdict(found)
