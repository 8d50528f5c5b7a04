"""The table `[experiment]` of a scenario: the question that its runs answer, and its bounds.

A scenario with this table is a plain scenario besides: every run of the experiment starts from its traffic and target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from tailgauge.table import NonNegative, Positive, Table

# A row an experiment: its planner, which loads pandas, by its place. Its settings are a table of `Experiment`.
EXPERIMENTS = {
    "headroom": "tailgauge.experiments.headroom:HeadroomPlanner",
    "hedging": "tailgauge.experiments.hedging:HedgingPlanner",
    "models": "tailgauge.experiments.models:ModelsPlanner",
    "checkup": "tailgauge.experiments.checkup.plan:CheckupPlanner",
    "curve": "tailgauge.experiments.curve:CurvePlanner",
    "calibrate": "tailgauge.experiments.calibrate:CalibratePlanner",
}
if TYPE_CHECKING:
    ExperimentKind = str
else:
    ExperimentKind = Literal[tuple(EXPERIMENTS)]
ADAPTIVE: Literal["adaptive"] = "adaptive"


def _delay(given: Any) -> float | Literal["adaptive"]:
    """Return one message for both kinds: pydantic's union would tell each by the name of its type."""
    if given == ADAPTIVE:
        return ADAPTIVE
    if type(given) in {int, float} and 0 <= given < math.inf:
        return float(given)
    raise ValueError(f'expected ms, a number >= 0, or "{ADAPTIVE}"')


Delay = Annotated[
    float | Literal["adaptive"],
    PlainValidator(_delay, json_schema_input_type=NonNegative | Literal["adaptive"]),
]


RUN_S = 9.0  # of a real run beside its load: processes, connections, drain, report
REST_S = 60.0  # before a load once a limit was met, if the target keeps state


class Headroom(Table):
    """Sustained rate, binding limit and growth factor."""

    refused: float = Field(0.01, gt=0, le=0.5)
    """allowed share of 429s and overloads at a sustained rate"""
    growth: float = Field(1.25, gt=1, le=2)
    """rate relative to the previous step; doubled without any limit"""
    most: float = Field(20.0, gt=1, le=1000)
    """highest tested rate, relative to arrival.rate_per_s"""
    precision: float = Field(0.05, gt=0, le=0.5)
    """the search ends at this relative gap between a passing and a failing rate"""
    confirm: int = Field(3, ge=1, le=20)
    """runs that confirm the rate at the end"""
    step_s: Positive | None = None
    """measured seconds per level; default: what fits into `minutes`"""
    rest_s: NonNegative = REST_S
    """pause after a limit was met; none at the simulated endpoint"""
    no_429: bool = False
    """one run at today's rate, without 429s; wider interval"""
    need: float = Field(0.0, ge=0, le=1000)
    """required growth factor, else exit code 1"""


class Hedging(Table):
    """Whether hedging helps at today's load, and where it hurts."""

    traffic: str | None = None
    """traffic table to test; default the only one"""
    loads: int = Field(3, ge=1, le=20)
    """runs: today's load, higher ones until hedging hurts, then between"""
    quantile: float | None = Field(None, ge=0.5, lt=1)
    """end-to-end quantile to compare; default p99, or p95 with too few requests"""
    delays_ms: Annotated[tuple[Delay, ...], Field(strict=False)] = ()
    """hedge delays to test, also `"adaptive"`; `[]`: the table's hedge"""
    pairs: int = Field(10, ge=6, le=500)
    """pairs of blocks per load; fewer where blocks must be longer"""
    block_s: Positive | None = None
    """seconds per block, at least 5 end-to-end p99; default: what fits into `minutes`"""


class Model(Table):
    """One model to compare."""

    model: str | None = Field(None, min_length=1)
    """default the traffic's"""
    profile: str | None = Field(None, min_length=1)
    """profile of [simulated], for dry runs and the simulated endpoint"""
    price: Positive = 1.0
    """relative price of input tokens at the simulated endpoint"""


class Models(Table):
    """The cheapest model that meets the objectives."""

    among: Mapping[str, Model] = {}
    """the models to choose from, by names of your own"""
    rounds: int = Field(8, ge=6, le=500)
    """blocks per model"""
    block_s: Positive | None = None
    """seconds per block; default: what fits into `minutes`"""


class Checkup(Table):
    """Diagnosis of an endpoint before launch."""

    quick: bool = False
    """shorter probes: large effects only, in under 3 minutes"""
    burst: float = Field(2.0, gt=1, le=10)
    """burst to handle, relative to `arrival.rate_per_s`"""
    first_ms: Positive = 2000.0
    """longest median time to first content"""
    tokens_per_s: Positive = 20.0
    """lowest median pace"""
    threshold: float = Field(0.1, gt=0, le=10)
    """smallest relative difference of medians that is a finding"""
    skip: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """probes to leave out: `light`, `cached`, `fan_out`, `cancelled`, `loaded`"""


class Curve(Table):
    """Latency and throughput at each load, and the load up to which the objectives hold."""

    by: Literal["rate", "concurrency"] = "rate"
    """loads in requests/s (open loop), or in requests in flight (closed loop)"""
    loads: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    """`[]`: doubled from today's until the target is full, then around the knee"""
    held: Positive | None = None
    """with `loads`: one known to meet the objectives"""
    failed: Positive | None = None
    """with `loads`: one known to fail"""
    points: Annotated[int, Field(ge=3, le=100)] = 7
    """fewest loads, without `loads`"""
    requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """requests per load; by rate it sets the length"""
    refused: float = Field(0.01, gt=0, le=0.5)
    """allowed share of 429s and overloads at the knee"""
    most: Annotated[float, Field(gt=1, le=100_000)] = 256.0
    """highest tested load, relative to today's"""
    step_s: Positive | None = None
    """measured seconds per load; default: what fits into `minutes`"""
    rest_s: NonNegative = REST_S
    """pause after a limit was met; none at the simulated endpoint"""
    gpus: Positive | None = None
    """GPUs of the target, for throughput per GPU"""


class Calibrate(Table):
    """The largest load that this machine can measure."""

    planned: Positive | None = None
    """requests/s to begin with; exit code 1 if not VALID"""
    step_s: Annotated[float, Field(ge=5, le=3600)] = 10.0
    """seconds per load; at least three answers long"""


class Experiment(Table):
    """Several runs that answer one question, in the table named after its `kind`."""

    kind: ExperimentKind
    """the question"""
    minutes: float = Field(15.0, gt=0, le=1440)
    """time for the whole experiment"""
    headroom: Headroom = Headroom()
    hedging: Hedging = Hedging()
    models: Models = Models()
    checkup: Checkup = Checkup()
    curve: Curve = Curve()
    calibrate: Calibrate = Calibrate()

    @model_validator(mode="after")
    def _of_this_kind(self) -> Experiment:
        tables = type(self).model_fields.keys() & EXPERIMENTS.keys()
        self.refuse_unused("kind", {name: {name} for name in tables})
        return self
