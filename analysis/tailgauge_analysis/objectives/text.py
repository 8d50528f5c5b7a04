"""The text of an objective's outcome: its value, its bound, its interval. Reasons are written where they are found, in outcome.py."""

from __future__ import annotations

import math

from tailgauge.scenario.figures import COST, LATENCY, SHARE, Figure
from tailgauge.scenario.objective import Objective
from tailgauge_analysis.text.formatting import ms, share, share_range
from tailgauge_analysis.text.section import ObjectiveLine

Ends = tuple[float | None, float | None, float | None]  # a value and its interval


def line_of(objective: Objective, outcome: str, ends: Ends, reason: str) -> ObjectiveLine:
    """Return an objective with the text of its value, bound and interval."""
    figure = objective.figure
    value, low, high = ends
    sign = figure.sign
    if value is not None and value == objective.bound:
        sign = "="
    elif value is not None:
        sign = "<" if value < objective.bound else ">"
    return ObjectiveLine(
        name=objective.label,
        outcome=outcome.upper(),
        value=value_text(figure, value),
        bound=f"{sign} {figure.text(objective.bound)}",
        interval=interval_text(figure, low, high),
        why=reason,
        required=objective.bound_text,
    )


def value_text(figure: Figure, value: float | None) -> str:
    """`1,298 ms`, `0.21%`, `48.9/s`; nothing without a value."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "no good request" if figure.unit == COST else ""
    if figure.unit == LATENCY:
        return f"{ms(value)} ms"
    if figure.unit == SHARE:
        return share(value)
    return figure.text(value)


def interval_text(figure: Figure, low: float | None, high: float | None) -> str:
    """`1,136-1,647`, `0.0-0.7%`; `?` for an end without a bound."""
    low, high = map(finite, (low, high))
    if low is None and high is None:
        return ""
    if figure.unit == SHARE and low is not None and high is not None:
        return share_interval(low, high)
    return f"{_end_text(figure, low)}-{_end_text(figure, high)}"


def _end_text(figure: Figure, end: float | None) -> str:
    return value_text(figure, end).removesuffix(figure.suffix) or "?"


def finite(value: float | None) -> float | None:
    """Return the value; None where it is infinite or not a number."""
    if value is None or not math.isfinite(value):
        return None
    return value


def share_interval(low: float | None, high: float | None) -> str:
    """`0.0-0.7%`."""
    return share_range(low, high).replace("% – ", "-")
