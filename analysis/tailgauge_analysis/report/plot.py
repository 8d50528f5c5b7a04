"""A figure of the page and what all of them are drawn with: panels, lines, intervals, as Plotly JSON.

Colours and grid that depend on light or dark are set by the page. Lines are plain values: Plotly's classes would look at
each of them, which takes longer than all else about a figure; the tests have them do it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly.io
from plotly.subplots import make_subplots

from tailgauge_analysis.stats.quantiles import Floats

BLUE, ORANGE, GREEN, PURPLE, GREY = "#3f7fbf", "#d9822b", "#2f9e6e", "#9067c6", "#8a8f98"
LINES = (BLUE, ORANGE, GREEN, PURPLE, "#c2577b", "#3aa6b9", "#a08530", GREY)
LIBRARY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js"
# The page has looks of its own: Plotly's would be loaded to be thrown away.
plotly.io.templates.default = None
Tree = dict[str, Any]  # of Plotly: a trace, or a plot with its data and layout


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its caption says what is seen, `plot` is Plotly JSON."""

    name: str
    title: str
    caption: str
    height: int
    plot: str


def library() -> str:
    """plotly.js with its two-dimensional figures only, a third of the whole; to be put on the page once."""
    return LIBRARY.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over one y axis; `x`: the title of its x axis, where panels do not share theirs."""

    y: str
    lines: Sequence[Tree]
    axis: Mapping[str, Any] = field(default_factory=lambda: {"rangemode": "tozero"})
    x: str = ""


def titled(text: str) -> Tree:
    """An axis with a title."""
    return {"title": {"text": text}}


TIME = titled("time since the start of the run (s)")


def stacked(
    panels: Sequence[Panel], x: Mapping[str, Any] = TIME, *, gap: float = 0.07,
    heights: tuple[float, ...] | None = None, **layout: Any,
) -> Tree:  # fmt: skip
    """Panels below each other, the x axis `x` below the last."""
    shared = not any(panel.x for panel in panels)
    layout |= json.loads(_grid(len(panels), gap, heights, shared=shared))
    data = list[Tree]()
    if shared and len(panels) > 1:
        layout["hoversubplots"] = "axis"
    for row, panel in enumerate(panels, 1):
        number = str(row) if row > 1 else ""
        data += [{**line, "xaxis": f"x{number}", "yaxis": f"y{number}"} for line in panel.lines]
        layout[f"yaxis{number}"] |= titled(panel.y) | {**panel.axis}
        if panel.x or row == len(panels):
            layout[f"xaxis{number}"] |= titled(panel.x) if panel.x else x
    return {"data": data, "layout": layout}


@cache
def _grid(rows: int, gap: float, heights: tuple[float, ...] | None, *, shared: bool) -> str:
    """The layout of so many panels, as JSON that each figure reads anew; Plotly makes it once, which takes long."""
    grid = make_subplots(rows, 1, shared_xaxes=shared, vertical_spacing=gap, row_heights=heights)
    return json.dumps(grid.to_plotly_json()["layout"])


def mark(plot: Tree, low: float, high: float, **style: Any) -> None:
    """A shape over an interval of x, as high as each panel."""
    for name in [name for name in plot["layout"] if name.startswith("yaxis")]:
        of = name.removeprefix("yaxis")
        at = {"x0": low, "x1": high, "xref": f"x{of}", "y0": 0, "y1": 1, "yref": f"y{of} domain"}
        plot["layout"].setdefault("shapes", []).append(at | style)


def points(x: Floats, y: Floats, name: str, mode: str, **more: Any) -> Tree:
    """Points of a panel, as markers or lines."""
    return {"type": "scatter", "x": numbers(x), "y": numbers(y), "name": name, "mode": mode, **more}


def curve(x: Floats, y: Floats, name: str, colour: str, hover: str, **more: Any) -> Tree:
    """A line of a panel; of one or two points, with markers."""
    line: Tree = {"color": colour, "width": 1.8}
    line |= {key: more.pop(key) for key in ("shape", "dash") if key in more}
    mode = "lines+markers" if len(x) < 3 else "lines"
    return points(x, y, name, mode, line=line, hovertemplate=hover, **more)


def numbers(values: Floats) -> list[float | None]:
    """Plain numbers of six figures; None breaks a line where there is no value."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def error_bars(value: Floats, low: Floats, high: Floats) -> Tree:
    """Both ends of intervals."""
    ends = {"array": numbers(high - value), "arrayminus": numbers(value - low)}
    return {"type": "data", "symmetric": False, **ends}


def finish(name: str, title: str, caption: str, height: int, plot: Tree) -> Figure:
    """The figure, with what all have in common. In JSON, a number that is not finite is null."""
    layout = plot["layout"]
    layout |= {
        "template": {}, "height": height, "margin": {"l": 64, "r": 12, "t": 8, "b": 48},
        "hovermode": layout.get("hovermode", "x unified"),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
    }  # fmt: skip
    for key, axis in layout.items():
        if key.startswith("xaxis"):
            axis |= {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 4}
        elif key.startswith("yaxis"):
            axis |= {"automargin": True, "zeroline": False}
            axis["title"]["standoff"] = 10
    return Figure(name, title, caption, height, str(plotly.io.to_json(plot, validate=False)))
