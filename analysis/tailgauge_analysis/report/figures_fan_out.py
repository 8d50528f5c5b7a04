"""The figure of the fan-out report: the slowest leg as it was seen, and as it would be if legs knew nothing of each other.

Rule: as in figures: it draws what others computed.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tailgauge_analysis.report.figures import BLUE, GREEN, ORANGE, Figure, _figure, _line, _log_ticks
from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.text.formatting import plain

FEWEST = 100  # complete requests, below which a tail is not drawn


def figures(findings: Findings) -> list[Figure]:
    """One figure: of the traffic table with the most complete requests."""
    drawn = [one for one in findings.fan_out if one.curves is not None and one.complete >= FEWEST]
    if not drawn:
        return []
    one = max(drawn, key=lambda one: one.complete)
    assert one.curves is not None
    lines = one.curves
    plot = go.Figure()
    for shares, words, colour, dash in (
        (lines.seen, "seen", BLUE, "solid"),
        (lines.conditional, "if legs knew only what time it is", ORANGE, "dash"),
        (lines.naive, "if legs were independent", GREEN, "dot"),
    ):
        kept = (shares > 0.5 / one.complete) & (lines.at_ms > 0)
        hover = "%{y:.3~%} took longer than %{x:,.4~g} ms"
        plot.add_trace(_line(lines.at_ms[kept], shares[kept], words, colour, hover, dash=dash))
    steps = [p for p in (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999) if 1 - p >= 0.99 / one.complete]
    plot.update_yaxes(
        type="log", title_text="share of requests whose slowest leg took longer", tickmode="array",
        tickvals=[1 - p for p in steps], ticktext=[f"{100 * (1 - p):.4g}%" + (f" (p{100 * p:.6g})" if p else "") for p in steps],
        range=[np.log10(0.5 / one.complete), 0.05],
    )  # fmt: skip
    low, high = float(lines.at_ms[lines.at_ms > 0].min()), float(lines.at_ms.max())
    ticks = _log_ticks(low, high)
    plot.update_xaxes(type="log", title_text="slowest leg, since sent (ms, logarithmic)", **ticks)
    plot.update_layout(hovermode="closest")
    caption = (
        f"{plain(one.traffic, 80)}, {one.complete:,} requests. Dotted to dashed: the load drifted. Dashed to solid: the legs of "
        "one request share something."
    )
    return [_figure("fan-out-slowest", "The slowest leg, seen and predicted", caption, 380, plot)]
