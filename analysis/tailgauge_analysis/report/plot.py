"""A figure of the page and what all of them are drawn with: panels, lines, intervals, as Plotly JSON.

Colours and grid that depend on light or dark are set by the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
from plotly.subplots import make_subplots

from tailgauge_analysis.stats.quantiles import Floats

BLUE, ORANGE, GREEN, PURPLE, GREY = "#3f7fbf", "#d9822b", "#2f9e6e", "#9067c6", "#8a8f98"
LINES = (BLUE, ORANGE, GREEN, PURPLE, "#c2577b", "#3aa6b9", "#a08530", GREY)
TIME = "time since the start of the run (s)"
LIBRARY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js"
# The page has looks of its own: Plotly's would be loaded to be thrown away.
plotly.io.templates.default = None


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
    lines: Sequence[Any]
    axis: Mapping[str, Any] = field(default_factory=lambda: {"rangemode": "tozero"})
    x: str = ""


def stacked(
    panels: Sequence[Panel], x: str = TIME, *, gap: float = 0.07, heights: Sequence[float] | None = None
) -> go.Figure:
    """Panels below each other."""
    shared = not any(panel.x for panel in panels)
    plot = make_subplots(
        rows=len(panels), cols=1, shared_xaxes=shared, vertical_spacing=gap, row_heights=heights
    )
    for row, panel in enumerate(panels, 1):
        for line in panel.lines:
            plot.add_trace(line, row, 1)
        plot.update_yaxes(title_text=panel.y, row=row, col=1, **panel.axis)
        if panel.x or row == len(panels):
            plot.update_xaxes(title_text=panel.x or x, row=row, col=1)
    if shared and len(panels) > 1:
        plot.update_layout(hoversubplots="axis")
    return plot


def curve(x: Floats, y: Floats, name: str, colour: str, hover: str, **more: Any) -> go.Scatter:
    """A line of a panel; of one or two points, with markers."""
    line: dict[str, Any] = {"color": colour, "width": 1.8}
    line |= {key: more.pop(key) for key in ("shape", "dash") if key in more}
    more |= {"mode": "lines+markers" if len(x) < 3 else "lines", "line": line, "hovertemplate": hover}
    return go.Scatter(x=numbers(x), y=numbers(y), name=name, **more)


def numbers(values: Floats) -> list[float | None]:
    """Plain numbers of six figures; None breaks a line where there is no value."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def error_bars(value: Floats, low: Floats, high: Floats) -> dict[str, Any]:
    """Both ends of intervals."""
    ends = {"array": numbers(high - value), "arrayminus": numbers(value - low)}
    return {"type": "data", "symmetric": False, **ends}


def finish(name: str, title: str, caption: str, height: int, plot: go.Figure) -> Figure:
    """What all figures have in common goes into the plain tree: Plotly would look at each value for a millisecond."""
    tree = plot.to_plotly_json()
    layout = tree["layout"]
    layout |= {
        "template": {},
        "height": height,
        "margin": {"l": 64, "r": 12, "t": 8, "b": 48},
        "hovermode": layout.get("hovermode", "x unified"),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    for key, axis in layout.items():
        if key.startswith("xaxis"):
            axis |= {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 4}
        elif key.startswith("yaxis"):
            axis |= {"automargin": True, "zeroline": False}
            axis.setdefault("title", {})["standoff"] = 10
    return Figure(name, title, caption, height, str(plotly.io.to_json(tree, validate=False)))
