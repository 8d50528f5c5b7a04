"""The Python API: recorded runs in notebooks and scripts.

    import tailgauge_analysis as tg

    run = tg.load("runs/20261122T101500Z-quickstart-1a2b")
    run.percentile("ttft", 0.99, interval=True)

Raises RunDataError without a run, UsageError for wrong arguments. Nothing is computed before it is asked for. What is computed
of a run is in run.py, and report/ writes its report; here is what only callers of the API use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import pandas as pd

from tailgauge.errors import UsageError
from tailgauge.rows import schema
from tailgauge.rows.object_store import is_remote, local
from tailgauge_analysis import run
from tailgauge_analysis.comparing import pairs
from tailgauge_analysis.comparing.comparison import Comparison
from tailgauge_analysis.metrics import definitions, latency
from tailgauge_analysis.metrics.metrics import ATTEMPT, BY_NAME, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading import run_record
from tailgauge_analysis.report.build import build
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile
from tailgauge_analysis.text.json_values import Json, table
from tailgauge_analysis.verdict import client_error

if TYPE_CHECKING:  # plotly and Jinja take a second to load
    from tailgauge_analysis.report.report import FinishedReport

Folder = str | os.PathLike[str]
Since = Literal["scheduled", "sent"]
Population = Literal["completed", "offered"]
_ENDINGS = {"scheduled": "_sched", "sent": "_sent"}
_VIEWS = {"completed": latency.SUCCESSES, "offered": latency.OFFERED}
_HAVE = {
    schema.JOIN: "are fan-outs, whose latency is metric join",
    schema.TURNAROUND: "are jobs or batches, whose latency is metric turnaround",
}
_HAVE_ANSWERS = "have one answer each, whose latencies are metrics ttft, tpot, chunk_gap and e2e"


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile with its 95% interval, in ms or tokens/s. `mark` is empty, or why the value is not reliable."""

    p: float
    value: float | None
    low: float | None
    high: float | None
    n: int
    mark: str


class Run(run.Run):
    """One recorded run.

    Times in its tables are integer nanoseconds since the start of the run, on the master's clock, whichever worker stamped
    them; columns are those of docs/reference/data-format.md, and `worker`.
    """

    @property
    def problems(self) -> list[str]:
        """What could not be read, and what else is worth knowing about the files."""
        return [problem.text for problem in self.frames.problems]

    @property
    def answer(self) -> Json:
        """Did the target do what was asked: `outcome`, `sentence`, objectives; as in report.json."""
        answer: Json = self.data["result"]
        return answer

    @cached_property
    def data(self) -> Json:
        """What report.json holds."""
        return build(self).data

    @overload
    def percentile(
        self,
        metric: str,
        p: float,
        *,
        interval: Literal[False] = False,
        since: Since = "scheduled",
        population: Population = "completed",
        traffic: str = "",
    ) -> float | None: ...

    @overload
    def percentile(
        self,
        metric: str,
        p: float,
        *,
        interval: Literal[True],
        since: Since = "scheduled",
        population: Population = "completed",
        traffic: str = "",
    ) -> Percentile: ...

    def percentile(
        self,
        metric: str,
        p: float,
        *,
        interval: bool = False,
        since: Since = "scheduled",
        population: Population = "completed",
        traffic: str = "",
    ) -> float | Percentile | None:
        """Percentile `p` (0.99 for the p99) of a metric of the steady stage, in ms, or tokens/s for rates.

        `metric`: a name of docs/reference/metrics.md; `since`: from when it counts, of a metric with two begins. `offered`
        adds the requests that failed, as slower than any other: there the value may be infinite. `traffic`: one traffic
        table. Requests that were read slowly on purpose are left out. None where there are too few samples. With
        `interval`: a `Percentile`, whose value is None then, with its interval at the confidence of the run's report, and
        its mark: why it is not reliable, as too few samples, or a delay of the load client itself. UsageError where these
        requests cannot have the metric: a fan-out has a join, and no TTFT.
        """
        if not 0 < p < 1:
            raise UsageError(f"percentile {p}: give a share between 0 and 1, as 0.99 for the p99")
        named = self._metric(metric, since)
        view = _choice("population", population, _VIEWS)
        stage = self.without_slow_readers
        if traffic:
            tables = stage.requests["traffic"]
            _choice("traffic", traffic, dict.fromkeys(sorted(tables.unique())))
            stage = stage.of_traffic(traffic)
        if view not in latency.views(named):
            raise UsageError(f"{metric}: known of completed requests only")
        with self._at_confidence():
            row = latency.row(named, stage, view, (p,))
        if not row.n:
            _check_answers(metric, named, stage, traffic)
        (marked,) = client_error.marked(
            [row], client_error.client_errors(stage, [row], client_error.NO_FIGURES_USED)
        )
        percentile = _percentile(marked.quantiles[0])
        return percentile if interval else percentile.value

    def report(self, out: Folder | None = None, *, tool: str | None = None) -> FinishedReport:
        """Write the report below `out`/reports, else beside the folder runs/ that holds the run.

        `tool`: add the figures as this tool defines them (`tailgauge report --as`).
        """
        from tailgauge_analysis.report.report import make

        if tool:
            _choice("tool", tool, definitions.TOOLS)
        parent = self.folders[0].resolve().parent
        place = Path()
        if out is not None:
            place = Path(out)
        elif parent.name == "runs":
            place = parent.parent
        return make(self.folders, place, tool=tool)

    def _metric(self, name: str, since: Since) -> Metric:
        ending = _choice("since", since, _ENDINGS)
        metric = BY_NAME.get(name) or BY_NAME.get(name + ending)
        if metric is None:
            names = (
                known_name.removesuffix("_sched").removesuffix("_sent") for known_name in BY_NAME
            )
            raise UsageError(
                f"{name}: no such metric; choose from {', '.join(dict.fromkeys(names))}"
            )
        return metric


