"""The numbers that the checks judge: each is one that a section of the run's report has, or a share of its requests.

Intervals are at LEVEL, because a checkup makes some 25 checks: together they have a false finding in one of twenty checkups.
Times of a user start when the request was scheduled, times of the target when it was sent, so that a delay of this machine
is in no comparison. A request that timed out took longer than any other.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge_analysis import (
    AT_ONCE,
    BUFFERED,
    BY_NAME,
    CacheResult,
    FanOut,
    Floats,
    Mask,
    Proportion,
    Quantile,
    Steady,
    cache_results,
    counted,
    diagnosis,
    ended_as,
    fan_outs,
    predicted_quantile,
    proportion,
    quantiles,
    share,
    stream_flow,
    tokens_per_chunk,
    tpot_missing,
)

LEVEL = 0.996
FEWEST = 10  # values of a sample
REFUSED = (schema.RATE_LIMITED, schema.OVERLOADED)
BY_OTHERS = (schema.SERVER_ERROR, schema.CONNECT_ERROR, schema.STREAM_ERROR, schema.TRUNCATED)
BROKEN = (*BY_OTHERS, schema.CLIENT_ERROR, schema.TIMEOUT)
# Times the usual, and the share that may take longer: p95 and p99.
SLOW = ((3.0, 0.05), (5.0, 0.01))
LEAST_USUAL = 0.2  # of the median
NEW_TOKENS = ["input_tokens", "cache_creation_input_tokens"]
BUFFERED_GAIN = 0.5  # how early a buffered answer could begin is not known
BELOW = (0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0)  # of the values, for an end of a median
LUMP = 4.0  # tokens per chunk
EARLY = 0.5  # of the time to the first content
LEAST_S = 1.0  # a shorter silence is no idle timeout
ALIKE = 0.1  # largest relative distance of cuts by one timer from their median


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A share of the requests, calls or answers, or a ratio of two medians; `gain`: from 0 to 1, at most.

    Without an interval the number is not known, and `evidence` says why. `allowed`: instead of that of the check's row.
    """

    evidence: str
    gain: float = 0.0
    n: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    allowed: float | None = None
    is_ratio: bool = False

    @property
    def exceeds(self) -> bool:
        """Return whether the whole interval is beyond what this number itself allows."""
        return self.low is not None and self.allowed is not None and self.low > self.allowed

    @property
    def least_gain(self) -> float:
        """Return the low end of the interval of the gain, which is as wide as that of the number."""
        if self.low is None or not self.value:
            return 0.0
        if self.is_ratio:
            if self.low > 0:
                return max(0.0, 1 - 1 / self.low)
            return 0.0
        return self.gain * self.low / self.value


def of_share(estimate: Proportion, evidence: str, gain: float | None = None) -> Number:
    """Return a share; its own size is the gain where none is given."""
    if estimate.n < FEWEST:
        return Number(
            evidence=f"not enough data: {estimate.n} of the {FEWEST} needed", n=estimate.n
        )
    if gain is None:
        gain = estimate.value or 0.0
    return Number(
        evidence=evidence,
        gain=gain,
        n=estimate.n,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
    )


def known_share(value: float, n: int, evidence: str, gain: float) -> Number:
    """Return a share that follows from the plan or from a counter, without an interval."""
    return Number(evidence=evidence, gain=gain, n=n, value=value, low=value, high=value)


