"""Stability: was the steady stage a steady state of the target?

Judged where the offered load does not change on purpose, from the wait of each request for what its user waits for: the
first content, a fan-out's join, a batch. A request that failed waits forever, one that was abandoned as long as its user
did, so a target that stops answering is not stable. What is found is a finding about the target, not a fault of the
measurement; only a warm-up that reaches into the stage is the latter (verdict/checks.py).

A request waits from when it was sent as it should have been: what the client was late is the client's, and so is what the
target did with requests that then came at once. A stretch in which the client was late is named as such, and left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics import backlog
from tailgauge_analysis.metrics.answers import LEFT, ONE_ANSWER
from tailgauge_analysis.metrics.backlog import Backlog
from tailgauge_analysis.metrics.client_delays import ClientDelays, client_delays
from tailgauge_analysis.metrics.slots import users
from tailgauge_analysis.metrics.steady import Steady, at_slots, is_of_tasks
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.metrics.unanswered import (
    Silence,
    Unanswered,
    gone_since,
    silence,
    unanswered,
)
from tailgauge_analysis.metrics.waiting import Waiting, late_ns, opening_ns, waiting
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats import stationarity
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.stats.stationarity import Stretch, differs_at
from tailgauge_analysis.text.formatting import (
    between,
    count,
    figures,
    ms,
    percentile,
    plural,
    sentence,
    share,
)
from tailgauge_analysis.text.json_values import one_of, table
from tailgauge_analysis.text.quantile import UNPUBLISHED

FEWEST = 200  # requests
TURNS = 5.0  # per user
MOST_BY_CLIENT = 1 / 3  # of the requests: with more, the target is not judged
BACKLOG = "backlog"
TREND = "trend"
CHANGE = "change"
WARMUP = "warm-up"
UNANSWERED = "unanswered"
CLIENT = "client"
KINDS = (BACKLOG, TREND, CHANGE, WARMUP, UNANSWERED, CLIENT)
OF_LENGTH = (BACKLOG, TREND, CHANGE)
DEPENDS = "Percentiles depend on the length of the run."


@dataclass(frozen=True, slots=True)
class Finding:
    """What was not steady, and when. Of the kind `client` it is not about the target."""

    kind: Annotated[str, one_of(*KINDS)]
    from_s: float
    to_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether the stage was steady; None: not judged. Growth is of requests that wait, in an open or partly open
    loop; turns are per user, in a closed one. `gone_since_s`: since when the target gave no sign, to the end.
    """

    stable: bool | None
    findings: tuple[Finding, ...]
    growth_per_s: float | None
    detectable_growth_per_s: float | None
    turns: float | None
    sentence: str
    gone_since_s: float | None = None
    silence: Silence | None = field(default=None, metadata=UNPUBLISHED)
    unanswered: Unanswered | None = field(default=None, metadata=UNPUBLISHED)

    def of(self, kind: str) -> Finding | None:
        """Return the finding of a kind; None without one."""
        for finding in self.findings:
            if finding.kind == kind:
                return finding
        return None


@dataclass(frozen=True, slots=True)
class _Series:
    """Waits of the steady stage in order of sending, in ms, without what the client delayed."""

    waits_ms: Floats
    at_s: Floats
    name: str


def stability(frames: Frames, stage: Steady, rates: Throughput) -> Stability:
    """Return whether the target was in a steady state over the stage, and what was not steady.

    `stage`: without the requests that were read slowly on purpose. What the client delayed is a finding of its own, which
    leaves `stable` as it is. `stable` is None where nothing was found and the stage cannot be judged.
    """
    waits = waiting(frames, stage.to_s)
    delays = client_delays(frames, stage, waits)
    lost = unanswered(frames, stage)
    gone_s = gone_since(frames)
    is_delayed = delays.cover(waits.begun_s[waits.is_steady])
    # So many requests were delayed by the client that the target cannot be judged.
    is_hidden = bool(len(is_delayed)) and float(is_delayed.mean()) > MOST_BY_CLIENT
    growth = None
    if frames.run["arrival"] != "closed" and not is_hidden:
        growth = _growth(stage, waits, gone_s)
    not_judged = _not_judged(frames, stage)
    findings: list[Finding] = []
    if is_hidden:
        not_judged = f"Stability is not judged: the client was late for {share(float(is_delayed.mean()))} of the requests."
    elif growth is not None and growth.grows and backlog.is_load_constant(frames):
        rate = f"this rate{at_slots(frames.run['scenario'])}"
        text = f"The target does not sustain {rate}: backlog grows by {figures(growth.per_s)} requests/s."
        findings = [Finding(BACKLOG, stage.from_s, stage.to_s, text)]
    elif not not_judged:
        findings = _changes(
            stage,
            _series(frames, stage, delays, lost),
            delays,
            growth,
        )
    pause = silence(frames, stage)
    if pause is not None and (is_hidden or delays.touch(pause.from_s, pause.to_s)):
        pause = None
    if pause is not None:
        # The silence explains a stretch that differs, and replaces it.
        findings = [finding for finding in findings if finding.kind != CHANGE]
        findings.append(_of_silence(pause))
    if lost is not None:
        findings.append(Finding(UNANSWERED, stage.from_s, stage.to_s, lost.sentence))
    is_stable = None if not_judged and not findings else not findings
    if delays.sentence:
        worst = delays.worst
        findings.append(Finding(CLIENT, worst.from_s, worst.to_s, delays.sentence))
    return Stability(
        stable=is_stable,
        findings=tuple(findings),
        growth_per_s=None if growth is None else growth.per_s,
        detectable_growth_per_s=None if growth is None else growth.detectable_per_s,
        turns=_turns(frames, stage, rates),
        sentence=_summary(findings, growth, not_judged if is_stable is None else ""),
        gone_since_s=gone_s,
        silence=pause,
        unanswered=lost,
    )


