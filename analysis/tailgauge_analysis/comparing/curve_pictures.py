"""The figures of a load curve, or of two in the same figures: latency and throughput by load, and what a user gets of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from tailgauge_analysis.comparing.curve import RATE, Curve, CurveObjective, CurveQuantile, Ends
from tailgauge_analysis.text.formatting import figures, ms
from tailgauge_analysis.text.picture import Mark, Picture, PlotCurve

DRAWN: tuple[CurveQuantile, ...] = ("p50", "p95", "p99")
TTFT = CurveObjective("ttft", "p95", math.inf, "")  # drawn and compared where no objective is on a latency
WIDE = 32.0  # the largest load, in smallest loads, from which their axis is logarithmic
APART = 0.05  # of the range of tokens/s per user, between points with labels
BARS = "Bars are 95% intervals."
KNEE = "Shaded: the 95% interval of the knee, the largest load at which every objective holds."
FAILED = "at least (failures)"
Named = Sequence[tuple[str, Curve]]


def pictures(*curves: Curve) -> tuple[Picture, ...]:
    """Of one curve; or of A and B, named so. None of a single point."""
    if any(len(one.points) < 2 for one in curves):
        return ()
    of = tuple(zip("AB", curves, strict=False)) if len(curves) > 1 else (("", curves[0]),)
    loads = [point.load for one in curves for point in one.points]
    log = "x" if max(loads) / min(loads) >= WIDE else ""
    x = "offered requests/s" if curves[0].by == RATE else "requests in flight"
    marks = tuple(_marks(of))
    latencies = {one.metric: one for one in reversed(objectives(curves[0]))}
    made = (
        *(
            Picture(
                f"{one.metric}-by-load", f"{one.metric.upper()}{f' {one.quantile}' if len(of) > 1 else ''} by load",
                f"{BARS} {KNEE}" if marks else BARS, x, f"{one.metric.upper()}, ms", tuple(_latency(of, one)), marks, log + "y",
            )
            for one in reversed(latencies.values())
        ),
        Picture("tokens-by-load", "Output tokens/s by load", BARS, x, "output tokens/s", tuple(_tokens(of)), marks, log),
        Picture("requests-by-load", "Requests/s by load", BARS, x, "requests/s", tuple(_requests(of)), marks, log),
        *_per_user(of),
    )  # fmt: skip
    return tuple(one for one in made if any(not line.dashed for line in one.curves))


def objectives(curve: Curve) -> tuple[CurveObjective, ...]:
    """Those on a latency that was measured."""
    known = {metric for point in curve.points for metric in point.latency}
    return tuple(one for one in curve.objectives if one.metric in known) or (TTFT,)


def _marks(of: Named) -> Iterator[Mark]:
    for name, curve in of:
        low, high = curve.knee.low, curve.knee.high
        if low is not None and high is not None:
            yield Mark(f"knee {name}".strip(), low, high, name)
    (_, first), *others = of
    if first.today and not others:
        yield Mark("today", first.today, first.today)


def _latency(of: Named, one: CurveObjective) -> Iterator[PlotCurve]:
    """Percentiles of one curve, or the objective's of several; then the bounds, and where a percentile has none."""
    quantiles = tuple(dict.fromkeys((*DRAWN, one.quantile))) if len(of) == 1 else (one.quantile,)
    beyond = []
    for name, curve in of:
        for quantile in sorted(quantiles):
            found = [(point.load, point.quantile(one.metric, quantile)) for point in curve.points]
            yield from _line(name or quantile, found)
            beyond += [(load, ends.low) for load, ends in found if ends.value is None and ends.low]
    if beyond:
        at, low = zip(*beyond, strict=True)
        yield PlotCurve(FAILED, at, low, joined=False)
    loads = [point.load for _, curve in of for point in curve.points]
    for each in of[0][1].objectives:
        if each.metric == one.metric and (len(of) == 1 or each == one):
            name = f"{each.quantile} < {ms(each.bound_ms)} ms"
            yield PlotCurve(name, (min(loads), max(loads)), (each.bound_ms,) * 2, dashed="red")


def _tokens(of: Named) -> Iterator[PlotCurve]:
    for name, curve in of:
        yield from _by_load(name or "output tokens/s", curve, "output_tokens_per_s")
    (_, first), *others = of
    if first.saturation.value and not others:
        ends = (first.points[0].load, first.points[-1].load)
        yield PlotCurve("saturation", ends, (first.saturation.value,) * 2, dashed="grey")


def _requests(of: Named) -> Iterator[PlotCurve]:
    for name, curve in of:
        yield from _by_load(name or "answered", curve, "requests_per_s")
        if not name:
            yield from _by_load("within [slo]", curve, "good_per_s")
    if of[0][1].by == RATE:
        loads = tuple(sorted(point.load for _, curve in of for point in curve.points))
        yield PlotCurve("offered", loads, loads, dashed="grey")


def _by_load(name: str, curve: Curve, figure: str) -> list[PlotCurve]:
    return _line(name, [(point.load, getattr(point, figure)) for point in curve.points])


def _per_user(of: Named) -> Iterator[Picture]:
    """What a user gets against what the system gives; per GPU where their number is known."""
    per_gpu = all(curve.gpus for _, curve in of)
    lines = []
    for name, curve in of:
        paced = ((one.user_tokens_per_s.value, one.output_tokens_per_s, one.load) for one in curve.points)
        known = [(pace, ends, load) for pace, ends, load in paced if pace and ends.value is not None]
        paces = [pace for pace, *_ in known]
        labels, last, width = [], math.inf, max(paces, default=0.0) - min(paces, default=0.0)
        for pace, _, load in known:
            labels.append(figures(load) if abs(pace - last) > APART * width else "")
            last = pace if labels[-1] else last
        share = 1 / (curve.gpus or 1.0) if per_gpu else 1.0
        lines += _line(name or "each load", [(pace, ends) for pace, ends, _ in known], share, tuple(labels))
    unit, y = of[0][1].unit, "output tokens/s per GPU" if per_gpu else "output tokens/s of the system"
    text = f"{BARS} Beside points their load in {unit}. Better is further up and to the right."
    title, x_title = "Tokens/s per user and of the system", "tokens/s per user (1000 / TPOT p50)"
    yield Picture("tokens-per-user", title, text, x_title, y, tuple(lines))


def _line(
    name: str, found: Iterable[tuple[float, Ends]], share: float = 1.0, labels: tuple[str, ...] = ()
) -> list[PlotCurve]:  # fmt: skip
    """One line of the estimates that have a value; none without."""
    rows = [
        (x, *(share * (ends.value if end is None else end) for end in (ends.value, ends.low, ends.high)))
        for x, ends in found
        if ends.value is not None
    ]
    if not rows:
        return []
    x, y, low, high = zip(*rows, strict=True)
    return [PlotCurve(name, x, y, low, high, labels=labels)]
