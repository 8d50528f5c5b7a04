"""Draws the figures of experiments."""

from __future__ import annotations

import numpy as np

from tailgauge_analysis.report import plot as draw
from tailgauge_analysis.report.figures import CLOSEST, RED, TOOK, log_ticks, survival, tails
from tailgauge_analysis.report.plot import GREY, LINES, Figure, Panel, Tree
from tailgauge_analysis.text.picture import Picture, PlotCurve

COLOURS = LINES[:4]
DASHED = {"red": RED, "grey": GREY}
HEIGHT = 360


def figure(picture: Picture) -> Figure:
    """One picture; marks have the colour of their curve."""
    if picture.tails:
        plot = tails(_beyond(picture), picture.y)
        return draw.finish(picture.name, picture.title, picture.caption, HEIGHT, plot)
    drawn = [one for one in picture.curves if not one.dashed]
    colours = {one.name: COLOURS[i % len(COLOURS)] for i, one in enumerate(drawn)}
    lines = [_trace(one, colours.get(one.name) or DASHED[one.dashed]) for one in picture.curves]
    panel = Panel(picture.y, lines, _axis("y", picture) or {"rangemode": "tozero"})
    plot = draw.stacked([panel], draw.titled(picture.x) | _axis("x", picture), hovermode=CLOSEST)
    for one in picture.marks:
        colour = colours.get(one.of, GREY)
        line = {"type": "line", "line": {"color": colour, "dash": "dot"}}
        area = {"type": "rect", "line": {"width": 0}, "fillcolor": colour, "opacity": 0.18}
        style = area if one.high > one.low else line
        draw.mark(plot, one.low, one.high, name=one.name, showlegend=True, layer="below", **style)
    return draw.finish(picture.name, picture.title, picture.caption, HEIGHT, plot)


def _axis(name: str, picture: Picture) -> Tree:
    """A logarithmic axis over what it shows, if it is one."""
    if name not in picture.log:
        return {}
    shown = [value for one in picture.curves for value in getattr(one, name)]
    return {"type": "log", **log_ticks(min(shown), max(shown))}


def _beyond(picture: Picture) -> list[Tree]:
    lines = zip(picture.curves, COLOURS, strict=False)
    drawn = [(*survival(np.array(one.x), np.array(one.y)), one.name, colour) for one, colour in lines]
    return [draw.curve(x, y, name, colour, TOOK, shape="hv") for x, y, name, colour in drawn if len(x)]


def _trace(one: PlotCurve, colour: str) -> Tree:
    x, y, low, high = (np.array(values) for values in (one.x, one.y, one.low, one.high))
    mode = "lines" if one.dashed else "lines+markers" if one.joined else "markers"
    return draw.points(
        x, y, one.name, mode + "+text" * bool(one.labels), text=one.labels, textposition="top right", cliponaxis=False,
        error_y=draw.error_bars(y, low, high) if one.low and one.high else {},
        line={"color": colour, "dash": "dash" if one.dashed else "solid"}, marker={"color": colour},
    )  # fmt: skip
