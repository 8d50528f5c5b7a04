"""The probe of light traffic: where the time goes, the benefit of streaming, and whether streams are complete.

Answers of the steady stage. Times of a user start when the request was scheduled, times of the target when it was sent,
so that the delay of this machine is in no comparison.

An idle timeout on the path cuts after the same silence each time, and no call that was silent for longer survives. The
silence of a call that broke off runs from its last content, or from its sending, to its end. Pings are not in the rows, so
it is a silence of content. What our timeout ended does not count.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup import judge
from tailgauge.experiments.checkup.judge import (
    NONE,
    REFUSED,
    STREAMED,
    WHOLE,
    Gain,
    Measured,
    ProbeCheck,
    ProbeResult,
)
from tailgauge.experiments.reading import RunReading
from tailgauge.rows import schema
from tailgauge.scenario.experiment import Checkup as Settings
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.pace import AT_ONCE, BUFFERED
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.streams import coalescing, stalls
from tailgauge_analysis.sections.latency_under_load.diagnosis import diagnosis
from tailgauge_analysis.sections.phases import phases
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import ms, share, share_range

UNKNOWN = Gain(0.5, 0.0, 1.0)
SLOW_TIMES = 3.0
LUMP = 4.0  # tokens per chunk
SEVERAL = 10  # tokens of an answer
EARLY = 0.5  # of the time to the first content
BROKEN = (
    schema.SERVER_ERROR, schema.CLIENT_ERROR, schema.CONNECT_ERROR, schema.TIMEOUT, schema.STREAM_ERROR,
    schema.TRUNCATED,
)  # fmt: skip
LEAST_S = 1.0  # a shorter silence is no idle timeout
ALIKE = 0.1  # largest relative distance of cuts by one timer from their median
BY_OTHERS = (schema.SERVER_ERROR, schema.CONNECT_ERROR, schema.STREAM_ERROR, schema.TRUNCATED)
SIGNS = ["sent_at_ns", "headers_at_ns", "last_content_at_ns"]


def light(reading: RunReading, settings: Settings, *, streams: bool) -> ProbeResult:
    """Result of a run at today's rate; `streams`: whether the user's traffic is streamed."""
    steady = reading.steady
    streamed, whole = (of(steady, name) for name in (STREAMED, WHOLE))
    users = streamed if streams else whole
    first, end = _ms(users, "first_at_ns"), _ms(users, "last_content_at_ns")
    checks = [
        _first_content(first, end, settings),
        _pace(streamed, settings),
        _tail(users, end),
        *_streaming(streamed, whole, settings.threshold, streams=streams),
        _coalesced(streamed),
        _stalled(streamed),
        *_failed(steady),
        idle_cut(steady),
        _early_headers(steady.attempts),
        _connections(reading, end),
    ]
    measured = [
        *_split(first, end), *_phases(reading),
        *judge.latencies("first content", _known(first)), *judge.latencies("whole answer", _known(end)),
    ]  # fmt: skip
    samples = {
        "first": _known(_ms(streamed, "first_at_ns", since="sent_at_ns")),
        "alone": _known(_ms(streamed, "last_content_at_ns", since="sent_at_ns")),
    }
    return ProbeResult(tuple(checks), tuple(measured), samples, judge.failed(reading))


def _split(first: Floats, end: Floats) -> list[Measured]:
    """The share of users' waiting time before the first content."""
    before = judge.saved(first, end)
    ends = share_range(before.low, before.high)
    return [Measured("share of latency before the first content", share(before.value), ends, len(end))]


def _phases(reading: RunReading) -> list[Measured]:
    """Where the time goes by the server log, if there is one."""
    found = phases(reading.frames, reading.steady)
    return [
        Measured(f"share of time: {part.name}", share(part.share), "", part.n)
        for part in (found.split if found else ())
        if part.share is not None
    ]


def of(steady: Steady, name: str) -> Steady:
    """The requests of one traffic table."""
    return steady.only((steady.requests["traffic"] == name).to_numpy(np.bool_))


def _ms(steady: Steady, column: str, since: str = "scheduled_at_ns") -> Floats:
    requests = steady.requests
    values: Floats = ((requests[column] - requests[since]) / 1e6).to_numpy(np.float64)
    return values


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _first_content(first: Floats, end: Floats, settings: Settings) -> ProbeCheck:
    known = ~np.isnan(first + end)
    first, end = first[known], end[known]
    typical = ms(float(np.median(first))) if len(first) else "–"
    text = f"median time to first content {typical} ms, allowed {ms(settings.first_ms)} ms"
    gain = judge.saved(np.maximum(first - settings.first_ms, 0), end)
    return judge.of_share("first_content", first > settings.first_ms, text, gain)


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
    known = _known(end)
    if not len(known):
        return judge.inconclusive("tail", "no request was answered")
    limit = SLOW_TIMES * float(np.median(known))
    slow = known > limit
    text = f"{share(float(slow.mean()))} of the requests take more than {ms(limit)} ms. {diagnosis(users).sentence}"
    return judge.of_share("tail", slow, text, judge.saved(np.maximum(known - limit, 0), known))


