"""The probe of the user's own traffic: where the time goes, the tail, the benefit of streaming, whether streams are complete.

Answers of the steady stage. Times of a user start when the request was scheduled, times of the target when it was sent,
so that the delay of this machine is in no comparison. First content is judged of streamed answers only. A request
that timed out took longer than any other: its wait is the least that it can be, and it is beyond every bound.

The tail is relative to the median request of the same size: a quantile regression on its tokens, by traffic table.

    hedging    T is the wait of one call, d its p95. A second call after d leaves P(T > t) P(T > t - d) beyond t, if slow
               calls are slow by chance: not by their prompts, by the load, or by what all calls share

An idle timeout on the path cuts after the same silence each time, and no call that was silent for longer survives. The
silence of a call that broke off runs from its last content, or from its sending, to its end. Pings are not in the rows, so
it is a silence of content. What our timeout ended does not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup import judge
from tailgauge.experiments.checkup.judge import NONE, REFUSED, Gain, Measured, ProbeCheck, ProbeResult
from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge.scenario.experiment import Checkup as Settings
from tailgauge_analysis import (
    AT_ONCE,
    BUFFERED,
    BY_NAME,
    FEW_EPISODES,
    TOO_FEW,
    Floats,
    Mask,
    Steady,
    coalescing,
    diagnosis,
    ms,
    n_min,
    quantiles,
    share,
    share_range,
    stalls,
)
from tailgauge_analysis.stats import quantile_regression

UNKNOWN = Gain(0.5, 0.0, 1.0)
SLOW = ((3.0, 0.05), (5.0, 0.01))  # times the usual, and the share that may take longer: p95 and p99
LEAST_USUAL = 0.2  # of the median
NEW_TOKENS = ("input_tokens", "cache_creation_input_tokens")
WORTH = 0.25  # of p99, to try hedging
LUMP = 4.0  # tokens per chunk
SEVERAL = 10  # tokens of an answer
EARLY = 0.5  # of the time to the first content
BY_OTHERS = (schema.SERVER_ERROR, schema.CONNECT_ERROR, schema.STREAM_ERROR, schema.TRUNCATED)
BROKEN = (*BY_OTHERS, schema.CLIENT_ERROR, schema.TIMEOUT)
LEAST_S = 1.0  # a shorter silence is no idle timeout
ALIKE = 0.1  # largest relative distance of cuts by one timer from their median
SIGNS = ["sent_at_ns", "headers_at_ns", "last_content_at_ns"]


def light(reading: RunReading, settings: Settings, streams: Collection[str], whole: str = "") -> ProbeResult:
    """Result of a run of the user's traffic. `streams`: the tables that stream single answers; `whole`: the one that does not,
    of which a quarter was streamed, in the table CONTROL.
    """
    steady = reading.steady
    users = steady.only((steady.requests["traffic"] != judge.CONTROL).to_numpy(np.bool_))
    shown, end = of_tables(users, streams), took_ms(users)
    checks = [
        *(stream_checks(steady, settings, streams) if streams else ()),
        *([_not_streamed(steady, whole, settings.threshold)] if whole else ()), _tail(users, end), *_failed(users), idle_cut(users),
        _early_headers(steady.attempts), _connections(reading, end),
    ]  # fmt: skip
    measured = [
        *_split(of_tables(steady, streams)), *judge.latencies("first content", _offered(_ms(shown, "first_at_ns"), shown)),
        *judge.latencies("whole answer", _offered(end, users)),
    ]  # fmt: skip
    advice = (hedging(users, streams),) if streams else ()
    samples = {"today": known(wait_ms(users, streams))}
    return ProbeResult(tuple(checks), tuple(measured), samples, judge.failed(reading), advice)


def stream_checks(steady: Steady, settings: Settings, streams: Collection[str]) -> list[ProbeCheck]:
    """What is judged of single streamed answers."""
    streamed = of_tables(steady, streams)
    by_setting = (check(streamed, settings) for check in (_first_content, _pace))
    return [*by_setting, *(check(streamed) for check in (_held_back, _coalesced, _stalled))]


def _split(streamed: Steady) -> list[Measured]:
    """The share of users' waiting time before the first content."""
    first, end = _ms(streamed, "first_at_ns"), _ms(streamed, "last_content_at_ns")
    before = judge.saved(first, end)
    ends = share_range(before.low, before.high)
    n = int((~np.isnan(first + end)).sum())
    return [Measured("share of latency before the first content", share(before.value), ends, n)] if n else []


