"""A baseline: one small JSON file for each of its runs, in a folder that a repository or a bucket holds.

A file has the figures of a run with their intervals and what must be equal to compare it. Keys are sorted, so that a diff
shows what changed. Files with other endings are left alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from tailgauge.errors import UsageError
from tailgauge.rows.disk import writable
from tailgauge.rows.object_store import is_remote, local, remove, store
from tailgauge.rows.run_folder import write_json
from tailgauge.rows.text_file import FOLDER, MISSING, json_tree, no_number, read_text, refusal
from tailgauge_analysis.comparing.comparability import SHOWN, TARGET, facts_of
from tailgauge_analysis.comparing.effect import ANSWERED_SHARE
from tailgauge_analysis.comparing.run_summary import METRICS, RunSummary, primary, summarize
from tailgauge_analysis.reading import run_record
from tailgauge_analysis.stats.quantiles import NORMAL_975, TOO_FEW
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, number

SCHEMA_VERSION: Literal[1] = 1
MASTERS_HOST = "the master's"  # build machines have a new name each time
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
NotNegative = Annotated[float, Field(ge=0)]


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineFigure:
    """A percentile of a latency of all offered requests, in ms, or the share of them that was answered."""

    metric: str
    """a name of docs/reference/metrics.md, or answered"""
    p: Annotated[float, Field(gt=0, lt=1)] | None
    """0.95 for the p95; null of the share"""
    value: NotNegative | None
    """null where it falls among requests without an answer"""
    low: NotNegative | None
    """of the 95% interval within the run; null where it has no such bound"""
    high: NotNegative | None
    """the same"""
    n: Annotated[int, Field(ge=1)]
    """values"""

    @property
    def harm(self) -> float:
        """The larger the worse: a logarithm, or a share with the other sign."""
        if self.value is None:
            return math.inf
        return -self.value if self.p is None else math.log(self.value)

    @property
    def error(self) -> float:
        """Standard error of `harm` within the run; NaN where it has no interval."""
        ends = [replace(self, value=end).harm for end in (self.low, self.high) if end]
        return sum(abs(end - self.harm) for end in ends) / len(ends) / NORMAL_975 if ends else math.nan


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRun:
    """A file of a baseline; docs/reference/baseline.schema.json is generated from it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """version of these keys"""
    run_id: str
    """of the run"""
    started_at: str
    """UTC, ISO 8601"""
    dry_run: bool
    """whether nothing was sent"""
    seed: int | None
    """of arrivals, sizes and prompts"""
    verdict: str
    """of the measurement: VALID or DEGRADED"""
    reason: str
    """the first one; may be empty"""
    growth_per_s: float | None = None
    """by how much the backlog grew; null: the target sustained the rate"""
    primary: tuple[str, float]
    """metric and percentile that decide"""
    figures: tuple[BaselineFigure, ...]
    """what is compared"""
    work: dict[str, Annotated[float, Field(gt=0)]]
    """tokens of a completed call, as the target counts them"""
    facts: dict[str, dict[str, str]]
    """scenario, target, versions and machine: what must be equal, and other versions"""

    def figure(self, metric: str, p: float | None) -> BaselineFigure | None:
        """The figure with this name, if the run has it."""
        return next((figure for figure in self.figures if (figure.metric, figure.p) == (metric, p)), None)


_FILE = TypeAdapter(BaselineRun)


def of_run(folder: Path) -> BaselineRun:
    """Return what a baseline holds of a run. RunDataError where the folder has none, or no request in its steady stage."""
    run_record.check(folder)
    run, _ = run_record.read([folder])
    summary = summarize(folder, METRICS)
    return BaselineRun(
        run_id=summary.run_id,
        started_at=run["started_at"],
        dry_run=summary.dry_run,
        seed=summary.seed,
        verdict=summary.verdict,
        reason=plain(summary.reason, 200),
        growth_per_s=summary.growth_per_s,
        primary=primary(run["scenario"], METRICS),
        figures=tuple(_figures(summary)),
        work={name: float(f"{value:.6g}") for name, value in summary.work.items()},
        facts=_facts(run, summary.model),
    )