def _of_silence(pause: Silence) -> Finding:
    waited = f"{plural(pause.requests, 'request')} sent meanwhile waited for it"
    text = f"{sentence(between(pause.from_s, pause.to_s))} the target was silent: {waited}."
    return Finding(CHANGE, pause.from_s, pause.to_s, text)


def _growth(stage: Steady, waits: Waiting, gone_s: float | None) -> Backlog | None:
    """Return how the backlog grows until the target was gone, if it was."""
    to_s = stage.to_s
    if gone_s is not None:
        to_s = min(to_s, gone_s)
    if to_s <= stage.from_s:
        return None
    return backlog.backlog(waits, stage.from_s, to_s)


def _summary(findings: list[Finding], growth: Backlog | None, not_judged: str) -> str:
    texts = [finding.text for finding in findings]
    if any(finding.kind != CLIENT for finding in findings):
        return " ".join(texts)
    texts.insert(0, not_judged or "The steady stage shows no change.")
    if growth is not None:
        size = figures(growth.detectable_per_s)
        texts.append(f"The run can miss a backlog that grows by less than {size} requests/s.")
    return " ".join(texts)


def _turns(frames: Frames, stage: Steady, rates: Throughput) -> float | None:
    """Turns per user of a closed loop."""
    count = users(frames)
    if not count:
        return None
    return (rates.completed_per_s or 0.0) * stage.seconds / count


def remarks(result: Stability, seconds: float, *, names_backlog: bool = True) -> list[str]:
    """Return what a reader of percentiles must know of it."""
    of_length = _texts(result.findings, OF_LENGTH)
    if result.of(BACKLOG) and not names_backlog:
        of_length = []
    texts = []
    if of_length:
        texts.append(" ".join([*of_length, DEPENDS]))
    texts += _texts(result.findings, (UNANSWERED, CLIENT))
    if result.turns is not None and result.turns < TURNS:
        turns = (
            f"The steady stage holds {figures(result.turns)} turns per user, {TURNS:g} are needed."
        )
        if result.turns:
            turns += f" Run at least {count(math.ceil(seconds * TURNS / result.turns))} s."
        texts.append(turns)
    return texts


def _texts(findings: Sequence[Finding], kinds: Sequence[str]) -> list[str]:
    """Return the texts of the findings of these kinds."""
    texts = []
    for finding in findings:
        if finding.kind in kinds:
            texts.append(finding.text)
    return texts


def _series(
    frames: Frames, stage: Steady, delays: ClientDelays, lost: Unanswered | None
) -> _Series:
    """Return how long each request waited for its answer, in order of sending, without those that the client delayed.

    A request that failed, or that is among `lost`, waits forever (+inf); one that was open at the end waited until then.
    The last ones of which half are open are left out: they have waited the shorter the later they came.
    """
    requests = stage.requests[stage.requests["ended"] != schema.CLIENT_DROP]
    content_ns = stage.attempts.groupby("request_id")["first_content_at_ns"].min()
    abandoned_ns = requests["request_id"].map(content_ns).where(requests["ended"].isin(LEFT))
    over_ns = requests["first_at_ns"].fillna(requests["joined_at_ns"]).fillna(abandoned_ns)
    over_ns = over_ns.fillna(requests["over_at_ns"])
    over_ns = over_ns.where(requests["ended"].isin((*schema.NOT_FAILED, schema.CENSORED)), np.inf)
    if lost is not None:
        over_ns = over_ns.mask(requests["request_id"].isin(lost.ids), np.inf)
    begun_ns = requests["scheduled_at_ns"] + late_ns(frames, requests).fillna(0.0)
    if frames.run["arrival"] == "closed":
        # Its users begin to wait when the request is sent, as in its TTFT.
        begun_ns += opening_ns(frames, requests)
    begun_s = (begun_ns / 1e9).to_numpy(np.float64)
    order = np.argsort(begun_s, kind="stable")
    waits_ms = ((over_ns - begun_ns) / 1e6).to_numpy(np.float64)
    at_s = (requests["scheduled_at_ns"] / 1e9).to_numpy(np.float64)
    is_open = (
        (requests["ended"] == schema.CENSORED)
        & requests["joined_at_ns"].isna()
        & np.isfinite(waits_ms)
    )
    is_open &= requests["first_at_ns"].isna() & abandoned_ns.isna()
    is_known = np.isfinite(stationarity.smoothed(np.where(is_open, np.inf, 0.0)[order]))
    order = order[: int(np.flatnonzero(is_known).max(initial=-1)) + 1]
    order = order[~delays.cover(begun_s[order])]
    name = "TTFT" if stage.requests["answer"].isin(ONE_ANSWER).all() else "wait"
    return _Series(waits_ms[order], at_s[order], name)