def load(*folders: Folder) -> Run:
    """Return the run in a folder, or in the folders of its workers; s3://BUCKET/PREFIX/runs/RUN is copied first. RunDataError where there is none."""
    return Run([local(os.fspath(folder)) for folder in folders])


def compare(
    *runs: Run | Folder, metrics: Sequence[str] = (), threshold: float = pairs.THRESHOLD
) -> Comparison:
    """B against A, from one run of each or from pairs A1 B1 A2 B2 ...; `threshold`: the smallest change to report.

    The answer's `verdict` says which is better, `against` why they cannot be compared, `rows` has each metric.
    """
    folders = []
    for item in runs:
        if isinstance(item, Run):
            folders.append(item.folders[0])
        else:
            folders.append(local(os.fspath(item)))
    return pairs.compare(folders, threshold=threshold, metrics=metrics)


def list_runs(out: Folder = ".") -> pd.DataFrame:
    """Return the runs below `out`/runs, the oldest first: run_id, scenario, state, verdict of the last report, started_at, folder."""
    rows: list[dict[str, Any]] = []
    place = os.fspath(out)
    folder = local(os.fspath(out), suffix="/run.json")
    for path in sorted(folder.glob("runs/*/run.json")):
        record = run_record.load(path, []) or {}
        run_folder = str(path.parent)
        if is_remote(place):
            run_folder = f"{place.rstrip('/')}/runs/{path.parent.name}"
        row = {
            "run_id": path.parent.name,
            "scenario": table(record, "scenario").get("name"),
            "state": record.get("state"),
            "verdict": table(record, "verdict").get("verdict"),
            "started_at": pd.to_datetime(str(record.get("started_at")), errors="coerce", utc=True),
            "folder": run_folder,
        }
        rows.append(row)
    return pd.DataFrame(
        rows, columns=["run_id", "scenario", "state", "verdict", "started_at", "folder"]
    )


def _check_answers(metric: str, named: Metric, stage: Steady, traffic: str) -> None:
    """Refuse a metric that none of these requests can have."""
    kinds = stage.requests["answer"].value_counts()
    if kinds.empty or named.level == ATTEMPT or kinds.index.isin(named.of).any():
        return
    subject = "the requests of this run"
    if traffic:
        subject = f"the requests of {traffic}"
    raise UsageError(f"{metric}: {subject} {_HAVE.get(str(kinds.index[0]), _HAVE_ANSWERS)}")


def _percentile(quantile: Quantile) -> Percentile:
    value, low, high = (quantile.value, quantile.low, quantile.high)
    if quantile.mark == TOO_FEW:
        value, low, high = (None, None, None)
    return Percentile(
        p=quantile.p, value=value, low=low, high=high, n=quantile.n, mark=quantile.mark
    )


def _choice(name: str, value: str, allowed: dict[str, Any]) -> Any:
    if value not in allowed:
        raise UsageError(f"{name}={value!r}: choose from {', '.join(allowed)}")
    return allowed[value]
