"""Light traffic: where the time goes, what streaming buys, and whether streams are whole.

Rule: answers of the steady stage. Times of a user begin when the request was scheduled, times of the target when it was
sent, so that what this machine adds is in no comparison.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup.check import (
    NONE,
    Check,
    Gain,
    Medians,
    medians,
    of_medians,
    of_share,
    saved,
    untold,
)
from tailgauge.experiments.checkup.probe_result import (
    STREAMED,
    WHOLE,
    Bounds,
    Measured,
    Seen,
    failed,
    latencies,
)
from tailgauge.experiments.checkup.silence import idle_cut, longest
from tailgauge.experiments.reading import Reading
from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.streams import coalescing, stalls
from tailgauge_analysis.sections.load.diagnosis import diagnosis
from tailgauge_analysis.sections.phases import phases
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import ms, share

UNKNOWN = Gain(0.5, 0.0, 1.0)
SLOW_TIMES = 3.0
LUMP = 4.0  # tokens a chunk
AT_END, AT_ONCE_MS, SEVERAL = 0.95, 0.1, 10  # of the whole answer's time; a token; tokens of an answer
EARLY = 0.5  # of the time to the first content
REFUSED = (schema.RATE_LIMITED, schema.OVERLOADED)
BROKEN = (
    schema.SERVER_ERROR, schema.CLIENT_ERROR, schema.CONNECT_ERROR, schema.TIMEOUT, schema.STREAM_ERROR,
    schema.TRUNCATED,
)  # fmt: skip


def light(reading: Reading, bounds: Bounds) -> Seen:
    """Everything that a run at today's rate, some of it not streamed, tells."""
    steady = reading.steady
    streamed, whole = (of(steady, name) for name in (STREAMED, WHOLE))
    own = streamed if bounds.streams else whole
    first, end = _ms(own, "first_at_ns"), _ms(own, "last_content_at_ns")
    checks = [
        _first_content(first, end, bounds),
        _pace(streamed, bounds),
        _tail(own, end),
        *_streaming(streamed, whole, bounds),
        _coalesced(streamed),
        _stalled(streamed),
        *_failed(steady),
        idle_cut(steady),
        _early_headers(steady.attempts),
        _connections(reading, end),
    ]
    known = ~np.isnan(first)
    measured = [
        *_split(first, end), *_phases(reading),
        *latencies("first content", first[known]), *latencies("whole answer", end[~np.isnan(end)]),
        *_bought(streamed, whole), *longest(steady),
    ]  # fmt: skip
    sent = _ms(streamed, "first_at_ns", since="sent_at_ns")
    alone = _ms(streamed, "last_content_at_ns", since="sent_at_ns")
    samples = {"first": sent[~np.isnan(sent)], "alone": alone[~np.isnan(alone)]}
    return Seen(tuple(checks), tuple(measured), samples, failed(reading))


def _split(first: Floats, end: Floats) -> list[Measured]:
    """How much of all that users wait is before the first content."""
    before = saved(first, end)
    ends = f"{share(before.low)} to {share(before.high)}"
    return [Measured("part of the wait before the first content", share(before.value), ends, len(end))]


