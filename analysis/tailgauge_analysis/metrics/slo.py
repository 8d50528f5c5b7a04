"""Objectives (pass, fail or inconclusive), goodput, and the health of the target.

An objective on a latency is decided on the share of requests beyond its bound, in the offered view (the pooled chunk gap has
only one view). The whole 95% interval of that share within what the quantile allows, and that of the quantile within the
bound: pass. The whole interval of the share above: fail. Otherwise the run was too short: inconclusive, and so where the
quantile rests on few slow episodes and the bound is near it. Objectives on other figures: sections/objectives.py.

An objective may be about some requests only, those of a traffic table or with a tag. `ttft` and `e2e` count since scheduled,
in a closed loop since sent.

Health is the share of the offered requests that got a complete answer, ok or cut. Requests whose errors no objective bounds are
expected to be complete to 99%, and a share of 99% passes whatever its interval.

Also here: how well a run knows the latencies that its objectives want to know to a precision.

A quantile is known to h where half of its interval is h of its value. One whose interval cannot be trusted, for too few
requests or slow episodes, is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import ValidationError
from pydantic.json_schema import SkipJsonSchema

from tailgauge.rows import schema
from tailgauge.scenario.objective import COST, ERRORS, LATENCY, SHARE, Figure, Objective, text_of
from tailgauge_analysis.metrics import pace
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, Row, offered_waits, row, waits
from tailgauge_analysis.metrics.metrics import BY_NAME, CHUNK, PACED, Metric
from tailgauge_analysis.metrics.steady import Steady, steady
from tailgauge_analysis.reading.frames import Frames, load
from tailgauge_analysis.stats.binomial import Stopping, needed, stopping
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import (
    CONFIDENCE,
    FEW_EPISODES,
    MISSED,
    TOO_FEW,
    Mask,
    Quantile,
    at_level,
    confidence,
    n_min,
    normal,
)
from tailgauge_analysis.text.formatting import ms, plain, plural, share, share_range
from tailgauge_analysis.text.json_values import Json, one_of, parsed, table, text
from tailgauge_analysis.text.quantile import UNPUBLISHED, VALUE, quantile
from tailgauge_analysis.text.section import ObjectiveLine

PASS = "pass"  # noqa: S105 - an outcome, not a password
FAIL = "fail"
INCONCLUSIVE = "inconclusive"

HEALTHY = 0.99  # complete answers, without an objective
NEAR = 2  # times a quantile that rests on few slow episodes: a bound within is not decided


@dataclass(frozen=True, slots=True)
class Criterion:
    """One objective of a scenario. `metric`: the latency that it bounds, None of another figure."""

    name: str
    objective: Objective
    metric: Metric | None

    @property
    def view(self) -> str:
        """The view in which a latency is judged."""
        return OFFERED if self.metric is None or self.metric.offered else SUCCESSES

    @property
    def is_of_all(self) -> bool:
        """Whether it is about every request."""
        return self.objective.traffic is None and self.objective.tag is None

    def of(self, requests: pd.DataFrame) -> Mask:
        """Which requests it is about."""
        mask = np.ones(len(requests), np.bool_)
        if self.objective.traffic is not None:
            mask &= (requests["traffic"] == self.objective.traffic).to_numpy(np.bool_)
        if self.objective.tag is not None:
            codes, texts = pd.factorize(requests["tags"])  # -1, the last, where there is none
            mask &= np.array([*(_tagged(one, self.objective.tag) for one in texts), False])[codes]
        return mask

    def part(self, steady: Steady) -> Steady:
        """The stage with these requests only."""
        if self.is_of_all:
            return steady
        is_of_gaps = self.metric is not None and self.metric.level == CHUNK
        return steady.only(self.of(steady.requests), gaps=is_of_gaps)

    def row(self, part: Steady) -> Row:
        """The latency of these requests, at its percentile."""
        assert self.metric is not None
        return row(self.metric, part, self.view, (self.objective.quantile,))

    def beyond(self, part: Steady) -> Proportion:
        """Of these, the share beyond the bound."""
        assert self.metric is not None
        if self.metric.level != CHUNK:
            return waits(self.metric, part, self.view).beyond(self.objective.bound)
        # There may be a hundred million gaps: no copy of them is made.
        return proportion(self.metric.ns(part) > self.objective.bound * 1e6, part.gap_counts)


def _tagged(tags: object, wanted: str) -> bool:
    key, _, value = map(str.strip, wanted.partition("="))
    known = parsed(tags)
    return key in known and str(known[key]) == value


def criteria(scenario: Json) -> list[Criterion]:
    """The objectives of a scenario."""
    return [one for one in read(scenario) if isinstance(one, Criterion)]


def on_latency(scenario: Json) -> list[Criterion]:
    """Those that bound a latency."""
    return [one for one in criteria(scenario) if one.metric is not None]


def read(scenario: Json, bounds: Json | None = None) -> list[Criterion | ObjectiveResult]:
    """Each objective, or its outcome where it cannot be read; with `bounds`, these instead of the scenario's objectives."""
    since = "_sent" if table(scenario, "arrival").get("process") in ["closed", "tasks"] else "_sched"
    found: list[Criterion | ObjectiveResult] = []
    for name, spec in (table(scenario, "slo") if bounds is None else bounds).items():
        try:
            objective = Objective.model_validate(spec)
        except ValidationError:
            metric = text(spec.get("metric")) if isinstance(spec, dict) else ""
            why = "the scenario names no known metric, quantile or bound"
            line = ObjectiveLine(plain(name, 60), INCONCLUSIVE.upper(), "", "", "", why)
            found.append(ObjectiveResult(name, line.name, metric or "unknown", INCONCLUSIVE, why, line))
            continue
        metric_of = BY_NAME.get(objective.metric) or BY_NAME.get(f"{objective.metric}{since}")
        found.append(Criterion(name, objective, metric_of if objective.figure.unit == LATENCY else None))
    return found


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """One objective and its outcome. `label`: `ttft p95 (chat)`; value, interval and bound in the unit of the figure."""

    name: str
    label: str
    metric: str
    outcome: Annotated[str, one_of(PASS, FAIL, INCONCLUSIVE)]
    why: str
    line: ObjectiveLine
    title: str = ""
    unit: str = ""
    traffic: str | None = None
    tag: str | None = None
    p: float | None = None
    view: str = OFFERED
    bound: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    n_eff: int = 0
    quantile: SkipJsonSchema[Quantile | None] = field(default=None, metadata=UNPUBLISHED)
    stopping: Stopping | None = None
    half_width: float | None = None
    precision: str = ""