def of_tables(steady: Steady, names: Collection[str]) -> Steady:
    """The requests of some traffic tables."""
    return steady.only(steady.requests["traffic"].isin(names).to_numpy(np.bool_))


def _ended(steady: Steady, *classes: str) -> Mask:
    return np.asarray(steady.requests["ended"].isin(classes), np.bool_)


def _ms(steady: Steady, column: str, since: str = "scheduled_at_ns") -> Floats:
    requests = steady.requests
    at = requests[column].mask(_ended(steady, schema.TIMEOUT), requests["ended_at_ns"])
    return np.asarray((at - requests[since].fillna(requests["first_sent_at_ns"])) / 1e6, np.float64)


def took_ms(steady: Steady, since: str = "scheduled_at_ns") -> Floats:
    """Until the whole answer, or the join of several."""
    single, join = (_ms(steady, column, since) for column in ("last_content_at_ns", "joined_at_ns"))
    return np.where(np.isnan(single), join, single)


def since_sent_ms(steady: Steady, table: str) -> Floats:
    """Until the whole answers of one table, since sent."""
    return known(took_ms(of_tables(steady, [table]), since="sent_at_ns"))


def wait_ms(steady: Steady, streams: Collection[str]) -> Floats:
    """What a user waits for, since sent: the first content where it is streamed, else the whole."""
    streamed = steady.requests["traffic"].isin(streams).to_numpy(np.bool_)
    return np.where(streamed, _ms(steady, "first_at_ns", "sent_at_ns"), took_ms(steady, "sent_at_ns"))


def _offered(values: Floats, steady: Steady) -> Floats:
    """Without those that were left, and +inf for those that failed."""
    failed = _ended(steady, *BROKEN, *REFUSED)
    return np.where(failed, np.inf, values)[failed | ~np.isnan(values)]


def known(values: Floats) -> Floats:
    """Those that are."""
    return values[~np.isnan(values)]


def _first_content(streamed: Steady, settings: Settings) -> ProbeCheck:
    first, end = _ms(streamed, "first_at_ns"), _ms(streamed, "last_content_at_ns")
    known = ~np.isnan(first + end)
    first, end = first[known], end[known]
    typical = ms(float(np.median(first))) if len(first) else "–"
    text = f"median time to first content {typical} ms, allowed {ms(settings.first_ms)} ms"
    gain = judge.saved(np.maximum(first - settings.first_ms, 0), end)
    met = (first > settings.first_ms) | _ended(streamed, schema.TIMEOUT)[known]
    return judge.of_share("first_content", met, text, gain)


def _pace(streamed: Steady, settings: Settings) -> ProbeCheck:
    tokens = streamed.requests["pace_tokens"].to_numpy(np.float64)
    end, tpot = _ms(streamed, "last_content_at_ns"), BY_NAME["tpot"].ns(streamed) / 1e6
    known = ~np.isnan(tpot)
    each, limit = tpot[known], 1000 / settings.tokens_per_s
    typical = float(np.median(each)) if len(each) else 0.0
    rate = f"{1000 / typical:.3g}" if typical > 0 else "–"
    text = f"half of the answers arrive at {rate} tokens/s or less, allowed {settings.tokens_per_s:g}"
    gain = judge.saved(np.maximum(each - limit, 0) * (tokens[known] - 1), end[known])
    return judge.of_share("pace", each > limit, text, gain)


def _tail(users: Steady, end: Floats) -> ProbeCheck:
    """The worse of p95 and p99, for a family of two."""
    known, usual, late = ~np.isnan(end), _usual(users, end), _ended(users, schema.TIMEOUT)
    if not known.any():
        return judge.inconclusive("tail", "no request was answered")
    found = []
    for times, allowed in SLOW:
        slow = (late | (end > times * usual))[known]
        text = f"{judge.part(slow)} of the requests take more than {times:g} times the median of their size"
        text += f", or time out ({int(late.sum())})" if late.any() else ""
        gain = judge.saved(np.where(slow, np.maximum(end - usual, 0)[known], 0), end[known])
        found.append(judge.of_share("tail", slow, f"{text}. {diagnosis(users).sentence}", gain, allowed))
    worse = min(found, key=lambda one: 1.0 if one.p_value is None else one.p_value)
    return replace(worse, p_value=None if worse.p_value is None else min(1.0, 2 * worse.p_value))