def _not_judged(frames: Frames, stage: Steady) -> str:
    """Return why a trend or a change would mean nothing; empty where the load stays even for long enough."""
    if not backlog.is_load_constant(frames):
        return f"Stability is not judged: {_why_uneven(frames)}."
    if len(stage.requests) < FEWEST or stage.seconds < backlog.FEWEST_S:
        return f"Stability is not judged below {FEWEST} requests and {backlog.FEWEST_S:g} s."
    return ""


def _why_uneven(frames: Frames) -> str:
    scenario = frames.run["scenario"]
    if is_of_tasks(scenario):
        return "how much Locust's users send depends on their number, their tasks and the answers"
    if table(scenario, "arrival").get("process") == "trace":
        return "the offered load follows a trace"
    return "the offered load or the traffic changes on purpose"


def _changes(
    stage: Steady, series: _Series, delays: ClientDelays, growth: Backlog | None
) -> list[Finding]:
    """Return a trend or a stretch that differs, whichever fits better; of a stretch at the start, also what follows it."""
    waits_ms = series.waits_ms
    direction = stationarity.trend(waits_ms)
    stretch = stationarity.change(waits_ms)
    if direction and (stretch is None or stationarity.linear_fit(waits_ms) > stretch.fit):
        return [_trend(stage, series, direction, growth)]
    if stretch is None:
        return []
    change = _stretch(stretch, series, stage)
    if delays.touch(change.from_s, change.to_s):
        return []
    return [change]


def _trend(stage: Steady, series: _Series, direction: int, growth: Backlog | None) -> Finding:
    third = len(series.waits_ms) // 3
    verb = "rises" if direction > 0 else "falls"
    text = f"{sentence(series.name)} {verb} over the steady stage: its last third has "
    text += compared(series.waits_ms[-third:], series.waits_ms[:third], "its first", series.name)
    if direction > 0 and growth is not None and growth.per_s > 0:
        text += f", and the backlog grew by {figures(growth.per_s)} requests/s"
    return Finding(TREND, stage.from_s, stage.to_s, f"{text}.")


def _stretch(stretch: Stretch, series: _Series, stage: Steady) -> Finding:
    """Return the finding on the part of the series that differs from the rest: a warm-up, or else a change.

    It is a warm-up if it is at the begin and slower, and the rest is steady. `stretch` counts places in the series.
    """
    n = len(series.waits_ms)
    begin = stretch.begin
    end = stretch.end
    inside = np.zeros(n, np.bool_)
    inside[begin:end] = True
    values_ms = series.waits_ms[inside]
    rest_ms = series.waits_ms[~inside]
    from_s = stage.from_s
    if begin > 0:
        from_s = float(series.at_s[begin])
    to_s = stage.to_s
    if end < n:
        to_s = float(series.at_s[end])
    # Its mean rank among all waits, from 0 to 1.
    is_slower = float(stationarity.ranks(series.waits_ms)[inside].mean()) > 0.5
    is_steady_then = stationarity.change(rest_ms) is None and not stationarity.trend(rest_ms)
    if begin == 0 and is_slower and is_steady_then:
        text = f"The first {to_s - stage.from_s:,.3g} s of the steady stage look like warm-up: they have "
        text += compared(values_ms, rest_ms, "the rest", series.name)
        return Finding(WARMUP, from_s, to_s, f"{text}.")
    speed = "slower" if is_slower else "faster"
    text = f"{sentence(between(from_s, to_s))} the target was {speed}: "
    text += compared(values_ms, rest_ms, "the rest of the stage", series.name)
    return Finding(CHANGE, from_s, to_s, f"{text}.")


def compared(sample: Floats, baseline: Floats, baseline_name: str, name: str) -> str:
    """`a median TTFT of 900 ms, the rest 200 ms`; of shares that failed, where that is the difference."""
    p = differs_at(sample, baseline) or 0.5
    value = stationarity.quantile(sample, p)
    baseline_value = stationarity.quantile(baseline, p)
    if math.isinf(value) or math.isinf(baseline_value):
        failed = share(float(np.isinf(sample).mean()))
        baseline_failed = share(float(np.isinf(baseline).mean()))
        return f"{failed} failed requests, {baseline_name} {baseline_failed}"
    statistic = "median"
    if p != 0.5:
        statistic = percentile(p)
    return f"a {statistic} {name} of {ms(value)} ms, {baseline_name} {ms(baseline_value)} ms"