def share_interval(low: float | None, high: float | None) -> str:
    """`0.0-0.7%`."""
    return share_range(low, high).replace("% – ", "-")


Ends = tuple[float | None, float | None, float | None]  # a value and its interval


def line_of(figure: Figure, label: str, outcome: str, bound: float, ends: Ends, why: str) -> ObjectiveLine:
    """An objective with the text of its value, bound and interval."""
    value, sign = ends[0], figure.sign
    if value is not None:
        sign = "<" if value < bound else ">" if value > bound else "="
    limit, interval = f"{sign} {text_of(figure, bound)}", interval_text(figure, *ends[1:])
    return ObjectiveLine(label, outcome.upper(), value_text(figure, value), limit, interval, why)


def value_text(figure: Figure, value: float | None) -> str:
    """`1,298 ms`, `0.21%`, `48.9/s`; nothing without a value."""
    if value is None or not math.isfinite(value):
        return "no good request" if value is not None and figure.unit == COST else ""
    if figure.unit == LATENCY:
        return f"{ms(value)} ms"
    return share(value) if figure.unit == SHARE else text_of(figure, value)


def interval_text(figure: Figure, low: float | None, high: float | None) -> str:
    """`1,136-1,647`, `0.0-0.7%`; `?` for an end without a bound."""
    ends = [one if one is not None and math.isfinite(one) else None for one in (low, high)]
    if ends == [None, None]:
        return ""
    if figure.unit == SHARE and None not in ends:
        return share_interval(*ends)
    unit = value_text(figure, 0.0).lstrip("0")
    return "-".join(value_text(figure, one).removesuffix(unit) or "?" for one in ends)