def _streaming(streamed: Steady, whole: Steady, threshold: float, *, streams: bool) -> list[ProbeCheck]:
    first = _known(_ms(streamed, "first_at_ns", since="sent_at_ns"))
    at_once = _known(_ms(whole, "last_content_at_ns", since="sent_at_ns"))
    later = judge.medians(at_once, first, 1 + threshold)
    held = _held_back(streamed)
    if later is None:
        return [judge.inconclusive("not_streamed", "too few answers"), held]
    text = f"a whole answer takes {later.text} the time to first content of a streamed one"
    if streams:
        return [ProbeCheck("not_streamed", len(at_once), 1.0, f"answers are already streamed; {text}"), held]
    return [judge.of_medians("not_streamed", len(at_once), later, text), held]


def _held_back(streamed: Steady) -> ProbeCheck:
    """Whether something collects the answers: not merely a short answer after a long wait."""
    requests = streamed.requests
    known = (requests["ended"] == schema.OK) & (requests["pace_tokens"] >= SEVERAL)
    late = requests.loc[known, "pace_missing"].isin((BUFFERED, AT_ONCE)).to_numpy(np.bool_)
    part = share(float(late.mean())) if len(late) else "–"
    text = f"{part} of the streamed answers were buffered or arrive at once"
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
    stalled, lost = np.zeros(len(counts), np.bool_), np.zeros(len(counts))
    stalled[stream[late]] = True
    np.add.at(lost, stream[late], gaps[late])
    text = f"{int(stalled.sum())} of {int(some.sum())} streams stall for more than a second"
    return judge.of_share(
        "stalled",
        stalled[some],
        text,
        judge.saved(lost[some], _ms(streamed, "last_content_at_ns")[some]),
    )


def _failed(steady: Steady) -> list[ProbeCheck]:
    ended = steady.sent["ended"]
    out = []
    for name, kinds in (("broken", BROKEN), ("refused", REFUSED)):
        met = ended.isin(kinds).to_numpy(np.bool_)
        which = ", ".join(f"{n} {kind}" for kind, n in ended[met].value_counts().items())
        text = f"of {len(met)} calls: {which}" if which else f"none of {len(met)} calls"
        out.append(judge.of_share(name, met, text))
    return out


def _early_headers(attempts: pd.DataFrame) -> ProbeCheck:
    good = attempts[(attempts["ended"] == schema.OK) & attempts["streamed"].eq(True)]
    headers = (good["headers_at_ns"] - good["sent_at_ns"]).to_numpy(np.float64)
    first = (good["first_content_at_ns"] - good["sent_at_ns"]).to_numpy(np.float64)
    known = ~np.isnan(headers + first) & (first > 0)
    early = headers[known] < EARLY * first[known]
    part = share(float(early.mean())) if len(early) else "–"
    text = f"{part} of the answers have their headers in the first half of the time to first content"
    return judge.of_share("early_headers", early, text, NONE)


def _connections(reading: RunReading, end: Floats) -> ProbeCheck:
    if reading.frames.run.get("dry_run"):
        return judge.inconclusive("connections", "a dry run has no connections")
    sent = reading.steady.sent
    new = sent["connection_is_new"].to_numpy(np.bool_)
    spent = sent[["dns_ns", "connect_ns", "tls_ns"]].fillna(0).sum(axis=1).to_numpy(np.float64) / 1e6
    typical = float(np.nanmean(end)) if len(end) and not np.isnan(end).all() else 0.0
    text = f"{int(new.sum())} of {len(new)} calls opened a connection"
    return judge.of_share("connections", new, text, judge.saved(spent, np.full(len(spent), typical)))


def idle_cut(steady: Steady) -> ProbeCheck:
    """Whether more calls than allowed end after the same silence, which no other call survives."""
    sent = steady.sent
    silent_s = _before_the_end_s(sent)
    cut = sent["ended"].isin(BY_OTHERS).to_numpy(np.bool_) & (silent_s >= LEAST_S)
    survived = _survived_s(steady)
    typical = float(np.median(silent_s[cut])) if cut.any() else 0.0
    cut &= np.abs(silent_s - typical) <= ALIKE * typical
    if survived > typical * (1 + ALIKE):
        cut[:] = False
    text = f"{int(cut.sum())} of {len(cut)} calls break off"
    text += f" after {typical:.3g} s without content" if cut.any() else " after a silence of equal length"
    return judge.of_share(
        "idle_cut", cut, f"{text}; the longest silence that a call survives is {survived:.3g} s"
    )


def _before_the_end_s(attempts: pd.DataFrame) -> Floats:
    last = attempts[SIGNS].max(axis=1)
    silent: Floats = ((attempts["ended_at_ns"] - last) / 1e9).to_numpy(np.float64, na_value=np.nan)
    return silent


def _survived_s(steady: Steady) -> float:
    requests = steady.requests
    waits = ((requests["first_at_ns"] - requests["sent_at_ns"]) / 1e9).to_numpy(np.float64, na_value=np.nan)
    every = np.concatenate([waits, requests["worst_gap_ns"].to_numpy(np.float64) / 1e9])
    return float(np.nanmax(every)) if (~np.isnan(every)).any() else 0.0
