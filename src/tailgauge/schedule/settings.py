"""The table `[arrival]` of a scenario: when requests arrive, and by which process.

Times of a shape are shares of the run, so that another duration scales them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tailgauge.table import NonNegative, Positive, Share, Sigma, Table

DEFAULT_RATE = 10.0
MAX_COUNTED = 1_000_000  # requests of a closed loop with a fixed number of requests: all of them are leased at once
MAX_TOKENS = 10_000_000
POISSON = "poisson"
CLOSED = "closed"
TASKS = "tasks"
TRACE = "trace"


Process = Literal["poisson", "constant", "gamma", "on_off", "trace", "closed", "tasks"]
_Point = Annotated[tuple[Share, NonNegative], Field(strict=False)]


class OnOff(Table):
    """Bursts of the process `on_off`: exponential lengths, Poisson arrivals within."""

    on_s: Positive = 5.0
    """mean length of a burst; with a shape, at the mean rate"""
    off_s: Positive = 15.0
    """mean time between bursts"""
    off_share: Share = 0.0
    """rate between bursts, relative to bursts"""


class Shape(Table):
    """How the rate changes over the run; `rate_per_s` remains its mean."""

    kind: Literal["flat", "step", "ramp", "spike", "piecewise"] = "flat"
    """`flat`; `step`: times `factor` from `at` on; `ramp`: linear to `factor`; `spike`: times `factor` for `width` from `at`; `piecewise`: by `points`"""
    at: Share = 0.5
    """position as a share of the run"""
    width: Annotated[float, Field(gt=0, le=1)] = 0.1
    """length as a share of the run"""
    factor: Annotated[float, Field(ge=0, le=1000)] = 2.0
    """rate relative to the rest, or at the end to the start"""
    points: Annotated[tuple[_Point, ...], Field(strict=False)] = ()
    """`[[share of the run, relative rate], ...]`; linear between"""

    @model_validator(mode="after")
    def _used(self) -> Shape:
        self.refuse_unused("kind", _SHAPED_BY)
        if self.kind == "spike" and self.at + self.width > 1 + 1e-9:
            raise ValueError(
                f"at + width ({self.at:g} + {self.width:g}) is beyond the end of the run, 1"
            )
        return self

    @model_validator(mode="after")
    def _points(self) -> Shape:
        if self.kind != "piecewise":
            return self
        times = [position for position, _ in self.points]
        if len(times) < 2 or times[0] != 0 or times[-1] != 1 or times != sorted(times):
            raise ValueError(
                "points: expected at least two, from share 0 to share 1, in order of time"
            )
        if not any(rate > 0 for _, rate in self.points):
            raise ValueError("points: every rate is 0")
        return self


_SHAPED_BY = {
    "at": {"step", "spike"},
    "width": {"spike"},
    "factor": {"step", "ramp", "spike"},
    "points": {"piecewise"},
}


class Trace(Table):
    """A recorded trace to replay, with `process = "trace"`."""

    file: str | None = None
    """CSV or JSONL file, relative to the scenario or the current folder"""
    format: Literal["auto", "azure", "burstgpt", "mooncake", "bailian"] = "auto"
    """`auto`: by the columns"""
    time_unit: Literal["s", "ms"] | None = None
    """unit of times; default by format"""
    speed_up: Positive = 1.0
    """divides times; bursts become steeper"""
    keep_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of rows kept, drawn by the seed; bursts keep their shape"""
    sizes: bool = True
    """sizes from the trace, not from `[traffic]`"""
    blocks: bool = True
    """prompts share prefixes by `hash_ids`; with `sizes` only"""
    block_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    """tokens per block; default 512 (`mooncake`) or 16 (`bailian`)"""


class Closed(Table):
    """Users who wait for answers and think, with `process = "closed"`."""

    users: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """over all workers; started over the first half of the warm-up"""
    think_s: NonNegative = 1.0
    """median time from answer to next request"""
    think_sigma: Sigma = 0.0
    """lognormal sigma; 0: constant"""
    requests: Annotated[int, Field(ge=1, le=MAX_COUNTED)] | None = None
    """total, within `stages.duration_s`; default: as many as fit"""


