"""What the sections on structured output, thinking and tools share: waits for an event of an answer, their text and figure.

Times are ms since sent, in the answers of the steady stage that have the event.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Mask, Quantile
from tailgauge_analysis.stats.survival import Waits
from tailgauge_analysis.text.cells import quantiles_text, values_text
from tailgauge_analysis.text.picture import Picture, tail_curve, tail_picture

QUANTILES = (0.5, 0.95)


def answered(stage: Steady) -> Mask:
    """Return which requests have a complete answer."""
    return stage.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)


def waits(metric: str, stage: Steady, mask: Mask) -> Waits:
    """Return the event of these requests, where it came."""
    ms = BY_NAME[metric].ns(stage) / 1e6
    every = Waits(ms, np.ones(len(ms), np.bool_), np.zeros(len(ms), np.bool_), stage.groupings)
    return every.only(mask & ~np.isnan(ms))


def line(name: str, quantiles: Sequence[Quantile]) -> str:
    """`first argument p50 145 ms, p95 238 ms (95% CI 221 – 260)`; the interval is that of the last."""
    *lower, upper = quantiles
    texts = filter(None, (values_text(lower), quantiles_text(upper)))
    return f"{name} {', '.join(texts)}"


def tails(name: str, title: str, events: Sequence[tuple[str, Waits]]) -> list[Picture]:
    """Draw the share of answers in which each event came later than a time; none without two answers."""
    curves = []
    for event, of_event in events:
        if len(of_event.ms) > 1:
            curves.append(tail_curve(*of_event.tail(), event))
    if not curves:
        return []
    picture = tail_picture(
        curves,
        name=name,
        title=title,
        caption="The lines are of complete answers of the steady stage. Times count since sent.",
        of="answers",
        x="time since sent (ms, logarithmic)",
        height=300,
    )
    return [picture]