def decided_latency(one: Criterion, steady: Steady) -> ObjectiveResult:
    """One objective on a latency, decided."""
    metric, objective, figure = one.metric, one.objective, one.objective.figure
    assert metric is not None
    p, max_ms, part = objective.quantile, objective.bound, one.part(steady)
    q, beyond = one.row(part).quantiles[0], one.beyond(part)
    outcome, why = decide(beyond, q, max_ms)
    unknown = _unknown(metric, part, p)
    if unknown and (outcome != FAIL or beyond.k <= (1 - p) * len(part.requests)):
        outcome, why = INCONCLUSIVE, unknown
    asked, known = objective.precision, ""
    if asked is not None:
        known = precision_text(q, asked, part, is_over=True)
        if outcome == INCONCLUSIVE and not unknown:
            why = known + (": the bound is too near, ask for less" if is_known(q, asked) else "")
    few = q.n > 0 and q.mark == TOO_FEW and outcome == INCONCLUSIVE and not unknown
    if few and not known:
        why = f"not enough {figure.of}: {q.n:,} of the {n_min(p):,} needed"
    shown = quantile(q)
    ends: Ends = (shown["value"], shown["low"], shown["high"])
    line = line_of(figure, objective.label, outcome, max_ms, ends, why)
    if shown["value_is"] != VALUE and beyond.value is not None and not few:  # it lies among failures, say
        late, bound = f"{share(beyond.value)} of {figure.of}", f"> {text_of(figure, max_ms)}"
        line = replace(line, value=late, bound=bound, interval=share_interval(beyond.low, beyond.high))
    return ObjectiveResult(
        one.name, objective.label, metric.name, outcome, why, line, metric.title, LATENCY, objective.traffic, objective.tag, p,
        one.view, max_ms, *ends, q.n, q.n_eff, q,
        stopping(beyond.k, beyond.n, beyond.n_eff, p), half_width(q) if asked else None, known,
    )  # fmt: skip


def _unknown(metric: Metric | None, steady: Steady, p: float) -> str:
    """Why a percentile rests on too few answers: more than 1 - p have no value that would be known otherwise."""
    if metric is None or metric.name not in PACED:
        return ""
    missing = pace.missing(steady.requests)
    return missing["sentence"] if missing["answers"] > (1 - p) * missing["of"] else ""


def decide(beyond: Proportion, quantile: Quantile, max_ms: float) -> tuple[str, str]:
    """The outcome of one bound, and why."""
    if beyond.low is None or beyond.high is None:
        return INCONCLUSIVE, "nothing was measured"
    seen, allowed = f"{share(beyond.value)} beyond the bound", 1 - quantile.p
    if beyond.value is None:
        seen = "what lies beyond the bound cannot be observed"
    why = f"{seen} (95% CI {share_range(beyond.low, beyond.high)}), {share(allowed)} allowed"
    value = quantile.value or 0.0
    if quantile.mark == FEW_EPISODES and value / NEAR <= max_ms <= value * NEAR:
        return INCONCLUSIVE, f"{why}; the slow ones came in few episodes ({quantile.episodes}): run longer"
    if beyond.low > allowed + 1e-12:
        return FAIL, why
    reaches = quantile.high is not None and quantile.high > max_ms  # slow periods further up widen it as well
    if beyond.high <= allowed + 1e-12 and not reaches:
        return PASS, why
    return INCONCLUSIVE, f"{why}: run longer{_more(beyond, quantile.p)}"


def _more(beyond: Proportion, p: float) -> str:
    """How much longer: the effective samples with which a bound passes although as many are beyond it."""
    if beyond.value is None or beyond.value >= 1 - p:
        return ""
    late = math.ceil(beyond.value * beyond.n_eff - 1e-9)
    enough = needed(late, p, 0.975 if late else 0.95)
    return f" ({enough:,} effective samples needed, {beyond.n_eff:,} measured)"


