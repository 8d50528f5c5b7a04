"""The figure of a pattern: how long its users waited, by what became of their requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tailgauge_analysis.stats.quantiles import FEWEST, Floats
from tailgauge_analysis.stats.survival import Waits
from tailgauge_analysis.text.picture import Picture, tail_curve, tail_picture

Groups = Mapping[str, Floats]
"""Name of a group, and the waits of its requests in ms, inf without an answer."""


def waiting(name: str, title: str, caption: str, groups: Groups) -> Iterator[Picture]:
    """Draw the share of each group that waited longer than each time, where two groups or more have waits to compare."""
    curves = []
    small = []
    for label, waits_ms in groups.items():
        is_answered = np.isfinite(waits_ms)
        if not is_answered.any():
            continue
        waits = Waits(waits_ms, is_answered, np.zeros(len(waits_ms), np.bool_))
        curves.append(tail_curve(*waits.tail(), f"{label} ({len(waits_ms):,})"))
        if len(waits_ms) < FEWEST:
            small.append(label)
    if len(curves) < 2:
        return
    if small:
        caption += f" Small sample: {', '.join(small)}."
    yield tail_picture(curves, name=name, title=title, caption=caption, x="time (ms, logarithmic)")
