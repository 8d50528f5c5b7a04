"""A figure as plain values: points with their intervals, and marked intervals of x; drawn by report/picture.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """Points, with their intervals if there are any. `dashed`: of a line without points its colour, red or grey; `labels`: beside the points."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    joined: bool = True  # a line through the points
    dashed: str = ""
    labels: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, points: Sequence[tuple[float, Any]], shown: Callable[[float], float], *, joined: bool
    ) -> PlotCurve:
        """Estimates (value, low, high) at x."""
        ends = ("value", "low", "high")
        value, low, high = (tuple(shown(getattr(one, end) or 0.0) for _, one in points) for end in ends)
        return cls(name, tuple(x for x, _ in points), value, low, high, joined)


@dataclass(frozen=True, slots=True)
class Mark:
    """A shaded interval of x, or a vertical line if both ends are the same; `of`: the name of its curve."""

    name: str
    low: float
    high: float
    of: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure of an answer. `log`: its logarithmic axes, of `xy`."""

    name: str
    title: str
    caption: str
    x: str
    y: str
    curves: tuple[PlotCurve, ...]
    marks: tuple[Mark, ...] = ()
    log: str = ""
    tails: bool = False  # curves are shares that took longer than x ms: both axes are logarithmic
