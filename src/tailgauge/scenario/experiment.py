"""The table `[experiment]` of a scenario: which question its runs shall answer, and within which bounds.

Rule: values, bounds and meanings only; `experiments` plans the runs and decides. A scenario with this table is a plain
scenario besides: what it says of traffic and target is what every run of the experiment begins with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tailgauge.table import NonNegative, Positive, Share, Table

KINDS = ("headroom", "hedging", "models", "checkup")


class Headroom(Table):
    """Which rate is sustained, which limit binds, and how much the traffic may grow; with `kind = "headroom"`."""

    refused: Annotated[float, Field(gt=0, le=0.5)] = Field(
        0.01,
        description="a rate is sustained while fewer than this share of the calls get a 429 or an overload",
    )
    good: Share = Field(
        0.0,
        description="and while at least this share of the requests meets every objective of [slo]; 0: no such bound",
    )
    growth: Annotated[float, Field(gt=1, le=2)] = Field(
        1.25,
        description="from one level of the ramp to the next; towards a limit that headers name it is up to twice a minute",
    )
    most: Annotated[float, Field(gt=1, le=1000)] = Field(
        20.0, description="highest rate tried, relative to arrival.rate_per_s"
    )
    precision: Annotated[float, Field(gt=0, le=0.5)] = Field(
        0.05, description="how far, relatively, pass and fail end on either side of the sustainable rate"
    )
    confirm: Annotated[int, Field(ge=1, le=20)] = Field(
        3, description="runs that confirm each side at the end"
    )
    level_s: Positive | None = Field(
        None, description="seconds of a level; default so that all of them fit into `minutes`"
    )
    rest_s: NonNegative = Field(
        60.0,
        description="quiet seconds between two levels, in which limits fill up again; not at the simulated endpoint, which begins anew",
    )
    quiet: bool = Field(
        False,
        description="one run at today's rate and no 429 wanted: headers and usage alone, a wider interval",
    )
    need: Annotated[float, Field(ge=0, le=1000)] = Field(
        0.0, description="growth factor that there must be room for; less is exit code 1"
    )


class Hedging(Table):
    """Below which load hedging helps and above which it hurts; with `kind = "hedging"`."""

    traffic: str | None = Field(
        None, description="the table of [traffic] whose `hedge` is tested; default the only one that hedges"
    )
    sustainable_per_s: Positive | None = Field(
        None, description="rate that `loads` are relative to; default it is looked for first"
    )
    loads: Annotated[tuple[Annotated[float, Field(gt=0, le=2)], ...], Field(strict=False, min_length=1)] = (
        Field(
            (0.3, 0.45, 0.6, 0.75, 0.85, 0.95, 1.05),
            description="loads tried, relative to the sustainable rate",
        )
    )
    quantile: Annotated[float, Field(ge=0.5, lt=1)] | None = Field(
        None,
        description="of the end-to-end times, which is compared; default the p99, or the p95 where an arm has too few requests",
    )
    delays_ms: Annotated[tuple[NonNegative, ...], Field(strict=False)] = Field(
        (),
        description="hedge delays tried at the lowest load first, the best of which is used; `[]`: the table's own",
    )
    more_loads: Annotated[int, Field(ge=0, le=10)] = Field(
        2, description="loads added close to the crossover when it is roughly known"
    )
    pairs: Annotated[int, Field(ge=6, le=500)] = Field(
        10, description="pairs of blocks, off and on, at each load"
    )
    block_s: Positive | None = Field(
        None, description="seconds of a block; default so that all of them fit into `minutes`"
    )
    washout_s: NonNegative | None = Field(
        None,
        description="start of each block that does not count; default an end-to-end p99, at most a third of the block",
    )


class Model(Table):
    """One model of the choice."""

    model: str | None = Field(None, min_length=1, description="as it is asked for; default the traffic's own")
    profile: str | None = Field(
        None,
        min_length=1,
        description="profile of [simulated] that stands in for it, in a rehearsal and at the simulated endpoint",
    )
    price: Positive = Field(
        1.0,
        description="what a token of input costs at the simulated endpoint, which knows no currency, relative to the others",
    )


class Models(Table):
    """Which models meet the objectives of [slo], at which cost; with `kind = "models"`."""

    among: Mapping[str, Model] = Field({}, description="the models to choose from, by names of your own")
    rounds: Annotated[int, Field(ge=6, le=500)] = Field(8, description="blocks of each model")
    block_s: Positive | None = Field(
        None, description="seconds of a block; default so that all of them fit into `minutes`"
    )


class Checkup(Table):
    """What ails an endpoint before a launch; with `kind = "checkup"`."""

    quick: bool = Field(False, description="shorter probes: large effects only, in under 3 minutes")
    legs: Annotated[int, Field(ge=2, le=1000)] = Field(
        8, description="calls of one request that the fan-out probe sends"
    )
    burst: Annotated[float, Field(gt=1, le=10)] = Field(
        2.0, description="a burst that must be borne, relative to arrival.rate_per_s"
    )
    first_ms: Positive = Field(
        2000.0, description="a first content that comes later in the median is a finding"
    )
    tokens_per_s: Positive = Field(
        20.0, description="answers that flow more slowly, in the median, are a finding"
    )
    threshold: Annotated[float, Field(gt=0, le=10)] = Field(
        0.1, description="smallest difference between two medians worth a finding: 0.1 is 10%"
    )
    skip: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="probes to leave out: `light`, `cached`, `fan_out`, `cancelled`, `loaded`"
    )


class Experiment(Table):
    """The runs of this scenario are an experiment that answers one question."""

    kind: Literal["headroom", "hedging", "models", "checkup"] = Field(description="the question")
    minutes: Annotated[float, Field(gt=0, le=1440)] = Field(
        15.0, description="time for the whole experiment; no run begins that would end later"
    )
    headroom: Headroom = Headroom()
    hedging: Hedging = Hedging()
    models: Models = Models()
    checkup: Checkup = Checkup()

    @model_validator(mode="after")
    def _of_this_kind(self) -> Experiment:
        for name in KINDS:
            if name != self.kind and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: has no meaning with kind = {self.kind!r}")
        return self
