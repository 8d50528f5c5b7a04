"""The verdict: may these numbers be used?

It is the worst of the reasons that the checks (checks.py) give: INVALID (do not use), DEGRADED (use knowing why), VALID. Whether
the target is good is the matter of objectives/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from tailgauge.thresholds import VALID, WORST_FIRST
from tailgauge_analysis.metrics.latency import Row
from tailgauge_analysis.metrics.stability import Stability
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.json_values import one_of
from tailgauge_analysis.verdict.client_error import ClientError
from tailgauge_analysis.verdict.conservation import Conservation
from tailgauge_analysis.verdict.stalls import BadSeconds
from tailgauge_analysis.verdict.timestamps import Stamps
from tailgauge_analysis.verdict.workers import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the checks judge: the steady stage, and what is computed of it; `warmup`: the stage before it, if objectives need it."""

    frames: Frames
    steady: Steady
    without_slow_readers: Steady
    warmup: Steady | None
    throughput: Throughput
    stability: Stability
    conservation: Conservation
    stamps: Stamps
    workers: list[Worker]
    bad: BadSeconds
    latency: list[Row]
    errors: list[ClientError]
    users_share: float | None
    """of their time in which the users of a closed loop waited for the client"""

    @property
    def used_errors(self) -> list[ClientError]:
        """Return those of the figures that the report shows first, or that an objective bounds."""
        return [error for error in self.errors if error.is_used]


@dataclass(frozen=True, slots=True)
class Fault:
    """What a check found: the verdict that it forces, and the problem. `advice` takes the place of the check's."""

    verdict: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not VALID, and what to do."""

    check: str
    verdict: Annotated[str, one_of(*WORST_FIRST)]
    text: str
    advice: str


def always(_evidence: Evidence) -> bool:
    """Return whether a check has a meaning that has one for every run."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A row of the table of trust.

    `figures` are wrong by the error that `passes_if` bounds: DEGRADED beyond it, or as its parenthesis says. `cause`: what
    usually brings it about. `applies`: whether it has a meaning for a run.
    """

    name: str
    figures: str
    passes_if: str
    cause: str
    advice: str
    judge: Callable[[Evidence], Fault | None]
    applies: Callable[[Evidence], bool] = always


def reasons(checks: Sequence[Check], evidence: Evidence) -> list[Reason]:
    """Return one for each failed check, worst first."""
    failed = []
    for check in checks:
        if not check.applies(evidence):
            continue
        fault = check.judge(evidence)
        if fault is not None:
            failed.append(
                Reason(check.name, fault.verdict, fault.text, fault.advice or check.advice)
            )
    return sorted(failed, key=lambda reason: WORST_FIRST.index(reason.verdict))


def worst(failures: Sequence[Reason]) -> str:
    """Return the worst verdict of the reasons."""
    if not failures:
        return VALID
    return failures[0].verdict
