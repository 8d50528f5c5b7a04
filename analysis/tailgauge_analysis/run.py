"""A recorded run: its tables, and what is computed of them, each when it is first asked for.

Sections, comparisons, experiments and plugins take everything from here; runs.py adds what notebooks call. Nothing is measured
here: each result comes from the module that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from tailgauge import thresholds
from tailgauge.errors import RunDataError
from tailgauge.rows import schema
from tailgauge.rows.schema import TABLES
from tailgauge_analysis.metrics import latency, pace, stability
from tailgauge_analysis.metrics.latency import Row
from tailgauge_analysis.metrics.steady import Steady, is_of_tasks, steady
from tailgauge_analysis.metrics.throughput import Throughput, throughput
from tailgauge_analysis.objectives import precision
from tailgauge_analysis.objectives.objective import Criterion, on_latency
from tailgauge_analysis.reading import frames, run_record
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import at_level
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict import client_error, clocks
from tailgauge_analysis.verdict.checks import CHECKS
from tailgauge_analysis.verdict.client_error import ClientError, Uses
from tailgauge_analysis.verdict.clocks import Clocks
from tailgauge_analysis.verdict.conservation import conservation
from tailgauge_analysis.verdict.slow_users import clients_share
from tailgauge_analysis.verdict.stalls import bad_seconds
from tailgauge_analysis.verdict.timestamps import stamps
from tailgauge_analysis.verdict.verdict import Evidence, Reason, reasons, worst
from tailgauge_analysis.verdict.workers import workers

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """The frames without the arrivals of their chunks, and what is computed of these arrivals."""

    frames: Frames
    steady: Steady
    without_slow_readers: Steady
    warmup: Steady | None
    throughput: Throughput


class Run:
    """One recorded run.

    Times in its tables are integer nanoseconds since the start of the run, on the master's clock, whichever worker stamped
    them; columns are those of docs/reference/data-format.md, and `worker`.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        if not folders:
            raise RunDataError("no run folder given")
        for folder in folders:
            run_record.check(folder, *TABLES)
        self.folders = tuple(folders)
        self._results: dict[Callable[..., Any], Any] = {}

    def __repr__(self) -> str:
        return f"<Run {self.record['run_id']}: {self.record['state']}>"

    @cached_property
    def record(self) -> Json:
        """What run.json holds: scenario, target, workers, environment."""
        return run_record.read(self.folders)[0]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, those that were never sent among them."""
        return frames.whole(self.folders, "requests")

    @cached_property
    def attempts(self) -> pd.DataFrame:
        """One row an attempt: retries, hedges and legs are attempts of their request."""
        return frames.whole(self.folders, "attempts")

    @cached_property
    def chunks(self) -> pd.DataFrame:
        """One row a streamed chunk, ordered by attempt and number."""
        return frames.whole(self.folders, "chunks")

    @property
    def frames(self) -> Frames:
        """The columns that the analysis needs of all tables; chunks without their arrivals."""
        return self._loaded.frames

    @property
    def steady(self) -> Steady:
        """The steady stage."""
        return self._loaded.steady

    @property
    def without_slow_readers(self) -> Steady:
        """The steady stage without requests whose answers were read slowly on purpose."""
        return self._loaded.without_slow_readers

    @cached_property
    def clocks(self) -> Clocks:
        """How far the clocks of the workers may be apart."""
        return clocks.clocks(self.frames)

    @cached_property
    def calls_between(self) -> float:
        """How many calls are in flight within the error of the clocks."""
        return clocks.calls_between(self.frames, self.clocks)

    @cached_property
    def evidence(self) -> Evidence:
        """What the checks of the measurement judge."""
        with self._at_confidence():
            return _evidence(self._loaded)

    @cached_property
    def reasons(self) -> list[Reason]:
        """Why the measurement is not VALID, worst first."""
        with self._at_confidence():
            return reasons(CHECKS, self.evidence)

    @property
    def verdict(self) -> str:
        """Whether the numbers can be trusted: VALID, DEGRADED or INVALID."""
        return worst(self.reasons)

    def result(self, compute: Callable[[Run], Result]) -> Result:
        """Return what a section has of this run; computed once."""
        if compute not in self._results:
            with self._at_confidence():
                self._results[compute] = compute(self)
        result: Result = self._results[compute]
        return result

    def _at_confidence(self) -> AbstractContextManager[None]:
        """Return a context in which intervals have the confidence of this run: 95%, or more after looks at it."""
        return at_level(precision.level(self.record))

    def _read(self) -> Frames:
        return frames.load(self.folders)

    @cached_property
    def _loaded(self) -> _Loaded:
        loaded = self._read()
        needs_warmup = bool(on_latency(loaded.run["scenario"]))
        with self._at_confidence():
            stage = steady(loaded)
            warmup = None
            if needs_warmup:
                warmup = steady(loaded, schema.WARMUP)
            return _Loaded(
                frames=replace(
                    loaded, chunks=loaded.chunks.without_arrivals()
                ),  # of a hundred million: 800 MB
                steady=stage,
                without_slow_readers=stage.without_slow_readers,
                warmup=warmup,
                throughput=throughput(loaded, stage),
            )


def _evidence(loaded: _Loaded) -> Evidence:
    run = loaded.frames
    stage = loaded.steady
    without_slow_readers = loaded.without_slow_readers
    rows, errors = _client_errors(run, without_slow_readers)
    return Evidence(
        frames=run,
        steady=stage,
        without_slow_readers=without_slow_readers,
        warmup=loaded.warmup,
        throughput=loaded.throughput,
        stability=stability.stability(run, without_slow_readers, loaded.throughput),
        conservation=conservation(run),
        stamps=stamps(run, without_slow_readers),
        workers=workers(run, stage),
        bad=bad_seconds(run, stage, thresholds.STALL_NS),
        latency=rows,
        errors=errors,
        users_share=clients_share(run, stage),
    )


def _client_errors(
    run: Frames, without_slow_readers: Steady
) -> tuple[list[Row], list[ClientError]]:
    """Return the latency rows, and by how much the load client may have moved each percentile; where too far, a row is marked.

    There are also errors of percentiles that only an objective bounds, and of objectives on a part of the requests. The verdict
    uses those of the first latency table and of objectives; `deciding` of Uses are those on which the answer of the run rests.
    Where every objective on a latency is on a part, the answer rests on the percentiles of these parts, on none of all requests.
    """
    # Rows of a locustfile's tasks count from when a task made the request, and are named so.
    with_titles = latency.of_tasks if is_of_tasks(run.run["scenario"]) else list[Row]
    rows = with_titles(latency.table(without_slow_readers))
    criteria = [criterion.on(without_slow_readers) for criterion in on_latency(run.run["scenario"])]
    first_figures = client_error.of_first_table(
        rows,
        closed=run.run["arrival"] == "closed",
        is_coalesced=pace.is_coalesced(without_slow_readers.requests),
    )
    of_all = [criterion for criterion in criteria if criterion.is_of_all]
    uses = client_error.without_objective(first_figures)
    if criteria:
        uses = Uses(shown=first_figures, deciding=_bounds_ms(of_all))
    listed: set[tuple[str, float]] = set()
    for row in rows:
        listed |= {(row.metric.name, quantile.p) for quantile in row.quantiles}
    by_figure = _by_figure(criteria)
    other_rows = []
    for criterion, *_ in by_figure:
        if criterion.is_of_all and _figure(criterion) not in listed:
            other_rows.append(criterion.row(without_slow_readers))
    all_rows = [*rows, *with_titles(other_rows)]
    errors = client_error.client_errors(without_slow_readers, all_rows, uses)
    marked = client_error.marked(rows, errors)
    for same_figure in by_figure:
        criterion = same_figure[0]
        if criterion.is_of_all:
            continue
        part = criterion.part(without_slow_readers)
        of_part = Uses(shown=set(), deciding=_bounds_ms(same_figure))
        for error in client_error.client_errors(part, with_titles([criterion.row(part)]), of_part):
            errors.append(replace(error, title=f"{error.title} ({criterion.objective.subset})"))
    return marked, errors


def _by_figure(criteria: Sequence[Criterion]) -> list[list[Criterion]]:
    """Group objectives that bound the same figure of the same requests."""
    groups: dict[Any, list[Criterion]] = {}
    for criterion in criteria:
        objective = criterion.objective
        figure = (objective.traffic, objective.tag, criterion.view, *_figure(criterion))
        groups.setdefault(figure, []).append(criterion)
    return list(groups.values())


def _bounds_ms(criteria: Sequence[Criterion]) -> dict[tuple[str, float], list[float]]:
    bounds_ms: dict[tuple[str, float], list[float]] = {}
    for criterion in criteria:
        bounds_ms.setdefault(_figure(criterion), []).append(criterion.objective.bound)
    return bounds_ms


def _figure(criterion: Criterion) -> tuple[str, float]:
    """Return the metric and the percentile that an objective bounds."""
    assert criterion.metric is not None
    return criterion.metric.name, criterion.objective.quantile
