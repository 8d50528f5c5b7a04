"""Rows of B against A from two load curves: the knee, and latency at the loads that both measured; saturation without a verdict.

A change is the ratio of two independent estimates. The knee decides where both have one, else the first latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from tailgauge.errors import UsageError
from tailgauge.thresholds import INVALID
from tailgauge_analysis.comparing import comparison
from tailgauge_analysis.comparing.comparability import SHOWN, Difference
from tailgauge_analysis.comparing.comparison import Comparison, Method, conclude
from tailgauge_analysis.comparing.curve import Curve, CurvePoint, Ends, read
from tailgauge_analysis.comparing.curve_pictures import objectives, pictures
from tailgauge_analysis.comparing.effect import Compared, Effect, decide, unequal_work
from tailgauge_analysis.stats.estimate import log_ratio
from tailgauge_analysis.text.formatting import figures, plain
from tailgauge_analysis.text.json_values import table, text
from tailgauge_analysis.text.picture import Picture
from tailgauge_analysis.text.section import Report

FREEDOM = 4  # of Student's t: runs are few
SAME_LOAD = 0.01
UNTESTED = "from one load of each: how much it varies between runs is unknown"
REMARK = "one curve each: a change of the target between them counts as a difference"
METHOD = Method(
    name="comparison",
    title="Load curves",
    computed="The knee is the largest load at which every objective holds. Latency is compared at today's load, and at the loads that both "
    "curves have up to the lower knee, where no backlog grows. A change is the ratio of two independent estimates. Its p comes from Student's "
    "t with 4 degrees of freedom. The first row is tested alone, the others together (Holm).",
)


def compare(paths: Sequence[Path], threshold: float, run_id: str) -> Report:
    """Return the report of `tailgauge compare` on two report.json of load curves, with its figures.

    `threshold`: the smallest change to report, as a share; `run_id`: names the report. UsageError if both are the same curve.
    Curves that cannot be compared get a report that says so and has no rows.
    """
    (a, a_tree), (b, b_tree) = map(read, paths)
    run_ids = [plain(text(tree.get("run_id")), SHOWN) for tree in (a_tree, b_tree)]
    if run_ids[0] == run_ids[1]:
        raise UsageError(f"{paths[0]} and {paths[1]} are the same curve: give each curve once")
    dry_runs = {bool(tree.get("dry_run")) for tree in (a_tree, b_tree)}
    verdicts = []
    against = []
    for name, tree in (("A", a_tree), ("B", b_tree)):
        verdict = text(table(tree, "measurement").get("verdict"))
        verdicts.append(verdict)
        if verdict == INVALID:
            against.append(f"{name} is INVALID")
    if a.by != b.by:
        against.append(f"A is by {a.by}, B by {b.by}: measure both by the same")
    if len(dry_runs) > 1:
        against.append("one is a dry run, the other is real")
    rows: tuple[Effect, ...] = ()
    drawn: tuple[Picture, ...] = ()
    if not against:
        rows = tuple(decide(list(_rows(a, b, threshold))))
        drawn = pictures(a, b)
    # Without a load in common, points are compared by their place: their work should still be equal.
    works = []
    for a_point, b_point in _common(a, b) or zip(a.points, b.points, strict=False):
        works.append((_work(a_point), _work(b_point)))
    draft = Comparison(
        method=METHOD,
        threshold=threshold,
        against=tuple(against),
        remarks=(REMARK, f"A is {run_ids[0]}, B is {run_ids[1]}"),
        differs=tuple(_differences(a, b)),
        rows=rows,
        unequal=tuple(unequal_work(works)),
    )
    report = comparison.report(conclude(draft), verdicts, figures=drawn, dry_run=True in dry_runs)
    return replace(report, run_id=run_id, title="Comparison of load curves")


def _differences(a: Curve, b: Curve) -> Iterator[Difference]:
    """Yield what is named, not refused: two targets or models are what is compared."""
    a_texts, b_texts = map(_texts, (a, b))
    for key, a_text in a_texts.items():
        if a_text != b_texts[key]:
            yield Difference(group=key, key=key, a=(a_text,), b=(b_texts[key],), allowed=True)


def _texts(curve: Curve) -> dict[str, str]:
    texts = {
        "objectives": ", ".join(objective.label for objective in curve.objectives),
        "scenario": curve.scenario,
        "target": curve.target,
        "model": curve.model,
        "gpus": str(curve.gpus),
    }
    return {key: plain(value, SHOWN) for key, value in texts.items()}


def _common(a: Curve, b: Curve) -> list[tuple[CurvePoint, CurvePoint]]:
    """Return the points at the same load."""
    pairs = []
    for a_point, b_point in product(a.points, b.points):
        if math.isclose(a_point.load, b_point.load, rel_tol=SAME_LOAD):
            pairs.append((a_point, b_point))
    return pairs


def _work(point: CurvePoint) -> dict[str, float]:
    means = {"prompt tokens": point.prompt_tokens, "output tokens": point.output_tokens}
    return {name: value for name, value in means.items() if value}


def _rows(a: Curve, b: Curve, threshold: float) -> Iterator[Compared]:
    """Yield what can be compared, the most important first; figures without any interval are left out."""
    for row, a_ends, b_ends in _figures(a, b, threshold):
        estimate = log_ratio(b_ends, a_ends, FREEDOM)
        if estimate is not None:
            yield _with_ends(row, a_ends, b_ends, estimate.value), estimate


def _with_ends(row: Effect, a: Ends, b: Ends, difference: float | None) -> Effect:
    return replace(
        row,
        a=a.value,
        b=b.value,
        a_interval=(a.low, a.high),
        b_interval=(b.low, b.high),
        change=row.change_of(difference),
    )


def _figures(a: Curve, b: Curve, threshold: float) -> Iterator[tuple[Effect, Ends, Ends]]:
    if a.objectives == b.objectives:
        knee = Effect(
            metric="knee", title="Knee", unit=a.unit, more_is_worse=False, threshold=threshold
        )
        yield knee, a.knee, b.knee
    for a_point, b_point in _points(a, b):
        for objective in objectives(a):
            metric = objective.metric
            quantile = objective.quantile
            row = Effect(
                metric=metric,
                title=metric.upper(),
                label=f"{quantile} at {figures(a_point.load)} {a.unit}",
                p=float(quantile[1:]) / 100,
                threshold=threshold,
            )
            yield row, a_point.quantile(metric, quantile), b_point.quantile(metric, quantile)
    saturation = Effect(
        metric="saturation",
        title="Saturation",
        unit="output tokens/s",
        threshold=threshold,
        counts=False,
        why=UNTESTED,
    )
    yield saturation, a.saturation, b.saturation


def _points(a: Curve, b: Curve) -> list[tuple[CurvePoint, CurvePoint]]:
    """Return the points where no backlog grows: at today's load, then at loads of both up to the lower knee."""
    today = a.today or 0.0
    knee = min(a.knee.value or math.inf, b.knee.value or math.inf)
    at_today = []
    below_knee = []
    for a_point, b_point in _common(a, b):
        if a_point.stable is False or b_point.stable is False:
            continue
        if abs(a_point.load - today) <= SAME_LOAD * today:
            at_today.append((a_point, b_point))
        elif a_point.load <= knee:
            below_knee.append((a_point, b_point))
    return [*at_today, *below_knee]
