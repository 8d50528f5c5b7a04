"""The section on latency under load: where the slowest requests lose their time, and what tokens and concurrency cost."""

from __future__ import annotations

from collections.abc import Sequence

from tailgauge_analysis.sections.latency_under_load.diagnosis import Diagnosis
from tailgauge_analysis.sections.latency_under_load.slopes import PS, TITLES, UNITS, Regression, Slope
from tailgauge_analysis.text.formatting import count, ms, percentile
from tailgauge_analysis.text.section import Section, Table, Value


def section(diagnosis: Diagnosis, slopes: Sequence[Regression]) -> Section:
    """The bottleneck and the slopes."""
    costs = Table(
        "Cost of tokens and concurrency",
        ("cost", *(f"{percentile(p)} (ms)" for p in PS), "n"),
        tuple(row for one in slopes for row in _rows(one)),
        "Correlated factors cannot be separated in this run.",
    )
    return Section(
        "latency-under-load",
        "Latency under load",
        diagnosis.sentence,
        tables=(costs,) if costs.rows else (),
        figures=("against",),
        notes=tuple(text for one in slopes if (text := _not_estimated(one))),
        computed=("Quantile regression over the answers of the steady stage, with 95% intervals.",)
        if costs.rows
        else (),
    )


def _rows(one: Regression) -> list[tuple[str | Value, ...]]:
    names = dict.fromkeys(slope.name for slope in one.slopes)
    return [
        (
            f"{TITLES[one.of]}: {UNITS[name][0]}",
            *(slope_cell(slope) for slope in one.slopes if slope.name == name),
            count(one.n),
        )
        for name in names
    ]


def slope_cell(slope: Slope) -> Value:
    """Its value, with the interval."""
    value, low, high = (ms(round(one, 6) + 0.0) for one in (slope.value, slope.low, slope.high))  # no -0
    return Value(value, f"{low} – {high}", slope.mark)


def _not_estimated(one: Regression) -> str:
    names = ", ".join(UNITS[name][1] for name in one.left_out)
    why = f"({one.why})" if one.why else f"(no variation): {names}" if names else ""
    return f"{TITLES[one.of]}: not estimated {why}." if why else ""
