"""The figure of the 429 report: the rate over time with its band, and how full the bucket was.

Rule: as in figures: it draws what others computed.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailgauge_analysis.report.figures import BLUE, GREY, LINES, ORANGE, TIME, Figure, _few, _figure, _line
from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.sections.rate_limits.text import spoken


def figures(findings: Findings) -> list[Figure]:
    """The figure, where a call got a 429."""
    found = findings.rate_limits
    if found is None or found.bins is None or not found.bins.refused.any():
        return []
    bins, levels = found.bins, [one for one in found.buckets if one.levels is not None]
    levels = [one for one in levels if one is found.binding.bucket] or levels[:1]
    rows = 3 if levels else 2
    plot = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    at, share = bins.at_s, bins.share
    known = ~np.isnan(share)
    edge = {"mode": "lines", "line": {"width": 0, "color": ORANGE}, "hoverinfo": "skip", "showlegend": False}
    plot.add_trace(go.Scatter(x=_few(at[known]), y=_few(100 * bins.high[known]), **edge), 1, 1)
    band = {
        **edge,
        "showlegend": True,
        "name": "95% interval",
        "fill": "tonexty",
        "fillcolor": "rgba(217,130,43,0.22)",
    }
    plot.add_trace(go.Scatter(x=_few(at[known]), y=_few(100 * bins.low[known]), **band), 1, 1)
    plot.add_trace(_line(at, 100 * share, "429s", ORANGE, "%{y:.3~g}%"), 1, 1)
    per = bins.width_s
    plot.add_trace(_line(at, bins.attempts / per, "attempts", GREY, "%{y:,.4~g}/s", dash="dot"), 2, 1)
    colours = [colour for colour in LINES if colour != GREY]
    for i, (kind, counts) in enumerate(bins.by_kind.items()):
        name = f"429s, {spoken(kind)}"
        plot.add_trace(_line(at, counts / per, name, colours[(i + 1) % len(colours)], "%{y:,.4~g}/s"), 2, 1)
    plot.update_yaxes(title_text="429s<br>(% of attempts)", range=[0, 103], row=1, col=1)
    plot.update_yaxes(title_text="per second", rangemode="tozero", row=2, col=1)
    about = ""
    for one in levels:
        assert one.levels is not None
        name = f"{spoken(one.kind)} left at least"
        plot.add_trace(_line(one.levels.at_s, one.levels.lowest, name, BLUE, "%{y:,.4~g}"), 3, 1)
        plot.update_yaxes(
            title_text=f"{spoken(one.kind)}<br>left in the bucket", rangemode="tozero", row=3, col=1
        )
        about = " Below: the lowest level of the bucket in each bin, reconstructed from what the calls cost"
        about += " and held against the headers." if one.levels.compared else "."
    plot.update_xaxes(title_text=TIME, row=rows, col=1)
    plot.update_layout(hoversubplots="axis")
    when = "second" if per == 1 else f"{per} seconds"
    caption = f"One point per {when}, by the time of sending, the whole run; the band is the exact 95% interval.{about}"
    return [_figure("refusals", "429s over time", caption, 160 * rows + 60, plot)]
