"""The figures of an answer: curves with intervals, and what is marked on them.

Rule: it draws a `Picture` as it is; what is drawn was decided by the kind of experiment.
"""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from tailgauge.experiments.answer import Line, Picture
from tailgauge_analysis.report.figures import BLUE, GREEN, GREY, ORANGE, Figure, _few, _figure

_COLOURS = (BLUE, ORANGE, GREEN, GREY)
HEIGHT = 360


def figure(picture: Picture) -> Figure:
    """One picture."""
    plot = go.Figure([_line(line, _COLOURS[i % len(_COLOURS)]) for i, line in enumerate(picture.lines)])
    for mark in picture.marks:
        if mark.high > mark.low:
            plot.add_vrect(x0=mark.low, x1=mark.high, fillcolor=GREY, opacity=0.18, line_width=0)
        else:
            plot.add_vline(x=mark.low, line={"color": GREY, "dash": "dot"})
        at = (
            math.log10(mark.low) if picture.log_x else mark.low
        )  # of a logarithmic axis plotly takes the exponent
        plot.add_annotation(
            x=at, y=1, yref="paper", text=mark.name, showarrow=False, xanchor="left", yanchor="bottom"
        )
    plot.update_xaxes(title_text=picture.x, type="log" if picture.log_x else "linear")
    plot.update_yaxes(title_text=picture.y, type="log" if picture.log_y else "linear")
    plot.update_layout(hovermode="closest")
    return _figure(picture.name, picture.title, picture.caption, HEIGHT, plot)


def _line(line: Line, colour: str) -> go.Scatter:
    error = None
    if line.low and line.high:
        y = np.array(line.y)
        error = {
            "type": "data",
            "symmetric": False,
            "array": _few(np.array(line.high) - y),
            "arrayminus": _few(y - np.array(line.low)),
        }
    return go.Scatter(
        x=_few(np.array(line.x)), y=_few(np.array(line.y)), name=line.name, error_y=error,
        mode="lines+markers" if line.joined else "markers", line={"color": colour}, marker={"color": colour},
    )  # fmt: skip