def _usual(users: Steady, end: Floats) -> Floats:
    """The median time of a request of its table with as many new tokens in, and tokens out."""
    requests, usual = users.requests, np.full(len(end), np.nan)
    answers = users.attempts[users.attempts["ended"].isin(schema.COMPLETE)].groupby("request_id")
    prompt = requests["request_id"].map(answers[list(NEW_TOKENS)].max().sum(axis=1))
    output = requests["output_tokens"].fillna(requests["asked_output_tokens"])
    sizes = np.stack([prompt.fillna(prompt.median()).fillna(0.0), output]).astype(np.float64)
    for name in requests["traffic"].unique():
        known = np.flatnonzero(requests["traffic"].eq(name).to_numpy(np.bool_) & ~np.isnan(end))
        if not len(known):
            continue
        columns = dict(zip("abc", (np.ones(len(known)), *sizes[:, known]), strict=True))
        kept = list(quantile_regression.independent(columns).values())
        x = np.stack(kept if len(known) >= judge.FEWEST else kept[:1], axis=1)
        predicted = x @ quantile_regression.fit(x, end[known], 0.5)
        usual[known] = np.maximum(predicted, LEAST_USUAL * np.median(end[known]))
    return usual


def hedging(steady: Steady, streams: Collection[str]) -> str:
    """Whether a second call for the late ones is worth a try, by the waits of single calls."""
    if (steady.attempts["cause"] == schema.HEDGE).any():
        return "hedging: this traffic hedges already; tailgauge run hedging measures what it gains"
    single = steady.only(steady.requests["answer"].ne(schema.JOIN).to_numpy(np.bool_))
    return second_call(known(np.where(_ended(single, schema.TIMEOUT), np.inf, wait_ms(single, streams))))


def second_call(waits: Floats) -> str:
    """The same from the waits of single calls in ms, in order of time; of a call that timed out +inf."""
    p95, p99 = quantiles(waits, (0.95, 0.99))
    if p99.mark == TOO_FEW or p95.value is None or p99.value is None or math.isinf(p95.value):
        return f"hedging: not estimated, {n_min(0.99)} waits with a finite p95 are needed, got {len(waits)}"
    ordered, delay = np.sort(waits), p95.value
    at = np.sort(np.concatenate([ordered[ordered >= delay], delay + ordered]))
    first, second = (1 - np.searchsorted(ordered, t, "right") / len(waits) for t in (at, at - delay))
    best = min(p99.value, float(at[first * second <= 0.01][0]))
    text = f"a second call after {ms(delay)} ms, the p95, would bring the p99 of the wait from {judge.wait(p99.value)} to {ms(best)} ms at best"
    if best > (1 - WORTH) * p99.value:
        return f"hedging is not worth a try: {text}"
    if p99.mark == FEW_EPISODES:
        return f"hedging: not known: {text}, but the slow calls came in {p99.episodes} episodes, where a second call is slow too"
    return f"hedging is worth a try: {text}, if calls are slow by chance and there is room for 5% more; tailgauge run hedging measures it"


def _not_streamed(steady: Steady, whole: str, threshold: float) -> ProbeCheck:
    """Whole answers compared with the first content of the same calls, streamed."""
    first = known(_ms(of_tables(steady, [judge.CONTROL]), "first_at_ns", since="sent_at_ns"))
    at_once = since_sent_ms(steady, whole)
    text = "a whole answer takes {} the time to first content of a streamed one"
    return judge.compared("not_streamed", at_once, first, 1 + threshold, text, "too few answers")


def _held_back(streamed: Steady) -> ProbeCheck:
    """Whether something collects the answers: not merely a short answer after a long wait."""
    requests = streamed.requests
    known = requests["ended"].isin(schema.COMPLETE) & (requests["pace_tokens"] >= SEVERAL)
    late = requests.loc[known, "pace_missing"].isin((BUFFERED, AT_ONCE)).to_numpy(np.bool_)
    text = f"{judge.part(late)} of the streamed answers were buffered or arrive at once"
    text += "; how early they could begin is unknown" if late.any() else ""
    return judge.of_share("held_back", late, text, UNKNOWN)


def _coalesced(streamed: Steady) -> ProbeCheck:
    tokens, each = streamed.requests["pace_tokens"].to_numpy(np.float64), coalescing(streamed.requests)
    end = _ms(streamed, "last_content_at_ns")
    known = ~np.isnan(each + end) & (tokens > 2 * LUMP)
    each = each[known]
    typical = float(np.median(each)) if len(each) else 0.0
    pace = (end - _ms(streamed, "pace_from_ns"))[known] / tokens[known]
    text = f"tokens per chunk of the median answer: {typical:.3g}"
    return judge.of_share("coalesced", each > LUMP, text, judge.saved((each - 1) * pace, end[known]))


