"""The figure of the slopes: TTFT against prompt tokens, TPOT against concurrent answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tailgauge_analysis.sections.slopes import Regression, Slope
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.text.picture import BLUE, GREEN, ORANGE, Panel, Picture, PlotCurve

CAPTION = (
    "One dot per answer, or gap between its chunks, at most 400, evenly over the stage. The lines have the reliable slopes of "
    "the table; other influences on latency are in the dots, not in the lines."
)


def against_size_and_load(regressions: Sequence[Regression]) -> Iterator[Picture]:
    """Draw those that have a reliable slope."""
    panels = [_panel(one) for one in regressions if len(one.x) > 1 and _reliable(one)]
    if panels:
        yield Picture(
            name="against",
            title="TTFT against prompt tokens, TPOT against concurrent answers",
            caption=CAPTION,
            panels=panels,
            height=260 * len(panels) + 60,
        )


def _reliable(regression: Regression) -> list[Slope]:
    slopes = [slope for slope in regression.slopes if slope.name == regression.against]
    return [slope for slope in slopes if slope.value is not None and not slope.mark]


def _panel(regression: Regression) -> Panel:
    """Return the dots, and through them lines of the slopes."""
    x = regression.x
    is_ttft = regression.of == "ttft_sent"
    dots = PlotCurve(
        x,
        regression.y,
        colour=BLUE if is_ttft else GREEN,
        style="dots",
        hover="%{x:,.0f} tokens: %{y:,.4~g} ms" if is_ttft else "%{x:,.3~g} arriving: %{y:,.4~g} ms",
    )
    curves = [dots]
    ends = np.array([x.min(), x.max()])
    for slope in _reliable(regression):
        each = (slope.value or 0.0) / (1000 if is_ttft else 1)
        start = np.quantile(regression.y - each * x, slope.p, method="inverted_cdf")
        dash = "" if slope.p == 0.5 else "dot"
        curves.append(
            PlotCurve(ends, start + each * ends, percentile(slope.p), colour=ORANGE, dash=dash, hover="skip")
        )
    if is_ttft:
        return Panel("TTFT since sent (ms)", curves, x="uncached prompt tokens")
    return Panel("TPOT of one gap (ms)", curves, x="answers arriving at the same time")
