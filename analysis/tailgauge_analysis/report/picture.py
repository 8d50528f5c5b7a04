"""Draws the figures of experiments."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tailgauge_analysis.report.plot import BLUE, GREEN, GREY, ORANGE, Figure, error_bars, finish, numbers
from tailgauge_analysis.text.picture import Picture, PlotCurve

COLOURS = (BLUE, ORANGE, GREEN, GREY)
HEIGHT = 360


def figure(picture: Picture) -> Figure:
    """One picture."""
    plot = go.Figure([_trace(curve, COLOURS[i % len(COLOURS)]) for i, curve in enumerate(picture.curves)])
    for mark in picture.marks:
        if mark.high > mark.low:
            plot.add_vrect(x0=mark.low, x1=mark.high, fillcolor=GREY, opacity=0.18, line_width=0)
        else:
            plot.add_vline(x=mark.low, line={"color": GREY, "dash": "dot"})
        plot.add_annotation(
            x=mark.low, y=1, yref="paper", text=mark.name, showarrow=False, xanchor="left", yanchor="top"
        )
    plot.update_xaxes(title_text=picture.x)
    plot.update_yaxes(title_text=picture.y)
    plot.update_layout(hovermode="closest")
    return finish(picture.name, picture.title, picture.caption, HEIGHT, plot)


def _trace(curve: PlotCurve, colour: str) -> go.Scatter:
    y = np.array(curve.y)
    error = error_bars(y, np.array(curve.low), np.array(curve.high)) if curve.low and curve.high else None
    return go.Scatter(
        x=numbers(np.array(curve.x)), y=numbers(y), name=curve.name, error_y=error,
        mode="lines+markers" if curve.joined else "markers", line={"color": colour}, marker={"color": colour},
    )  # fmt: skip