def of_ratio(numerator: Quantile | None, denominator: Quantile | None, evidence: str) -> Number:
    """Return the ratio of two quantiles; its interval recovers the variances from both (Zou and Donner 2008).

    `evidence` has a place for the ratio with its interval. The gain is the part of the numerator that is above the
    denominator. Without a value where either has fewer than FEWEST values, or no interval.
    """
    if numerator is None or denominator is None or min(numerator.n, denominator.n) < FEWEST:
        return Number(evidence="too few answers")
    value = numerator.value
    low = numerator.low
    high = numerator.high
    base = denominator.value
    base_low = denominator.low
    base_high = denominator.high
    if not (value and low and high and base and base_low and base_high):
        return Number(evidence="too few answers", n=numerator.n)
    ratio = value / base
    ratio_low = ratio / math.exp(math.hypot(math.log(value / low), math.log(base_high / base)))
    ratio_high = ratio * math.exp(math.hypot(math.log(high / value), math.log(base / base_low)))
    text = evidence.format(f"{ratio:.2f}x ({ratio_low:.2f} to {ratio_high:.2f})")
    gain = max(0.0, 1 - 1 / ratio)
    return Number(
        evidence=text,
        gain=gain,
        n=numerator.n,
        value=ratio,
        low=ratio_low,
        high=ratio_high,
        is_ratio=True,
    )


def saved(part: Floats, whole: Floats) -> float:
    """Return sum(part) / sum(whole) where both are known."""
    is_known = np.isfinite(part) & np.isfinite(whole)
    total = float(whole[is_known].sum())
    if total > 0:
        return float(part[is_known].sum()) / total
    return 0.0


def of_all(mask: Mask) -> str:
    """Return `3 of 20`."""
    return f"{int(mask.sum())} of {len(mask)}"


# --- times -----------------------------------------------------------------------------------------------------------


def of_tables(steady: Steady, names: Collection[str]) -> Steady:
    """Return the requests of some traffic tables."""
    return steady.only(steady.requests["traffic"].isin(names).to_numpy(np.bool_))


def ms_of(steady: Steady, column: str, start: str = "scheduled_at_ns") -> Floats:
    """Return the ms until a time; of a request that timed out, until then."""
    requests = steady.requests
    end = requests[column].mask(requests["ended"].eq(schema.TIMEOUT), requests["ended_at_ns"])
    began = requests[start].fillna(requests["first_sent_at_ns"])
    return ((end - began) / 1e6).to_numpy(np.float64)


def whole_ms(steady: Steady, start: str = "scheduled_at_ns") -> Floats:
    """Return the ms until the whole answer, or the join of several."""
    return np.fmax(ms_of(steady, "last_content_at_ns", start), ms_of(steady, "joined_at_ns", start))


def wait_ms(steady: Steady, streams: Collection[str]) -> Floats:
    """Return what a user waits for since sent: the first content where it is streamed, else the whole."""
    streamed = steady.requests["traffic"].isin(streams).to_numpy(np.bool_)
    first_ms = ms_of(steady, "first_at_ns", "sent_at_ns")
    return np.where(streamed, first_ms, whole_ms(steady, "sent_at_ns"))


def first_median(steady: Steady, name: str) -> Quantile | None:
    """Return the median time to the first content of a traffic table, since sent."""
    return quantile_of(ms_of(of_tables(steady, [name]), "first_at_ns", "sent_at_ns"))


def quantile_of(values: Floats, p: float = 0.5) -> Quantile | None:
    """Return a quantile of the known values; None of none.

    While a queue grows, so few waits are independent that order statistics have no ends. Then an end is a value that
    surely enough of the waits are beyond.
    """
    finite = values[~np.isnan(values)]
    if not len(finite):
        return None
    quantile = quantiles(finite, (p,))[0]
    low = quantile.low
    high = quantile.high
    if low is None:
        low = _surely_at_least(finite, 1 - p)
    if high is None:
        mirrored = _surely_at_least(-finite, p)
        if mirrored is not None:
            high = -mirrored
    return replace(quantile, low=low, high=high)


def _surely_at_least(values: Floats, part: float) -> float | None:
    """Return a value that more than this part of the values surely reach."""
    ordered = np.sort(values)
    for place in BELOW:
        end = float(ordered[int(place * len(ordered))])
        if (proportion(values >= end).low or 0.0) > part:
            return end
    return None


