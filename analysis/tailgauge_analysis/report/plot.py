"""Draws figures as Plotly JSON; knows no section.

Colours and grid that depend on light or dark are set by the page. Traces are plain values: Plotly's classes would look at
each of them, which takes longer than all else about a figure; the tests have them do it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.picture import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    TIME,
    Band,
    Mark,
    Panel,
    Picture,
    PlotCurve,
    Scale,
    Values,
)

Tree = dict[str, Any]  # of Plotly: a trace, an axis, a layout

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#c2577b", "#3aa6b9", "#a08530", GREY)
MODES = {
    "line": "lines",
    "dots": "markers",
    "points": "markers",
    "line and points": "lines+markers",
    "ticks": "markers",
}
LONG_AXIS = (1.0, 2.0, 5.0)  # ticks of each decade on a logarithmic axis
SHORT_AXIS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # and on one of less than a decade
EVEN_AXIS = 0.5  # decades: below, the ticks have equal steps
TAIL_TICKS = {
    1.0: "100%",
    0.5: "50% (p50)",
    0.1: "10% (p90)",
    0.01: "1% (p99)",
    0.001: "0.1% (p99.9)",
    0.0001: "0.01% (p99.99)",
    0.00001: "0.001% (p99.999)",
}
SCALES: dict[str, Tree] = {
    "linear": {},
    "category": {"type": "category"},
    "percent": {"range": [0, 103]},
    "tail": {"type": "log", "tickvals": list(TAIL_TICKS), "ticktext": list(TAIL_TICKS.values())},
}
GAP = 0.07  # between panels, of the height
ANNOTATION_PX = 18
LATE = 0.6  # of the time axis: a text that begins there would not fit
LIBRARY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js"


def library() -> str:
    """plotly.js with its two-dimensional figures only, a third of the whole; to be put on the page once."""
    return LIBRARY.read_text(encoding="utf-8")


def plot(picture: Picture) -> str:
    """Return the figure as JSON."""
    traces = list[Tree]()
    for axis, panel in zip(_y_axes(picture), picture.panels, strict=True):
        for curve, colour in zip(panel.curves, cycle(COLOURS), strict=False):
            traces += [trace | {"yaxis": axis} for trace in _traces(curve, colour)]
    named = {""}
    for trace in traces:
        trace["showlegend"] = trace["name"] not in named
        named.add(trace["name"])
    layout = _layout(picture) | {"showlegend": len(traces) > 1}
    return json.dumps({"data": traces, "layout": layout}, allow_nan=False, separators=(",", ":"))


def _y_axes(picture: Picture) -> list[str]:
    return ["y", *(f"y{number}" for number in range(2, len(picture.panels) + 1))]


def _traces(curve: PlotCurve | Band, colour: str) -> Sequence[Tree]:
    match curve:
        case PlotCurve():
            by_place = GREY if curve.dash == "dash" else colour
            return (_curve(curve, curve.colour or by_place),)
        case Band():
            return _band(curve)


def _curve(curve: PlotCurve, colour: str) -> Tree:
    """Return the Plotly trace of a curve: a bar for the styles `rows` and `bars`, else a scatter. `colour`: of its points and line.

    `low` and `high` become error bars; a template for hovering shows the name of the curve only where it has one.
    """
    trace: Tree = {
        "x": numbers(curve.x),
        "y": numbers(curve.y),
        "name": curve.name,
        "legendgroup": curve.name,
    }
    if curve.hover == "skip":
        trace["hoverinfo"] = "skip"
    elif curve.hover:
        trace["hovertemplate"] = curve.hover + "<extra></extra>" * (not curve.name)
    if len(curve.low):
        above = numbers(np.subtract(curve.high, curve.y))
        below = numbers(np.subtract(curve.y, curve.low))
        trace["error_y"] = {
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "thickness": 1.5,
        }
    if curve.style == "rows":
        return trace | {
            "type": "bar",
            "orientation": "h",
            "y": list(curve.labels),
            "width": 0.6,
            "marker": {"color": colour},
        }
    if curve.style == "bars":
        # Intervals, where there are any, are seen on the bars.
        trace.get("error_y", {})["color"] = GREY
        return trace | {"type": "bar", "marker": {"color": colour, "line": {"width": 0}}}
    # A line through one point would not be seen.
    is_single_point = curve.style == "line" and len(curve.x) == 1
    mode = MODES["line and points" if is_single_point else curve.style]
    if curve.labels:
        mode += "+text"
        trace |= {"text": curve.labels, "textposition": "top right", "cliponaxis": False}
    if curve.style == "points":
        trace["cliponaxis"] = False  # a point on an axis is whole
    if curve.is_filled:
        trace["fill"] = "tozeroy"
    size = 7 if curve.style == "points" else 4
    marker: Tree = {"color": colour, "size": size, "opacity": 0.5 if curve.style == "dots" else 1}
    if curve.style == "ticks":
        marker |= {"symbol": "line-ns", "size": 12, "line": {"color": colour, "width": 1.5}}
    line = {
        "color": colour,
        "width": 1.8,
        "dash": curve.dash or "solid",
        "shape": curve.steps or "linear",
    }
    return trace | {"type": "scatter", "mode": mode, "line": line, "marker": marker}


def _band(band: Band) -> tuple[Tree, Tree]:
    edge = {"x": numbers(band.x), "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    low = {"y": numbers(band.low), "name": ""}
    high = {
        "y": numbers(band.high),
        "name": band.name,
        "fill": "tonexty",
        "fillcolor": f"{band.colour}38",
    }
    return edge | low, edge | high


def numbers(values: Values) -> list[float | None]:
    """Return plain numbers of six figures; None, where there is no value, breaks a line."""
    return list(map(_number, values))


def _number(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def _layout(picture: Picture) -> Tree:
    """Return the Plotly layout: height, axes, legend, marks and their texts, and the panels one above the other.

    All panels share the x axis, which is below the last one. `domain`: which part of the height a panel has, 0 to 1; GAP is between
    two. Over time the x axis begins at 0, and one box shows all curves at a time.
    """
    axis_names = _y_axes(picture)
    is_over_time = picture.x == TIME
    axis_base = {"automargin": True, "zeroline": False}
    x_axis: Tree = {
        "title": {"text": picture.x},
        "anchor": axis_names[-1],
        "ticks": "outside",
        "ticklen": 4,
    }
    end_s = 0.0
    if is_over_time:
        end_s = _end_s(picture)
    if end_s:
        x_axis["range"] = [0, end_s]
    x_values: list[Values] = []
    for panel in picture.panels:
        x_values += [curve.x for curve in panel.curves]
    annotations = []
    for mark in picture.marks:
        if mark.text:
            annotations.append(_annotation(mark, end_s))
    legend_y = 1.02
    # The legend stands above the texts of the marks.
    if annotations:
        legend_y += ANNOTATION_PX / picture.height
    layout: Tree = {
        "height": picture.height,
        "margin": {"l": 64, "r": 12, "t": 8, "b": 48},
        "hovermode": "x unified" if is_over_time else "closest",
        "hoversubplots": "axis",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": legend_y,
            "yanchor": "bottom",
            "tracegroupgap": 0,
        },
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "barmode": "stack",
        "bargap": 0 if is_over_time else 0.2,
        "shapes": [_shape(mark) for mark in picture.marks],
        "annotations": annotations,
        "xaxis": axis_base | x_axis | _scale(picture.x_scale, x_values),
    }
    heights = sum(panel.height for panel in picture.panels)
    height_unit = (1 - GAP * (len(axis_names) - 1)) / heights
    top = 1.0
    for name, panel in zip(axis_names, picture.panels, strict=True):
        bottom = max(0.0, top - height_unit * panel.height)
        # `y2` is the name of the axis in a trace, `yaxis2` in the layout.
        layout[name.replace("y", "yaxis")] = axis_base | _y_axis(panel, bottom, top)
        top = bottom - GAP
    return layout


def _y_axis(panel: Panel, bottom: float, top: float) -> Tree:
    """Return the axis of a panel that lies between two heights of the figure, 0 to 1."""
    y: Tree = {"title": {"text": panel.title, "standoff": 10}, "domain": [bottom, top]}
    if panel.rows:
        y |= _rows(panel.rows)
    else:
        y["rangemode"] = "tozero"
    if panel.scale == "tail":
        y["range"] = [math.log10(_lowest_share(panel)) - 0.1, 0.05]
    return y | _scale(panel.scale, _y_values(panel))


def _lowest_share(panel: Panel) -> float:
    """Return where the tails of a panel end: at the median at least, however few have an answer."""
    lowest = 0.5
    for curve in panel.curves:
        if isinstance(curve, PlotCurve):
            lowest = min(lowest, *curve.y)
    return lowest


def _y_values(panel: Panel) -> list[Values]:
    values = list[Values]()
    for curve in panel.curves:
        values += [curve.low, curve.high]
        if isinstance(curve, PlotCurve):
            values.append(curve.y)
    return values


def _scale(name: Scale, values: Sequence[Values]) -> Tree:
    if name != "log":
        return SCALES[name]
    ticks = log_ticks(np.concatenate([np.asarray(series, np.float64) for series in values]))
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}


def log_ticks(values: Floats) -> list[float]:
    """Return the ticks of a logarithmic axis: at least three on an axis that is not a point."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive) or positive.max() == positive.min():
        return _decades(LONG_AXIS, -2, 7)
    low, high = float(positive.min()), float(positive.max())
    powers = (math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    decades = math.log10(high / low)
    if decades >= EVEN_AXIS:
        return _decades(LONG_AXIS if decades >= 1 else SHORT_AXIS, *powers)
    rough = (high - low) / 4
    steps = _decades(LONG_AXIS, math.floor(math.log10(rough)), powers[1])
    step = max(tick for tick in steps if tick <= rough)
    multiples = range(math.floor(low / step), math.ceil(high / step) + 1)
    return [float(f"{multiple * step:.9g}") for multiple in multiples]


def _decades(digits: Sequence[float], begin: int, end: int) -> list[float]:
    ticks = []
    for power in range(begin, end):
        ticks += [float(f"{digit}e{power}") for digit in digits]
    return ticks


def _rows(names: Sequence[str]) -> Tree:
    last_row = len(names) - 1
    return {
        "tickvals": [*range(len(names))],
        "ticktext": [*names],
        "range": [last_row + 0.5, -0.5],
        "showgrid": False,
    }


def _shape(mark: Mark) -> Tree:
    shape = {"x0": mark.low, "x1": mark.high, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    shape |= {"name": mark.name, "showlegend": bool(mark.name)}
    if mark.low == mark.high:
        return shape | {"type": "line", "line": {"color": mark.colour, "dash": "dot"}}
    return shape | {"type": "rect", "line": {"width": 0}, "fillcolor": mark.colour, "opacity": 0.16}


def _end_s(picture: Picture) -> float:
    """Return the end of a time axis: of the last bar, step, point or mark; 0 without any."""
    ends = [mark.high for mark in picture.marks]
    for panel in picture.panels:
        for curve in panel.curves:
            last_s = max(map(float, curve.x), default=0.0)
            ends.append(last_s + _half_step(curve))
    return float(f"{max(ends, default=0.0):.6g}")


def _half_step(curve: PlotCurve | Band) -> float:
    """Return how far a curve goes on after its last x."""
    is_around = isinstance(curve, PlotCurve) and (curve.style == "bars" or curve.steps == "hvh")
    if not is_around or not len(curve.x):
        return 0.0
    if len(curve.x) == 1:
        return float(curve.x[0]) / 2
    return float(curve.x[-1] - curve.x[-2]) / 2


def _annotation(mark: Mark, end_s: float) -> Tree:
    """Return the text of a mark, above the first panel; to the left of a mark that is late."""
    is_late = mark.low > LATE * end_s
    return {
        "x": mark.low,
        "xanchor": "right" if is_late else "left",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "text": f"<b>{mark.text}</b>",
        "showarrow": False,
    }
