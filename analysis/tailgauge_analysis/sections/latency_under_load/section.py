"""The section on latency under load: where the slowest requests lose their time, and what tokens and concurrency cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailgauge_analysis.sections.latency_under_load.diagnosis import Diagnosis
from tailgauge_analysis.sections.latency_under_load.slopes import PS, TITLES, UNITS, Regression, Slope
from tailgauge_analysis.text.formatting import count, ms, percentile
from tailgauge_analysis.text.section import Section, Table, Value

COMPUTED = "Quantile regression over the answers of the steady stage, with 95% intervals."
CONFOUNDED = "faster with more of it, or by the length of the answer: something else came with it"


def section(diagnosis: Diagnosis, slopes: Sequence[Regression]) -> Section:
    """The bottleneck and the slopes."""
    header = ("cost", *(f"{percentile(p)} (ms)" for p in PS), "n")
    rows = tuple(row for one in slopes for row in _rows(one))
    note = "Correlated factors cannot be separated in this run."
    return Section(
        "latency-under-load", "Latency under load", diagnosis.sentence,
        tables=(Table("Cost of tokens and concurrency", header, rows, note),) if rows else (),
        figures=("against",),
        notes=tuple(text for one in slopes for text in _not_estimated(one)),
        computed=(COMPUTED,) if rows else (),
    )  # fmt: skip


def _rows(one: Regression) -> Iterator[tuple[str | Value, ...]]:
    cells = {(slope.name, slope.p): slope_cell(slope) for slope in one.slopes}
    for name in dict.fromkeys(slope.name for slope in one.slopes):
        title = f"{TITLES[one.of]}: {UNITS[name][0]}"
        yield title, *(cells.get((name, p), "–") for p in PS), count(one.n)


def slope_cell(slope: Slope) -> Value:
    """Its value, with the interval."""
    low, high = (ms(round(one, 6) + 0.0) for one in (slope.low, slope.high))  # no -0
    value = "no effect seen" if slope.value is None else ms(slope.value)
    return Value(value, f"{low} – {high}", slope.mark)


def _not_estimated(one: Regression) -> Iterator[str]:
    """What has no slope, and why."""
    if one.why:
        yield f"{TITLES[one.of]}: not estimated ({one.why})."
        return
    for why, names in (("no variation", one.left_out), (CONFOUNDED, one.confounded)):
        if names:
            yield f"{TITLES[one.of]}: not estimated ({why}): {', '.join(UNITS[name][1] for name in names)}."
