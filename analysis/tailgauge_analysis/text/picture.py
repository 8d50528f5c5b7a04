"""A figure as plain values: panels one above the other, which report/plot.py draws; it knows no section.

Titles of axes have their unit. A curve has few enough points for any size of run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tailgauge_analysis.stats.quantiles import Floats

BLUE = "#3f7fbf"
ORANGE = "#d9822b"
GREEN = "#2f9e6e"
PURPLE = "#9067c6"
GREY = "#8a8f98"
RED = "#c94f4f"
TIME = "time since the start of the run (s)"
POINTS = 400  # of a distribution
TOOK = "%{y:.3~%} took longer than %{x:,.4~g} ms"
Values = Sequence[float] | Floats
Dash = Literal["", "dot", "dash"]
# tail: logarithmic, with percentiles as ticks
Scale = Literal["linear", "log", "percent", "category", "tail"]
Style = Literal["line", "dots", "points", "line and points", "bars", "rows", "ticks"]
"""dots: many and pale; rows: bars from the left, each with a label"""


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """Points (x, y); NaN breaks a line. Bars of several curves are stacked. Rows have a label each in the place of y.

    `colour`: without one, by the place in the panel; grey of a dashed line. `low`, `high`: intervals of y. `labels`: beside the points.
    `steps`: hv from each point, hvh around it. `hover`: in d3's formats, `%{y:,.4~g} ms`, or `skip`.
    """

    x: Values
    y: Values
    name: str = ""  # in the legend, which has no curve without one
    colour: str = ""
    style: Style = "line"
    dash: Dash = ""
    steps: Literal["", "hv", "hvh"] = ""
    is_filled: bool = False
    low: Values = ()
    high: Values = ()
    labels: Sequence[str] = ()
    hover: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What lies between two lines."""

    x: Values
    low: Values
    high: Values
    name: str
    colour: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A shaded interval of x in every panel, or a line if both ends are the same.

    `name`: in the legend, if any. `text`: at its beginning, above the panels.
    """

    low: float
    high: float
    name: str = ""
    colour: str = GREY
    text: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one y axis with a title; `height` is relative to other panels.

    `rows`: names of the values 0, 1, ... of y, from top to bottom.
    """

    title: str
    curves: Sequence[PlotCurve | Band]
    scale: Scale = "linear"
    height: float = 1.0
    rows: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One figure. `name` is its anchor, `caption` says what is seen, `height` is in pixels."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    x: str = TIME
    x_scale: Scale = "linear"
    marks: Sequence[Mark] = ()
    height: int = 360


def tail_curve(
    at_ms: Floats, shares: Floats, name: str, colour: str = "", dash: Dash = ""
) -> PlotCurve:
    """Return the share that took longer than each time, ascending, at few points, dense in the tail.

    Where some have no answer the line runs on, level. A logarithmic axis has no zero: neither a time nor a share.
    """
    x = at_ms[at_ms > 0]
    y = shares[at_ms > 0]
    n = len(x)
    ranks = np.unique(n - np.geomspace(max(n, 1), 1, POINTS).astype(int))[:n]
    x = np.concatenate((x[:1], x[ranks], 1.5 * x[-1:]))
    y = np.concatenate((np.ones(len(x[:1])), y[ranks], y[-1:]))
    return PlotCurve(x[y > 0], y[y > 0], name, colour=colour, dash=dash, steps="hv", hover=TOOK)


def estimate_curve(
    name: str,
    rows: Iterable[tuple[float, float | None, float | None, float | None]],
    scale: Callable[[float], float] = float,
) -> PlotCurve:
    """Return the estimates (x, value, low, high) that have a value; an end that is not known is the value."""
    estimates = np.array([row for row in rows if row[1] is not None], np.float64).reshape(-1, 4)
    x, value, low, high = estimates.T
    return PlotCurve(
        x,
        [scale(number) for number in value],
        name,
        style="line and points",
        low=[scale(number) for number in np.where(np.isnan(low), value, low)],
        high=[scale(number) for number in np.where(np.isnan(high), value, high)],
    )


def tail_picture(
    curves: Sequence[PlotCurve],
    *,
    name: str,
    title: str,
    caption: str,
    of: str = "requests",
    x: str = "latency (ms, logarithmic)",
    marks: Sequence[Mark] = (),
    height: int = 360,
) -> Picture:
    """Return the figure of tail curves `of` requests or answers."""
    return Picture(
        name=name,
        title=title,
        caption=caption,
        panels=(Panel(f"share of {of} that took longer", curves, scale="tail"),),
        x=x,
        x_scale="log",
        marks=marks,
        height=height,
    )