@dataclass(frozen=True, slots=True)
class Health:
    """Offered requests with a complete answer. `judged`: those of them whose errors no objective of the scenario bounds, and
    the outcome of the default one on these; empty without any.
    """

    complete: Proportion
    outcome: str
    bound: float
    judged: Proportion


def health(scenario: Json, steady: Steady) -> Health | None:
    """None where nothing was offered. A slow reader's answer is an answer: its request counts like any other."""
    is_complete = steady.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
    if not len(is_complete):
        return None
    complete = proportion(is_complete)
    is_judged = np.ones(len(is_complete), np.bool_)
    for one in criteria(scenario):
        if one.objective.metric in ERRORS:
            is_judged &= ~one.of(steady.requests)
    judged, outcome = complete if is_judged.all() else proportion(is_complete[is_judged]), ""
    if judged.value is not None and judged.high is not None:
        outcome = PASS if judged.value >= HEALTHY else FAIL if judged.high < HEALTHY else INCONCLUSIVE
    return Health(complete, outcome, HEALTHY, judged)


@dataclass(frozen=True, slots=True)
class FeatureGoodput:
    """Good requests of one traffic table; `objectives`: how many latencies judge them."""

    traffic: str
    objectives: int
    good: Proportion


@dataclass(frozen=True, slots=True)
class Goodput:
    """Good requests of those offered; and by traffic table, whose numbers add up to it."""

    good: Proportion
    per_s: float | None
    by_traffic: tuple[FeatureGoodput, ...] = ()


def goodput_of(scenario: Json, steady: Steady, warmup: Steady | None) -> Goodput | None:
    """Good requests of all that were offered; None without an objective on a latency, or where too many paces are unknown.
    The rate is of those that ended in the steady stage, those of the warm-up among them.
    """
    wanted = on_latency(scenario)
    if warmup is None or not wanted or not len(steady.requests) or unknown_pace(wanted, steady):
        return None
    good = good_of(wanted, steady)
    stages = ((steady, good), (warmup, good_of(wanted, warmup)))
    ended = sum(int((of.holds(of.requests["ended_at_ns"]) & which).sum()) for of, which in stages)
    per_s = ended / steady.seconds if steady.seconds else None
    return Goodput(proportion(good), per_s, _by_traffic(wanted, good, steady))


def unknown_pace(wanted: Sequence[Criterion], steady: Steady) -> str:
    """Why it is not known which requests are good; empty where it is."""
    found = (_unknown(one.metric, one.part(steady), one.objective.quantile) for one in wanted)
    return next(filter(None, found), "")


def _by_traffic(wanted: Sequence[Criterion], good: Mask, steady: Steady) -> tuple[FeatureGoodput, ...]:
    codes, names = pd.factorize(steady.requests["traffic"])
    objectives = [one.of(steady.requests) for one in wanted]
    found = []
    for code, name in enumerate(names):
        mask = codes == code
        number = sum(bool((mask & one).any()) for one in objectives)
        found.append(FeatureGoodput(str(name), number, proportion(good[mask])))
    return tuple(sorted(found, key=lambda one: one.traffic)) if len(found) > 1 else ()


def good_of(wanted: Sequence[Criterion], steady: Steady) -> Mask:
    """Which requests got a complete answer within the bound of every objective on a latency that is about them.

    A bound on the pooled gap holds for each gap, so a request's worst one is compared. A bound on what a request does not
    have, as the join of a single call, does not apply to it; an answer whose pace is unknown does not meet a bound on it.
    One that its user left is good if it met every bound before, and there was one.
    """
    ended = steady.requests["ended"]
    ok = ended.isin(schema.COMPLETE).to_numpy(np.bool_)
    left = (ended == schema.CANCELLED).to_numpy(np.bool_)
    good, judged = ok | left, np.zeros(len(ok), np.bool_)
    for one in wanted:
        if one.metric is None:
            continue
        mask, max_ms = one.of(steady.requests), one.objective.bound
        every = offered_waits(BY_NAME["chunk_gap_worst"] if one.metric.level == CHUNK else one.metric, steady)
        meets = (every.seen & (every.ms <= max_ms)) | (ok & ~every.seen)
        if one.metric.name in PACED:
            meets &= steady.requests["pace_missing"].isna().to_numpy(np.bool_)
        good &= meets | ~mask
        judged |= mask
    return good & (ok | judged)


