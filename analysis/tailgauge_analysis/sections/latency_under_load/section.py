"""The section on latency under load: where the slowest requests lose their time, and what tokens and concurrency cost.

The first is computed in diagnosis.py, the slopes in sections/slopes.py; latency at each step of a load is in
sections/load_steps.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import slopes
from tailgauge_analysis.sections.latency_under_load.diagnosis import (
    HEALTHY_RUN,
    UNKNOWN,
    Diagnosis,
    diagnosis,
)
from tailgauge_analysis.sections.slopes import (
    ALPHA,
    TITLES,
    UNITS,
    Regression,
    slope_cell,
)
from tailgauge_analysis.text.formatting import count, listed
from tailgauge_analysis.text.picture import BLUE, GREEN, ORANGE, Panel, Picture, PlotCurve
from tailgauge_analysis.text.section import Section, Table

KEY = ""
COMPUTED = (
    "Effects come from a rank regression over the answers of the steady stage, with 95% intervals. An effect is the change of latency that "
    "remains after correction for traffic table, target, model, worker, tags, length of the answer and slow drift over the stage. "
    f"Only effects that are significant at {ALPHA:.0%} after Holm's correction over all effects of the report are shown."
)
CONFOUNDED = "answers were faster where it was larger, so something else changed with it"
DEPENDENT = "it changed mostly together with other things, such as the traffic table, the length of the answer or the session"
BY_LATENCY = "slow answers raise this number, so cause and effect cannot be separated"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyUnderLoad:
    """Where the slowest requests lose their time, and what tokens and concurrency cost."""

    diagnosis: Diagnosis
    """where the slowest requests lose their time"""
    slopes: list[Regression]
    """factors of ttft_sent and tpot: of, n, why (no slopes), left_out, dependent, by_latency, confounded, together (pairs that cannot
    be separated), slopes (name, value, low, high, mark, p_value) in ms; a null value: no effect that survives among all of the report;
    see reports.md
    """


def compute(run: Run) -> LatencyUnderLoad:
    """Diagnose the tail, and take the slopes of the report."""
    return LatencyUnderLoad(
        diagnosis=diagnosis(run.without_slow_readers), slopes=slopes.compute(run)
    )


def section(load: LatencyUnderLoad) -> Section:
    """Return the section: where the slowest requests lose their time, and the slopes that are significant.

    A slope without a value is not significant: it has no row, and is named in a note.
    """
    tables = []
    rows = []
    figures: list[Picture] = []
    notes: list[str] = []
    for regression in load.slopes:
        for slope in regression.slopes:
            if slope.value is not None:
                rows.append((regression, slope))
        figures += _scatter(regression)
        notes += _not_estimated(regression)
    columns = (
        ("cost", lambda row: f"{TITLES[row[0].of]}: {UNITS[row[1].name][0]}"),
        ("effect (ms)", lambda row: slope_cell(row[1])),
        ("n", lambda row: count(row[0].n)),
    )
    if rows:
        tables.append(Table.of("Cost of tokens and concurrency", rows, columns))
    is_healthy = load.diagnosis.kind in {HEALTHY_RUN, UNKNOWN}
    has_slopes = any(regression.slopes for regression in load.slopes)
    return Section(
        name="latency-under-load",
        title="Latency under load",
        answer=load.diagnosis.sentence,
        tables=tuple(tables),
        figures=tuple(figures),
        notes=tuple(notes),
        computed=(COMPUTED,) if has_slopes else (),
        is_folded=is_healthy and not rows,
    )


def _not_estimated(regression: Regression) -> Iterator[str]:
    """Yield for one regression which factors have no slope, and why; and which pairs of factors cannot be separated.

    With `regression.why` there is no slope at all, and only this reason is given.
    """
    title = TITLES[regression.of]
    if regression.why:
        yield f"{title}: the effects of tokens and concurrency could not be estimated: {regression.why}."
        return
    insignificant = []
    for slope in regression.slopes:
        if slope.value is None:
            insignificant.append(slope.name)
    if insignificant:
        yield f"{title}: no effect of {_names(insignificant)} was seen."
    reasons = {
        "no variation": regression.left_out,
        BY_LATENCY: regression.by_latency,
        DEPENDENT: regression.dependent,
        CONFOUNDED: regression.confounded,
    }
    for reason, names in reasons.items():
        if names:
            effects = "the effect" if len(names) == 1 else "the effects"
            verb = "was" if len(names) == 1 else "were"
            yield f"{title}: {effects} of {_names(names)} {verb} not estimated ({reason})."
    for pair in regression.together:
        yield f"{title}: the effects of {' and '.join(UNITS[name][1] for name in pair)} cannot be separated."


def _names(columns: Sequence[str]) -> str:
    return listed((UNITS[name][1] for name in columns), None)


# --- figures ------------------------------------------------------------------------------------------------------

CAPTION = (
    "Each dot is one {}; at most 400 are drawn, evenly over the stage. The line has the slope of the table and half of the dots below "
    "it. Other influences on latency move the dots, not the line."
)


def _reliable_value(regression: Regression) -> float | None:
    """Return the slope on what the latency is drawn against; None without a reliable one."""
    for slope in regression.slopes:
        if slope.name == regression.against and not slope.mark:
            return slope.value
    return None


def _scatter(regression: Regression) -> Iterator[Picture]:
    """Draw latency against what it is regressed on, with its reliable slopes, if there are any."""
    x = regression.x
    per_unit = _reliable_value(regression)
    if per_unit is None or len(x) < 2:
        return
    is_ttft = regression.of == "ttft_sent"
    if is_ttft:
        per_unit /= 1000
    start = np.quantile(regression.y - per_unit * x, 0.5, method="inverted_cdf")
    ends = np.array([x.min(), x.max()])
    dots = PlotCurve(
        x,
        regression.y,
        colour=BLUE if is_ttft else GREEN,
        style="dots",
        hover="%{x:,.4~g}: %{y:,.4~g} ms",
    )
    line = PlotCurve(ends, start + per_unit * ends, "effect", colour=ORANGE, hover="skip")
    yield Picture(
        name="ttft-by-prompt" if is_ttft else "tpot-by-answers",
        title="TTFT against prompt tokens" if is_ttft else "TPOT against concurrent answers",
        caption=CAPTION.format("answer" if is_ttft else "gap between chunks"),
        panels=(
            Panel("TTFT since sent (ms)" if is_ttft else "TPOT of one gap (ms)", (dots, line)),
        ),
        x="uncached prompt tokens" if is_ttft else "answers arriving at the same time",
        height=320,
    )
