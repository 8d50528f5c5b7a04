"""The table `[experiment]` of a scenario: which question its runs shall answer, and within which bounds.

Rule: values, bounds and meanings only; `experiments` plans the runs and decides. A scenario with this table is a plain
scenario besides: what it says of traffic and target is what every run of the experiment begins with.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tailgauge.tables import NonNegative, Positive, Share, Table


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


class Experiment(Table):
    """The runs of this scenario are an experiment that answers one question."""

    kind: Literal["headroom"] = Field(description="the question")
    minutes: Annotated[float, Field(gt=0, le=1440)] = Field(
        15.0, description="time for the whole experiment; no run begins that would end later"
    )
    headroom: Headroom = Headroom()