def _phases(reading: Reading) -> list[Measured]:
    """Where the time goes by the target's own log, where it has one."""
    found = phases(reading.frames, reading.steady)
    return [
        Measured(f"part of the time in {part.name}", share(part.share), "–", part.n)
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


def _first_content(first: Floats, end: Floats, bounds: Bounds) -> Check:
    known = ~np.isnan(first + end)
    first, end = first[known], end[known]
    typical = ms(float(np.median(first))) if len(first) else "–"
    said = f"the first content comes after {typical} ms in the median, {ms(bounds.first_ms)} ms are borne"
    gain = saved(np.maximum(first - bounds.first_ms, 0), end)
    return of_share("first_content", first > bounds.first_ms, 0.5, said, gain)


def _pace(streamed: Steady, bounds: Bounds) -> Check:
    tokens = streamed.requests["output_tokens"].to_numpy(np.float64)
    end = _ms(streamed, "last_content_at_ns")
    after = end - _ms(streamed, "first_at_ns")
    known = (tokens >= 2) & ~np.isnan(after) & (streamed.gap_counts > 0)
    each, limit = after[known] / (tokens[known] - 1), 1000 / bounds.tokens_per_s
    typical = float(np.median(each)) if len(each) else 0.0
    rate = f"{1000 / typical:.3g}" if typical > 0 else "–"
    said = f"half of the answers flow at {rate} tokens/s or less, {bounds.tokens_per_s:g} are wanted"
    gain = saved(np.maximum(each - limit, 0) * (tokens[known] - 1), end[known])
    return of_share("pace", each > limit, 0.5, said, gain)


def _tail(own: Steady, end: Floats) -> Check:
    known = end[~np.isnan(end)]
    if not len(known):
        return untold("tail", "no request was answered")
    limit = SLOW_TIMES * float(np.median(known))
    slow = known > limit
    said = f"{share(float(slow.mean()))} of the requests take more than {ms(limit)} ms. {diagnosis(own).sentence}"
    return of_share("tail", slow, 0.05, said, saved(np.maximum(known - limit, 0), known))


def _streaming(streamed: Steady, whole: Steady, bounds: Bounds) -> list[Check]:
    first, at_once = (
        _ms(streamed, "first_at_ns", since="sent_at_ns"),
        _ms(whole, "last_content_at_ns", since="sent_at_ns"),
    )
    first, at_once = first[~np.isnan(first)], at_once[~np.isnan(at_once)]
    later = medians(at_once, first, 1 + bounds.threshold)
    held = _held_back(streamed)
    if later is None:
        return [untold("not_streamed", "too few answers"), held]
    said = f"a whole answer comes {later.value:.2f} times as late as the first content of a streamed one ({later.low:.2f} to {later.high:.2f})"
    if bounds.streams:
        return [Check("not_streamed", len(at_once), 1.0, f"answers are streamed already; {said}"), held]
    return [
        of_medians("not_streamed", len(at_once), later, said),
        held,
    ]


def _held_back(streamed: Steady) -> Check:
    """Whether all of an answer comes at once, late: not merely a short answer after a long wait."""
    tokens = streamed.requests["output_tokens"].to_numpy(np.float64)
    first, end = (_ms(streamed, name, since="sent_at_ns") for name in ("first_at_ns", "last_content_at_ns"))
    known = ~np.isnan(first + end) & (tokens >= SEVERAL)
    first, end, tokens = first[known], end[known], tokens[known]
    late = (first >= AT_END * end) & (end - first < AT_ONCE_MS * tokens)
    part = share(float(late.mean())) if len(late) else "–"
    said = f"{part} of the streamed answers come all at once, at their end"
    said += "; how early they could begin cannot be seen from here" if late.any() else ""
    return of_share("held_back", late, 0.5, said, UNKNOWN)


def _bought(streamed: Steady, whole: Steady) -> list[Measured]:
    first = _ms(streamed, "first_at_ns", since="sent_at_ns")
    at_once = _ms(whole, "last_content_at_ns", since="sent_at_ns")
    found: Medians | None = medians(at_once[~np.isnan(at_once)], first[~np.isnan(first)], 1.0)
    if found is None:
        return []
    n = len(first)
    text = f"{found.low:.2f} to {found.high:.2f}"
    return [
        Measured(
            "whole answer not streamed / first content streamed (medians)",
            f"{found.value:.2f} times",
            text,
            n,
        )
    ]


def _coalesced(streamed: Steady) -> Check:
    requests = streamed.requests
    tokens = requests["output_tokens"].to_numpy(np.float64)
    each = coalescing(tokens, requests["answer_chunks"].to_numpy(np.float64))
    end = _ms(streamed, "last_content_at_ns")
    known = ~np.isnan(each + end) & (tokens > 2 * LUMP)
    each = each[known]
    typical = float(np.median(each)) if len(each) else 0.0
    pace = (end - _ms(streamed, "first_at_ns"))[known] / tokens[known]
    said = f"tokens a chunk of the median answer: {typical:.3g}"
    return of_share("coalesced", each > LUMP, 0.5, said, saved((each - 1) * pace, end[known]))


def _stalled(streamed: Steady) -> Check:
    counts = streamed.gap_counts
    some = counts > 0
    stream = np.repeat(np.arange(len(counts)), counts)
    gaps = streamed.gaps_ns / 1e6
    late = stalls(gaps, stream) if len(gaps) else np.zeros(0, np.bool_)
    stood, lost = np.zeros(len(counts), np.bool_), np.zeros(len(counts))
    stood[stream[late]] = True
    np.add.at(lost, stream[late], gaps[late])
    said = f"{int(stood.sum())} of {int(some.sum())} streams stand still for more than a second"
    return of_share(
        "stalled", stood[some], 0.01, said, saved(lost[some], _ms(streamed, "last_content_at_ns")[some])
    )


def _failed(steady: Steady) -> list[Check]:
    ended = steady.sent["ended"]
    out = []
    for name, kinds in (("broken", BROKEN), ("refused", REFUSED)):
        met = ended.isin(kinds).to_numpy(np.bool_)
        which = ", ".join(f"{n} {kind}" for kind, n in ended[met].value_counts().items())
        said = f"of {len(met)} calls: {which}" if which else f"none of {len(met)} calls"
        out.append(of_share(name, met, 0.01, said))
    return out


def _early_headers(attempts: pd.DataFrame) -> Check:
    good = attempts[(attempts["ended"] == schema.OK) & attempts["streamed"].eq(True)]
    headers = (good["headers_at_ns"] - good["sent_at_ns"]).to_numpy(np.float64)
    first = (good["first_content_at_ns"] - good["sent_at_ns"]).to_numpy(np.float64)
    known = ~np.isnan(headers + first) & (first > 0)
    early = headers[known] < EARLY * first[known]
    part = share(float(early.mean())) if len(early) else "–"
    said = f"{part} of the answers have their headers in the first half of the time to their first content"
    return of_share("early_headers", early, 0.1, said, NONE)


def _connections(reading: Reading, end: Floats) -> Check:
    if reading.frames.run.get("dry_run"):
        return untold("connections", "virtual time has no connections")
    sent = reading.steady.sent
    new = sent["connection_is_new"].to_numpy(np.bool_)
    spent = sent[["dns_ns", "connect_ns", "tls_ns"]].fillna(0).sum(axis=1).to_numpy(np.float64) / 1e6
    typical = float(np.nanmean(end)) if len(end) and not np.isnan(end).all() else 0.0
    said = f"{int(new.sum())} of {len(new)} calls opened a connection"
    return of_share("connections", new, 0.2, said, saved(spent, np.full(len(spent), typical)))
