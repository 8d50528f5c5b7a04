"""The run over time: latency, rates and requests in flight by scheduled time; how many waited how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tailgauge.thresholds import fewest_for
from tailgauge_analysis.metrics.timeline import FEWEST_WINDOWS, PS, WAITS, Timeline
from tailgauge_analysis.objectives.outcome import FAIL, ObjectiveResult
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import objectives
from tailgauge_analysis.text.formatting import bin_name, percentile, plain, plural
from tailgauge_analysis.text.picture import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Mark,
    Panel,
    Picture,
    PlotCurve,
    Values,
)

COLOURS = {0.5: BLUE, 0.99: ORANGE}
IN_SIGHT = 4  # times the slowest value: the bound of an objective beyond is not drawn
MS = "%{y:,.4~g} ms"
PER_S = "%{y:,.4~g}/s"
NO_P99 = f"this run is too short for a p99 over time, which needs {FEWEST_WINDOWS} windows of {fewest_for(PS[-1])} requests."


def compute(run: Run) -> Timeline:
    """Count what happened in each second."""
    return Timeline(run.frames)


def picture(run: Run) -> Picture | None:
    """Draw latency with the bounds of its objectives, rates, and requests in flight; nothing of a run without requests."""
    timeline = run.result(compute)
    if not timeline.offered_per_s.any():
        return None
    end_s = float(timeline.end_s[-1])
    slowest = np.concatenate([timeline.ttft_max_ms, *(windows.values_ms for windows in timeline.ttft)])
    highest = float(slowest[np.isfinite(slowest)].max(initial=0.0))
    waits = _waits(timeline)
    judged = run.result(objectives.compute).slo
    for objective, bound_ms in in_sight(judged, WAITS[timeline.wait], highest):
        waits.append(bound_line(objective, (0.0, end_s), (bound_ms, bound_ms)))
    offered = PlotCurve(
        timeline.at_s, timeline.offered_per_s, "offered", colour=GREY, dash="dot", hover=PER_S
    )
    ended = PlotCurve(timeline.at_s, timeline.ended_per_s, "ended", colour=GREEN, hover=PER_S)
    in_flight = PlotCurve(timeline.end_s, timeline.in_flight, "in flight", colour=PURPLE, hover="%{y:,.0f}")
    outside = ((0.0, min(run.steady.from_s, end_s)), (min(run.steady.to_s, end_s), end_s))
    return Picture(
        name="timeline",
        title="The run over time",
        caption=(
            f"Rates and requests in flight: one point per {bin_name(timeline.width_s)}, by scheduled time. {_caption(timeline)} "
            f"{timeline.wait} without failures. Shaded: outside the statistics."
        ),
        panels=(
            Panel(f"{timeline.wait} since<br>scheduled (ms)", waits, height=1.7),
            Panel("requests<br>per second", (offered, ended)),
            Panel("requests<br>in flight", (in_flight,)),
        ),
        marks=[Mark(start, stop) for start, stop in outside if stop > start],
        height=520,
    )


def _waits(timeline: Timeline) -> list[PlotCurve]:
    """Percentiles of windows that hold enough requests; without a p99, single requests and their maximum."""
    percentiles = []
    for windows in timeline.ttft:
        curve = PlotCurve(
            windows.at_s,
            windows.values_ms,
            f"{timeline.wait} {percentile(windows.p)}",
            colour=COLOURS[windows.p],
            style="line and points" if len(windows.at_s) < 100 else "line",
            hover=MS,
        )
        percentiles.append(curve)
    if _has_p99(timeline):
        return percentiles[::-1]
    requests = PlotCurve(
        *timeline.points, f"{timeline.wait} of a request", colour=GREY, style="dots", hover="skip"
    )
    largest = PlotCurve(
        timeline.at_s, timeline.ttft_max_ms, f"{timeline.wait} maximum", colour=ORANGE, hover=MS
    )
    return [requests, largest, *percentiles]


def _has_p99(timeline: Timeline) -> bool:
    return any(windows.p == PS[-1] for windows in timeline.ttft)


def _caption(timeline: Timeline) -> str:
    shown = []
    for windows in timeline.ttft:
        length = f"windows of {plural(windows.width_s, 'second')}"
        shown.append(
            f"{timeline.wait} {percentile(windows.p)}: {length} with at least {windows.fewest:,} requests."
        )
    if not _has_p99(timeline):
        point = "each request" if timeline.points_every == 1 else f"one of {timeline.points_every} requests"
        shown.append(f"A point is {point}, and the maximum is of each {bin_name(timeline.width_s)}: {NO_P99}")
    return " ".join(shown)


def in_sight(
    judged: Sequence[ObjectiveResult], metric: str, highest_ms: float
) -> Iterator[tuple[ObjectiveResult, float]]:
    """Yield the objectives on a latency, with their bounds, that are in sight of values up to the highest."""
    for objective in judged:
        bound = objective.bound
        if objective.metric == metric and bound is not None and bound <= IN_SIGHT * highest_ms:
            yield objective, bound


def bound_line(objective: ObjectiveResult, x: Values, y: Values) -> PlotCurve:
    """Return the line of an objective, with its name."""
    name = f"{plain(objective.label, 60)}: {objective.line.bound}"
    colour = RED if objective.outcome == FAIL else GREEN
    return PlotCurve(x, y, name, colour=colour, dash="dash", hover="skip")
