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
    """Draw the share of each group that waited longer than each time; nothing unless two groups have waits to compare.

    `groups`: waits in ms by name, inf without an answer. A group without any answer is left out; one below FEWEST requests is
    named in the caption.
    """
    curves = []
    small_groups = []
    for label, waits_ms in groups.items():
        is_answered = np.isfinite(waits_ms)
        if not is_answered.any():
            continue
        waits = Waits(waits_ms, is_answered, np.zeros(len(waits_ms), np.bool_))
        curves.append(tail_curve(*waits.tail(), f"{label} ({len(waits_ms):,})"))
        if len(waits_ms) < FEWEST:
            small_groups.append(label)
    if len(curves) < 2:
        return
    if small_groups:
        caption += f" Small sample: {', '.join(small_groups)}."
    yield tail_picture(curves, name=name, title=title, caption=caption, x="time (ms, logarithmic)")
