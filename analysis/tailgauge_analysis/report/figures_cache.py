"""The figure of the cache report: TTFT of answers that read something from the cache, and of those that did not.

Rule: as in figures: it draws what others computed.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tailgauge_analysis.report.figures import BLUE, ORANGE, POINTS, Figure, _figure, _line, _log_ticks
from tailgauge_analysis.sections.cache.effect import EACH
from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import plain


def figures(findings: Findings) -> list[Figure]:
    """One figure: of the traffic table with the most answers of which some read and some did not."""
    both = [one for one in findings.cache if min(len(one.worth.hit_ms), len(one.worth.miss_ms)) >= EACH]
    if not both:
        return []
    one = max(both, key=lambda one: len(one.worth.hit_ms) + len(one.worth.miss_ms)).worth
    name = next(cache.traffic for cache in both if cache.worth is one)
    plot = go.Figure()
    for values, words, colour, dash in (
        (one.hit_ms, "read from the cache", BLUE, "solid"),
        (one.miss_ms, "read nothing", ORANGE, "dot"),
    ):
        x, y = _steps(values)
        hover = "%{y:.3~g}% within %{x:,.4~g} ms"
        plot.add_trace(_line(x, y, f"{words} ({len(values):,})", colour, hover, shape="hv", dash=dash))
    low = min(float(one.hit_ms[0]), float(one.miss_ms[0]))
    high = max(float(one.hit_ms[-1]), float(one.miss_ms[-1]))
    plot.update_xaxes(title_text="TTFT since sent (ms)")
    if low > 0 and high / low > 20:
        ticks = _log_ticks(low, high)
        plot.update_xaxes(type="log", title_text="TTFT since sent (ms, logarithmic)", **ticks)
    plot.update_yaxes(title_text="answers (%)", range=[0, 103])
    plot.update_layout(hovermode="closest")
    caption = (
        f"{plain(name, 80)}, answers of the steady stage. The gap between the lines is no effect of the cache alone: "
        "what reads and what does not may differ in length and in time. The regression accounts for that."
    )
    return [_figure("cache-ttft", "TTFT with and without the cache", caption, 360, plot)]


def _steps(values: Floats) -> tuple[Floats, Floats]:
    """Per cent of the ascending values at most x, at few enough points."""
    ranks = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(np.int64))
    return values[ranks], 100 * (ranks + 1) / len(values)
