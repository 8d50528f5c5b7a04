"""The answer of the curve: the load up to which the objectives hold, saturation, and what today's load is like.

FAIL if today's load does not hold, INCONCLUSIVE if that was not shown, or no run can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tailgauge.experiments.answer import NONE, NOTHING, Answer, answered, between, estimate, load_line
from tailgauge.experiments.course import Base
from tailgauge.experiments.curve.judge import BACKLOG, REFUSALS, Judge, Knee
from tailgauge.experiments.curve.measure import LoadResult
from tailgauge_analysis import (
    FILES_NOTE,
    INCONCLUSIVE,
    Cell,
    Column,
    Curve,
    CurvePoint,
    Ends,
    ObjectiveLine,
    Result,
    Table,
    Value,
    figures,
    ms,
    share,
)
from tailgauge_analysis import (
    curve_files as files,
)
from tailgauge_analysis import (
    curve_objectives as objectives,
)
from tailgauge_analysis import (
    curve_pictures as pictures,
)

NO_SLO = "no objective on a latency in [slo], so there is no load up to which it holds; add one, as --slo 'ttft p95 < 800ms'"
UNEQUAL = 1.02  # times the shortest answers: more is other work
NOTE = "One row per load, every run cold. Latencies: failures slowest; ttft and e2e since {}. Holds: by this run alone."


def answer(judge: Judge, runs: Sequence[LoadResult], base: Base) -> Answer:
    """The answer from the runs that can be used."""
    if not runs:
        return Answer("curve", Result(INCONCLUSIVE, NOTHING), {})
    found, scenario = judge.knee(runs), base.scenario
    at, (tokens, answered_per_s) = found.load, judge.saturation(runs)
    curve = Curve(
        by=judge.settings.by, today=judge.today, objectives=judge.objectives,
        points=tuple(one.point for one in sorted(runs, key=lambda one: one.load)), knee=at, binds=found.binds,
        saturation=tokens, saturation_load=answered_per_s, gpus=judge.settings.gpus, scenario=scenario.name,
        target=scenario.target.url, model=scenario.target.model,
    )  # fmt: skip
    outcome = judge.met(runs, at)
    texts = [_holds(curve, found) if curve.objectives else "", _saturated(curve), *_today(curve)]
    sentence, *details = filter(None, [*texts, "" if curve.objectives else NO_SLO])
    width = (at.high - at.low) / at.value if at.value and at.low is not None and at.high is not None else None
    smallest = f"a change of the knee by {share(width)}" if width else ""
    note = NOTE.format("scheduled" if judge.is_open else "sent")
    return answered(
        "curve", "Load curve", Result(outcome, sentence, tuple(_lines(curve, outcome)), tuple(details)), curve,
        [Table.of("Loads", curve.points, _columns(curve), note)], [*_notes(curve, found), FILES_NOTE], smallest,
        pictures(curve), files(curve),
    )  # fmt: skip


def _holds(curve: Curve, found: Knee) -> str:
    """`the objective holds up to 14.2 requests/s (13.6 – 14.9)`."""
    at, unit = found.load, curve.unit
    one = len(curve.objectives) == 1
    what = "the objective holds" if one else "the objectives hold"
    if at.value is not None:
        ends = {REFUSALS: "then calls are refused", BACKLOG: "then the backlog grows"}
        by = ends.get(found.binds, "" if one else f"then {found.binds} fails")
        return f"{what} up to {figures(at.value)} {unit} (CI {between(at.low, at.high)}){f'; {by}' if by else ''}"
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
    for point in curve.points:
        if point.load == curve.today:
            for one in objectives(curve):
                of = point.quantile(one.metric, one.quantile)
                name = one.metric.upper() if one.metric in {"ttft", "tpot"} else one.metric
                known = f"{ms(of.value)} ms" if of.value is not None else f"at least {ms(of.low)} ms"
                value = known if of.value is not None or of.low else "not known (too few requests)"
                yield f"at today's {figures(point.load)} {curve.unit} {name} {one.quantile} is {value}"


def _lines(curve: Curve, outcome: str) -> Iterator[ObjectiveLine]:
    if curve.today is not None:
        at, name = curve.knee, f"today's {figures(curve.today)} {curve.unit}"
        yield load_line(name, outcome, curve.today, (at.value, at.low, at.high), curve.unit)


def _columns(curve: Curve) -> Iterator[Column[CurvePoint]]:
    """What the table shows of a load."""
    bounded = [(one.metric, one.quantile) for one in curve.objectives]
    yield curve.unit, lambda one: f"{figures(one.load)}{' (today)' if one.load == curve.today else ''}"
    for name in (*dict.fromkeys([("ttft", "p50"), ("ttft", "p95"), *bounded]), ("tpot", "p50")):
        yield f"{' '.join(name)}, ms", partial(_latency, name)
    yield "answered/s", lambda one: _cell(one.requests_per_s)
    yield "output tokens/s", lambda one: _cell(one.output_tokens_per_s)
    if curve.objectives:
        yield "within [slo]/s", lambda one: _cell(one.good_per_s)
    yield "refused", lambda one: share(one.refused.value)
    yield "backlog grows", _grows
    yield "holds", lambda one: Value(one.meets.lower(), outcome=one.meets)
    yield "requests", lambda one: f"{one.requests:,}"


def _latency(name: tuple[str, str], point: CurvePoint) -> Cell:
    of = point.quantile(*name)
    return f"> {ms(of.low)}" if of.value is None and of.low is not None else _cell(of, ms)


def _cell(of: Ends, shown: Callable[[float], str] = figures) -> Cell:
    return NONE if of.value is None else estimate(of.value, of.low, of.high, shown)


def _grows(point: CurvePoint) -> str:
    if point.growth_per_s is not None:
        return f"{figures(point.growth_per_s)}/s"
    return "yes" if point.stable is False else "no"


def _notes(curve: Curve, found: Knee) -> Iterator[str]:
    """What a reader must know of the curve."""
    lengths = [one.output_tokens for one in curve.points if one.output_tokens]
    if lengths and max(lengths) > UNEQUAL * min(lengths):
        yield f"answers have {min(lengths):,.0f} to {max(lengths):,.0f} tokens, by load: not the same work; set traffic.*.output = 'exact'"
    if curve.saturation.value is None:
        yield "no load was too much for the target: raise experiment.curve.most or experiment.minutes"
    if found.load.value is not None and found.load.low is not None:
        yield "knee: where a local fit of the requests beyond the bound crosses what is allowed, in the long run"
