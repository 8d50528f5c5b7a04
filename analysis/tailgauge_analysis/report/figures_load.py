"""The figures of what load does: waits second by second, and TTFT and TPOT against what they are regressed on.

Rule: as in figures: it draws what others computed, at most so many points whatever the run's size.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailgauge_analysis.metrics.heat import Heat
from tailgauge_analysis.report.figures import BLUE, GREEN, ORANGE, TIME, Figure, _few, _figure, _log_ticks
from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.sections.load.slopes import Fitted

AXES = {
    "ttft_sent": ("uncached prompt tokens", "TTFT since sent (ms)", "%{x:,.0f} tokens: %{y:,.4~g} ms"),
    "tpot": ("answers arriving at the same time (mean)", "TPOT (ms)", "%{x:,.3~g} beside it: %{y:,.4~g} ms"),
}
SCALE = [[0.0, "#dce9f5"], [0.35, "#7fb2dc"], [0.7, "#3f7fbf"], [1.0, "#12365c"]]


def figures(findings: Findings) -> list[Figure]:
    """Those that the run has data for."""
    drawn = (_heat(findings.timeline.heat), _against(findings.slopes))
    return [figure for figure in drawn if figure is not None]


def _heat(heat: Heat | None) -> Figure | None:
    if heat is None:
        return None
    shares = heat.counts / np.maximum(1, heat.counts.sum(axis=0))
    plot = go.Figure(
        go.Heatmap(
            x=_few(heat.at_s), y=_few(heat.middle_ms),
            z=[[round(float(v) * 100, 1) if v else None for v in row] for row in shares],
            colorscale=SCALE, zmin=0, hovertemplate="%{x:,.0f} s, about %{y:,.3~g} ms: %{z:.3~g}%<extra></extra>",
            colorbar={"title": {"text": "% of the<br>requests"}, "thickness": 10, "outlinewidth": 0},
        )
    )  # fmt: skip
    ticks = _log_ticks(float(heat.edges_ms[0]), float(heat.edges_ms[-1]))
    plot.update_yaxes(type="log", title_text="TTFT since scheduled (ms, logarithmic)", **ticks)
    plot.update_xaxes(title_text=TIME)
    plot.update_layout(hovermode="closest")
    per = "second" if heat.width_s == 1 else f"{heat.width_s} seconds"
    caption = (
        f"One column per {per}, by scheduled time, warm-up included: of the requests that were answered, which share waited how long. "
        "Two bands are two kinds of answers; a band that bends upwards is a queue that grows."
    )
    return _figure("heat", "TTFT, second by second", caption, 340, plot)


def _against(found: list[Fitted]) -> Figure | None:
    shown = [one for one in found if len(one.x) > 1 and one.against in {slope.name for slope in one.slopes}]
    if not shown:
        return None
    plot = make_subplots(rows=len(shown), cols=1, vertical_spacing=0.2)
    for row, one in enumerate(shown, 1):
        x_title, y_title, hover = AXES[one.of]
        colour = BLUE if one.of == "ttft_sent" else GREEN
        dots = go.Scatter(
            x=_few(one.x), y=_few(one.y), mode="markers", name=y_title.partition(" (")[0], showlegend=False,
            marker={"size": 5, "opacity": 0.55, "color": colour}, hovertemplate=hover + "<extra></extra>",
        )  # fmt: skip
        plot.add_trace(dots, row, 1)
        for p, dash in ((0.5, "solid"), (0.95, "dot")):
            plot.add_trace(_line_of(one, p, dash, row == 1), row, 1)
        plot.update_xaxes(title_text=x_title, row=row, col=1)
        plot.update_yaxes(title_text=y_title, rangemode="tozero", row=row, col=1)
    plot.update_layout(hovermode="closest")
    caption = (
        "At most 400 answers, evenly over the stage, one dot each. The lines have the slopes of the table and pass through the middle "
        "of the dots at p50, the upper part of them at p95: what else moves a latency is in the dots and not in the lines."
    )
    return _figure(
        "against", "TTFT against prompt tokens, TPOT against neighbours", caption, 260 * len(shown) + 60, plot
    )


def _line_of(one: Fitted, p: float, dash: str, named: bool) -> go.Scatter:
    """A line of the slope at p, through the mean x and the p-quantile of what the slope leaves."""
    slope = next(s.value for s in one.slopes if (s.name, s.p) == (one.against, p))
    each = slope / (1000 if one.of == "ttft_sent" else 1)
    start = float(np.quantile(one.y - each * one.x, p, method="inverted_cdf"))
    ends = np.array([one.x.min(), one.x.max()])
    return go.Scatter(
        x=_few(ends), y=_few(start + each * ends), mode="lines", name=f"p{p * 100:g}", showlegend=named,
        line={"color": ORANGE, "width": 2, "dash": dash}, hoverinfo="skip",
    )  # fmt: skip
