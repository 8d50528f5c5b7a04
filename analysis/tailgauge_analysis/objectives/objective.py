"""An objective on the rows of a run: which requests it is about, and their values; its outcome is decided in outcome.py.

An objective may be about some requests only, those of a traffic table or with a tag. `ttft` and `e2e` count since scheduled,
in a closed loop since sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from pydantic import ValidationError

from tailgauge.scenario.figures import LATENCY
from tailgauge.scenario.objective import Objective
from tailgauge_analysis.metrics import pace
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, Row, before_polls, row, waits
from tailgauge_analysis.metrics.metrics import BY_NAME, CHUNK, PACED, TURNAROUNDS, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import CLIENT, Mask, Quantile
from tailgauge_analysis.text.formatting import share
from tailgauge_analysis.text.json_values import Json, parsed, table


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
        """Return which requests it is about."""
        mask = np.ones(len(requests), np.bool_)
        if self.objective.traffic is not None:
            mask &= (requests["traffic"] == self.objective.traffic).to_numpy(np.bool_)
        if self.objective.tag is not None:
            codes, texts = pd.factorize(requests["tags"])  # -1, the last, where there is none
            mask &= np.array([*(_is_tagged(tags, self.objective.tag) for tags in texts), False])[
                codes
            ]
        return mask

    def part(self, steady: Steady) -> Steady:
        """Return the stage with these requests only."""
        if self.is_of_all:
            return steady
        return steady.only(self.of(steady.requests), gaps=self.is_of_gaps)

    @property
    def is_of_gaps(self) -> bool:
        """Return whether it bounds a time between two chunks."""
        return self.metric is not None and self.metric.level == CHUNK

    def on(self, stage: Steady) -> Criterion:
        """Return the same on this stage: a bound on TPOT takes that after the first chunk where a chunk has several tokens."""
        is_on_tpot = self.metric is not None and self.metric.name == "tpot"
        if is_on_tpot and pace.is_coalesced(self.part(stage).requests):
            return replace(self, metric=BY_NAME["tpot_c"])
        return self

    def row(self, part: Steady) -> Row:
        """Return the latency of these requests, at its percentile."""
        assert self.metric is not None
        return row(self.metric, part, self.view, (self.objective.quantile,))

    def estimate(self, part: Steady, rows: Sequence[Row]) -> Quantile:
        """Return the latency of these requests at its percentile: out of the `rows` of all requests if it is there.

        The client's mark hides other marks: a figure that has it is computed again.
        """
        estimate = None
        if self.is_of_all:
            estimate = self._computed(rows)
        if estimate is None or estimate.mark == CLIENT:
            return self.row(part).quantiles[0]
        return estimate

    def _computed(self, rows: Sequence[Row]) -> Quantile | None:
        assert self.metric is not None
        for latency in rows:
            if (latency.metric.name, latency.view) != (self.metric.name, self.view):
                continue
            for quantile in latency.quantiles:
                if quantile.p == self.objective.quantile:
                    return quantile
        return None

    def beyond(self, part: Steady) -> Proportion:
        """Of these, the share beyond the bound; up to all of them where too many have no pace."""
        assert self.metric is not None
        if self.metric.of == TURNAROUNDS:
            return self._beyond_in_jobs(part)
        if self.metric.level != CHUNK:
            violations = waits(self.metric, part, self.view).beyond(self.objective.bound)
            if violations.high is not None and self.unknown(part):
                return replace(violations, high=1.0)
            return violations
        gaps_ms = self.metric.ns(part) / 1e6
        is_beyond = gaps_ms > self.objective.bound
        return proportion(is_beyond, part.gap_counts, part.groupings, waits_ms=gaps_ms)

    def _beyond_in_jobs(self, part: Steady) -> Proportion:
        """Return the share beyond the bound, with what polls leave open: no value where the bound lies between two."""
        assert self.metric is not None
        latest = waits(self.metric, part, self.view).beyond(self.objective.bound)
        earliest = waits(self.metric, before_polls(part), self.view).beyond(self.objective.bound)
        value = latest.value if latest.k == earliest.k else None
        return replace(
            latest, value=value, low=earliest.low, n_eff=min(latest.n_eff, earliest.n_eff)
        )

    def between_polls(self, part: Steady) -> str:
        """Return why a bound on a time that polls show is not decided; empty where they leave nothing open."""
        if self.metric is None or self.metric.of != TURNAROUNDS or not len(part.requests):
            return ""
        bound = self.objective.bound
        measured = waits(self.metric, part, self.view)
        early = waits(self.metric, before_polls(part), self.view)
        is_open = (measured.values > bound) & (early.values <= bound)
        if not is_open.any():
            return ""
        return f"for {share(is_open.mean())} of the jobs the bound lies between two polls: poll more often"

    def unknown(self, part: Steady) -> str:
        """Return why its percentile rests on too few answers: more than allowed have no pace; empty where it does not."""
        if self.metric is None or self.metric.name not in PACED:
            return ""
        missing = pace.missing(part.requests)
        if missing["answers"] > self.objective.allowed * missing["of"]:
            return str(missing["sentence"])
        return pace.ambiguous(part.requests)


def _is_tagged(tags: object, wanted: str) -> bool:
    key, _, value = map(str.strip, wanted.partition("="))
    values = parsed(tags)
    return key in values and str(values[key]) == value


def read(scenario: Json) -> dict[str, Criterion | None]:
    """Return every objective of a scenario by its name; None where it cannot be read."""
    is_closed = table(scenario, "arrival").get("process") in ["closed", "tasks"]
    suffix = "_sent" if is_closed else "_sched"
    objectives: dict[str, Criterion | None] = {}
    for name, spec in table(scenario, "slo").items():
        objectives[name] = None
        try:
            objective = Objective.model_validate(spec)
        except ValidationError:
            continue
        metric = None
        if objective.figure.unit == LATENCY:
            metric = BY_NAME.get(objective.metric) or BY_NAME.get(f"{objective.metric}{suffix}")
        objectives[name] = Criterion(name, objective, metric)
    return objectives


def criteria(scenario: Json) -> list[Criterion]:
    """Return the objectives that decide the result of a run: those without `gate = false`."""
    gates = []
    for criterion in read(scenario).values():
        if criterion is not None and criterion.objective.gate:
            gates.append(criterion)
    return gates


def on_latency(scenario: Json) -> list[Criterion]:
    """Return those of them that bound a latency."""
    bounds = []
    for criterion in criteria(scenario):
        if criterion.metric is not None:
            bounds.append(criterion)
    return bounds