def _figures(run: RunSummary) -> Iterator[BaselineFigure]:
    known = {key: quantile for key, quantile in run.quantiles.items() if quantile.mark != TOO_FEW}
    for (metric, p), figure in (*known.items(), ((ANSWERED_SHARE, None), run.share)):
        value, low, high = map(_rounded, (figure.value, figure.low, figure.high))
        yield BaselineFigure(metric=metric, p=p, value=value, low=low, high=high, n=figure.n)


def _rounded(value: float | None) -> float | None:
    return None if number(value) is None else float(f"{value:.6g}")


def _facts(run: Json, model: str) -> dict[str, dict[str, str]]:
    """By group; the master's host has no name."""
    host = run["master"].get("host")
    master = {**run["master"], "host": MASTERS_HOST}
    workers = [
        {**worker, "host": MASTERS_HOST} if worker["host"] == host else worker for worker in run["workers"]
    ]
    facts: dict[str, dict[str, str]] = {}
    for (group, key), value in facts_of({**run, "master": master, "workers": workers}).items():
        facts.setdefault(group, {})[key] = value
    facts[TARGET]["answering model"] = plain(model, SHOWN)
    return facts


def load(place: str, *, may_be_new: bool = False) -> list[BaselineRun]:
    """Return the runs of a baseline, the oldest first. UsageError for a missing folder, or a file that is none of a baseline."""
    folder = local(place, suffix=".json")
    problem = refusal(folder)
    if problem == MISSING and may_be_new:
        return []
    if problem != FOLDER:
        expected = "expected a folder, as `tailgauge baseline add` makes it"
        raise UsageError(f"{place}: {problem or 'a file'}: {expected}")
    runs = [_read(path, _named(place, path.name)) for path in folder.glob("*.json")]
    return sorted(runs, key=lambda run: (run.started_at, run.run_id))


def _named(place: str, name: str) -> str:
    return f"{place.rstrip('/')}/{name}"


def _read(path: Path, name: str) -> BaselineRun:
    try:
        return _parsed(path.stem, json_tree(read_text(path), no_number))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        problem = f"{plain(key, 80)}: {first['msg']}"
    except ValueError as error:
        problem = str(error)
    raise UsageError(f"{name}: not a run of a baseline: {problem}. Move it elsewhere, or add the run again")


def _parsed(name: str, tree: Any) -> BaselineRun:
    version = tree.get("schema_version") if isinstance(tree, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise ValueError(f"schema_version: expected {SCHEMA_VERSION}, got {version}")
    run = _FILE.validate_python(tree)
    if run.run_id != name:  # else a copy would count as another run
        expected = f"expected {plain(name, 80)} as the file is named"
        raise ValueError(f"run_id: {expected}, got {plain(run.run_id, 80)}")
    return run


def save(place: str, run: BaselineRun) -> str:
    """Write the file of a run and return its name. UsageError where that is not possible, or it is there already."""
    folder = local(place, suffix=".json")
    path = folder / f"{run.run_id}.json"
    name = _named(place, path.name)
    if path.exists():
        raise UsageError(f"{name}: the run is in this baseline already")
    writable(folder, place)
    write_json(path, json.loads(json.dumps(asdict(run), sort_keys=True)))
    if is_remote(place):
        store(path, name)
    return name


def delete(place: str, run: BaselineRun) -> None:
    """Delete the file of a run. UsageError where that is not possible."""
    name = _named(place, f"{run.run_id}.json")
    if is_remote(place):
        remove(name)
        return
    try:
        Path(name).unlink()
    except OSError as error:
        raise UsageError(f"{name}: cannot be deleted: {error.strerror}") from error
