"""How the rate changes over a run, as a change of time.

Rule: a process is drawn in operational time, which passes at the rate of the moment: one unit for each arrival that is
expected. `Course.moments` takes it back to seconds by the exact inverse of the cumulative rate, so every process goes
with every shape, and the mean over the run stays what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.schedule.settings import Shape


@dataclass(frozen=True, slots=True)
class Course:
    """A rate made of straight pieces; arrays of one length, one entry a piece."""

    begins: Any
    widths: Any
    first: Any  # rate where the piece begins
    last: Any  # and where it ends

    @property
    def areas(self) -> Any:
        """Share of the whole that each piece contributes, before it is scaled to 1."""
        return self.widths * (self.first + self.last) / 2

    def moments(self, shares: Any) -> Any:
        """When the given shares of everything have come, as shares of the run: the inverse of the cumulative rate."""
        areas = self.areas
        total = areas.sum()
        before = np.concatenate([[0.0], np.cumsum(areas)])
        busy = np.flatnonzero(areas > 0)  # within a piece without rate nothing ever comes
        wanted = np.asarray(shares, dtype=float) * total
        piece = busy[np.clip(np.searchsorted(before[busy], wanted, side="right") - 1, 0, None)]
        left = np.maximum(wanted - before[piece], 0.0)
        rate, width = self.first[piece], self.widths[piece]
        slope = (self.last[piece] - rate) / width
        root = np.sqrt(np.maximum(rate * rate + 2 * slope * left, 0.0))
        steep = rate + root  # of the two forms of the root, the one that does not cancel
        passed = np.divide(2 * left, steep, out=np.zeros_like(left), where=steep > 0)
        return self.begins[piece] + np.minimum(passed, width)


def course(shape: Shape) -> Course:
    """The rate of a shape, relative; raises ScenarioError where it is 0 over the whole run."""
    pieces = [(a, b - a, rate, then) for (a, rate), (b, then) in pairwise(_points(shape)) if b > a]
    found = Course(*(np.array(column, dtype=float) for column in zip(*pieces, strict=True)))
    if found.areas.sum() <= 0:
        raise ScenarioError(f"arrival.shape: {shape.kind}: the rate is 0 over the whole run")
    return found


def _points(shape: Shape) -> Sequence[tuple[float, float]]:
    """Corners (share of the run, relative rate) in order; two at one place are a jump."""
    at, factor, end = shape.at, shape.factor, min(1.0, shape.at + shape.width)
    return {
        "flat": ((0.0, 1.0), (1.0, 1.0)),
        "step": ((0.0, 1.0), (at, 1.0), (at, factor), (1.0, factor)),
        "ramp": ((0.0, 1.0), (1.0, factor)),
        "spike": ((0.0, 1.0), (at, 1.0), (at, factor), (end, factor), (end, 1.0), (1.0, 1.0)),
        "piecewise": shape.points,
    }[shape.kind]