# --- the user's own traffic --------------------------------------------------------------------------------------------


def first_content(streamed: Steady, first_ms: float) -> Number:
    """Return the share of the streamed answers whose first content is later than the bound."""
    times_ms = ms_of(streamed, "first_at_ns")
    end = ms_of(streamed, "last_content_at_ns")
    typical = _median_text(times_ms[~np.isnan(end)], ",.0f")
    text = f"median time to first content {typical} ms, allowed {first_ms:,.0f} ms"
    return _late_share(times_ms - first_ms, end, text)


def pace(streamed: Steady, tokens_per_s: float) -> Number:
    """Return the share of the answers that are slower than the bound."""
    tpot = BY_NAME["tpot"].ns(streamed) / 1e6
    later_tokens = streamed.requests["pace_tokens"].to_numpy(np.float64) - 1
    with np.errstate(divide="ignore"):
        rate = _median_text(1000 / tpot, ".3g")
    text = f"half of the answers arrive at {rate} tokens/s or less, allowed {tokens_per_s:g}"
    late = (tpot - 1000 / tokens_per_s) * later_tokens
    return _late_share(late, ms_of(streamed, "last_content_at_ns"), text)


def _median_text(values: Floats, form: str) -> str:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return "–"
    return format(np.median(finite), form)


def _late_share(late_ms: Floats, end: Floats, text: str) -> Number:
    """Return the share of the answers that are late, and the part of their times by which they are."""
    is_known = ~np.isnan(late_ms + end)
    late_ms = late_ms[is_known]
    return of_share(proportion(late_ms > 0), text, saved(np.maximum(late_ms, 0), end[is_known]))


def tail(users: Steady) -> Number:
    """Return the share of requests far above the usual for their size: beyond p95's bound, else beyond p99's.

    SLOW has both: times the usual, and the share that may take longer. The first share that is too large is returned,
    else the first. Requests that timed out are slow. Where the tail is a problem, the evidence says where the slow
    requests lose their time.
    """
    end = whole_ms(users)
    answered = ~np.isnan(end)
    usual = _usual_ms(users, end)[answered]
    late = users.requests["ended"].eq(schema.TIMEOUT).to_numpy(np.bool_)[answered]
    end = end[answered]
    numbers = []
    for times, allowed in SLOW:
        slow = late | (end > times * usual)
        text = f"{of_all(slow)} requests take more than {times:g} times the median of their size"
        if late.any():
            text += f", or time out ({int(late.sum())})"
        gain = saved(np.where(slow, end - usual, 0), end)
        numbers.append(replace(of_share(proportion(slow), text, gain), allowed=allowed))
    number = next((number for number in numbers if number.exceeds), numbers[0])
    if not number.exceeds:  # only a tail problem has a place
        return number
    place = diagnosis(users)
    if place.low is None:
        return number
    return replace(number, evidence=f"{number.evidence}. {place.sentence}")


def _usual_ms(users: Steady, end: Floats) -> Floats:
    """Return the usual time of each request: the median of its traffic table at as many new tokens in, and tokens out.

    `end`: the ms until the whole answer; NaN of requests without one, which have no usual time either. A linear quantile
    regression on the tokens; the plain median of a table with few answers. It is never below LEAST_USUAL of that median.
    A request without usage has the median prompt, and the output that it asked for.
    """
    requests = users.requests
    # Tokens that were not read from a cache, of the largest attempt of each request.
    answers = users.attempts[users.attempts["ended"].isin(schema.COMPLETE)].groupby("request_id")
    prompt = requests["request_id"].map(answers[NEW_TOKENS].max().sum(axis=1))
    tokens_in = prompt.fillna(prompt.median()).fillna(0.0).to_numpy(np.float64)
    output = requests["output_tokens"].fillna(requests["asked_output_tokens"]).to_numpy(np.float64)
    usual = np.full(len(end), np.nan)
    for name in requests["traffic"].unique():
        rows = np.flatnonzero(requests["traffic"].eq(name).to_numpy(np.bool_) & ~np.isnan(end))
        if not len(rows):
            continue
        columns: dict[str, Floats] = {"one": np.ones(len(rows))}
        if len(rows) >= FEWEST:
            columns |= {"prompt": tokens_in[rows], "output": output[rows]}
        predicted = predicted_quantile(columns, end[rows], 0.5)
        usual[rows] = np.maximum(predicted, LEAST_USUAL * np.median(end[rows]))
    return usual


