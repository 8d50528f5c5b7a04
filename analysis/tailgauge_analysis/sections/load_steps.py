"""Steps of the load: where the offered rate changes on purpose, latency and objectives at each rate.

Steady stage without slow readers, by scheduled time. A stretch at one rate is a row. Where the rate rises or falls evenly,
around a spike, and in the traffic of a trace or of Locust's tasks whose rate changes, a row is a tenth of the stage.
Percentiles are of the offered requests: failures slowest.

The outcome of an objective is that over the whole stage, and its states by step are beside it. Where it is not met over the
whole stage and a step at one rate misses it, that step is the answer of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics import backlog
from tailgauge_analysis.metrics.latency import OFFERED, row
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.waiting import waiting
from tailgauge_analysis.objectives.health import HEALTHY
from tailgauge_analysis.objectives.objective import Criterion, on_latency
from tailgauge_analysis.objectives.outcome import FAIL, INCONCLUSIVE, PASS, decided_latency
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import TOO_FEW, Floats, Quantile
from tailgauge_analysis.text.cells import quantile_cell, share_cell
from tailgauge_analysis.text.formatting import (
    clock,
    clock_range,
    count,
    figures,
    ms,
    percentile,
    plain,
    plural,
    sentence,
    share,
)
from tailgauge_analysis.text.json_values import Json, number, one_of, table
from tailgauge_analysis.text.section import Cell, Section, Table, Value

KEY = "load_steps"
TENTHS = 10
MOST = 24  # rows
SLIVER = 0.02  # of the stage: a stretch that is shorter belongs to the one before
CHANGES = 1.5  # times the rate of the slowest tenth, in a trace
DISPERSION = 4.0  # of the numbers in tenths; chance gives 1, and this in one of 30,000 runs
ROUNDING_S = 1e-6
NEAR = 1.05  # times a rate: another such rate is the same
QUANTILES = (0.5, 0.95)
UNEVEN = ("trace", "tasks")  # processes whose rate nothing in the scenario states
WAITS = ("ttft", "join_sched", "turnaround", "e2e")
TITLES = {"ttft": "TTFT", "e2e": "end to end", "join_sched": "join", "turnaround": "turnaround"}
MISSED = "missed"
MET = "met"
OPEN = "inconclusive"
POINTER = "to measure each rate in runs of its own, add --set experiment.kind=curve to the command"
POOLED = "pooled over the steps of the load"
COMPUTED = (
    "The rows cover the requests of the steady stage by scheduled time, without requests that read slowly on purpose (slow_reader).",
    "A row covers the time at one rate. Where the rate rises or falls, and around a spike, a row covers about a tenth of the steady stage.",
    "Percentiles are of all offered requests; failures count as slowest.",
    "A backlog of one step slows down the requests of the next one, at any rate.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stretch of the steady stage. `state`: met where it is complete and meets each objective on a latency. `piles`: its
    requests wait longer and longer. `at_one_rate`: else the offered rate rises or falls within it.
    """

    from_s: float
    to_s: float
    requests: int
    requests_per_s: float
    arrivals_per_s: float
    """sessions count once"""
    complete: Proportion
    latency: dict[str, list[Quantile]]
    """by metric of metrics.md: p50 and p95 in ms, offered"""
    objectives: dict[str, Annotated[str, one_of(PASS, FAIL, INCONCLUSIVE)]]
    """outcome of each objective on a latency in this step, by its label"""
    state: Annotated[str, one_of(MET, MISSED, OPEN)]
    piles: bool
    at_one_rate: bool

    @property
    def failed_objectives(self) -> list[str]:
        """Return the labels of the objectives that this step misses."""
        failed = []
        for label, outcome in self.objectives.items():
            if outcome == FAIL:
                failed.append(label)
        return failed

    @property
    def rate(self) -> str:
        """`12/s`."""
        return f"{figures(self.requests_per_s)}/s"

    @property
    def times(self) -> str:
        """`00:40 to 01:00`."""
        return clock_range(self.from_s, self.to_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSteps:
    """The steps of a load that changes on purpose."""

    shape: str
    """kind of the arrival shape, or the process"""
    steps: list[Step]
    sentence: str


def compute(run: Run) -> LoadSteps | None:
    """Return the steps of the load; None where the offered rate does not change on purpose.

    Requests belong to the step in which they were scheduled; a step without any is left out. Slow readers count in none.
    """
    stage = run.without_slow_readers
    arrival = table(run.record["scenario"], "arrival")
    shape = table(arrival, "shape")
    edges_s = _step_edges_s(run.frames, stage)
    if len(edges_s) < 3 or not len(stage.requests):
        return None
    is_closed = arrival.get("process") in {"closed", "tasks"}
    criteria = on_latency(run.record["scenario"])
    waits = None
    # In a closed loop requests cannot pile up.
    if not is_closed:
        waits = waiting(run.frames, stage.to_s)
    at_s = stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9
    needs_gaps = any(criterion.is_of_gaps for criterion in criteria)
    corners = _corners_s(run.record["scenario"], stage)
    steps = []
    for from_s, to_s in pairwise(edges_s):
        inside = (at_s >= from_s) & (at_s < to_s)
        if not inside.any():
            continue
        growth = None
        if waits is not None:
            growth = backlog.backlog(waits, from_s, to_s)
        step = _step(
            stage.only(inside, gaps=needs_gaps),
            criteria,
            (from_s, to_s),
            is_closed=is_closed,
            piles=growth is not None and growth.grows,
            at_one_rate=_is_at_one_rate(corners, from_s, to_s),
        )
        steps.append(step)
    shape_name = str(shape.get("kind", "flat"))
    # The rate of a trace or of tasks changes without a shape.
    if shape_name == "flat":
        shape_name = str(arrival.get("process"))
    return LoadSteps(
        shape=plain(shape_name, 40),
        steps=steps,
        sentence=_sentence(steps, has_objectives=bool(criteria)),
    )


def _step(
    part: Steady,
    criteria: Sequence[Criterion],
    span: tuple[float, float],
    *,
    is_closed: bool,
    piles: bool,
    at_one_rate: bool,
) -> Step:
    """Return one step: its rates, percentiles, outcomes of the objectives on latencies, and its state.

    `part`: the requests of the step; `span`: its begin and end in seconds of the run. `piles`: they wait longer and longer,
    so that those beyond a bound are no chance: an objective that more than allowed miss then fails.
    """
    from_s, to_s = span
    requests = part.requests
    is_complete = requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
    suffix = "_sent" if is_closed else "_sched"
    latency = {}
    for name in WAITS:
        # In a closed loop a wait counts since sent.
        metric = BY_NAME.get(name) or BY_NAME[f"{name}{suffix}"]
        metric_row = row(metric, part, OFFERED, QUANTILES)
        if metric_row.n:
            latency[name] = list(metric_row.quantiles)
    outcome_by_label = {}
    for criterion in criteria:
        result = decided_latency(criterion, part)
        outcome_by_label[result.label] = result.outcome
        if piles and _is_beyond_bound(criterion, part):
            outcome_by_label[result.label] = FAIL
    complete = part.share(is_complete)
    return Step(
        from_s=from_s,
        to_s=to_s,
        requests=len(requests),
        requests_per_s=len(requests) / (to_s - from_s),
        # The first turn of each session: later turns follow answers.
        arrivals_per_s=float((requests["request_id"] % schema.TURNS == 0).sum()) / (to_s - from_s),
        complete=complete,
        latency=latency,
        objectives=outcome_by_label,
        state=_state(complete, list(outcome_by_label.values())),
        piles=piles,
        at_one_rate=at_one_rate,
    )


def _is_beyond_bound(criterion: Criterion, part: Steady) -> bool:
    """Return whether more than allowed are beyond the bound, for certain or not."""
    excess = criterion.on(part).beyond(criterion.part(part))
    return (excess.value or 0.0) > criterion.objective.allowed


def _state(complete: Proportion, outcomes: Sequence[str]) -> str:
    is_incomplete = complete.high is not None and complete.high < HEALTHY
    if is_incomplete or FAIL in outcomes:
        return MISSED
    is_healthy = complete.value is not None and complete.value >= HEALTHY
    is_met = is_healthy and all(outcome == PASS for outcome in outcomes)
    return MET if is_met else OPEN


# --- where the rate changes ---------------------------------------------------------------------------------------


def _step_edges_s(frames: Frames, stage: Steady) -> list[float]:
    """Return the seconds of the run at which a step ends and the next begins, with both ends of the stage.

    Fewer than three where the rate does not change.
    """
    scenario = frames.run["scenario"]
    arrival = table(scenario, "arrival")
    shape = table(arrival, "shape")
    tenths: list[float] = np.linspace(stage.from_s, stage.to_s, TENTHS + 1).tolist()
    if stage.seconds <= 0:
        return []
    if shape.get("kind", "flat") != "flat":
        # A corner: a second of the run at which the shape of the load changes, and its relative rate.
        corners = _corners_s(scenario, stage)
        cuts = _edges_of_shape(corners, tenths)
        if shape.get("kind") == "spike":  # how long it takes to recover
            half_tenth = stage.seconds / TENTHS / 2
            # Tenths of the stage, but those that lie near a corner.
            for time_s in tenths:
                if all(abs(time_s - corner) > half_tenth for corner, _ in corners):
                    cuts.append(time_s)
        return _within_stage(stage, sorted(cuts), tenths)
    if arrival.get("process") in UNEVEN and _rate_changes(stage, tenths):
        return tenths
    return []


def _corners_s(scenario: Json, stage: Steady) -> list[tuple[float, float]]:
    """Return second of the run and relative rate at each corner."""
    shape = table(table(scenario, "arrival"), "shape")
    duration_s = number(table(scenario, "stages").get("duration_s")) or stage.to_s
    return [(place * duration_s, rate) for place, rate in _corners(shape)]


def _is_at_one_rate(corners: Sequence[tuple[float, float]], from_s: float, to_s: float) -> bool:
    """Return whether the shape does not change the rate from one time to the other."""
    for (begin_s, begin_rate), (end_s, end_rate) in pairwise(corners):
        is_inside = begin_s <= from_s + ROUNDING_S and to_s <= end_s + ROUNDING_S
        if is_inside and begin_rate == end_rate:
            return True
    return False


def _corners(shape: Json) -> list[tuple[float, float]]:
    """Return share of the run and relative rate at each corner; two at one place are a jump."""
    start = number(shape.get("at")) or 0.0
    factor = number(shape.get("factor")) or 0.0
    end = min(1.0, start + (number(shape.get("width")) or 0.0))
    match shape.get("kind"):
        case "step":
            return [(0.0, 1.0), (start, 1.0), (start, factor), (1.0, factor)]
        case "ramp":
            return [(0.0, 1.0), (1.0, factor)]
        case "spike":
            return [
                (0.0, 1.0),
                (start, 1.0),
                (start, factor),
                (end, factor),
                (end, 1.0),
                (1.0, 1.0),
            ]
        case _:
            points = shape.get("points")
            listed = points if isinstance(points, list | tuple) else []
            return [(float(place), float(rate)) for place, rate in listed]


def _edges_of_shape(corners: Sequence[tuple[float, float]], tenths: Sequence[float]) -> list[float]:
    """Return the ends of the stretches at one rate, and the tenths that lie where it rises or falls."""
    cuts: set[float] = set()
    for (begin_s, begin_rate), (end_s, end_rate) in pairwise(corners):
        if begin_rate == end_rate:
            cuts |= {begin_s, end_s}
        else:
            cuts |= {time_s for time_s in tenths if begin_s <= time_s <= end_s}
    return sorted(cuts)


def _within_stage(stage: Steady, cuts: Sequence[float], tenths: list[float]) -> list[float]:
    """Return the cuts within the stage, with its ends and without slivers; tenths where they are too many."""
    shortest_s = SLIVER * stage.seconds
    ends_s = [stage.from_s]
    for cut_s in cuts:
        if cut_s - ends_s[-1] >= shortest_s and stage.to_s - cut_s >= shortest_s:
            ends_s.append(cut_s)
    ends_s.append(stage.to_s)
    return tenths if len(ends_s) > MOST + 1 else ends_s


def _rate_changes(stage: Steady, tenths: Sequence[float]) -> bool:
    """Return whether the tenths of the stage have more or fewer requests than chance gives."""
    at_s = stage.requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9
    counts: Floats = np.histogram(at_s, tenths)[0].astype(np.float64)
    mean = float(counts.mean())
    if mean <= 0 or counts.max() < CHANGES * counts.min():
        return False
    return float(counts.var(ddof=1)) > DISPERSION * mean


# --- words --------------------------------------------------------------------------------------------------------


def _sentence(steps: Sequence[Step], *, has_objectives: bool) -> str:
    """Return in a sentence at which rates the steps meet their objectives.

    `objectives: met up to 8 requests/s, first missed at 12/s (00:40 to 01:00)`. Without objectives on latencies a step meets or
    misses the default share of complete answers. The first step in time that misses is named.
    """
    subject = "objectives" if has_objectives else f"{HEALTHY:.0%} complete answers"
    missed_steps = _in_state(steps, MISSED)
    sustained = _in_state(steps, MET)
    if missed_steps:
        sustained = _slower(sustained, missed_steps[0])
    inconclusive = _in_state(steps, OPEN)
    # Inconclusive at a rate above those that were sustained.
    faster = [step for step in inconclusive if not _is_at_sustained_rate(step, sustained)]
    piling_up = [step for step in steps if step.piles and step.state != MISSED]
    parts = []
    if sustained:
        parts.append(f"met up to {_highest(sustained).rate}")
    if faster:
        parts.append(f"inconclusive at {_lowest(faster).rate}")
    if missed_steps:
        parts.append(f"first missed at {missed_steps[0].rate} ({missed_steps[0].times})")
        missed_again = [step for step in missed_steps[1:] if _is_at_sustained_rate(step, sustained)]
        if missed_again:
            last = missed_again[-1]
            parts.append(f"later missed at lower rates too, last at {last.rate} ({last.times})")
    if piling_up:
        lowest = _lowest(piling_up)
        parts.append(f"requests pile up at {lowest.rate} ({lowest.times})")
    inconclusive_below = len(inconclusive) - len(faster)
    if inconclusive_below:
        parts.append(f"inconclusive in {inconclusive_below} of {len(steps)} steps at lower rates")
    # Only the first rate names its unit.
    results = ", ".join(parts).replace("/s", " requests/s", 1)
    return f"{subject}: {results}"


def _highest(steps: Sequence[Step]) -> Step:
    return max(steps, key=lambda step: step.requests_per_s)


def _lowest(steps: Sequence[Step]) -> Step:
    return min(steps, key=lambda step: step.requests_per_s)


def _in_state(steps: Sequence[Step], state: str) -> list[Step]:
    return [step for step in steps if step.state == state]


def _slower(steps: Sequence[Step], limit: Step) -> list[Step]:
    """Return the steps at a lower rate than that of the limit."""
    return [step for step in steps if step.requests_per_s < limit.requests_per_s]


def _is_at_sustained_rate(step: Step, sustained: Sequence[Step]) -> bool:
    """Return whether the target sustains the rate of this step, or one close to it."""
    if not sustained:
        return False
    return step.requests_per_s <= NEAR * _highest(sustained).requests_per_s


def broken(run: Run) -> str:
    """Return which step the target did not sustain, whatever the objectives; empty where it sustained each.

    At one rate requests pile up, or the share of complete answers is below that of the default objective for certain.
    """
    result = run.result(compute)
    for step in [] if result is None else result.steps:
        span = f"at {figures(step.requests_per_s)} requests/s ({step.times})"
        share_high = step.complete.high
        if share_high is not None and share_high < HEALTHY:
            return f"only {share(step.complete.value)} of {plural(step.requests, 'request')} completed in the load step {span}"
        if step.piles and step.at_one_rate:
            return f"the target does not sustain the load step {span}: requests pile up"
    return ""


def missed(run: Run) -> str:
    """`the load step at 24 requests/s (01:00 to 01:30) misses ttft p95; objectives met up to 12/s`.

    Empty unless a step at one rate misses an objective.
    """
    result = run.result(compute)
    steps = [] if result is None else result.steps
    for step in steps:
        failed = step.failed_objectives
        if not failed or not step.at_one_rate:
            continue
        text = (
            f"the load step at {figures(step.requests_per_s)} requests/s ({clock(step.from_s)} to {clock(step.to_s)}) misses "
            f"{', '.join(failed)}"
        )
        slower = _slower(_in_state(steps, MET), step)
        if slower:
            text += f"; objectives met up to {_highest(slower).rate}"
        return text
    return ""


def remark(run: Run) -> str:
    """Return what a reader must know of percentiles and outcomes; empty where the load does not change on purpose."""
    if run.result(compute) is None:
        return ""
    changes = {
        "tasks": "Locust's users did not send at one rate",
        "trace": "The offered load of the trace changes",
    }
    process = table(run.record["scenario"], "arrival").get("process")
    text = changes.get(str(process), "The offered load changes on purpose")
    return (
        f"{text}: percentiles are {POOLED}, and an objective is decided on all steps together. "
        "The section “Steps of the load” has a row for each step."
    )


def section(load: LoadSteps | None) -> Section | None:
    """Return the section, with a row for each step; None where the load has no steps.

    Columns: those of metrics that any step has, and one for each objective on a latency.
    """
    if load is None:
        return None
    header = ["time", "requests/s", "requests", "complete"]
    metric_names = []
    for name, title in TITLES.items():
        if any(name in step.latency for step in load.steps):
            metric_names.append(name)
            header += [f"{title} {percentile(p)} (ms)" for p in QUANTILES]
    objective_labels: dict[str, None] = {}
    for step in load.steps:
        objective_labels.update(dict.fromkeys(step.objectives))
    header += objective_labels
    rows = [tuple(_cells(step, metric_names, objective_labels)) for step in load.steps]
    note = (
        "The requests of the whole steady stage decide the outcome of an objective. In each step the objective is judged by the same "
        "rule, on the requests of that step. If waits rise from the beginning to the end of a step, the step fails as soon "
        "as its share of slow requests is above the allowed share; the interval is not used. A step with a constant rate that misses an "
        "objective fails the run, except where all objectives pass on the whole stage."
    )
    return Section(
        name="steps",
        title="Steps of the load",
        answer=f"{sentence(load.sentence)}.",
        tables=(Table("", tuple(header), tuple(rows), note if objective_labels else ""),),
        notes=(f"Other percentiles of this report are {POOLED}. {sentence(POINTER)}.",),
        computed=COMPUTED,
        brief=(load.sentence, *_brief(load), POINTER),
    )


def _cells(step: Step, names: Iterable[str], labels: Iterable[str]) -> Iterator[Cell]:
    """Yield the cells of a step, in the order of the header.

    `names`: the metrics with columns; `labels`: the objectives with a column. The sessions per second are shown where they
    are fewer than requests.
    """
    yield step.times
    sessions = ""
    if step.arrivals_per_s < step.requests_per_s / NEAR:
        sessions = f"{figures(step.arrivals_per_s)} sessions/s"
    yield Value(figures(step.requests_per_s), sessions)
    yield count(step.requests)
    yield share_cell(step.complete)
    for name in names:
        quantiles = step.latency.get(name)
        if quantiles:
            yield from map(quantile_cell, quantiles)
        else:
            yield from ("–",) * len(QUANTILES)
    for label in labels:
        outcome = step.objectives[label].upper()
        yield Value(outcome, outcome=outcome)


def _brief(load: LoadSteps) -> Iterator[str]:
    """Yield the p95 of the wait at the slowest and at the fastest rate, where no objective says more."""
    if any(step.objectives for step in load.steps):
        return
    slowest = _lowest(load.steps)
    fastest = _highest(load.steps)
    for name, title in TITLES.items():
        values = []
        for step in (slowest, fastest):
            p95_ms = _p95_ms(step, name)
            if p95_ms is not None:
                values.append(f"{ms(p95_ms)} ms at {step.rate}")
        if len(values) == 2:
            yield f"{title} p95 {', '.join(values)}"
            return


def _p95_ms(step: Step, name: str) -> float | None:
    """Return the p95 of a metric; None where too few requests have it, or where it falls among failures."""
    if name not in step.latency:
        return None
    _, p95 = step.latency[name]
    if p95.mark == TOO_FEW or p95.value is None or not np.isfinite(p95.value):
        return None
    return p95.value
