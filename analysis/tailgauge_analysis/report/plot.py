"""Draws figures as Plotly JSON; knows no section.

Colours and grid that depend on light or dark are set by the page. Traces are plain values: Plotly's classes would look at
each of them, which takes longer than all else about a figure; the tests have them do it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge_analysis.text.formatting import percentile
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
    Tiles,
    Values,
)

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#c2577b", "#3aa6b9", "#a08530", GREY)
HEAT = [[0.0, "#dce9f5"], [0.35, "#7fb2dc"], [0.7, "#3f7fbf"], [1.0, "#12365c"]]
MODES = {"line": "lines", "dots": "markers", "points": "markers", "line and points": "lines+markers"}
PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
GAP = 0.07  # between panels, of the height; more where each has an x axis
GAP_WITH_AXIS = 0.2
LIBRARY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js"
Tree = dict[str, Any]  # of Plotly: a trace, an axis, a layout


def library() -> str:
    """plotly.js with its two-dimensional figures only, a third of the whole; to be put on the page once."""
    return LIBRARY.read_text(encoding="utf-8")


def plot(picture: Picture) -> str:
    """Return the figure as JSON."""
    traces = list[Tree]()
    for number, panel in enumerate(picture.panels, 1):
        axes = {"xaxis": f"x{_suffix(number)}", "yaxis": f"y{_suffix(number)}"}
        for curve, colour in zip(panel.curves, cycle(COLOURS), strict=False):
            traces += [axes | trace for trace in _traces(curve, colour)]
    _name_once(traces)
    return json.dumps({"data": traces, "layout": _layout(picture)}, allow_nan=False, separators=(",", ":"))


def _suffix(number: int) -> str:
    """Return what Plotly adds to the names of the axes of a panel."""
    return "" if number == 1 else str(number)


def _traces(curve: PlotCurve | Band | Tiles, colour: str) -> Sequence[Tree]:
    match curve:
        case PlotCurve():
            by_place = GREY if curve.dash == "dash" else colour
            return (_curve(curve, curve.colour or by_place),)
        case Band():
            return _band(curve)
        case Tiles():
            return (_tiles(curve),)


def _curve(curve: PlotCurve, colour: str) -> Tree:
    trace: Tree = {"x": numbers(curve.x), "y": numbers(curve.y), "name": curve.name}
    if curve.hover == "skip":
        trace["hoverinfo"] = "skip"
    elif curve.hover:
        trace["hovertemplate"] = curve.hover if curve.name else f"{curve.hover}<extra></extra>"
    if len(curve.low):
        value = np.asarray(curve.y)
        above = numbers(np.asarray(curve.high) - value)
        below = numbers(value - np.asarray(curve.low))
        trace["error_y"] = {"symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5}
    if curve.style == "bars":
        trace.get("error_y", {})["color"] = GREY
        return trace | {"type": "bar", "marker": {"color": colour, "line": {"width": 0}}}
    is_point = curve.style == "line" and len(curve.x) == 1
    mode = MODES["line and points" if is_point else curve.style]
    if curve.labels:
        mode += "+text"
        trace |= {"text": curve.labels, "textposition": "top right", "cliponaxis": False}
    if curve.is_filled:
        trace["fill"] = "tozeroy"
    line = {"color": colour, "width": 1.8, "dash": curve.dash or "solid", "shape": curve.steps or "linear"}
    marker: Tree = {"color": colour, "size": 5}
    if curve.style == "dots":
        marker = {"color": colour, "size": 4, "opacity": 0.5}
    return trace | {"type": "scatter", "mode": mode, "line": line, "marker": marker}


def _band(band: Band) -> tuple[Tree, Tree]:
    edge = {
        "type": "scatter",
        "x": numbers(band.x),
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    low = {"y": numbers(band.low), "name": ""}
    high = {"y": numbers(band.high), "name": band.name, "fill": "tonexty", "fillcolor": f"{band.colour}38"}
    return edge | low, edge | high


def _tiles(tiles: Tiles) -> Tree:
    return {
        "type": "heatmap",
        "x": numbers(tiles.x),
        "y": numbers(tiles.y),
        "z": [numbers(row) for row in tiles.values],
        "name": "",
        "hovertemplate": f"{tiles.hover}<extra></extra>",
        "colorscale": HEAT,
        "zmin": 0,
        "colorbar": {"title": {"text": tiles.title}, "thickness": 10, "outlinewidth": 0},
    }


def numbers(values: Values) -> list[float | None]:
    """Return plain numbers of six figures; None, where there is no value, breaks a line."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def _name_once(traces: Sequence[Tree]) -> None:
    """Name each curve once in the legend, which then switches all that have the name."""
    counts = Counter(trace["name"] for trace in traces)
    named = {""}
    for trace in traces:
        name = trace["name"]
        if counts[name] > 1 or not name:
            trace.update({"legendgroup": name, "showlegend": name not in named})
        named.add(name)


