"""Stability: was the steady stage a steady state of the target?

Judged where the offered load does not change on purpose, from the wait of each request for what its user waits for: the
first content, a fan-out's join, a batch. A request that failed waits forever, one that was abandoned as long as its user
did, so a target that stops answering is not stable. What is found is a finding about the target, not a fault of the
measurement; only a warm-up that reaches into the stage is the latter (verdict/checks.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics import backlog
from tailgauge_analysis.metrics.answers import ONE_ANSWER
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats import stationarity
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.stats.stationarity import Growth, Stretch, differs_at
from tailgauge_analysis.text.formatting import clock, count, figures, ms, percentile, sentence, share
from tailgauge_analysis.text.json_values import number, one_of, table

FEWEST = 200  # requests
LEAST_GROWTH = 0.02  # of the offered rate: less is a slower answer rather than a backlog
TURNS = 5.0  # per user
BACKLOG = "backlog"
TREND = "trend"
CHANGE = "change"
WARMUP = "warm-up"
DEPENDS = "Percentiles depend on the length of the run."


@dataclass(frozen=True, slots=True)
class Finding:
    """What was not steady, and when."""

    kind: Annotated[str, one_of(BACKLOG, TREND, CHANGE, WARMUP)]
    from_s: float
    to_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether the stage was steady; None: not judged. Growth is of requests in flight, in an open loop; turns are per user, in a
    closed one.
    """

    stable: bool | None
    findings: tuple[Finding, ...]
    growth_per_s: float | None
    detectable_growth_per_s: float | None
    turns: float | None
    sentence: str

    def of(self, kind: str) -> Finding | None:
        """The finding of a kind."""
        return next((one for one in self.findings if one.kind == kind), None)


def stability(frames: Frames, of_target: Steady, rates: Throughput) -> Stability:
    """Judge a run."""
    least = LEAST_GROWTH * (rates.offered_per_s or 0.0)
    is_open = frames.run["arrival"] == "open"
    growth = backlog.growth(frames, of_target) if is_open else None
    detectable = None if growth is None else max(least, growth.detectable_per_s)
    per_s = backlog.piled_per_s(frames, of_target) if growth is None else growth.per_s
    is_sustained = not per_s
    if growth is not None:
        is_sustained = not (growth.rises and growth.per_s > least and backlog.is_even(frames))
    not_judged = _not_judged(frames, of_target)
    findings: list[Finding] = []
    if not is_sustained:
        text = f"The target does not sustain this rate: backlog grows by {figures(per_s or 0.0)} requests/s."
        findings = [Finding(BACKLOG, of_target.from_s, of_target.to_s, text)]
    elif not not_judged:
        findings = _changes(of_target, growth)
    summary = " ".join(finding.text for finding in findings)
    if not findings:
        summary = not_judged or "The steady stage shows no change."
        if detectable is not None:
            summary += f" A backlog that grows by {figures(detectable)} requests/s or more would be detected."
    return Stability(
        stable=None if not_judged and not findings else not findings,
        findings=tuple(findings),
        growth_per_s=per_s,
        detectable_growth_per_s=detectable,
        turns=_turns(frames, of_target, rates),
        sentence=summary,
    )


def _turns(frames: Frames, stage: Steady, rates: Throughput) -> float | None:
    """Turns per user of a closed loop."""
    arrival = table(frames.run["scenario"], "arrival")
    users = number(table(arrival, "closed").get("users")) if arrival.get("process") == "closed" else None
    return (rates.completed_per_s or 0.0) * stage.seconds / users if users else None


def remarks(found: Stability, seconds: float) -> list[str]:
    """What a reader of percentiles must know of it."""
    texts = [one.text for one in found.findings if one.kind != WARMUP]
    texts = [" ".join([*texts, DEPENDS])] if texts else []
    if found.turns is not None and found.turns < TURNS:
        held = f"The steady stage holds {figures(found.turns)} turns per user, {TURNS:g} are needed."
        needed = f" Run at least {count(math.ceil(seconds * TURNS / found.turns))} s." if found.turns else ""
        texts.append(held + needed)
    return texts


