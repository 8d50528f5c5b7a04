"""The first figure of the report: how requests ended, when calls failed, latency, and requests in flight, over the time of the run.

What is drawn is counted in metrics/timeline.py; failed calls and shaded times are in incidents.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tailgauge.rows import schema
from tailgauge.thresholds import fewest_for
from tailgauge_analysis.metrics.steady import is_of_tasks
from tailgauge_analysis.metrics.timeline import FEWEST_WINDOWS, QUANTILES, WAITS, Timeline
from tailgauge_analysis.objectives.outcome import FAIL, PASS, ObjectiveResult
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import incidents, objectives
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
OUTCOME_COLOURS = {PASS: GREEN, FAIL: RED}
COMPLETE_COLOUR = "#86b8a2"
NOT_COUNTED_AS_FAILED = schema.NOT_FAILED | {schema.CENSORED, schema.CLIENT_DROP}
HEIGHT_PX = 120  # of the panel with requests in flight, and so on
FRAME = 0.9  # of that height: legend, time axis
NO_P99 = f"this run is too short for a p99 over time, which needs {FEWEST_WINDOWS} windows of {fewest_for(QUANTILES[-1])} requests."


def compute(run: Run) -> Timeline:
    """Count what happened in each second."""
    return Timeline(run.frames)


def picture(run: Run) -> Picture | None:
    """Draw requests by how they ended, failed calls, latency with its objectives, and requests in flight; None without a request.

    All panels share the time axis, in seconds of the run. A panel without a value is left out. Grey marks: the warm-up, and
    what follows the steady stage.
    """
    timeline = run.result(compute)
    if not timeline.offered_per_s.any():
        return None
    end_s = float(timeline.end_s[-1])
    # A row of ticks for each kind of failed call.
    failures = incidents.failed_calls(run)
    latency = _latency(run, timeline, end_s)
    panels = [Panel("requests<br>per second", _outcomes(timeline), height=1.1)]
    panels += [panel for panel in (failures, latency) if panel is not None]
    if timeline.in_flight.any():
        hover = "%{y:,.0f} in flight"
        in_flight = PlotCurve(timeline.end_s, timeline.in_flight, colour=PURPLE, hover=hover)
        panels.append(Panel("requests<br>in flight", (in_flight,), height=0.7))
    marks = []
    steady_from_s = min(run.steady.from_s, end_s)
    steady_to_s = min(run.steady.to_s, end_s)
    for start, stop in ((0.0, steady_from_s), (steady_to_s, end_s)):
        if stop > start:
            marks.append(Mark(start, stop))
    ticks = "" if failures is None else "Each tick is a failed call, at its end. "
    waits = ""
    if latency is not None:
        waits = f"{_caption(timeline)} The {timeline.wait} leaves out failures. "
    return Picture(
        name="timeline",
        title="The run over time",
        caption=(
            f"Requests count in the {bin_name(timeline.width_s)} in which they were scheduled, by how they ended. {ticks}{waits}"
            "Grey parts are outside the statistics."
        ),
        panels=panels,
        marks=[*marks, *incidents.marks(run, end_s)],
        height=round(HEIGHT_PX * (FRAME + sum(panel.height for panel in panels))),
    )


def _outcomes(timeline: Timeline) -> list[PlotCurve]:
    """Return bars of the requests of each time by how they ended, those that failed on top."""
    failed = [name for name in timeline.classes_per_s if name not in NOT_COUNTED_AS_FAILED]
    kinds = (
        ("complete", schema.COMPLETE, COMPLETE_COLOUR),
        ("cancelled", (schema.CANCELLED,), GREY),
        ("still open at the end", (schema.CENSORED,), ORANGE),
        ("not sent by the client", (schema.CLIENT_DROP,), PURPLE),
        ("failed", failed, RED),
    )
    bars = []
    for name, classes, colour in kinds:
        per_s = timeline.per_s(classes)
        if per_s.any():
            bars.append(
                PlotCurve(timeline.at_s, per_s, name, colour=colour, style="bars", hover=PER_S)
            )
    return bars


def _latency(run: Run, timeline: Timeline, end_s: float) -> Panel | None:
    """Return the panel of waits with the bounds of their objectives; None where nothing was answered.

    `end_s`: the end of the time axis. Bounds far above all waits are not drawn.
    """
    all_waits_ms = np.concatenate(
        [timeline.ttft_max_ms, *(windows.values_ms for windows in timeline.ttft)]
    )
    highest_ms = float(all_waits_ms[np.isfinite(all_waits_ms)].max(initial=0.0))
    if not highest_ms:
        return None
    judged = run.result(objectives.compute).slo
    drawn_objectives = list(in_sight(judged, WAITS[timeline.wait], highest_ms))
    # Requests beyond the lowest bound of a failed objective are red.
    lowest_missed_ms = math.inf
    for objective, bound_ms in drawn_objectives:
        if objective.outcome == FAIL:
            lowest_missed_ms = min(lowest_missed_ms, bound_ms)
    curves = _waits(timeline, lowest_missed_ms)
    for objective, bound_ms in drawn_objectives:
        curves.append(bound_line(objective, (0.0, end_s), (bound_ms, bound_ms)))
    clock = "requested" if is_of_tasks(run.record["scenario"]) else "scheduled"
    return Panel(f"{timeline.wait} since<br>{clock} (ms)", curves, height=1.6)


def _waits(timeline: Timeline, missed_ms: float) -> list[PlotCurve]:
    """Return percentiles of windows that hold enough requests; where these are too few for a p99, also single requests and their maximum.

    Requests beyond `missed_ms`, the bound of an objective that is missed, are red; infinite: none.
    """
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
    # Single requests: all of them, or every so many of a long run.
    at_s, waits_ms = timeline.points
    is_beyond = waits_ms > missed_ms
    name = f"{timeline.wait} of a request"
    points = [
        PlotCurve(
            at_s[~is_beyond], waits_ms[~is_beyond], name, colour=GREY, style="dots", hover="skip"
        )
    ]
    if is_beyond.any():
        name = "beyond the objective"
        points.append(
            PlotCurve(
                at_s[is_beyond], waits_ms[is_beyond], name, colour=RED, style="dots", hover="skip"
            )
        )
    maximum = PlotCurve(
        timeline.at_s, timeline.ttft_max_ms, f"{timeline.wait} maximum", colour=ORANGE, hover=MS
    )
    return [*points, maximum, *percentiles]


def _has_p99(timeline: Timeline) -> bool:
    return any(windows.p == QUANTILES[-1] for windows in timeline.ttft)


def _caption(timeline: Timeline) -> str:
    visible = []
    for windows in timeline.ttft:
        length = f"windows of {plural(windows.width_s, 'second')}"
        visible.append(
            f"The {timeline.wait} {percentile(windows.p)} is that of {length} with at least {windows.fewest:,} requests."
        )
    if not _has_p99(timeline):
        point = "each request"
        if timeline.points_every != 1:
            point = f"one of {timeline.points_every} requests"
        visible.append(
            f"A point is {point}, and the maximum is that of each {bin_name(timeline.width_s)}: {NO_P99}"
        )
    return " ".join(visible)


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
    name = f"{plain(objective.label, 60)}: {objective.line.requirement}"
    colour = OUTCOME_COLOURS.get(objective.outcome, GREY)
    return PlotCurve(x, y, name, colour=colour, dash="dash", hover="skip")
