"""A load curve: what a target does at each load, the load up to which its objectives hold, and where it saturates.

The finding of the experiment `curve`, and thereby the facts of its report.json, from which `read` brings it back.

A load curve for other programs: one row a load as CSV, and the step function of MLPerf Endpoints v1.0 as JSON.

MLPerf Endpoints v1.0 (mlcommons/endpoints_policies, endpoints_rules.md at 00135a00, 4.1, 5.2 and 6.2): at each fixed
concurrency system_tps, output tokens/s of the whole system, against tps_per_user, 1000 / tpot_p90_ms. From a point to the
next the curve holds the last value; nothing is interpolated. The file says where it departs from these rules.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from tailgauge.errors import UsageError
from tailgauge.rows.text_file import LARGEST_JSON, json_tree, no_number, read_text, refusal
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import TextFiles

KIND = "curve"
REPORT = "report.json"
MOST_POINTS = 1000
RATE, CONCURRENCY = "rate", "concurrency"

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Quantile = Annotated[str, Field(pattern=r"^p[0-9]{1,2}(\.[0-9]+)?$")]
Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True, slots=True)
class Ends:
    """An estimate with its 95% interval; None where there is none. A quantile among failures has a low end at most."""

    value: Number | None = None
    low: Number | None = None
    high: Number | None = None

    @property
    def is_interval(self) -> bool:
        """Whether it has a value and both ends."""
        return None not in {self.value, self.low, self.high}

    @classmethod
    def of(cls, estimate: Any) -> Ends:
        """Those of another estimate; unknown without one."""
        return UNKNOWN if estimate is None else cls(estimate.value, estimate.low, estimate.high)

    def under(self, dividend: float) -> Ends:
        """The dividend divided by it."""
        return Ends(*(dividend / one if one else None for one in (self.value, self.high, self.low)))


UNKNOWN = Ends()


@dataclass(frozen=True, slots=True)
class Objective:
    """A quantile of a metric of `CurvePoint.latency` that stays below a bound; `label` for readers: `ttft p95 < 800 ms`."""

    metric: str
    quantile: Quantile
    bound_ms: Number
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One load, its runs pooled. `requests` are those offered, and shares are of these.

    `growth_per_s`: requests/s by which the backlog grows, None where it is stable or was not judged. `latency`: ms by metric,
    failures slowest; ttft and e2e since scheduled. `user_tokens_per_s`: pace of one answer, 1000 / TPOT p50. `prompt_tokens`,
    `output_tokens`: means of a call.
    """

    load: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    runs: tuple[str, ...]
    seconds: Number
    requests: int
    complete: Number
    refused: Ends
    growth_per_s: Number | None
    stable: bool | None
    meets: Outcome
    requests_per_s: Ends
    output_tokens_per_s: Ends
    good_per_s: Ends
    latency: Mapping[str, Mapping[Quantile, Ends]]
    user_tokens_per_s: Ends
    prompt_tokens: Number | None
    output_tokens: Number | None

    def quantile(self, metric: str, quantile: Quantile) -> Ends:
        """A quantile of a metric; unknown where it was not measured."""
        return self.latency.get(metric, {}).get(quantile, UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A whole curve, its points ascending by load: offered requests/s, or requests in flight.

    `knee`: the largest load at which every objective holds; `binds`: what ends it, an objective's label, `refusals` or
    `backlog`. `saturation`: output tokens/s; `saturation_load`: requests/s answered there.
    """

    by: Literal["rate", "concurrency"]
    today: Number | None
    objectives: tuple[Objective, ...]
    points: Annotated[tuple[CurvePoint, ...], Field(min_length=1, max_length=MOST_POINTS)]
    knee: Ends
    binds: str
    saturation: Ends
    saturation_load: Ends
    gpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    scenario: str
    target: str
    model: str

    @property
    def unit(self) -> str:
        """Of its loads."""
        return "requests/s" if self.by == RATE else "requests in flight"


_FACTS: TypeAdapter[Curve] = TypeAdapter(Curve)


def find(path: Path, out: Path) -> Path | None:
    """The report.json that a path means: a file, its folder, or a run id below `out`/reports/; None for a run folder."""
    places = (path / "run.json", path, path / REPORT, out / "reports" / path / REPORT)
    there = [place for place in places if place.suffix == ".json" and refusal(place) is None]
    return None if not there or there[0].name == "run.json" else there[0]


def read(file: Path) -> tuple[Curve, Json]:
    """The curve of a report.json, and that report's contents; UsageError where there is none."""
    try:
        tree = json_tree(read_text(file, LARGEST_JSON), no_number)
    except ValueError as error:
        raise UsageError(f"{file}: {error}: expected the report.json of a load curve") from None
    if not isinstance(tree, dict) or tree.get("kind") != KIND:
        kind = repr(str(tree["kind"])[:40]) if isinstance(tree, dict) and "kind" in tree else "none"
        expected = f"expected {KIND!r}, as `tailgauge run curve` writes it"
        raise UsageError(f"{file}: kind: {expected}, got {kind}; of a run give its folder below runs/")
    try:
        curve = _FACTS.validate_json(json.dumps(tree.get("facts")), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = f"{'.'.join(map(str, ('facts', *first['loc'])))}: {first['msg']}"
        raise UsageError(f"{file}: {why}. Make the report again with `tailgauge run curve`") from None
    if any(one.load >= other.load for one, other in pairwise(curve.points)):
        raise UsageError(f"{file}: facts.points: expected loads in ascending order, each once")
    return curve, tree


# --- for other programs -------------------------------------------------------------------------------------------

CSV, MLPERF = "curve.csv", "curve_mlperf.json"
FILES_NOTE = (
    f"beside report.json: {CSV}, a row per load, and {MLPERF}, the step function of MLPerf Endpoints v1.0"
)
RULES = "MLPerf Endpoints v1.0: https://github.com/mlcommons/endpoints_policies, endpoints_rules.md"
FEWEST_POINTS = 7
ULTRA_LOW, SHORTEST_S = 32, (600, 1200)  # seconds of a point up to so much concurrency, and beyond


def files(curve: Curve) -> TextFiles:
    """Both files."""
    tree = plain_values(_mlperf(curve))
    return (CSV, _csv(curve)), (MLPERF, json.dumps(tree, indent=1, allow_nan=False) + "\n")


def _csv(curve: Curve) -> str:
    """Units stand in the names of the columns; an empty cell is an unknown value."""
    rows = [plain_values(dict(_cells(curve, point))) for point in curve.points]
    out, columns = io.StringIO(), dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(out, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _cells(curve: Curve, point: CurvePoint) -> Iterator[tuple[str, Any]]:
    yield _load(curve), point.load
    yield "duration_s", point.seconds
    yield "requests", point.requests
    yield "complete_share", point.complete
    yield from _ends("refused", "share", point.refused)
    yield "backlog_growth_requests_per_s", point.growth_per_s
    yield "stable", point.stable
    yield "meets", point.meets
    yield from _ends("answered", "requests_per_s", point.requests_per_s)
    yield from _ends("within_slo", "requests_per_s", point.good_per_s)
    yield from _ends("output", "tokens_per_s", point.output_tokens_per_s)
    yield from _ends("user", "tokens_per_s", point.user_tokens_per_s)
    for metric, quantiles in point.latency.items():
        for quantile, ends in quantiles.items():
            yield from _ends(f"{metric}_{quantile}", "ms", ends)
    yield "prompt_tokens_per_call", point.prompt_tokens
    yield "output_tokens_per_call", point.output_tokens
    yield "runs", " ".join(point.runs)


def _ends(name: str, unit: str, ends: Ends) -> Iterator[tuple[str, float | None]]:
    yield f"{name}_{unit}", ends.value
    yield f"{name}_low_{unit}", ends.low
    yield f"{name}_high_{unit}", ends.high


def _load(curve: Curve) -> str:
    return CONCURRENCY if curve.by == CONCURRENCY else "offered_requests_per_s"


def _mlperf(curve: Curve) -> dict[str, Any]:
    return {
        "rules": RULES, "is_mlperf_result": False, "departs_from_rules": list(_departures(curve)),
        "curve": "a step function: from a point to the next it holds the last value",
        "model": curve.model, "target": curve.target, "scenario": curve.scenario, "gpus": curve.gpus,
        "points": [{_load(curve): point.load, **_step(point)} for point in curve.points],
    }  # fmt: skip


def _step(point: CurvePoint) -> dict[str, Any]:
    """A point under the names of the rules; ends of intervals beside them."""
    tpot, system = point.quantile("tpot", "p90"), point.output_tokens_per_s
    user = tpot.under(1000)
    return {
        "system_tps": system.value, "system_tps_low": system.low, "system_tps_high": system.high,
        "tps_per_user": user.value, "tps_per_user_low": user.low, "tps_per_user_high": user.high, "tpot_p90_ms": tpot.value,
        "ttft_p90_ms": point.quantile("ttft", "p90").value,
        "requests": point.requests, "duration_s": point.seconds,
    }  # fmt: skip


def _departures(curve: Curve) -> Iterator[str]:
    """Why MLCommons would not take it."""
    if curve.by != CONCURRENCY:
        yield "measured at fixed rates, not at fixed concurrency: no curve of MLPerf Endpoints"
    yield "the prompts of the scenario, not those of a benchmark; no accuracy runs"
    yield "tokens as the target reports them, not counted with the reference tokenizer"
    yield "TPOT is (last - first content) / (output tokens - 1)"
    if len(curve.points) < FEWEST_POINTS:
        yield f"{plural(len(curve.points), 'point')} of at least {FEWEST_POINTS}"
    short = sum(point.seconds < SHORTEST_S[point.load > ULTRA_LOW] for point in curve.points)
    if short:
        yield f"{plural(short, 'point')} shorter than 600 s, or 1,200 s above a concurrency of {ULTRA_LOW}"
