"""Draws the figures of experiments."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from tailgauge_analysis.report.figures import RED, TOOK, log_ticks, survival, tails
from tailgauge_analysis.report.plot import GREY, LINES, Figure, curve, error_bars, finish, numbers
from tailgauge_analysis.text.picture import Picture, PlotCurve

COLOURS = LINES[:4]
DASHED = {"red": RED, "grey": GREY}
HEIGHT = 360


def figure(picture: Picture) -> Figure:
    """One picture; marks have the colour of their curve."""
    if picture.tails:
        plot = tails(_beyond(picture), picture.y)
        return finish(picture.name, picture.title, picture.caption, HEIGHT, plot)
    drawn = [one for one in picture.curves if not one.dashed]
    colours = {one.name: COLOURS[i % len(COLOURS)] for i, one in enumerate(drawn)}
    plot = go.Figure([_trace(one, colours.get(one.name) or DASHED[one.dashed]) for one in picture.curves])
    for mark in picture.marks:
        named = {"name": mark.name, "showlegend": True, "layer": "below"}
        colour = colours.get(mark.of, GREY)
        if mark.high > mark.low:
            plot.add_vrect(x0=mark.low, x1=mark.high, fillcolor=colour, opacity=0.18, line_width=0, **named)
        else:
            plot.add_vline(x=mark.low, line={"color": colour, "dash": "dot"}, **named)
    plot.update_xaxes(title_text=picture.x, **_axis("x", picture))
    plot.update_yaxes(title_text=picture.y, **_axis("y", picture))
    plot.update_layout(hovermode="closest")
    return finish(picture.name, picture.title, picture.caption, HEIGHT, plot)


def _axis(name: str, picture: Picture) -> dict[str, Any]:
    """A logarithmic axis over what it shows, if it is one."""
    if name not in picture.log:
        return {"rangemode": "tozero"} if name == "y" else {}
    shown = [value for one in picture.curves for value in getattr(one, name)]
    return {"type": "log", **log_ticks(min(shown), max(shown))}


def _beyond(picture: Picture) -> list[go.Scatter]:
    lines = zip(picture.curves, COLOURS, strict=False)
    drawn = [(*survival(np.array(one.x), np.array(one.y)), one.name, colour) for one, colour in lines]
    return [curve(x, y, name, colour, TOOK, shape="hv") for x, y, name, colour in drawn if len(x)]


def _trace(curve: PlotCurve, colour: str) -> go.Scatter:
    y = np.array(curve.y)
    error = error_bars(y, np.array(curve.low), np.array(curve.high)) if curve.low and curve.high else None
    mode = "lines" if curve.dashed else "lines+markers" if curve.joined else "markers"
    return go.Scatter(
        x=numbers(np.array(curve.x)), y=numbers(y), name=curve.name, error_y=error,
        mode=mode + "+text" * bool(curve.labels), text=curve.labels, textposition="top right", cliponaxis=False,
        line={"color": colour, "dash": "dash" if curve.dashed else "solid"}, marker={"color": colour},
    )  # fmt: skip