# --- precision ----------------------------------------------------------------------------------------------------


def half_width(q: Quantile) -> float | None:
    """Half of the interval as a share of the value; None where either is not known."""
    if q.value is None or q.low is None or q.high is None or not q.value > 0 or not math.isfinite(q.high):
        return None
    return (q.high - q.low) / 2 / q.value


def is_known(q: Quantile, asked: float) -> bool:
    """Whether a quantile is known to that share of its value."""
    half = half_width(q)
    return half is not None and half <= asked and not q.mark


def precision_text(q: Quantile, asked: float, stage: Steady, *, is_over: bool) -> str:
    """`known to 4.6% after 190 s`; of what is not known, how long it would take."""
    half, seconds = half_width(q), f"{stage.to_s:,.0f} s"
    if half is not None and is_known(q, asked):
        return f"known to {_percent(half)} after {seconds}"
    verb, when = ("cannot be", "in") if is_over else ("is not", "after")
    text = f"{verb} known to {_percent(asked)} {when} {seconds}: "
    if half is None or half <= asked:
        if math.inf in {q.value, q.high}:
            return f"{text}it lies among requests without an answer"
        return text + (FEW_EPISODES if q.mark == FEW_EPISODES else "too few requests")
    at_the_end = normal(1 - MISSED / 2) / normal(confidence())  # half of the 5% is left
    more = (half / asked * at_the_end) ** 2
    about = float(f"{stage.from_s + stage.seconds * max(1.0, more):.2g}")
    return f"{text}half width {_percent(half)}, would need about {about:,.0f} s"


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def level(run: Json) -> float:
    """Confidence of the intervals of the run's percentiles and shares, 95% over all looks at it."""
    found: float | None = run["precision"]["confidence"]
    return found or CONFIDENCE


def looked(run: Json) -> str:
    """What looks at the run mean for its intervals; empty where none was planned."""
    if level(run) == CONFIDENCE:
        return ""
    looks = run["precision"]["looks"]
    return f"each interval of a percentile or share is at {100 * level(run):.4g}%: it covers 95% over {plural(looks, 'look')} and the end"


# --- looks at a run that goes on ----------------------------------------------------------------------------------


def look_answers(folder: Path, lines: Iterable[str]) -> Iterator[str]:
    """An answer to each line, which has the values of run.json that a look changes; both as JSON."""
    for line in lines:
        look = json.loads(line)
        with at_level(look["precision"]["confidence"]):
            yield json.dumps(_look(load([folder], look), look["precision"]["requests"]))


def _look(frames: Frames, requests: int) -> dict[str, Any]:
    """What is known of the first so many requests, a text for each objective; none while rows of theirs are missing."""
    rows, calls = frames.requests, frames.attempts
    rows = rows[rows["request_id"].between(0, requests * schema.TURNS - 1)]
    made = calls["request_id"].isin(rows["request_id"]).sum()
    missing = requests - len(rows), rows["attempts"].sum() - made, calls["chunks"].sum() - len(frames.chunks)
    if max(missing) > 0:  # a worker writes the tables of a batch one after the other
        return {"known": False, "texts": []}
    stage, known, texts = steady(frames).of_target, True, []
    for one in criteria(frames.run["scenario"]):
        asked = one.objective.precision
        if asked is not None:
            part = one.part(stage)
            q = one.row(part).quantiles[0]
            known &= is_known(q, asked)
            texts.append(f"{one.objective.label} {precision_text(q, asked, part, is_over=False)}")
    return {"known": known, "texts": texts}