def buffered(streamed: Steady) -> Number:
    """Return the share of the streamed answers that were collected on the way."""
    missing = tpot_missing(streamed.requests)
    late = 0
    for row in missing["reasons"]:
        if row["reason"] in {BUFFERED, AT_ONCE}:
            late += row["answers"]
    late_share = counted(late, missing["of"])
    text = f"{share(late_share.value)} of the streamed answers were buffered or arrive at once"
    return of_share(late_share, text, BUFFERED_GAIN)


def coalesced(streamed: Steady) -> Number:
    """Return the share of the answers with more than LUMP tokens per chunk."""
    per_chunk = tokens_per_chunk(streamed.requests)
    tokens = streamed.requests["pace_tokens"].to_numpy(np.float64)
    end = ms_of(streamed, "last_content_at_ns")
    is_known = ~np.isnan(per_chunk + end) & (tokens > 2 * LUMP)
    pace_ms = (end - ms_of(streamed, "pace_from_ns"))[is_known] / tokens[is_known]
    per_chunk = per_chunk[is_known]
    typical = 0.0
    if len(per_chunk):
        typical = float(np.median(per_chunk))
    text = f"tokens per chunk of the median answer: {typical:.3g}"
    return of_share(
        proportion(per_chunk > LUMP), text, saved((per_chunk - 1) * pace_ms, end[is_known])
    )


def stalled(streamed: Steady) -> Number:
    """Return the share of the streams that stall."""
    flow = stream_flow(streamed)
    stalls = round((flow.stalled_share or 0.0) * flow.answers)
    text = f"{stalls} of {flow.answers} streams stall for more than a second"
    return of_share(counted(stalls, flow.answers), text, flow.stall_time_share or 0.0)


def _ended(steady: Steady) -> pd.Series[str]:
    """Return how the calls ended, in order of sending."""
    sent = steady.sent
    given_up = sent["request_id"].isin(sent.loc[sent["cause"] == schema.FALLBACK, "request_id"])
    # Given up by the user's own rule.
    ended = sent["ended"].mask(given_up & sent["ended"].eq(schema.TIMEOUT), schema.CANCELLED)
    # An overload behind content ends as a stream error.
    return ended.mask(sent["error_class"].isin(REFUSED), sent["error_class"])


def ended_by(steady: Steady, classes: Collection[str]) -> Number:
    """Return the share of the calls that ended in one of these classes."""
    ended = _ended(steady)
    is_ended = ended.isin(classes).to_numpy(np.bool_)
    kinds = ", ".join(f"{n} {kind}" for kind, n in ended[is_ended].value_counts().items())
    text = f"none of {len(is_ended)} calls"
    if kinds:
        text = f"of {len(is_ended)} calls: {kinds}"
    return of_share(proportion(is_ended), text)


