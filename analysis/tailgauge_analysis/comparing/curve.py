"""A load curve: what a target does at each load, the load up to which its objectives hold, and where it saturates.

Here are its data: the finding of the experiment `curve`, which are also the facts of its report.json, from which `read` takes them.
Measuring it is the experiment's; it is drawn in curve_pictures.py and two are compared in curves.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from tailgauge.errors import UsageError
from tailgauge.rows.text_file import LARGEST_JSON, json_tree, no_number, read_text, refusal
from tailgauge_analysis.text.json_values import Json

KIND = "curve"
REPORT = "report.json"
MOST_POINTS = 1000
RATE = "rate"
CONCURRENCY = "concurrency"

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
CurveQuantile = Annotated[str, Field(pattern=r"^p[0-9]{1,2}(\.[0-9]+)?$")]
CurveOutcome = Literal["PASS", "FAIL", "INCONCLUSIVE"]


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
        """Return those of another estimate; unknown without one."""
        if estimate is None:
            return UNKNOWN
        return cls(estimate.value, estimate.low, estimate.high)

    def under(self, dividend: float) -> Ends:
        """Return the dividend divided by it."""
        return Ends(
            value=_quotient(dividend, self.value),
            low=_quotient(dividend, self.high),
            high=_quotient(dividend, self.low),
        )


def _quotient(dividend: float, divisor: float | None) -> float | None:
    if not divisor:
        return None
    return dividend / divisor


UNKNOWN = Ends()


@dataclass(frozen=True, slots=True)
class CurveObjective:
    """A quantile of a metric of `CurvePoint.latency` that stays below a bound; `label` for readers: `ttft p95 < 800 ms`."""

    metric: str
    quantile: CurveQuantile
    bound_ms: Number
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One load, its runs pooled. `requests` are those offered, and shares are of these. `meets_with`: the loads whose requests
    were needed beside its own to decide `meets`.

    `growth_per_s`: requests/s by which the backlog grows, None where it is stable or was not judged. `latency`: ms by metric,
    failures slowest; ttft and e2e since scheduled. `user_tokens_per_s`: pace of one answer, 1000 / TPOT p50. `prompt_tokens`,
    `output_tokens`: means of a call.
    """

    load: Positive
    runs: tuple[str, ...]
    seconds: Number
    requests: int
    complete: Number
    refused: Ends
    growth_per_s: Number | None
    stable: bool | None
    meets: CurveOutcome
    meets_with: tuple[Number, ...] = ()
    requests_per_s: Ends
    output_tokens_per_s: Ends
    good_per_s: Ends
    latency: Mapping[str, Mapping[CurveQuantile, Ends]]
    user_tokens_per_s: Ends
    prompt_tokens: Number | None
    output_tokens: Number | None

    def quantile(self, metric: str, quantile: CurveQuantile) -> Ends:
        """Return a quantile of a metric; unknown where it was not measured."""
        return self.latency.get(metric, {}).get(quantile, UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A whole curve, its points ascending by load: offered requests/s, or requests in flight.

    `knee`: the largest load at which every objective holds; `binds`: what ends it, an objective's label, `refusals` or
    `backlog`. `saturation`: output tokens/s; `saturation_load`: requests/s answered there.
    """

    by: Literal["rate", "concurrency"]
    today: Number | None
    objectives: tuple[CurveObjective, ...]
    points: Annotated[tuple[CurvePoint, ...], Field(min_length=1, max_length=MOST_POINTS)]
    knee: Ends
    binds: str
    saturation: Ends
    saturation_load: Ends
    gpus: Positive | None
    scenario: str
    target: str
    model: str

    @property
    def unit(self) -> str:
        """Of its loads."""
        return "requests/s" if self.by == RATE else "requests in flight"


_FACTS: TypeAdapter[Curve] = TypeAdapter(Curve)


def find(path: Path, out: Path) -> Path | None:
    """Return the report.json that a path means: a file, its folder, or a run id below `out`/reports/; None for a run folder."""
    if refusal(path / "run.json") is None:
        return None
    for place in (path, path / REPORT, out / "reports" / path / REPORT):
        if place.suffix == ".json" and refusal(place) is None:
            return place
    return None


def read(file: Path) -> tuple[Curve, Json]:
    """Return the load curve of a report.json, and all of that report; UsageError if it is no valid report of a curve.

    The curve is in `facts`, whose types are checked strictly; its loads must ascend.
    """
    try:
        tree = json_tree(read_text(file, LARGEST_JSON), no_number)
    except ValueError as error:
        raise UsageError(f"{file}: {error}: expected the report.json of a load curve") from None
    kind = None
    if isinstance(tree, dict):
        kind = tree.get("kind")
    if kind != KIND:
        description = "none"
        if kind is not None:
            description = repr(str(kind)[:40])
        expected = f"expected {KIND!r}, as `tailgauge run curve` writes it"
        raise UsageError(
            f"{file}: kind: {expected}, got {description}; of a run give its folder below runs/"
        )
    try:
        curve = _FACTS.validate_json(json.dumps(tree.get("facts")), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, ("facts", *problem["loc"])))
        again = "Make the report again with `tailgauge run curve`"
        raise UsageError(f"{file}: {key}: {problem['msg']}. {again}") from None
    if any(point.load >= following.load for point, following in pairwise(curve.points)):
        raise UsageError(f"{file}: facts.points: expected loads in ascending order, each once")
    return curve, tree