def waits_ms(of_target: Steady) -> Floats:
    """The wait of each request, in order of arrival; +inf without an answer. Those that the client dropped are left out."""
    requests = of_target.requests[of_target.requests["ended"] != schema.CLIENT_DROP]
    seen = of_target.attempts.groupby("request_id")["first_content_at_ns"].min()
    left = requests["request_id"].map(seen).where(requests["ended"] == schema.CANCELLED)
    until = requests["first_at_ns"].fillna(requests["joined_at_ns"]).fillna(left)
    until = until.fillna(requests["ended_at_ns"])
    until = until.where(requests["ended"].isin(schema.NOT_FAILED), np.inf)
    return ((until - requests["scheduled_at_ns"]) / 1e6).to_numpy(np.float64)


def _not_judged(frames: Frames, of_target: Steady) -> str:
    if not backlog.is_even(frames):
        return "Stability is not judged: the offered load or the traffic changes on purpose."
    if len(of_target.requests) < FEWEST or of_target.seconds < backlog.FEWEST_S:
        return f"Stability is not judged below {FEWEST} requests and {backlog.FEWEST_S:g} s."
    return ""


def _changes(of_target: Steady, grows: Growth | None) -> list[Finding]:
    """A trend or a stretch that differs, whichever fits better; of a stretch at the start, also what follows it."""
    waits = waits_ms(of_target)
    kept = of_target.requests["ended"] != schema.CLIENT_DROP
    at_s = of_target.requests.loc[kept, "scheduled_at_ns"].to_numpy(np.float64) / 1e9
    name = "TTFT" if of_target.requests["answer"].isin(ONE_ANSWER).all() else "wait"
    direction = stationarity.trend(waits)
    found = stationarity.change(waits)
    if direction and (found is None or stationarity.linear_fit(waits) > found.fit):
        third = len(waits) // 3
        text = f"{sentence(name)} {'rises' if direction > 0 else 'falls'} over the steady stage: its last third has "
        text += compared(waits[-third:], waits[:third], "its first", name)
        if direction > 0 and grows and grows.per_s > 0:
            text += f", and the backlog grew by {figures(grows.per_s)} requests/s"
        return [Finding(TREND, of_target.from_s, of_target.to_s, f"{text}.")]
    return [_stretch(found, waits, at_s, of_target, name)] if found else []


def _stretch(found: Stretch, waits: Floats, at_s: Floats, stage: Steady, name: str) -> Finding:
    n = len(waits)
    (begin, end) = (found.begin, found.end)
    inside = np.zeros(n, np.bool_)
    inside[begin:end] = True
    some = waits[inside]
    rest = waits[~inside]
    from_s = stage.from_s if begin == 0 else float(at_s[begin])
    to_s = stage.to_s if end == n else float(at_s[end])
    slower = float(stationarity.ranks(waits)[inside].mean()) > 0.5
    if begin == 0 and slower and stationarity.change(rest) is None and not stationarity.trend(rest):
        text = f"The first {to_s - stage.from_s:,.3g} s of the steady stage look like warm-up: they have "
        return Finding(WARMUP, from_s, to_s, f"{text}{compared(some, rest, 'the rest', name)}.")
    when = f"From {clock(from_s)} to {clock(to_s)} the target was {'slower' if slower else 'faster'}: "
    return Finding(CHANGE, from_s, to_s, f"{when}{compared(some, rest, 'the rest of the stage', name)}.")


def compared(some: Floats, others: Floats, which: str, name: str) -> str:
    """`a median TTFT of 900 ms, the rest 200 ms`; of shares that failed, where that is the difference."""
    p = differs_at(some, others) or 0.5
    values = [float(np.quantile(v, p, method="inverted_cdf")) for v in (some, others)]
    if np.isinf(values).any():
        failed = [share(float(np.isinf(v).mean())) for v in (some, others)]
        return f"{failed[0]} failed requests, {which} {failed[1]}"
    what = "median" if p == 0.5 else percentile(p)
    return f"a {what} {name} of {ms(values[0])} ms, {which} {ms(values[1])} ms"
