"""The answer of the curve: the load up to which the objectives hold, saturation, and what today's load is like.

FAIL if today's load does not hold, INCONCLUSIVE if that was not shown, or no run can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailgauge.experiments.answer import Answer, answered, estimate
from tailgauge.experiments.course import Base
from tailgauge.experiments.curve.judge import BACKLOG, REFUSALS, Judge, Knee
from tailgauge.experiments.curve.measure import LoadResult
from tailgauge_analysis.curves import exports
from tailgauge_analysis.curves.curve import UNKNOWN, Curve, CurvePoint, Ends
from tailgauge_analysis.curves.pictures import pictures
from tailgauge_analysis.text.formatting import figures, ms, share
from tailgauge_analysis.text.section import INCONCLUSIVE, Cell, ObjectiveLine, Result, Table, Value

NOTHING = "no answer: every run was INVALID, or there was no time for one"
NONE = "–"
NO_SLO = "no objective on a latency in [slo], so there is no load up to which it holds; add one, as --slo 'ttft p95 < 800ms'"
UNEQUAL = 1.02  # times the shortest answers: more is other work
NOTE = "One row per load, every run cold. Latencies: failures slowest; ttft and e2e since {}. Holds: by this run alone."


def answer(judge: Judge, runs: Sequence[LoadResult], base: Base) -> Answer:
    """The answer from the runs that can be used."""
    if not runs:
        return Answer("curve", Result(INCONCLUSIVE, NOTHING), {})
    found, scenario = judge.knee(runs), base.scenario
    tokens, answered_per_s = judge.saturation(runs)
    curve = Curve(
        by=judge.settings.by, today=judge.today, objectives=judge.objectives,
        points=tuple(one.point for one in sorted(runs, key=lambda one: one.load)), knee=found.load, binds=found.binds,
        saturation=tokens, saturation_load=answered_per_s, gpus=judge.settings.gpus, scenario=scenario.name,
        target=scenario.target.url, model=scenario.target.model,
    )  # fmt: skip
    at = found.load
    outcome = judge.met(runs, at)
    texts = [_holds(curve, found) if curve.objectives else "", _saturated(curve), *_today(curve)]
    sentence, *more = filter(None, texts)
    details = [*more, *([] if curve.objectives else [NO_SLO])]
    width = (at.high - at.low) / at.value if at.value and at.low is not None and at.high is not None else None
    smallest = f"a change of the knee by {share(width)}" if width else ""
    since = "scheduled" if judge.is_open else "sent"
    result = Result(outcome, sentence, tuple(_lines(curve, outcome)), tuple(details))
    tables = [
        Table("Loads", _header(curve), tuple(_row(curve, one) for one in curve.points), NOTE.format(since))
    ]
    return answered(
        "curve", "Load curve", result, curve, tables, [*_notes(curve, found), exports.NOTE], smallest,
        pictures(curve), exports.files(curve),
    )  # fmt: skip


def _range(of: Ends) -> str:
    return f"{_or(of.low)} – {_or(of.high)}"


def _or(value: float | None) -> str:
    return "?" if value is None else figures(value)


def _holds(curve: Curve, found: Knee) -> str:
    """`the objective holds up to 14.2 requests/s (13.6 – 14.9)`."""
    at, unit = found.load, curve.unit
    one = len(curve.objectives) == 1
    what = "the objective holds" if one else "the objectives hold"
    if at.value is not None:
        ends = {REFUSALS: "then calls are refused", BACKLOG: "then the backlog grows"}
        by = ends.get(found.binds, "" if one else f"then {found.binds} fails")
        return f"{what} up to {figures(at.value)} {unit} (CI {_range(at)}){f'; {by}' if by else ''}"
    if at.low is not None:
        return f"{what} up to {figures(at.low)} {unit} at least; no higher load was tested"
    if at.high is not None:
        no = "the objective does not hold" if one else "the objectives do not hold"
        return f"{no} at {figures(at.high)} {unit}, the lowest tested load"
    return f"too few requests to show whether {what}"


def _saturated(curve: Curve) -> str:
    """`Saturation at 2,430 output tokens/s (19 requests/s)`."""
    tokens, load = curve.saturation, curve.saturation_load
    if tokens.value is not None and load.value is not None:
        return f"saturation at {figures(tokens.value)} output tokens/s ({figures(load.value)} requests/s)"
    if load.value is not None:
        return f"saturation at {figures(load.value)} requests/s"
    return f"no saturation up to {figures(curve.points[-1].load)} {curve.unit}"


def _today(curve: Curve) -> Iterator[str]:
    """`At today's 6 requests/s TTFT p95 is 420 ms`."""
    point = next((one for one in curve.points if one.load == curve.today), None)
    if point is None:
        return
    names = [(one.metric, one.quantile) for one in curve.objectives] or [("ttft", "p95")]
    for metric, quantile in names:
        of = point.latency.get(metric, {}).get(quantile, UNKNOWN)
        name = f"{metric.upper() if metric in {'ttft', 'tpot'} else metric} {quantile}"
        value = (
            f"{ms(of.value)} ms"
            if of.value is not None
            else f"at least {ms(of.low)} ms"
            if of.low
            else "not known (too few requests)"
        )
        yield f"at today's {figures(point.load)} {curve.unit} {name} is {value}"


def _lines(curve: Curve, outcome: str) -> Iterator[ObjectiveLine]:
    if curve.today is None:
        return
    at = curve.knee
    value = NONE if at.value is None else f"{figures(at.value)} {curve.unit}"
    name = f"today's {figures(curve.today)} {curve.unit}"
    yield ObjectiveLine(name, outcome, value, f"≥ {figures(curve.today)} {curve.unit}", _range(at))


def _header(curve: Curve) -> tuple[str, ...]:
    columns = [f"{metric} {quantile}, ms" for metric, quantile in _shown(curve)]
    good = ["within [slo]/s"] if curve.objectives else []
    return (
        curve.unit,
        *columns,
        "tpot p50, ms",
        "answered/s",
        "output tokens/s",
        *good,
        "refused",
        "backlog grows",
        "holds",
        "requests",
    )


def _shown(curve: Curve) -> list[tuple[str, str]]:
    found = [(one.metric, one.quantile) for one in curve.objectives]
    return list(dict.fromkeys([("ttft", "p50"), ("ttft", "p95"), *found]))


def _row(curve: Curve, one: CurvePoint) -> tuple[Cell, ...]:
    latencies = [
        _ms(one.latency.get(metric, {}).get(quantile, UNKNOWN)) for metric, quantile in _shown(curve)
    ]
    good = [_cell(one.good_per_s)] if curve.objectives else []
    grows = (
        "yes"
        if one.stable is False and one.growth_per_s is None
        else "no"
        if one.growth_per_s is None
        else f"{figures(one.growth_per_s)}/s"
    )
    return (
        f"{figures(one.load)}{' (today)' if one.load == curve.today else ''}", *latencies, _ms(one.latency["tpot"]["p50"]),
        _cell(one.requests_per_s), _cell(one.output_tokens_per_s), *good, share(one.refused.value), grows,
        Value(one.meets.lower(), outcome=one.meets), f"{one.requests:,}",
    )  # fmt: skip


def _ms(of: Ends) -> Cell:
    if of.value is None:
        return f"> {ms(of.low)}" if of.low is not None else NONE
    return estimate(of.value, of.low, of.high, ms)


def _cell(of: Ends) -> Cell:
    return NONE if of.value is None else estimate(of.value, of.low, of.high, figures)


def _notes(curve: Curve, found: Knee) -> Iterator[str]:
    """What a reader must know of the curve."""
    lengths = [one.output_tokens for one in curve.points if one.output_tokens]
    if lengths and max(lengths) > UNEQUAL * min(lengths):
        yield f"answers have {min(lengths):,.0f} to {max(lengths):,.0f} tokens, by load: not the same work; set traffic.*.output = 'exact'"
    if curve.saturation.value is None:
        yield "no load was too much for the target: raise experiment.curve.most or experiment.minutes"
    if found.load.value is not None and found.load.low is not None:
        yield "knee: where a local fit of the requests beyond the bound crosses what is allowed, in the long run"
