"""The figure of a pattern: how long its users waited, by what became of their requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tailgauge_analysis.stats.quantiles import FEWEST, Floats
from tailgauge_analysis.text.picture import Panel, Picture, tail_curve

Groups = Mapping[str, Floats]
"""Name of a group, and the waits of its requests in ms, inf without an answer."""


def waiting(name: str, title: str, caption: str, groups: Groups) -> Iterator[Picture]:
    """Draw the share of each group that waited longer than each time, where two groups or more have waits to compare."""
    curves = []
    small = []
    for label, waits_ms in groups.items():
        if not np.isfinite(waits_ms).any():
            continue
        curves.append(tail_curve(*_tail(waits_ms), f"{label} ({len(waits_ms):,})"))
        if len(waits_ms) < FEWEST:
            small.append(label)
    if len(curves) < 2:
        return
    if small:
        caption += f" Small sample: {', '.join(small)}."
    yield Picture(
        name=name,
        title=title,
        caption=caption,
        panels=(Panel("share of requests that took longer", curves, scale="tail"),),
        x="time (ms, logarithmic)",
        x_scale="log",
        height=360,
    )


def _tail(waits_ms: Floats) -> tuple[Floats, Floats]:
    """Return the waits that have an end, ascending, and the share of all that took longer than each."""
    ended_ms = np.sort(waits_ms[np.isfinite(waits_ms)])
    longer = len(waits_ms) - np.searchsorted(ended_ms, ended_ms, "right")
    return ended_ms, longer / len(waits_ms)
