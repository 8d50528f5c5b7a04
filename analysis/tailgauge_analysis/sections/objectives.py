"""The objectives of a scenario, each decided on the interval of its figure, and goodput by traffic table.

One row of FIGURES for each figure that is no latency; those are decided in metrics/slo.py. A figure of some requests only is
computed from these. All are of the steady stage without slow readers, but for the share of input tokens that the cache
served, which is of the whole run as in the section on the cache.

Fit by use case, and alerts: bounds of the scenario that change no exit code, each decided as an objective is.

A use case is met where all its bounds are, missed where one fails, else inconclusive. An alert fires where its bound fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge.scenario.objective import FEWEST_RATIO, MOST, Objective
from tailgauge_analysis.metrics import slo
from tailgauge_analysis.metrics.slo import (
    FAIL,
    INCONCLUSIVE,
    NEAR,
    PASS,
    Criterion,
    Goodput,
    Health,
    ObjectiveResult,
)
from tailgauge_analysis.metrics.stability import Rate, Throughput, Work
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames, ended_as
from tailgauge_analysis.run import Run as RecordedRun
from tailgauge_analysis.sections.cache import shares
from tailgauge_analysis.sections.cache.calls import calls, settings
from tailgauge_analysis.sections.cache.cost import each, no_price, tariff, with_usage
from tailgauge_analysis.stats.binomial import clopper_pearson, needed
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, Floats
from tailgauge_analysis.text.formatting import count, listed, plain, share, share_range
from tailgauge_analysis.text.json_values import Json, table
from tailgauge_analysis.text.section import Section, Table, Value

TINY = 1e-12  # rounding of a share


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure with its 95% interval; `why`: what is missing where it has none; `of`: the share that it is."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    n_eff: int = 0
    why: str = ""
    of: Proportion | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What the figures are computed from."""

    frames: Frames
    steady: Steady
    rates: Throughput
    criteria: Sequence[Criterion]


Measure = Callable[[Criterion, Steady, Run], Measured]  # of one objective, its part of the stage, and the run


def objectives(run: Run, bounds: Json | None = None) -> list[ObjectiveResult]:
    """Every objective of the scenario, in its order; with `bounds`, these instead."""
    return [_decided(one, run) for one in slo.read(run.frames.run["scenario"], bounds)]


def _decided(one: Criterion | ObjectiveResult, run: Run) -> ObjectiveResult:
    """One objective, unless it is decided; those on latencies in metrics/slo.py."""
    if isinstance(one, ObjectiveResult):
        return one
    if one.metric is not None:
        return slo.decided_latency(one, run.steady)
    objective, figure = one.objective, one.objective.figure
    part, found = one.part(run.steady), Measured(why="no request is of it")
    if len(part.requests):
        found = FIGURES[figure.name](one, part, run)
    outcome, why = decide(objective, found, run.steady.seconds)
    ends = found.value, found.low, found.high
    line = slo.line_of(figure, objective.label, outcome, objective.bound, ends, why)
    value, low, high = (None if end is None or not math.isfinite(end) else end for end in ends)
    return ObjectiveResult(
        one.name, objective.label, figure.name, outcome, why, line, figure.meaning, figure.unit, objective.traffic, objective.tag,
        bound=objective.bound, value=value, low=low, high=high, n=found.n, n_eff=found.n_eff,
    )  # fmt: skip


def decide(objective: Objective, found: Measured, seconds: float) -> tuple[str, str]:
    """The outcome of one bound on a figure with an interval, and why it is none."""
    figure, bound = objective.figure, objective.bound
    if found.value is None or found.low is None or found.high is None:
        return INCONCLUSIVE, found.why or "nothing was measured"
    if found.of is not None and found.of.mark == FEW_EPISODES:
        bad, allowed = (found.value, bound) if figure.sign == MOST else (1 - found.value, 1 - bound)
        if bad / NEAR <= allowed <= bad * NEAR:
            return INCONCLUSIVE, f"they came in few episodes ({found.of.episodes}): run longer"
    above, below = found.low > bound + TINY, found.high < bound - TINY
    if above if figure.sign == MOST else below:
        return FAIL, ""
    if found.high <= bound + TINY if figure.sign == MOST else found.low >= bound - TINY:
        return PASS, ""
    return INCONCLUSIVE, f"the interval includes the bound: run longer{_longer(objective, found, seconds)}"


def _longer(objective: Objective, found: Measured, seconds: float) -> str:
    """How much longer, if the figure stays what it is."""
    figure, bound, value = objective.figure, objective.bound, found.value or 0.0
    if (value < bound) != (figure.sign == MOST) or value == bound:
        return ""
    if found.of is not None and found.of.value is not None:
        good, p = (1 - value, 1 - bound) if figure.sign == MOST else (value, bound)
        bad = math.ceil((1 - good) * found.n_eff - 1e-9)
        wanted = f"{needed(bad, p, 0.975):,} effective samples needed" if p < 1 else ""
        return f" ({wanted}, {found.n_eff:,} measured)" if wanted else ""
    far = (found.high or 0.0) - value if figure.sign == MOST else value - (found.low or 0.0)
    times = (far / abs(value - bound)) ** 2
    wanted = f"about {count(math.ceil(seconds * times))} s needed" if math.isfinite(times) else ""
    return f" ({wanted}, {count(seconds)} s measured)" if wanted else ""