def idle_cut(steady: Steady) -> Number:
    """Return the share of the calls that break off after one silence, which no other call survives.

    A timer on the path cuts calls after equal silences, so the silences of the cut calls must be ALIKE and at least
    LEAST_S, and no answer may have had a longer one: neither before its first content nor between two chunks.
    """
    sent = steady.sent
    last_ns = sent[["sent_at_ns", "headers_at_ns", "last_content_at_ns"]].max(axis=1)
    silent_s = ((sent["ended_at_ns"] - last_ns) / 1e9).to_numpy(np.float64, na_value=np.nan)
    cut = sent["ended"].isin(BY_OTHERS).to_numpy(np.bool_) & (silent_s >= LEAST_S)
    requests = steady.requests
    waits_ns = requests["first_at_ns"] - requests["sent_at_ns"]
    waits_s = waits_ns.to_numpy(np.float64, na_value=np.nan) / 1e9
    gaps_s = requests["worst_gap_ns"].to_numpy(np.float64) / 1e9
    survived = float(np.nan_to_num(np.concatenate([waits_s, gaps_s])).max(initial=0.0))
    median_s = 0.0
    if cut.any():
        median_s = float(np.median(silent_s[cut]))
    cut &= (np.abs(silent_s - median_s) <= ALIKE * median_s) & (survived <= median_s * (1 + ALIKE))
    cause = "a silence of equal length"
    if cut.any():
        cause = f"{median_s:.3g} s without content"
    text = f"{of_all(cut)} calls break off after {cause}; the longest silence that a call survives is {survived:.3g} s"
    return of_share(proportion(cut), text)


def early_headers(attempts: pd.DataFrame) -> Number:
    """Return the share of the streamed answers with headers in the first half of the wait; it gives nothing back."""
    good = attempts[attempts["ended"].isin(schema.COMPLETE) & attempts["streamed"].eq(True)]
    headers = (good["headers_at_ns"] - good["sent_at_ns"]).to_numpy(np.float64)
    first_ns = (good["first_content_at_ns"] - good["sent_at_ns"]).to_numpy(np.float64)
    is_known = ~np.isnan(headers + first_ns) & (first_ns > 0)
    early = headers[is_known] < EARLY * first_ns[is_known]
    place = "in the first half of the time to first content"
    return of_share(proportion(early), f"{of_all(early)} answers have their headers {place}", 0.0)


def connections(steady: Steady) -> Number:
    """Return the share of the calls that opened a connection."""
    sent = steady.sent
    opened = sent["connection_is_new"].to_numpy(np.bool_)
    spent = sent[["dns_ns", "connect_ns", "tls_ns"]].fillna(0).sum(axis=1).sum() / 1e6
    whole = np.nansum(whole_ms(steady))
    gain = 0.0
    if whole > 0:
        gain = float(spent / whole)
    text = f"{of_all(opened)} calls opened a connection"
    return of_share(proportion(opened), text, min(1.0, gain))


# --- sections of the report: the one place that asks the analysis for them -------------------------------------------------


def caches(reading: RunReading) -> dict[str, CacheResult]:
    """Return the cache section by traffic table."""
    results = cache_results(reading.run).cache
    return {result.traffic: result for result in results}


def fan_out_of(reading: RunReading, name: str) -> FanOut | None:
    """Return the fan-out section of a traffic table, if a request has all of several legs."""
    for section in fan_outs(reading.run):
        if section.traffic == name and section.slowest:
            return section
    return None


def heavy_leg(section: FanOut | None) -> Number:
    """Return how often requests wait for the leg that is last most often; half of the way from an even share is allowed."""
    critical = None if section is None else section.critical
    if section is None or critical is None:
        return Number(evidence="no request with all of several legs")
    often = critical.positions[critical.most]
    slowest = section.slowest[0].value or 0.0
    rest = section.one_less[0].value or 0.0
    gain = 0.0
    if slowest > 0:
        gain = 1 - rest / slowest
    text = f"leg {critical.most + 1} of {len(critical.positions)}: {share(often.value)} of the requests wait for it last (median join {slowest:,.0f} ms, without it {rest:,.0f} ms)"
    return replace(of_share(often, text, gain), allowed=(1 + critical.even) / 2)


def refused(attempts: pd.DataFrame) -> Number:
    """Return the share of the calls that were refused."""
    is_refused = ended_as(attempts, *REFUSED)
    return of_share(proportion(is_refused), f"{of_all(is_refused)} calls were refused")
