"""Two load curves: B against A by the knee, and latency at the loads that both measured; saturation without a verdict.

A change is the ratio of two independent estimates. Its interval follows from theirs on the logarithmic scale (MOVER: distances
to the ends add up as squares); without a value, from the ends that are known. A verdict needs an interval beyond the
threshold, and p <= 5% of all rows together: half of it for the row that decides, half for the others (Holm).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tailgauge.errors import UsageError
from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.comparing import comparison
from tailgauge_analysis.comparing.comparability import SHOWN, Difference
from tailgauge_analysis.comparing.comparison import SCHEMA_VERSION, Comparison
from tailgauge_analysis.comparing.design import NOT_COMPARABLE
from tailgauge_analysis.comparing.effects import INCONCLUSIVE, MOST_LOG, WORSE, Effect, judge, unequal_work
from tailgauge_analysis.curves.curve import Curve, CurvePoint, Ends, read
from tailgauge_analysis.curves.pictures import objectives, pictures
from tailgauge_analysis.stats.binomial import student, student_beyond
from tailgauge_analysis.stats.quantiles import CONFIDENCE
from tailgauge_analysis.stats.sign_flips import Flips, holm
from tailgauge_analysis.text.formatting import figures, ms, plain
from tailgauge_analysis.text.json_values import table, text
from tailgauge_analysis.text.section import Cell, Measurement, Report, Table, Value

SHARE = 0.5  # of the 5%, for the row that decides, and for all others
FREEDOM = 4  # of Student's t: runs are few
SAME_LOAD = 0.01
UNTESTED = "from one load of each: how much it varies between runs is unknown"
REMARK = "one curve each: a change of the target between them counts as a difference"
NOTE = (
    "A is {}, B is {}. Knee: the largest load at which every objective holds. Latency: at today's load, and at loads of both up to the lower knee, where no backlog grows. "
    "Ranges are 95% intervals."
)
HEADER = ("", "verdict", "change", "A", "B", "p", "why")
Figure = tuple[Effect, int, Ends, Ends]  # 1 where more is worse, else -1; of A, of B


def compare(paths: Sequence[Path], threshold: float, run_id: str) -> Report:
    """The report of `tailgauge compare` on two report.json of curves; `run_id`: its name."""
    (a, of_a), (b, of_b) = map(read, paths)
    run_ids = [plain(text(tree.get("run_id")), SHOWN) for tree in (of_a, of_b)]
    if run_ids[0] == run_ids[1]:
        raise UsageError(f"{paths[0]} and {paths[1]} are the same curve: give each curve once")
    measured = [text(table(tree, "measurement").get("verdict")) for tree in (of_a, of_b)]
    dry_runs = {bool(tree.get("dry_run")) for tree in (of_a, of_b)}
    reasons = (
        (f"A is by {a.by}, B by {b.by}: measure both by the same", a.by != b.by),
        ("one is a dry run, the other is real", len(dry_runs) > 1),
        *((f"{name} is INVALID", verdict == INVALID) for name, verdict in zip("AB", measured, strict=True)),
    )
    against = tuple(reason for reason, holds in reasons if holds)
    known = () if against else tuple(_decided(tuple(_figures(a, b, threshold)), threshold))
    rows, drawn = tuple(row for row, *_ in known), () if against else pictures(a, b)
    pairs = _common(a, b) or list(zip(a.points, b.points, strict=False))
    work = tuple(unequal_work([(_work(one), _work(other)) for one, other in pairs]))
    verdict = NOT_COMPARABLE if against else _overall(rows)
    found = Comparison(
        SCHEMA_VERSION, verdict, against, (REMARK,), tuple(_differs(a, b)), threshold, CONFIDENCE, 0, (), rows, work
    )  # fmt: skip
    made = comparison.report(found)
    cells, note = tuple(_cells(*one) for one in known), NOTE.format(*run_ids)
    tables = (Table("B against A", HEADER, cells, note, prose=(1, 6)),) if known else ()
    section = replace(made.sections[0], title="Load curves", tables=tables, figures=drawn, computed=())
    quality = Measurement(DEGRADED if DEGRADED in measured else VALID, "2 load curves")
    return replace(
        made, run_id=run_id, title="Comparison of load curves", dry_run=True in dry_runs, sections=(section,), figure=drawn[0] if drawn else None,
        measurement=made.measurement if against else quality,
    )  # fmt: skip


def _differs(a: Curve, b: Curve) -> Iterator[Difference]:
    """Named, not refused: two targets or models are what is compared."""
    of_both = [
        {"objectives": ", ".join(one.label for one in curve.objectives), "scenario": curve.scenario,
         "target": curve.target, "model": curve.model, "gpus": str(curve.gpus)}
        for curve in (a, b)
    ]  # fmt: skip
    for key in of_both[0]:
        one, other = (plain(of[key], SHOWN) for of in of_both)
        if one != other:
            yield Difference(key, key, (one,), (other,), between_variants=True, mixed=False, allowed=True)


def _common(a: Curve, b: Curve) -> list[tuple[CurvePoint, CurvePoint]]:
    """The points at the same load."""
    every = [(one, other) for one in a.points for other in b.points]
    return [pair for pair in every if math.isclose(pair[0].load, pair[1].load, rel_tol=SAME_LOAD)]


def _work(point: CurvePoint) -> dict[str, float]:
    known = {"prompt tokens": point.prompt_tokens, "output tokens": point.output_tokens}
    return {name: value for name, value in known.items() if value}


def _figures(a: Curve, b: Curve, threshold: float) -> Iterator[Figure]:
    """What can be compared, the most important first."""

    def row(metric: str, title: str, unit: str, p: float | None = None, label: str = "") -> Effect:
        return Effect(metric, title, None, "", unit, p, label, threshold, ())

    if a.objectives == b.objectives:
        yield row("knee", "Knee", a.unit), -1, a.knee, b.knee
    saturation = replace(row("saturation", "Saturation", "output tokens/s"), counts=False, why=UNTESTED)
    yield saturation, -1, a.saturation, b.saturation
    stable = [pair for pair in _common(a, b) if False not in {one.stable for one in pair}]
    today, knee = a.today or 0.0, min(of.knee.value or math.inf for of in (a, b))
    first = [pair for pair in stable if abs(pair[0].load - today) <= SAME_LOAD * today]
    for one, other in (*first, *(pair for pair in stable if pair not in first and pair[0].load <= knee)):
        for each in objectives(a):
            of_a, of_b = (point.quantile(each.metric, each.quantile) for point in (one, other))
            label, p = f"{each.quantile} at {figures(one.load)} {a.unit}", float(each.quantile[1:]) / 100
            yield row(each.metric, each.metric.upper(), "ms", p, label), 1, of_a, of_b


def _decided(known: Sequence[Figure], threshold: float) -> Iterator[Figure]:
    """With verdicts; without figures that have no interval at all."""
    ratios = ((one, _ratio(*one[2:])) for one in known)
    found = [(one, ratio) for one, ratio in ratios if ratio[1:3] != (-math.inf, math.inf)]
    p_values = [ratio[3] for (row, *_), ratio in found if row.counts]
    of_all = iter([p / SHARE for p in (*p_values[:1], *holm(p_values[1:]))])
    for (row, harm, a, b), (value, low, high, p) in found:
        by, *ends = (None if x is None or abs(x) > MOST_LOG else math.expm1(x) for x in (value, low, high))
        measured = replace(row, a=a.value, b=b.value, change=by)
        if row.counts:
            (least, most), of_family = sorted((harm * low, harm * high)), next(of_all)
            verdict, why = judge(Flips(1, value or 0.0, least, most, p), of_family, math.log1p(threshold))
            measured = replace(
                measured, low=ends[0], high=ends[1], p_value=p, p_family=min(1.0, of_family), verdict=verdict,
                why=why.replace("run more pairs", "measure longer"),
            )  # fmt: skip
        yield measured, harm, a, b


def _ratio(a: Ends, b: Ends) -> tuple[float | None, float, float, float]:
    """log(B / A), its interval, and the p-value of no difference."""
    (of_a, low_a, high_a), (of_b, low_b, high_b) = map(_logs, (a, b))
    if of_a is None or of_b is None:
        low, high = low_b - high_a, high_b - low_a
        gap = max(low, -high)
        half = max(1e-9, min(high_a - low_a, high_b - low_b) / 2)  # of the interval that is known
        return None, low, high, _p_value(math.sqrt(2) + gap / half) if gap > 0 else 1.0
    value = of_b - of_a
    low = value - math.hypot(of_b - low_b, high_a - of_a)
    high = value + math.hypot(high_b - of_b, of_a - low_a)
    half = value - low if value > 0 else high - value
    return value, low, high, _p_value(abs(value) / half) if half else float(not value)


def _p_value(halves: float) -> float:
    """Of an estimate so many halves of its interval from 0, by Student's t."""
    return 2 * student_beyond(student(FREEDOM) * halves, FREEDOM)


def _logs(of: Ends) -> tuple[float | None, float, float]:
    low, high = math.log(of.low) if of.low else -math.inf, math.log(of.high) if of.high else math.inf
    return math.log(of.value) if of.value else None, low, high


def _overall(rows: Sequence[Effect]) -> str:
    """The first row's verdict, unless another one is worse."""
    verdicts = [row.verdict or INCONCLUSIVE for row in rows if row.counts]
    return WORSE if WORSE in verdicts else verdicts[0] if verdicts else INCONCLUSIVE


def _cells(row: Effect, _: int, a: Ends, b: Ends) -> tuple[Cell, ...]:
    """A row of the table."""
    cells = comparison.cells(row)
    values = [f"{ms(of.value)} {row.unit}" if of.value else "–" for of in (a, b)]
    sides = (Value(text, f"{ms(of.low)} – {ms(of.high)}") for text, of in zip(values, (a, b), strict=True))
    return *cells[:3], *sides, comparison.p_text(row.p_family), row.why