def _share(seen: pd.Series[bool] | np.ndarray) -> Measured:
    of = proportion(np.asarray(seen, np.bool_))
    return Measured(of.value, of.low, of.high, of.n, of.n_eff, of=of)


def _ended(*classes: str) -> Measure:
    return lambda _one, part, _run: _share(part.requests["ended"].isin(classes))


def _good(_one: Criterion, part: Steady, run: Run) -> Measured:
    if why := slo.unknown_pace(run.criteria, run.steady):
        return Measured(why=why)
    return _share(slo.good_of(run.criteria, part))


def _hit(one: Criterion, _part: Steady, run: Run) -> Measured:
    rows = calls(run.frames, settings(run.frames.run))
    rows = rows[rows["counted"]]
    if not one.is_of_all:
        rows = rows[rows["request_id"].isin(_requests(one, run.frames))]
    found = shares.token_hit(rows)
    if not len(rows):
        return Measured(why="the target reports no tokens read from a cache")
    low, high = found.low, found.high
    if found.value is not None and found.n >= FEWEST_RATIO and (low is None or low == high):
        # All calls are alike; of one that is not, no more than so many may come.
        most = clopper_pearson(0, found.n)[1]
        low, high = found.value * (1 - most), found.value + (1 - found.value) * most
    return Measured(found.value, low, high, found.n, found.n, found.why)


def _rate(of: Callable[[Throughput], Work | None], why: str) -> Measure:
    def measured(one: Criterion, _part: Steady, run: Run) -> Measured:
        work = of(run.rates)
        if work is None:
            return Measured(why=why)
        found: Rate = work.rate(None if one.is_of_all else _requests(one, run.frames))
        few = f"not enough events: {found.n} of the 20 needed" if found.low is None else ""
        return Measured(found.value, found.low, found.high, found.n, found.n, few)

    return measured


def _requests(one: Criterion, frames: Frames) -> np.ndarray:
    """Ids of the requests of the whole run that it is about."""
    ids: np.ndarray = frames.requests["request_id"].to_numpy(np.int64)[one.of(frames.requests)]
    return ids


def _cost(_one: Criterion, part: Steady, run: Run) -> Measured:
    """Cost of all attempts over good requests. With no good one at most 3 / n of them are, and so it costs that at least."""
    if why := slo.unknown_pace(run.criteria, run.steady):
        return Measured(why=why)
    prices = tariff(run.frames.run)
    used = with_usage(part.attempts)
    costs, unpriced = each(used, prices.price)
    if costs is None:
        return Measured(why=no_price(unpriced, prices.why))
    spent = pd.Series(costs).groupby(used["request_id"].to_numpy()).sum()
    patterns = run.frames.run["patterns"].items()
    price_shares = {name: float(facts.get("price_share", 1.0)) for name, facts in patterns}
    by_request = part.requests["request_id"].map(spent).fillna(0.0)
    by_request *= part.requests["pattern"].map(price_shares).fillna(1.0)
    paid: Floats = np.asarray(by_request, np.float64)
    good = slo.good_of(run.criteria, part)
    n, k, total = len(good), int(good.sum()), float(paid.sum())
    if n < FEWEST_RATIO:
        few = f"not enough requests: {n} of the {FEWEST_RATIO} needed"
        return Measured(total / k if k else math.inf, n=n, why=few)
    if not k:
        of = proportion(good)
        return Measured(math.inf, total / n / (of.high or 1.0), math.inf, n, of.n_eff)
    low, high = ratio(paid, good.astype(np.float64))
    return Measured(total / k, low, high, n, n)


FIGURES: dict[str, Measure] = {
    "answered": _ended(schema.OK),
    "complete": _ended(*schema.COMPLETE),
    "error_rate": lambda _one, part, _run: _share(~part.requests["ended"].isin(schema.NOT_FAILED)),
    "refused": _ended(schema.REFUSED, schema.FILTERED),
    "cut": _ended(schema.CUT),
    "429_rate": lambda _one, part, _run: _share(ended_as(part.sent, schema.RATE_LIMITED)),
    "529_rate": lambda _one, part, _run: _share(ended_as(part.sent, schema.OVERLOADED)),
    "abandoned": _ended(schema.CANCELLED),
    "goodput": _good,
    "cache_hit": _hit,
    "requests_per_s": _rate(lambda rates: rates.requests, "the steady stage has no length"),
    "output_tokens_per_s": _rate(lambda rates: rates.tokens, "the target reports no output tokens"),
    "cost_per_good_request": _cost,
}

DECIDED = (
    "An objective is decided on a 95% interval: PASS where the whole interval is within the bound, FAIL where none of it is, "
    "else INCONCLUSIVE."
)
GOOD = "A good request is complete and meets every objective on a latency that is about it."


