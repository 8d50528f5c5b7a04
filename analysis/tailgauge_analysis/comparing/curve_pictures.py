"""The figures of a load curve, or of two in the same figures: latency and throughput by load, and what a user gets of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tailgauge_analysis.comparing.curve import RATE, Curve, CurveObjective, CurveQuantile, Ends
from tailgauge_analysis.text.formatting import figures, ms
from tailgauge_analysis.text.picture import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    Mark,
    Panel,
    Picture,
    PlotCurve,
    Values,
    estimate_curve,
)

DRAWN: tuple[CurveQuantile, ...] = ("p50", "p95", "p99")
# Drawn and compared where no objective is on a latency.
TTFT = CurveObjective("ttft", "p95", math.inf, "")
WIDE = 32.0  # the largest load, in smallest loads, from which their axis is logarithmic
CUT = 1.5  # times the knee: the largest load that is drawn
FEWEST_DRAWN = 3  # loads of a curve
APART = 0.05  # of the range of tokens/s per user, between points with labels
BARS = "Bars are 95% intervals."
FEWEST_FITTED = 4  # loads
FITS_WITHIN = 1.5  # ratio of each latency to the fit
FARTHEST = 3.0  # times the largest load: a capacity beyond it is not shown by these loads
FULLEST = 0.98  # of the capacity: the fit goes so far
FIT_POINTS = 60
FIT = "Dotted: latency = base / (1 - load / capacity)."
KNEE = "Shaded: the 95% interval of the knee, the largest load at which every objective holds."
FAILED = "at least (failures)"
COLOURS = {"": "", "A": BLUE, "B": ORANGE}
Named = Sequence[tuple[str, Curve]]


def pictures(*curves: Curve) -> tuple[Picture, ...]:
    """Return the figures of one load curve, or of two as A and B: latency, tokens/s and requests/s by load, tokens/s per user.

    Empty where a curve has a single point. Loads far beyond the knee are left out of figures by load, which their captions say.
    """
    if any(len(curve.points) < 2 for curve in curves):
        return ()
    cut = _cut(curves)
    names = ("A", "B") if len(curves) > 1 else ("",)
    named_whole = list(zip(names, curves, strict=False))
    named = [(name, _up_to(curve, cut)) for name, curve in named_whole]
    marks = tuple(_marks(named))
    loads = _loads(named)
    hidden = sorted({load for load in _loads(named_whole) if load > cut})
    by_load = partial(
        Picture,
        x="offered requests/s" if curves[0].by == RATE else "requests in flight",
        x_scale="log" if max(loads) / min(loads) >= WIDE else "linear",
        marks=marks,
    )
    drawn = []
    bars = _note_on_bars(hidden, curves[0].unit)
    # One figure per metric, in the order of the objectives: that of the first objective on it.
    by_metric = {objective.metric: objective for objective in reversed(objectives(curves[0]))}
    for metric, objective in reversed(by_metric.items()):
        title = metric.upper()
        if len(named) > 1:
            title += f" {objective.quantile}"
        curves_drawn = _with_points(_latency(named, objective))
        notes = [bars]
        if marks:
            notes.append(KNEE)
        if any(curve.dash == "dot" for curve in curves_drawn):
            notes.append(FIT)
        latency = by_load(
            name=f"{metric}-by-load",
            title=f"{title} by load",
            caption=" ".join(notes),
            panels=(Panel(f"{metric.upper()}, ms", curves_drawn, scale="log"),),
        )
        drawn.append(latency)
    tokens = by_load(
        name="tokens-by-load",
        title="Output tokens/s by load",
        caption=bars,
        panels=(Panel("output tokens/s", _with_points(_tokens(named))),),
    )
    requests = by_load(
        name="requests-by-load",
        title="Requests/s by load",
        caption=bars,
        panels=(Panel("requests/s", _with_points(_requests(named))),),
    )
    drawn += [tokens, requests, _per_user(named_whole)]
    # A figure that has only lines to compare with is left out.
    return tuple(picture for picture in drawn if _is_measured(picture.panels[0]))


def _note_on_bars(hidden: Sequence[float], unit: str) -> str:
    """Return what the bars are, and which loads are not drawn."""
    if not hidden:
        return BARS
    loads = figures(hidden[0])
    if len(hidden) > 1:
        loads += f" to {figures(hidden[-1])}"
    return f"{BARS} The loads {loads} {unit}, beyond {CUT:g}x the knee, are only in the table."


def _cut(curves: Sequence[Curve]) -> float:
    """Return the largest load that is drawn: some way beyond the knees, or beyond saturation without one.

    Far beyond it every latency is that of a backlog, whose size depends on the length of the run.
    """
    ends = []
    for curve in curves:
        knee = curve.knee.high or curve.knee.value or curve.saturation_load.value
        if knee is None:
            return math.inf
        loads = [point.load for point in curve.points]
        ends += [CUT * knee, *sorted(loads)[:FEWEST_DRAWN]]
        if curve.today is not None and curve.today in loads:
            ends.append(curve.today)
    return max(ends)


def _up_to(curve: Curve, load: float) -> Curve:
    return replace(curve, points=tuple(point for point in curve.points if point.load <= load))


def objectives(curve: Curve) -> tuple[CurveObjective, ...]:
    """Return those on a latency that was measured."""
    measured: set[str] = set()
    for point in curve.points:
        measured.update(point.latency)
    bounded = [objective for objective in curve.objectives if objective.metric in measured]
    return tuple(bounded) or (TTFT,)


def _is_measured(panel: Panel) -> bool:
    """Return whether it has more than lines to compare with."""
    return not all(isinstance(curve, PlotCurve) and curve.dash for curve in panel.curves)


def _with_points(curves: Iterable[PlotCurve]) -> list[PlotCurve]:
    return [curve for curve in curves if len(curve.x)]


def _marks(named: Named) -> Iterator[Mark]:
    for name, curve in named:
        low = curve.knee.low
        high = curve.knee.high
        if low is not None and high is not None:
            yield Mark(low, high, f"knee {name}".strip(), COLOURS[name] or GREY)
    today = named[0][1].today
    if today and len(named) == 1:
        yield Mark(today, today, "today")


def _latency(named: Named, objective: CurveObjective) -> Iterator[PlotCurve]:
    """Yield the lines of a latency by load: several percentiles of one curve, or the objective's of A and of B.

    Then come lower ends of percentiles that fall among failures, the fitted queue of a single curve, and the bounds.
    """
    quantiles = [objective.quantile]
    if len(named) == 1:
        quantiles = sorted({*DRAWN, objective.quantile})
    failing_loads = []
    low_ends = []
    for name, curve in named:
        for quantile in quantiles:
            points = []
            for point in curve.points:
                ends = point.quantile(objective.metric, quantile)
                points.append((point.load, ends))
                if ends.value is None and ends.low:
                    failing_loads.append(point.load)
                    low_ends.append(ends.low)
            yield _line(name, quantile, points)
    yield PlotCurve(failing_loads, low_ends, FAILED, style="points")
    if len(named) == 1:
        fit = _fitted_queue(named[0][1], objective)
        if fit is not None:
            yield fit
    for bounded in named[0][1].objectives:
        if bounded.metric == objective.metric and (len(named) == 1 or bounded == objective):
            yield _level(
                named, bounded.bound_ms, f"{bounded.quantile} < {ms(bounded.bound_ms)} ms", RED
            )


def _fitted_queue(curve: Curve, objective: CurveObjective) -> PlotCurve | None:
    """Return the queue that fits a percentile best, latency = base / (1 - load / capacity); None where none fits.

    1 / latency falls evenly with the load then, up to the capacity. Loads with a growing backlog are left out: their latency is that of
    the length of the run.
    """
    estimates = []
    for point in curve.points:
        value = point.quantile(objective.metric, objective.quantile).value
        if value and point.stable is not False:
            estimates.append((point.load, value))
    if curve.by != RATE or len(estimates) < FEWEST_FITTED:
        return None
    loads, latencies = np.array(estimates).T
    # The line 1 / latency = inverse_base + slope * load, which is 0 at the capacity.
    slope, inverse_base = np.polyfit(loads, 1 / latencies, 1, w=latencies)  # errors are relative
    if slope >= 0 or inverse_base <= 0:
        return None
    capacity = -inverse_base / slope
    fitted = inverse_base + slope * loads
    if not loads.max() < capacity < FARTHEST * loads.max():
        return None
    if np.abs(np.log(fitted * latencies)).max() > math.log(FITS_WITHIN):
        return None
    x = np.linspace(loads.min(), min(loads.max(), FULLEST * capacity), FIT_POINTS)
    y = 1 / (inverse_base + slope * x)
    return PlotCurve(
        list(x), list(y), f"{objective.quantile}, queue that fits", colour=GREY, dash="dot"
    )


def _tokens(named: Named) -> Iterator[PlotCurve]:
    for name, curve in named:
        points = [(point.load, point.output_tokens_per_s) for point in curve.points]
        yield _line(name, "output tokens/s", points)
    saturation = named[0][1].saturation.value
    if saturation and len(named) == 1:
        yield _level(named, saturation, "saturation", GREY)


def _requests(named: Named) -> Iterator[PlotCurve]:
    for name, curve in named:
        yield _line(
            name, "answered", [(point.load, point.requests_per_s) for point in curve.points]
        )
        if not name:
            yield _line(
                name, "within [slo]", [(point.load, point.good_per_s) for point in curve.points]
            )
    if named[0][1].by == RATE:
        loads = _loads(named)
        yield PlotCurve(loads, loads, "offered", colour=GREY, dash="dash")


def _per_user(named: Named) -> Picture:
    """Draw the pace of one user's answer against the output tokens/s of the system, a point per load.

    The tokens/s are per GPU where every curve states how many it has.
    """
    per_gpu = all(curve.gpus for _, curve in named)
    curves = []
    for name, curve in named:
        gpus = curve.gpus if per_gpu else None
        points = []
        loads = []
        for point in curve.points:
            pace = point.user_tokens_per_s.value
            if pace and point.output_tokens_per_s.value is not None:
                points.append((pace, point.output_tokens_per_s))
                loads.append(point.load)
        line = _line(name, "each load", points, 1 / (gpus or 1))
        curves.append(replace(line, labels=_labels(line.x, loads)))
    y = "output tokens/s per GPU" if per_gpu else "output tokens/s of the system"
    unit = named[0][1].unit
    return Picture(
        name="tokens-per-user",
        title="Tokens/s per user and of the system",
        caption=f"{BARS} The number beside a point is its load in {unit}. Better is further up and to the right.",
        panels=(Panel(y, _with_points(curves)),),
        x="tokens/s per user (1000 / TPOT p50)",
    )


def _labels(paces: Values, loads: Sequence[float]) -> list[str]:
    """Return the loads of points that lie apart."""
    width = max(paces, default=0.0) - min(paces, default=0.0)
    labels = []
    labelled_pace = math.inf
    for pace, load in zip(paces, loads, strict=True):
        is_apart = abs(pace - labelled_pace) > APART * width
        if is_apart:
            labels.append(figures(load))
            labelled_pace = pace
        else:
            labels.append("")
    return labels


def _line(
    name: str, title: str, points: Iterable[tuple[float, Ends]], factor: float = 1.0
) -> PlotCurve:
    """Return a line of the curve of this name, or of the only curve with this title."""
    rows = [(x, ends.value, ends.low, ends.high) for x, ends in points]
    line = estimate_curve(name or title, rows, lambda value: factor * value)
    return replace(line, colour=COLOURS[name])


def _level(named: Named, value: float, name: str, colour: str) -> PlotCurve:
    loads = _loads(named)
    return PlotCurve((loads[0], loads[-1]), (value, value), name, colour=colour, dash="dash")


def _loads(named: Named) -> list[float]:
    loads = []
    for _, curve in named:
        loads += [point.load for point in curve.points]
    return sorted(loads)