class Arrival(Table):
    """When requests arrive. Open loop, unless `closed` or `tasks`."""

    process: Process = "poisson"
    """`poisson`: independent; `constant`: equal gaps; `gamma`: gaps by `cv`; `on_off`: bursts; `trace`: recorded; `closed`: users who wait; `tasks`: of a locustfile"""
    rate_per_s: Positive | None = None
    """mean arrivals per second, all workers; default 10 or the trace's; not in closed loops"""
    cv: Annotated[float, Field(ge=0.001, le=50)] = 1.0
    """`gamma`: coefficient of variation of gaps; 1 is Poisson"""
    on_off: OnOff = OnOff()
    shape: Shape = Shape()
    trace: Trace = Trace()
    closed: Closed = Closed()
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """most requests in flight, all workers; others wait for a slot; default unlimited"""

    @model_validator(mode="after")
    def _consistent(self) -> Arrival:
        if not self.is_open and self.rate_per_s is not None:
            of_users = "closed.users and closed.think_s"
            of_tasks = "Locust's -u and wait_time"
            keys = of_users if self.process == CLOSED else of_tasks
            raise ValueError(f"rate_per_s: a closed loop has no rate: set {keys}")
        if self.process == TRACE and self.trace.file is None:
            raise ValueError('trace.file: expected the path of a trace, for process = "trace"')
        if self.process == TRACE and self.rate_per_s is not None and self.trace.speed_up != 1:
            raise ValueError(
                "rate_per_s and trace.speed_up both scale the trace's time: give one of them"
            )
        self.refuse_unused("process", _USED_BY)
        return self

    @property
    def rate(self) -> float | None:
        """Mean arrivals per second, defaults applied; None where the process decides."""
        if self.process in {CLOSED, TASKS, TRACE}:
            return self.rate_per_s
        return DEFAULT_RATE if self.rate_per_s is None else self.rate_per_s

    @property
    def load(self) -> str:
        """Return the offered load as text: `50 requests/s`, `10 users`, `trace`."""
        if self.process == CLOSED:
            users = f"{self.closed.users:,} users"
            if self.closed.requests is None:
                return users
            return f"{self.closed.requests:,} requests of {users}"
        load: str = self.process
        if self.rate is not None:
            load = f"{self.rate:,.4g} request{'' if self.rate == 1 else 's'}/s"
        if self.max_concurrency is None:
            return load
        return f"{load}, {self.max_concurrency:,} at once"

    @property
    def is_open(self) -> bool:
        """Return whether arrivals do not wait for responses."""
        return self.process not in {CLOSED, TASKS}

    @property
    def is_counted(self) -> bool:
        """Return whether a closed loop sends a number of requests and ends."""
        return self.process == CLOSED and self.closed.requests is not None

    @property
    def is_planned(self) -> bool:
        """Return whether it is known before the run how many requests there will be."""
        return self.is_open or self.is_counted


_USED_BY = {
    "cv": {"gamma"},
    "on_off": {"on_off"},
    "shape": {"poisson", "constant", "gamma", "on_off"},
    "trace": {TRACE},
    "closed": {CLOSED},
    "max_concurrency": {"poisson", "constant", "gamma", "on_off", TRACE},
}


class Crossover(Table):
    """A/B comparison of two traffic tables in alternating blocks of one run."""

    a: str
    """traffic table of variant A"""
    b: str
    """traffic table of variant B"""
    block_s: Positive = 60.0
    """seconds per block; the first begins with the steady stage"""
    washout_s: NonNegative = 10.0
    """seconds excluded at the start of each block"""
    threshold: Positive = 0.05
    """a change is worse or better only if it is larger than this share"""
    gateway: bool = False
    """the second target, of variant B, is a gateway before the first; [second_target] inherits from [target] all but url, api_key_env, auth_header and headers"""

    @model_validator(mode="after")
    def _two(self) -> Crossover:
        if self.a == self.b:
            raise ValueError("a and b must be two traffic tables")
        if self.washout_s >= self.block_s:
            raise ValueError("washout_s must be shorter than block_s")
        return self