def section(judged: Judged) -> Section | None:
    """What the outcomes before the sections rest on; None without an objective."""
    decided, goodput = judged.slo, judged.goodput
    if not decided:
        return None
    rows = tuple((one.label, one.title, count(one.n), count(one.n_eff)) for one in decided)
    tables = [Table("", ("objective", "figure", "n", "n_eff"), rows, prose=(1,))]
    if goodput and goodput.by_traffic:
        tables.append(_by_traffic(goodput))
    computed, folded = (DECIDED, GOOD), len(tables) == 1
    return Section("objectives", "Objectives", tables=tuple(tables), computed=computed, is_folded=folded)


def _by_traffic(goodput: Goodput) -> Table:
    header = ("traffic", "latency objectives", "offered", "good", "good, share of offered")
    every = [(plain(one.traffic, 80), count(one.objectives), one.good) for one in goodput.by_traffic]
    rows = ((name, number, *_good_of(good)) for name, number, good in [*every, ("all", "", goodput.good)])
    return Table("Goodput by traffic", header, tuple(rows))


def _good_of(of: Proportion) -> tuple[str, str, Value]:
    return count(of.n), count(of.k), Value(share(of.value), share_range(of.low, of.high), share=of.value)


# --- use cases and alerts -----------------------------------------------------------------------------------------

FITS = {PASS: "fits", FAIL: "does not fit", INCONCLUSIVE: "inconclusive for"}
FIRES = {PASS: "does not fire", FAIL: "fires", INCONCLUSIVE: "inconclusive"}
COMPUTED = "Each bound is decided on a 95% interval, as objectives are. None of them changes the exit code."


@dataclass(frozen=True, slots=True)
class UseCase:
    """A use case with its bounds, or an alert with its only one."""

    name: str
    is_alert: bool
    outcome: str
    bounds: tuple[ObjectiveResult, ...]


def use_cases(run: Run) -> list[UseCase]:
    """Use cases, then alerts, in the order of the scenario."""
    found = []
    for key in ("use_case", "alert"):
        for name, bounds in table(run.frames.run["scenario"], key).items():
            each = bounds if isinstance(bounds, list) else [bounds]
            decided = objectives(run, {f"{key}.{name}.{i}": one for i, one in enumerate(each)})
            outcomes = {one.outcome for one in decided}
            outcome = next((one for one in (FAIL, INCONCLUSIVE) if one in outcomes), PASS)
            found.append(UseCase(plain(name, 80), key == "alert", outcome, tuple(decided)))
    return found


def fits(found: Sequence[UseCase]) -> Section | None:
    """None where the scenario asks for neither."""
    if not found:
        return None
    uses, alerts = ([one for one in found if one.is_alert is is_alert] for is_alert in (False, True))
    met = {outcome: outcome.upper() for outcome in FITS}
    tables = _table("Use cases", "use case", uses, met), _table("Alerts", "alert", alerts, FIRES)
    title, answer = "Fit by use case" if uses else "Alerts", f"{_fit(uses)} {_firing(alerts)}".strip()
    shown = tuple(one for one in tables if one.rows)
    return Section("use-cases", title, answer, tables=shown, computed=(COMPUTED,))


def _table(title: str, first: str, of: Sequence[UseCase], names: dict[str, str]) -> Table:
    rows = tuple(
        (one.name, bound.label, Value(bound.line.value, bound.line.interval), bound.line.bound,
         Value(names[bound.outcome], outcome=bound.outcome.upper()))
        for one in of
        for bound in one.bounds
    )  # fmt: skip
    return Table(title, (first, "figure", "measured", "bound", "outcome"), rows, prose=(1,))


def _fit(uses: Sequence[UseCase]) -> str:
    by = {outcome: [one.name for one in uses if one.outcome == outcome] for outcome in FITS}
    parts = [f"{text} {listed(by[outcome])}" for outcome, text in FITS.items() if by[outcome]]
    return f"The run {'; '.join(parts)}." if parts else ""


def _firing(alerts: Sequence[UseCase]) -> str:
    firing = [one.name for one in alerts if one.outcome == FAIL]
    if firing:
        return f"{len(firing)} of {len(alerts)} alerts fire: {listed(firing)}."
    conclusive = sum(one.outcome == PASS for one in alerts)
    return f"No alert fires ({conclusive} of {len(alerts)} conclusive)." if alerts else ""


# --- of a recorded run --------------------------------------------------------------------------------------------

KEY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The objectives of a run, goodput and the health of the target."""

    slo: list[ObjectiveResult]
    """objectives, in the scenario's order"""
    goodput: Goodput | None
    """null without objectives on latencies"""
    health: Health | None
    """offered requests with a complete answer; null if none was offered"""


def compute(run: RecordedRun) -> Judged:
    """Decide the objectives of a run."""
    scenario, warmup = run.record["scenario"], run.evidence.warmup
    return Judged(
        slo=objectives(judged_part(run)),
        goodput=slo.goodput_of(scenario, run.of_target, warmup and warmup.of_target),
        health=slo.health(scenario, run.steady),
    )


def judged_part(run: RecordedRun) -> Run:
    """Return what the figures of objectives are computed from."""
    criteria = slo.criteria(run.record["scenario"])
    return Run(run.frames, run.of_target, run.evidence.throughput, criteria)