def _stalled(streamed: Steady) -> ProbeCheck:
    counts = streamed.gap_counts
    some = counts > 0
    stream = np.repeat(np.arange(len(counts)), counts)
    gaps = streamed.gaps_ns / 1e6
    late = stalls(gaps, stream) if len(gaps) else np.zeros(0, np.bool_)
    lost = np.bincount(stream[late], gaps[late], len(counts)).astype(np.float64)
    stalled = np.isin(np.flatnonzero(some), stream[late])
    text = f"{judge.of_all(stalled)} streams stall for more than a second"
    gain = judge.saved(lost[some], _ms(streamed, "last_content_at_ns")[some])
    return judge.of_share("stalled", stalled, text, gain)


def _failed(steady: Steady) -> Iterator[ProbeCheck]:
    sent = steady.sent
    given_up = sent["request_id"].isin(sent.loc[sent["cause"] == schema.FALLBACK, "request_id"])
    # Given up by the user's own rule.
    ended = sent["ended"].mask(given_up & sent["ended"].eq(schema.TIMEOUT), schema.CANCELLED)
    # An overload behind content ends as a stream error.
    ended = ended.mask(sent["error_class"].isin(REFUSED), sent["error_class"])
    for name, kinds in (("broken", BROKEN), ("refused", REFUSED)):
        met = ended.isin(kinds).to_numpy(np.bool_)
        which = ", ".join(f"{n} {kind}" for kind, n in ended[met].value_counts().items())
        text = f"of {len(met)} calls: {which}" if which else f"none of {len(met)} calls"
        yield judge.of_share(name, met, text)


def _early_headers(attempts: pd.DataFrame) -> ProbeCheck:
    good = attempts[attempts["ended"].isin(schema.COMPLETE) & attempts["streamed"].eq(True)]
    headers = (good["headers_at_ns"] - good["sent_at_ns"]).to_numpy(np.float64)
    first = (good["first_content_at_ns"] - good["sent_at_ns"]).to_numpy(np.float64)
    known = ~np.isnan(headers + first) & (first > 0)
    early = headers[known] < EARLY * first[known]
    text = f"{judge.part(early)} of the answers have their headers in the first half of the time to first content"
    return judge.of_share("early_headers", early, text, NONE)


def _connections(reading: RunReading, end: Floats) -> ProbeCheck:
    if reading.frames.run.get("dry_run"):
        return judge.inconclusive("connections", "a dry run has no connections")
    sent = reading.steady.sent
    new = sent["connection_is_new"].to_numpy(np.bool_)
    spent = sent[["dns_ns", "connect_ns", "tls_ns"]].fillna(0).sum(axis=1).to_numpy(np.float64) / 1e6
    typical = float(np.nanmean(end)) if len(end) and not np.isnan(end).all() else 0.0
    text = f"{judge.of_all(new)} calls opened a connection"
    return judge.of_share("connections", new, text, judge.saved(spent, np.full(len(spent), typical)))


def idle_cut(steady: Steady) -> ProbeCheck:
    """Whether more calls than allowed end after the same silence, which no other call survives."""
    sent = steady.sent
    last = sent[SIGNS].max(axis=1)
    silent_s = ((sent["ended_at_ns"] - last) / 1e9).to_numpy(np.float64, na_value=np.nan)
    cut = sent["ended"].isin(BY_OTHERS).to_numpy(np.bool_) & (silent_s >= LEAST_S)
    survived = _survived_s(steady)
    typical = float(np.median(silent_s[cut])) if cut.any() else 0.0
    cut &= (np.abs(silent_s - typical) <= ALIKE * typical) & (survived <= typical * (1 + ALIKE))
    after = f"{typical:.3g} s without content" if cut.any() else "a silence of equal length"
    text = f"{judge.of_all(cut)} calls break off after {after}; the longest silence that a call survives is {survived:.3g} s"
    return judge.of_share("idle_cut", cut, text)


def _survived_s(steady: Steady) -> float:
    requests = steady.requests
    waits = ((requests["first_at_ns"] - requests["sent_at_ns"]) / 1e9).to_numpy(np.float64, na_value=np.nan)
    every = np.concatenate([waits, requests["worst_gap_ns"].to_numpy(np.float64) / 1e9])
    return float(np.nanmax(every)) if (~np.isnan(every)).any() else 0.0