def _layout(picture: Picture) -> Tree:
    is_over_time = picture.x == TIME
    has_tiles = any(isinstance(curve, Tiles) for panel in picture.panels for curve in panel.curves)
    layout: Tree = {
        "height": picture.height,
        "margin": {"l": 64, "r": 12, "t": 8, "b": 48},
        "hovermode": "x unified" if is_over_time and not has_tiles else "closest",
        "hoversubplots": "axis",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "barmode": "stack",
        "bargap": 0 if is_over_time else 0.2,
        "shapes": [],
    }
    has_axes = any(panel.x for panel in picture.panels)
    gap = GAP_WITH_AXIS if has_axes else GAP
    share = 1 - gap * (len(picture.panels) - 1)
    share /= sum(panel.height for panel in picture.panels)
    top = 1.0
    for number, panel in enumerate(picture.panels, 1):
        suffix = _suffix(number)
        bottom = max(0.0, top - share * panel.height)
        layout[f"xaxis{suffix}"] = _x_axis(picture, panel, number) | {"anchor": f"y{suffix}"}
        layout[f"yaxis{suffix}"] = _y_axis(panel) | {"anchor": f"x{suffix}", "domain": [bottom, top]}
        layout["shapes"] += [_shape(mark, suffix) for mark in picture.marks]
        top = bottom - gap
    return layout


def _x_axis(picture: Picture, panel: Panel, number: int) -> Tree:
    """Return an x axis: of the panel, or the one that all share, whose title and labels stand below the last."""
    axis: Tree = {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 4}
    if panel.x:
        return axis | {"title": {"text": panel.x}}
    axis |= _scale(picture.x_scale, [curve.x for each in picture.panels for curve in each.curves])
    last = len(picture.panels)
    if number < last:
        return axis | {"matches": f"x{last}", "showticklabels": False}
    return axis | {"title": {"text": picture.x}}


def _y_axis(panel: Panel) -> Tree:
    title = {"text": panel.title, "standoff": 10}
    axis: Tree = {"automargin": True, "zeroline": False, "rangemode": "tozero", "title": title}
    return axis | _scale(panel.scale, [curve.y for curve in panel.curves if not isinstance(curve, Band)])


def _shape(mark: Mark, suffix: str) -> Tree:
    """Return a mark as high as its panel; the one in the first panel is named in the legend."""
    x = {"x0": mark.low, "x1": mark.high, "xref": f"x{suffix}"}
    y = {"y0": 0, "y1": 1, "yref": f"y{suffix} domain"}
    shape = x | y | {"name": mark.name, "showlegend": bool(mark.name) and not suffix, "layer": "below"}
    if mark.low == mark.high:
        return shape | {"type": "line", "line": {"color": mark.colour, "dash": "dot"}}
    return shape | {"type": "rect", "line": {"width": 0}, "fillcolor": mark.colour, "opacity": 0.16}


def _scale(scale: Scale, values: Sequence[Values]) -> Tree:
    """Return the settings of an axis of these values."""
    if scale == "linear":
        return {}
    if scale == "percent":
        return {"range": [0, 103]}
    shown = np.concatenate([np.asarray(some, np.float64) for some in values])
    low = float(np.nanmin(shown))
    high = float(np.nanmax(shown))
    if scale == "whole":
        return {"dtick": max(1, int(high) // 10)}
    if scale == "log":
        return {"type": "log", **_ticks(low, high)}
    steps = [p for p in PERCENTILES if p == 0 or 1 - p >= low * 0.99]
    labels = [_tail_label(p) for p in steps]
    ends = [math.log10(min(low, 0.5)) - 0.1, 0.05]
    return {
        "type": "log",
        "range": ends,
        "tickmode": "array",
        "tickvals": [1 - p for p in steps],
        "ticktext": labels,
    }


def _ticks(low: float, high: float) -> Tree:
    """Return ticks at 1, 2 and 5 of each power of ten; at every power alone where that would be many."""
    digits = (1, 2, 5) if high / low < 300 else (1,)
    ticks = [digit * 10.0**power for power in range(-5, 9) for digit in digits]
    shown = [tick for tick in ticks if low / 2 <= tick <= high * 2]
    return {"tickmode": "array", "tickvals": shown, "ticktext": [f"{tick:,g}" for tick in shown]}


def _tail_label(p: float) -> str:
    name = f" ({percentile(p)})" if p else ""
    return f"{100 * (1 - p):.4g}%{name}"
